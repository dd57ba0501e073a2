"""Lightning's Trainer on a pretended GPU: what a learner step waits for, copies and launches."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.heads import HEADS
from helpers.training_runs import AfterEachStep, Run, make_run, quiet, small_agent, small_data

from lrl import DQN, ActorLearnerCallback, EnvConfig, ReplayConfig
from lrl.doctor.command import doctor
from lrl.doctor.gpu_ready import notes_of_steps
from lrl.doctor.pretended_gpu import Note
from lrl.learner.bootstrap import DoubleBootstrap, MaxBootstrap, MunchausenBootstrap
from lrl.learner.updater import Losses
from lrl.networks import (
    GRUCore,
    LSTMCore,
    MLPEncoder,
)
from lrl.replay import PrioritizedSampler, RankSampler, SequenceConfig, UniformSampler
from lrl.types import Batch, ConfigError

pytestmark = [*quiet, pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")]

SAMPLERS: dict[str, Any] = {
    "uniform": UniformSampler, "prioritised": PrioritizedSampler, "rank": RankSampler
}  # fmt: skip
RULES: list[Any] = [MaxBootstrap, DoubleBootstrap, MunchausenBootstrap]


ADAM = functools.partial(torch.optim.Adam, lr=2**-10, fused=True)  # the same in 32 and 64 bits


@dataclass
class OnGpu:
    """A run on a pretended GPU; what was noted in each training step but the first ones."""

    run: Run
    steps: list[list[Note]]


def train(
    folder: Path, module: Any = None, *callbacks: L.Callback, max_steps: int = 16, **settings: Any
) -> OnGpu:
    data = settings.pop("data", {"replay": ReplayConfig(2000, batch_size=8)})
    runs: list[Run] = []

    def fit(ends: L.Callback, strategy: Any) -> None:
        run = make_run(
            folder,
            *(callbacks or (ActorLearnerCallback(1000, 0, 0),)),
            ends,
            module=module or small_agent(optimizer=ADAM),
            data=small_data(**data),
            max_steps=max_steps,
            accelerator="auto",
            strategy=strategy,
            **{"log_every_n_steps": 1000, **settings},
        )
        runs.append(run.fit())

    steps = notes_of_steps(fit)
    assert runs[0].trainer.global_step == max_steps
    return OnGpu(runs[0], steps)


def counted(notes: list[Note]) -> Counter[str]:
    return Counter(note.kind for note in notes if note.kind != "kernel")


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("head", HEADS)
def test_a_learner_step_reads_nothing_and_copies_once(tmp_path: Path, head: str, sampler: str):
    """Losses and priorities come back late; then the copy is older than a learner step."""
    cell = list(HEADS).index(head) + list(SAMPLERS).index(sampler)
    rule, updates = RULES[cell % 3], 1 + cell % 2
    agent = small_agent(head=HEADS[head], bootstrap=rule, updates_per_step=updates, optimizer=ADAM)
    found = train(
        tmp_path,
        agent,
        data={"replay": ReplayConfig(2000, batch_size=8, sampler=SAMPLERS[sampler])},
    )
    back = updates + (sampler != "uniform")
    for step in found.steps:
        assert counted(step) == {"to_device": updates, "to_host": back, "wait": back}
        kernels = sum(note.kind == "kernel" for note in step)
        assert min(note.age for note in step if note.kind == "wait") >= kernels


KERNELS = {"scalar": 49, "dueling": 248, "categorical": 77, "quantile": 59, "implicit": 87}
"""Operations of a learner step that are no views, with a network of two layers."""


@pytest.mark.parametrize("head", HEADS)
def test_a_learner_step_launches_no_more_than_it_did(tmp_path: Path, head: str):
    found = train(tmp_path, small_agent(head=HEADS[head], optimizer=ADAM))
    counts = [sum(note.kind == "kernel" for note in step) for step in found.steps]
    assert sorted(set(counts)) == [KERNELS[head], KERNELS[head] + 1]  # a step moves the target


@pytest.mark.parametrize(
    ("head", "updates"), [*((head, 1) for head in HEADS), ("scalar", 4), ("implicit", 4)]
)
def test_a_captured_step_is_one_launch_and_learns_the_same(
    tmp_path: Path, monkeypatch, head: str, updates: int
):
    """Its columns go into memory of its own, and five results out of it."""
    monkeypatch.setattr("lrl.learner.updater._ROWS_ASKED_AT_ONCE", 8)  # IQN draws for each batch
    replay = ReplayConfig(2000, batch_size=8, sampler=PrioritizedSampler)
    weights = []
    for updater in ("eager", "captured"):
        torch.manual_seed(0)
        agent = small_agent(
            head=HEADS[head], optimizer=ADAM, updater=updater, updates_per_step=updates
        )
        found = train(tmp_path, agent, data={"replay": replay}, seed=None, max_steps=16 * updates)
        weights.append({name: tensor.cpu() for name, tensor in agent.state_dict().items()})
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    for step in found.steps:
        assert counted(step) == {"to_device": updates, "to_host": updates + 1, "wait": updates + 1}
        launches = Counter(note.what for note in step if note.kind == "kernel")
        assert launches["graph"] == updates
        assert launches.total() <= 8 * updates + 3  # priorities are joined, the target may move


def test_rows_of_a_replay_on_the_gpu_go_there_once(tmp_path: Path):
    """Each chunk in one copy, and of a batch what the host knows of it."""
    replay = ReplayConfig(2000, batch_size=8, sampler=PrioritizedSampler, device="cuda")
    found = train(tmp_path, data={"replay": replay})
    for step in found.steps:
        assert "read" not in counted(step)
        assert counted(step)["to_device"] <= 1 + 2  # of a batch and at most two chunks


@pytest.mark.parametrize("updater", ["eager", "captured"])
def test_with_the_index_there_no_batch_and_no_priority_crosses(tmp_path: Path, updater: Any):
    """Of a chunk the frames are one copy, and what the index has to know of its rows another."""
    replay = ReplayConfig(
        2000, batch_size=8, sampler=PrioritizedSampler, device="cuda", index="device"
    )
    agent = small_agent(optimizer=ADAM, updater=updater, updates_per_step=4)
    found = train(tmp_path, agent, data={"replay": replay}, max_steps=64)
    assert len(found.steps) > 8
    for step in found.steps:
        counts = counted(step)
        assert counts.keys() <= {"to_device", "to_host", "wait"}
        assert counts["to_host"] == counts["wait"] == 4  # the looks for NaN
        assert counts["to_device"] <= 2 * 8  # in synchronous mode a chunk is two rows
        kernels = Counter(note.what for note in step if note.kind == "kernel")
        assert kernels["graph"] == (4 if updater == "captured" else 0)


@pytest.mark.parametrize("core", [GRUCore, LSTMCore])
def test_sequences_are_learnt_from_without_a_read(tmp_path: Path, core: Any):
    sequences = SequenceConfig(length=6, overlap=3, burn_in=2)
    agent = small_agent(core=functools.partial(core, hidden_size=4), optimizer=ADAM)
    replay = ReplayConfig(2000, batch_size=8, sequences=sequences)
    recall = EnvConfig("lrl/Recall-v0", {"delay": 2})
    found = train(tmp_path, agent, data={"env": recall, "replay": replay})
    for step in found.steps:
        assert "read" not in counted(step)
        assert counted(step)["to_device"] <= 9  # a batch, and where episodes begin


def test_what_is_done_now_and_then_is_one_copy_each(tmp_path: Path):
    found = train(tmp_path, None, ActorLearnerCallback(1000, 0, 8), log_every_n_steps=5)
    reads = {
        step: [note.where.rpartition("/")[2].partition(":")[0] for note in notes]
        for step, notes in enumerate(([n for n in s if n.kind == "read"] for s in found.steps), 6)
        if notes
    }
    weights_are_looked_at, saved = "guard.py", "device_copies.py"
    logged = [saved]
    assert reads == {6: logged, 9: [weights_are_looked_at, saved], 11: logged, 16: logged}


class Reading(DQN):
    """Each of its ways makes the host wait, somewhere in the loss."""

    way = ""

    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        reward = batch.reward
        match self.way:
            case "item":
                losses.loss.item()
            case "branch":
                losses = losses if losses.loss < 1e9 else losses._replace(loss=losses.loss * 0)
            case "flags":
                reward[batch.discount > 0].sum()
            case "cpu":
                reward.cpu()
            case "number":
                torch.tensor([0.5, 1.0], device=reward.device)
            case _:
                raise AssertionError(self.way)
        return losses


@pytest.mark.parametrize("way", ["item", "branch", "flags", "cpu", "number"])
def test_an_agent_that_reads_is_found_with_its_line(tmp_path: Path, way: str):
    agent = Reading(encoder=functools.partial(MLPEncoder, hidden_sizes=(16,)), optimizer=ADAM)
    agent.way = way
    for step in train(tmp_path, agent).steps:
        assert [note.where.partition(":")[0] for note in step if note.kind == "read"] == [__file__]


def test_nothing_that_is_learnt_moves_in_memory(tmp_path: Path):
    """As a graph that was captured once needs it: over evaluation, saving and publishing."""
    seen: list[dict[str, int]] = []

    def look(trainer: L.Trainer, batch: Any) -> None:
        module: Any = trainer.lightning_module
        tensors = dict(module.state_dict())
        state = trainer.optimizers[0].state
        for index, parameter in enumerate(module.online.parameters()):
            tensors |= {f"{index}.{name}": value for name, value in state[parameter].items()}
        seen.append({name: tensor.host.data_ptr() for name, tensor in tensors.items()})

    found = train(tmp_path, None, ActorLearnerCallback(1000, 5, 5), AfterEachStep(look))
    assert len(seen) == found.run.trainer.global_step
    assert all(addresses == seen[0] for addresses in seen)


# --- lrl doctor -------------------------------------------------------------------------------


class Plain(DQN):
    """One of a user's, without a fault."""


class Peeking(DQN):
    """One of a user's that looks at its loss."""

    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        return losses._replace(loss=losses.loss * min(1.0, losses.loss.item()))


def test_the_doctor_finds_nothing_in_a_sound_agent(capsys):
    doctor(f"{__name__}.Plain")
    assert "never waits for the GPU: a learner step launches 6" in capsys.readouterr().out


def test_the_doctor_names_the_line_that_waits():
    words = rf"Peeking waits .*_local_scalar_dense.* at {__file__}:\d+ \(1 in a step\)"
    with pytest.raises(ConfigError, match=words):
        doctor(f"{__name__}.Peeking")


class Forgetful(DQN):
    """One of a user's that leaves a constant on the host."""

    def compute_loss(self, batch: Batch, next_values: Any) -> Losses:
        losses = super().compute_loss(batch, next_values)
        return losses._replace(loss=(losses.td.loss * torch.ones(len(batch.action))).mean())


def test_the_doctor_names_the_line_that_mixes_devices():
    words = rf"Forgetful cannot learn .*: aten.mul.Tensor at {__file__}:\d+: some .*cuda:0.*cpu"
    with pytest.raises(ConfigError, match=words):
        doctor(f"{__name__}.Forgetful")


class Together(DQN):
    """Makes several learner steps in a training step."""

    def __init__(self) -> None:
        super().__init__(updates_per_step=3)


class Captured(Peeking):
    """Would be captured, and cannot be."""

    def __init__(self) -> None:
        super().__init__(optimizer=ADAM, updater="captured")


class Needing(DQN):
    """Has no defaults."""

    def __init__(self, needed: int) -> None:
        super().__init__()


def test_agents_of_all_kinds_are_looked_at(capsys):
    doctor("lrl.DQN")
    of_one = capsys.readouterr().out
    doctor(f"{__name__}.Together", learner_steps=6)
    of_three = capsys.readouterr().out
    launched = [float(re.findall(r"launches ([\d.]+)", out)[0]) for out in (of_one, of_three)]
    assert launched[1] == pytest.approx(launched[0], rel=0.2)  # some are made once for all
    with pytest.raises(ConfigError, match="_local_scalar_dense"):
        doctor(f"{__name__}.Captured")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"{__name__}.Needing", "cannot be made without arguments .*: give them defaults"),
        ("nowhere.Agent", "nowhere.Agent cannot be imported: No module named 'nowhere'"),
        ("lrl.DQM", "lrl.DQM cannot be imported"),
        ("pathlib.Path", "pathlib.Path is no lrl.DQN"),
    ],
)
def test_what_is_no_agent_is_no_patient(path: str, words: str):
    with pytest.raises(ConfigError, match=words):
        doctor(path)
