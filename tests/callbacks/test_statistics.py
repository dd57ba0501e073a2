"""What is logged of episodes' starts and of the network's parameters, in whole runs."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import pytest
import torch
from helpers.command_line import Project, quiet_commands
from helpers.tiny_networks import matrix_of
from helpers.training_runs import background, make_run, quiet, small_data
from torch import Tensor

from lrl import DQN, ActorLearnerCallback, InferenceConfig
from lrl.callbacks import ParameterStatistics
from lrl.networks import Encoder

pytestmark = [*quiet, *quiet_commands]

STILL = functools.partial(torch.optim.SGD, lr=0.0)
MODES = {
    "synchronous": {},
    "asynchronous": {"actors": background(1)},
    "central": {"actors": background(1), "inference": InferenceConfig(num_servers=1)},
}


class Constant(Encoder):
    """Sees nothing, so that the values of actions are always the same."""

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.num_features = 1

    def encode(self, observation: Tensor) -> Tensor:
        return torch.ones(len(observation), 1)


class Hopeful(DQN):
    """Expects 2.5 of its best action, whatever comes."""

    def on_fit_start(self) -> None:
        super().on_fit_start()
        layer = matrix_of(self.online)
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor([-1.0, 2.5, 0.0, 1.0]))


@pytest.mark.parametrize("mode", MODES)
def test_the_start_value_is_what_the_actor_saw(tmp_path, mode):
    """Identity pays at most 10 for an episode, of which this network knows nothing."""
    run = make_run(
        tmp_path,
        ActorLearnerCallback(5, 0, 0),
        module=Hopeful(encoder=Constant, optimizer=STILL),
        data=small_data(**MODES[mode]),
        log_every_n_steps=20,
    ).fit()
    (row,) = run.metrics()
    assert float(row["rollout/start_value_mean"]) == 2.5


def test_parameters_are_logged_at_logging_steps(tmp_path):
    run = make_run(
        tmp_path, ActorLearnerCallback(5, 0, 0), ParameterStatistics(), max_steps=12
    ).fit()
    rows = [row for row in run.metrics() if any(name.startswith("parameter_") for name in row)]
    assert [int(row["step"]) for row in rows] == [5, 10]
    names = [name for name, _ in run.module.online.named_parameters()]
    expected = {f"parameter_{kind}/{name}" for kind in ("mean", "std") for name in names}
    for row in rows:
        assert set(row) - {"step", "epoch"} == expected


def test_parameters_are_those_of_the_online_network(tmp_path):
    module = Hopeful(encoder=Constant, optimizer=STILL)
    run = make_run(
        tmp_path, ActorLearnerCallback(5, 0, 0), ParameterStatistics(), module=module, max_steps=5
    ).fit()
    (row,) = (row for row in run.metrics() if "parameter_mean/head.layers.actions.bias" in row)
    assert float(row["parameter_mean/head.layers.actions.bias"]) == 0.625
    bias = torch.tensor([-1.0, 2.5, 0.0, 1.0])
    assert float(row["parameter_std/head.layers.actions.bias"]) == pytest.approx(
        bias.std(correction=0).item()
    )
    assert float(row["parameter_std/head.layers.actions.weight"]) == 0.0


def test_they_are_turned_on_in_yaml(tmp_path: Path, monkeypatch, capsys):
    settings = (
        "--trainer.callbacks", "lrl.callbacks.ParameterStatistics", "--data.actors.num_actors", "0",
    )  # fmt: skip
    code, _, err = Project(tmp_path).call(
        monkeypatch, capsys, "fit", "--config", "base.yaml", *settings
    )
    assert code == 0, err
    with (tmp_path / "runs/small/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [row["step"] for row in rows if row["parameter_mean/head.layers.actions.bias"]]
    assert steps == ["10", "20", "30", "40"]
