"""The benchmark of an update, and the comparison with other libraries."""

from __future__ import annotations

import importlib.util
import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from helpers.products import counted_products
from helpers.training_runs import quiet

from benchmark.parts import arithmetic, bare, learner
from benchmark.parts.learner import LADDER, PLAIN, TRAINER, Side, measure
from benchmark.peers import compare
from benchmark.peers.side import PEERS
from benchmark.peers.window import Window
from benchmark.peers.workloads import TASKS
from lrl.bench.measure import compared, write
from lrl.bench.workloads import WORKLOADS, make_batch
from lrl.learner.bootstrap import ask_target
from lrl.learner.dqn import DQN
from lrl.networks import onednn_products

pytestmark = quiet


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_an_update(name):
    workload = WORKLOADS[name]
    agent = DQN(workload.encoder, workload.head, env_spec=workload.spec)
    batch = make_batch(workload, seed=0)
    loss = agent.updater.losses(batch).loss
    loss.backward()
    assert loss > 0
    assert len(batch.action) == workload.batch_size
    assert not batch.observation.equal(make_batch(workload, seed=1).observation)


def test_learning_alone_has_large_products_made_by_onednn(monkeypatch):
    calls = counted_products(monkeypatch)
    workload = WORKLOADS["nature"]
    agent, batch = learner.make_module(workload, Side()), make_batch(workload, seed=0)
    agent.act(batch.observation)
    assert len(calls) == 0
    with onednn_products():
        ask_target(agent.bootstrap, agent.target, batch, batch)
    assert len(calls) == 1  # of the target network, for both batches
    agent.updater.losses(batch).loss.backward()
    assert len(calls) == 1 + 2 + 2  # of both networks, and of two gradients
    bare.train(PLAIN["nature"](), [batch])
    assert len(calls) == 5 + 4
    learner.set_up(Side(onednn=False, keeps_memory=False))
    agent.updater.losses(batch).loss.backward()
    assert len(calls) == 9


@pytest.mark.parametrize("name", PLAIN)
def test_plain_torch_learns_the_same(name):
    workload = WORKLOADS[name]
    torch.manual_seed(0)  # a gradient that rounding turns round moves a small layer far
    agent, plain = learner.make_module(workload, Side()), PLAIN[name]()
    plain.load_state_dict(dict(zip(plain.state_dict(), agent.online.parameters(), strict=True)))
    before = [parameter.detach().clone() for parameter in plain.parameters()]
    batches = [make_batch(workload, seed) for seed in range(3)]
    bare.train(plain, batches)
    optimizer = agent.configure_optimizers()
    for batch in batches:
        optimizer.zero_grad()
        agent.updater.losses(batch).loss.backward()
        optimizer.step()
    for ours, theirs, first in zip(
        agent.online.parameters(), plain.parameters(), before, strict=True
    ):
        assert not first.equal(theirs)
        # Adam's first steps are as long for small gradients as for large ones, up to their signs.
        assert (ours - theirs).abs().mean() < 0.02 * (first - theirs).abs().mean()


def test_sides_differ_by_what_they_are_called():
    assert len(set(LADDER.values())) == len(LADDER)
    assert len(set(TRAINER.values())) == len(TRAINER)


@pytest.mark.slow
def test_a_loop_and_the_trainer_make_the_same_updates(tmp_path):
    sides = {
        "raw": Side(),
        "trainer": Side(trainer=True),
        "several": Side(trainer=True, updates_per_step=4),
    }
    found = measure("mlp", sides, updates=8, rounds=2)
    assert [one.name for one in found] == list(sides)
    assert all(len(one.values) == 2 and min(one.values) > 0 for one in found)
    assert [one.ratio is None for one in found] == [True, False, False]
    write(tmp_path / "found.json", found)
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["machine"]["torch"] == learner.torch.__version__
    assert written["measurements"][0]["values"] == list(found[0].values)


def test_ratios_are_of_neighbouring_rounds():
    # The machine is twice as slow in the second round; the medians alone would say 1.5.
    found = compared("what", "ms", {"one": [1.0, 2.0, 1.0], "other": [1.5, 3.0, 3.0]}, "one")
    assert [one.ratio for one in found] == [None, 1.5]


# --- Windows --------------------------------------------------------------------------------


def test_a_window_begins_late_and_counts_what_is_in_it(tmp_path, monkeypatch):
    now = iter([0.0, 1.0, 3.0, 6.0])
    monkeypatch.setattr("benchmark.peers.window.time.perf_counter", lambda: next(now))
    window = Window(tmp_path / "pace.json", first_env_step=100, seconds=5.0)
    assert not window.is_over(99, 10)
    assert not window.is_over(110, 20)  # from here
    assert not window.is_over(150, 40)
    assert not (tmp_path / "pace.json").exists()
    assert window.is_over(210, 45)
    pace = json.loads((tmp_path / "pace.json").read_text())
    assert pace["env_steps_per_second"] == 20.0
    assert pace["updates_per_second"] == 5.0
    assert pace["peak_bytes"] > 10**7


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("side", compare.SIDES)
def test_every_side_has_a_command(tmp_path, task, side):
    command = compare.command(side, task, tmp_path / "pace.json", 1.0)
    assert str(tmp_path / "pace.json") in " ".join(command)
    assert command[1:3] == ["-m", "lrl" if side.startswith("lrl") else "benchmark.peers.side"]
    assert command[len(command) - len(compare.SIDES[side]) :] == compare.SIDES[side]
    files = [value for word, value in pairwise(command) if word == "--config"]
    assert all(Path(file).is_file() for file in files)


@pytest.mark.parametrize("module", PEERS.values())
def test_every_other_library_has_a_module(module):
    assert importlib.util.find_spec(module) is not None


@pytest.mark.slow
def test_lrl_is_measured_at_the_ratio_of_the_task():
    pace = compare.measure("lrl", "cartpole", seconds=1.0)
    ratio = pace["env_steps_per_second"] / pace["updates_per_second"]
    assert ratio == pytest.approx(TASKS["cartpole"].train_period, rel=0.01)


def test_what_a_side_said_is_shown_if_it_gives_no_figure(monkeypatch):
    monkeypatch.setattr(compare, "command", lambda *_: ["sh", "-c", "echo no such library"])
    with pytest.raises(RuntimeError, match="sb3 gave no figure:\nno such library"):
        compare.measure("sb3", "pong", 1.0)


def test_ways_to_calculate_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    arithmetic.main(["--rounds", "1", "--times", "1", "--before", "1"])
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    sides = [side for _, side, *_ in lines if "side" not in side and "-" not in side]
    assert sides == ["two products", "a noisy weight"] * 12 + ["denormals", "taken as 0"]
