"""What an update costs by optimizer, precision and updater, and what the host does for it on a GPU.

Every side is Lightning's Trainer around lrl's module, on batches of noise that lie on the device
already. Sides are measured one after another; on a GPU a window ends when all its work is done.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import lightning as L
import torch

from lrl.bench.measure import Measurement, compared
from lrl.bench.workloads import WORKLOADS, hand_out, make_batch
from lrl.callbacks import NonFiniteGuard
from lrl.learner.dqn import DQN
from lrl.parts.quiet import silence
from lrl.types import Batch, first_line

_BATCHES = 4  # that take turns, so that none of them stays in a cache
_WARM_UP = 40
_WATCHED = 40
"""Updates in which what the host does is counted."""


@dataclass(frozen=True)
class Side:
    """One way to make the same updates."""

    fused: bool = True
    bf16: bool = False
    updater: Literal["eager", "compiled", "captured"] = "eager"
    updates_per_step: int = 1


LADDER = {
    "eager": Side(fused=False),
    "fused optimizer": Side(),
    "bf16": Side(bf16=True),
    "bf16, 8 updates a step": Side(bf16=True, updates_per_step=8),
    "bf16, compiled": Side(bf16=True, updater="compiled"),
    "captured": Side(updater="captured"),
    "captured, 8 updates a step": Side(updater="captured", updates_per_step=8),
    "bf16, captured": Side(bf16=True, updater="captured"),
    "bf16, captured, 8 updates a step": Side(bf16=True, updater="captured", updates_per_step=8),
}
_HOST_CALLS = {
    "launches": ("cudaLaunch", "cuLaunch", "cudaGraphLaunch"),
    "copies and fills": ("cudaMemcpy", "cudaMemset"),
    "waits": ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"),
}
"""Beginnings of the names of CUDA's functions that are counted."""


@dataclass
class _Windows:
    """Batches of the updates that are measured, as the Trainer's dataloader."""

    batches: list[Batch]
    side: Side
    updates: int
    rounds: int
    milliseconds: list[float] = field(default_factory=list)
    """Of an update, in each round."""
    host_calls: dict[str, float] = field(default_factory=dict)
    """In an update, by the keys of `_HOST_CALLS`; and `ms of GPU`, in which it works."""

    def __iter__(self) -> Iterator[Any]:
        batches, size = itertools.cycle(self.batches), self.side.updates_per_step
        is_on_gpu = self.batches[0].action.is_cuda

        def wait() -> None:
            if is_on_gpu:
                torch.cuda.synchronize()

        yield from hand_out(batches, _WARM_UP, size)
        for _ in range(self.rounds):
            wait()
            began = time.perf_counter()
            yield from hand_out(batches, self.updates, size)
            wait()
            self.milliseconds.append(1e3 * (time.perf_counter() - began) / self.updates)
        if is_on_gpu and torch.backends.cuda.is_built():
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profile:
                yield from hand_out(batches, _WATCHED, size)
                wait()
            self.host_calls = _counted(profile, _WATCHED)


def measure(
    name: str,
    sides: Mapping[str, Side] = LADDER,
    device: str = "cuda",
    updates: int = 200,
    rounds: int = 3,
) -> tuple[list[Measurement], list[str]]:
    """Measure sides; return their figures, and why others have none.

    Args:
        name: A key of `WORKLOADS`.
        sides: Ways to make the updates; those that are measured are compared with the first.
        device: Where: `cuda` or `cpu`.
        updates: Learner steps of a window, a multiple of every `updates_per_step`.
        rounds: Windows of each side.
    """
    found: dict[str, _Windows] = {}
    remarks: list[str] = []
    for label, side in sides.items():
        with _remarked(remarks, f"{name}, {label}"):  # the others are worth having
            found[label] = _measured(name, side, device, updates, rounds)
    section = f"{name}, batch {WORKLOADS[name].batch_size}"
    times = {label: windows.milliseconds for label, windows in found.items()}
    measurements = compared(section, "ms", times, next(iter(times), None))
    for what in ("ms of GPU", *_HOST_CALLS):
        measurements += [
            Measurement(section, label, what, (value,))
            for label, windows in found.items()
            if (value := windows.host_calls.get(what)) is not None
        ]
    return measurements, remarks


@contextlib.contextmanager
def _remarked(remarks: list[str], label: str) -> Iterator[None]:
    """Note why something cannot be measured."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        remarks.append(f"{label}: {first_line(error)}")


def _measured(name: str, side: Side, device: str, updates: int, rounds: int) -> _Windows:
    workload = WORKLOADS[name]
    torch.compiler.reset()  # all networks share the code that is compiled, eight times at most
    torch.manual_seed(0)
    module = DQN(
        workload.encoder,
        workload.head,
        optimizer=functools.partial(torch.optim.Adam, lr=1e-4, fused=side.fused),
        target_update_period_learner_steps=1000,
        updates_per_step=side.updates_per_step,
        updater=side.updater,
        gradient_clip_norm=10.0,
        env_spec=workload.spec,
    )
    batches = [make_batch(workload, seed).to(device) for seed in range(_BATCHES)]
    windows = _Windows(batches, side, updates, rounds)
    with silence("lightning.pytorch"):
        _trainer(side, device).fit(module, train_dataloaders=windows)
    return windows


def _trainer(side: Side, device: str) -> L.Trainer:
    return L.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if side.bf16 else "32-true",
        callbacks=[NonFiniteGuard()],
        max_epochs=1,
        limit_train_batches=1_000_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1_000_000,
    )


def _counted(profile: Any, updates: int) -> dict[str, float]:
    """Return what the host called and how long the GPU worked, of one update."""
    events = profile.key_averages()
    counts = {
        what: sum(e.count for e in events if e.key.startswith(beginnings)) / updates
        for what, beginnings in _HOST_CALLS.items()
    }
    # Ranges that torch names (an optimizer's step) span what is in them, and would count twice.
    ranges = ("Optimizer.", "[", "## ", "Torch-Compiled", "ProfilerStep")
    on_gpu = [
        e for e in events if str(e.device_type).endswith("CUDA") and not e.key.startswith(ranges)
    ]
    return {"ms of GPU": sum(e.self_device_time_total for e in on_gpu) / 1e3 / updates, **counts}
