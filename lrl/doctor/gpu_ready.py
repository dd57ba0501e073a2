"""Whether the learner steps of an agent would wait for a GPU: `lrl doctor --gpu_ready`."""

from __future__ import annotations

import pkgutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from unittest import mock

import lightning as L
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from typing_extensions import override

from lrl.actors.config import ActorConfig
from lrl.callbacks import NonFiniteGuard
from lrl.doctor.pretended_gpu import MixedDevicesError, Note, PretendedGpu
from lrl.doctor.pretended_tensor import CUDA
from lrl.envs import EnvConfig
from lrl.learner.datamodule import ReplayDataModule
from lrl.learner.dqn import DQN
from lrl.parts import safety
from lrl.parts.quiet import quieten, silence
from lrl.pools.local import LocalPool
from lrl.pools.pool import Delivery
from lrl.replay import RateLimiterConfig, ReplayConfig
from lrl.types import ConfigError

_FIRST = 4
"""Learner steps that are not looked at: optimizers make their state in them."""


def notes_of_steps(
    fit: Callable[[L.Callback, SingleDeviceStrategy], object],
) -> list[list[Note]]:
    """Have a Trainer train on a pretended GPU; return what was noted in each training step.

    The first steps are left out, and so is acting in synchronous mode, which waits for its actions.

    Args:
        fit: Makes a Trainer with this callback and this strategy, and has it train.

    Raises:
        MixedDevicesError: An operation was given tensors of the host, too.
        RuntimeError: The source of a copy was changed before the copy had ended.
    """
    ends: list[int] = []
    poll = LocalPool.poll

    def polled(pool: LocalPool, timeout: float) -> Iterator[Delivery]:
        deliveries = poll(pool, timeout)
        while True:
            before = len(gpu.notes)
            delivery = next(deliveries, None)
            del gpu.notes[before:]
            if delivery is None:
                return
            yield delivery

    with mock.patch.object(LocalPool, "poll", polled), PretendedGpu() as gpu:
        fit(
            _StepEnds(lambda: ends.append(len(gpu.notes))),
            SingleDeviceStrategy(CUDA, accelerator=_PretendedAccelerator()),
        )
    if faults := gpu.summary("fault"):
        raise RuntimeError(f"{dict(faults)}")
    return [gpu.notes[begin:end] for begin, end in list(pairwise(ends))[_FIRST:]]


def look_at(gpu_ready: str, env: str, learner_steps: int) -> None:
    """Tell what the learner steps of a class would wait for on a GPU; none is needed.

    Args:
        gpu_ready: The class's path.
        env: An environment that it can learn in.
        learner_steps: How many training steps it makes, each of its `updates_per_step` learner
            steps.

    Raises:
        ConfigError: It is no agent, waits for the GPU, or cannot learn there.
    """
    module = _built(gpu_ready)
    if learner_steps <= _FIRST + 1:
        raise ConfigError(f"--learner_steps must be above {_FIRST + 1}, got {learner_steps}")
    quieten()
    module.hparams["updater"] = "eager"  # a graph of what waits cannot be captured at all
    updates = module.updates_per_step
    data = ReplayDataModule(
        EnvConfig(env),
        actors=ActorConfig(num_actors=0, envs_per_actor=2),
        replay=ReplayConfig(2000, batch_size=32),
        rate=RateLimiterConfig(samples_per_insert=8.0, warm_up_env_steps=100),
    )

    def fit(ends: L.Callback, strategy: SingleDeviceStrategy) -> None:
        trainer = L.Trainer(
            strategy=strategy, max_steps=learner_steps * updates, default_root_dir=folder,
            callbacks=[NonFiniteGuard(), ends], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=0,
        )  # fmt: skip
        trainer.fit(module, datamodule=data)

    with tempfile.TemporaryDirectory() as folder, silence("lrl", "lightning.pytorch"):
        try:
            steps = notes_of_steps(fit)
        except MixedDevicesError as error:
            raise ConfigError(
                f"{gpu_ready} cannot learn on a GPU: {error}. Make new tensors on the device of "
                "those that they meet, and register constants as buffers"
            ) from error
    _check_reads(gpu_ready, steps, len(steps) * updates)
    count = Counter(note.kind for note in steps[-1])
    launched, there, back = (count[kind] / updates for kind in ("kernel", "to_device", "to_host"))
    print(
        f"{gpu_ready} never waits for the GPU: a learner step launches {launched:g} operations, "
        f"copies {there:g} blocks to it, and {back:g} back without waiting"
    )


def _check_reads(gpu_ready: str, steps: Sequence[Sequence[Note]], learner_steps: int) -> None:
    reads = Counter(f"{n.what} at {n.where}" for step in steps for n in step if n.kind == "read")
    if reads:
        rates = ((what, count / learner_steps) for what, count in reads.items())
        each = "; ".join(f"{what} ({rate:.3g} in a step)" for what, rate in rates)
        raise ConfigError(
            f"{gpu_ready} waits for the GPU in its learner steps: {each}. Keep what is computed in "
            "tensors there (torch.where instead of `if`), and make new ones on their device"
        )


class _PretendedAccelerator(Accelerator):
    @override
    def setup_device(self, device: torch.device) -> None: ...

    @override
    def teardown(self) -> None: ...

    @staticmethod
    @override
    def parse_devices(devices: Any) -> list[int]:
        return [0]

    @staticmethod
    @override
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [CUDA]

    @staticmethod
    @override
    def auto_device_count() -> int:
        return 1

    @staticmethod
    @override
    def is_available() -> bool:
        return True

    @staticmethod
    @override
    def name() -> str:
        return "pretended GPU"

    @override
    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}


class _StepEnds(L.Callback):
    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def on_train_batch_end(self, *args: object, **kwargs: object) -> None:
        self.function()


def _built(path: str) -> DQN:
    safety.check_path(path, "--gpu_ready")
    try:
        kind = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--gpu_ready {path} cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, DQN)):
        raise ConfigError(f"--gpu_ready {path} is no lrl.DQN: name a class that is one")
    try:
        return kind()
    except TypeError as error:
        raise ConfigError(
            f"--gpu_ready {path} cannot be made without arguments ({error}): give them defaults"
        ) from error
