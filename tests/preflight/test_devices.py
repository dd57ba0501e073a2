"""Where replay, batches and inference servers are, without a GPU to try it on."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from helpers.training_runs import background, quiet, small_data
from lightning.pytorch.strategies import SingleDeviceStrategy

from lrl import DQN, ActorLearnerCallback, InferenceConfig, ReplayConfig, ReplayDataModule
from lrl.inference.manager import InferenceManager
from lrl.parts.devices import of_this_rank
from lrl.pools import processes
from lrl.preflight.machine import check_replay_index
from lrl.preflight.ranks import announce_ranks, default_devices
from lrl.replay import PrioritizedSampler, RankSampler
from lrl.types import ConfigError

pytestmark = quiet


@pytest.fixture
def setup_with(monkeypatch):
    """Set a datamodule up for a learner on a device that need not be there."""
    data: list[ReplayDataModule] = []

    def setup(learner: str, replay_device: str) -> ReplayDataModule:
        root = property(lambda self: torch.device(learner))
        monkeypatch.setattr(SingleDeviceStrategy, "root_device", root)
        data.append(small_data(replay=ReplayConfig(2000, batch_size=8, device=replay_device)))
        data[-1].trainer = L.Trainer(
            accelerator="cpu", devices=1, logger=False, callbacks=[ActorLearnerCallback()]
        )
        data[-1].setup("fit")
        return data[-1]

    yield setup
    for each in data:
        each.close()


# --- Replay and batches -----------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_replay_is_on_the_device_that_is_asked_for(setup_with, device):
    dataset = setup_with("meta", device).dataset
    assert dataset is not None
    assert dataset.replay.streams.device == torch.device(device)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "meta", "nowhere"])
def test_a_replay_on_a_device_and_a_learner_on_the_host_are_refused(setup_with, device):
    with pytest.raises(ConfigError, match=rf"replay\.device is {device}.*set it to cpu"):
        setup_with("cpu", device)


class OwnSampler(PrioritizedSampler):
    """May weigh rows otherwise."""


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"sampler": RankSampler}, {}, "replay.sampler is RankSampler: set it to PrioritizedSampler"),
    ({"sampler": OwnSampler}, {}, "replay.sampler is OwnSampler: set it to PrioritizedSampler"),
    ({"device": "cpu"}, {}, "replay.device is cpu and the learner on cuda:0: set replay.device to"),
    ({"device": "cuda:1"}, {}, "replay.device is cuda:1 and the learner on cuda:0"),
    ({}, {"learner": "cpu"}, "replay.device is cuda and the learner on cpu"),
    ({}, {"ranks": 2}, "knows one learner rank, but there are 2: set index to host"),
    ({}, {"deterministic": True}, "trainer.deterministic is true: set index to host"),
]


def check_index(
    settings: dict[str, Any], learner: str = "cuda:0", ranks: int = 1, deterministic: Any = False
) -> None:
    replay = ReplayConfig(
        **{"sampler": PrioritizedSampler, "device": "cuda", "index": "device", **settings}
    )
    strategy = SimpleNamespace(root_device=torch.device(learner))
    trainer: Any = SimpleNamespace(strategy=strategy, world_size=ranks)
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
    try:
        check_replay_index(replay, replay.sampler(), trainer)
    finally:
        torch.set_deterministic_debug_mode(before)


@pytest.mark.parametrize(("settings", "run", "words"), REFUSED)
def test_rows_are_chosen_in_the_learner_step_where_they_can_be(settings, run, words):
    with pytest.raises(ConfigError, match=rf"^replay\.index is device, .*{re.escape(words)}"):
        check_index(settings, **run)
    check_index({**settings, "index": "host"}, **run)
    check_index({})
    check_index({"device": "cuda:0"}, deterministic="warn")
    check_index({"device": "cpu"}, learner="cpu", deterministic=True)


# --- Inference servers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "learner", "local_rank", "expected"),
    [
        ("cpu", "cuda:1", 1, "cpu"),
        ("cuda", "cuda:0", 0, "cuda:0"),
        ("cuda", "cuda:1", 1, "cuda:1"),
        ("cuda", "cuda:3", 1, "cuda:3"),  # devices: [2, 3]
        ("cuda:0", "cuda:1", 1, "cuda:0"),
        ("cuda", "cpu", 0, "cuda:0"),
        ("cuda", "cpu", 1, "cuda:1"),
        ("cuda", "cpu", 2, "cuda:0"),
    ],
)
def test_a_gpu_without_a_number_is_that_of_the_rank(
    monkeypatch, name, learner, local_rank, expected
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert of_this_rank(name, torch.device(learner), local_rank) == expected


def test_every_server_is_told_its_device(monkeypatch):
    """From the configuration to the plan that a server's process gets; none is started."""
    plans: list[Any] = []

    class Started(Exception):
        pass

    def start_process(self: Any, context: Any, name: str, target: Any, arguments: Any) -> Any:
        plans.append(arguments[0])
        return SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), 0.0

    class Manager(InferenceManager):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            try:
                for server in range(self.config.num_servers):
                    self._launch(server, None)
            finally:
                for slots in self.slots:
                    slots.close()
            raise Started

    monkeypatch.setattr(InferenceManager, "_start_process", start_process)
    monkeypatch.setattr(processes, "InferenceManager", Manager)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    inference = InferenceConfig(num_servers=3, devices=("cuda", "cuda:3", "cpu"))
    data = small_data(actors=background(3), inference=inference)
    module = DQN(env_spec=data.env_spec)
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        global_rank=1, local_rank=1, world_size=2, strategy=SingleDeviceStrategy("cpu"),
        global_step=0, lightning_module=module,
    )  # fmt: skip
    with pytest.raises(Started):
        data._background_pool(needs_values=False).start(module.online, 0)
    assert [plan.device for plan in plans] == ["cuda:1", "cuda:3", "cpu"]


# --- How many ranks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, 1),
        ({"SLURM_NTASKS": "1"}, 1),
        ({"SLURM_NTASKS": "4"}, "auto"),
        ({"WORLD_SIZE": "2"}, "auto"),
    ],
)
def test_one_device_unless_somebody_started_several_processes(monkeypatch, variables, expected):
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_devices() == expected


def ranks(count: int, there: int = 1) -> Any:
    return SimpleNamespace(
        world_size=count,
        accelerator=SimpleNamespace(auto_device_count=lambda: there),
        strategy=SimpleNamespace(root_device=torch.device("cuda:0")),
    )


def test_several_ranks_are_announced(caplog):
    announce_ranks(ranks(4), batch_size=32)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "4 ranks train" in record.message
    assert "128 transitions" in record.message
    assert "Trainer(devices=1)" in record.message


def test_idle_devices_are_announced(caplog):
    with caplog.at_level(logging.INFO):
        announce_ranks(ranks(1, there=4), batch_size=32)
    assert "learning on cuda:0; 4 devices are available" in caplog.text


def test_one_device_of_one_is_no_news(caplog):
    with caplog.at_level(logging.DEBUG):
        announce_ranks(ranks(1), batch_size=32)
    assert not caplog.records
