"""What an update costs, with and without each setting: `python -m benchmark.parts.learner`.

Each side is a process of its own, since some settings are of the whole process, and the sides take
turns. Times are of one learner step on batches that are there already: loss, gradients, optimizer.
The sides `raw` are loops around lrl's module, which look for no NaN; `plain torch` has nothing of
lrl but its linear layer. The others are Lightning's Trainer around the module.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import logging
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import lightning as L
import torch

from benchmark.arguments import count, duration, output, threads
from benchmark.parts import bare
from benchmark.turns import by_turns
from lrl import DQN
from lrl.bench.measure import Measurement, compared, table, write
from lrl.bench.workloads import WORKLOADS, Workload, hand_out, make_batch
from lrl.learner.updater import CompiledUpdater
from lrl.networks import encoders, linear
from lrl.processes.memory import keep_freed_memory
from lrl.types import Batch

_PARTS = 4  # batches that take turns, so that none of them stays in the cache


@dataclass(frozen=True)
class Side:
    """One way to make the same updates, by its settings; the defaults are those of `lrl fit`."""

    trainer: bool = False
    plain: bool = False
    updates_per_step: int = 1
    fused: bool = True
    keeps_memory: bool = True
    channels_last: bool = True
    onednn: bool = True
    bf16: bool = False
    compiled: bool = False
    captured: bool = False


LADDER = {
    "raw, as written": Side(fused=False, keeps_memory=False, channels_last=False, onednn=False),
    "raw, fused optimizer": Side(keeps_memory=False, channels_last=False, onednn=False),
    "raw, and keeping freed memory": Side(channels_last=False, onednn=False),
    "raw, and channels last": Side(onednn=False),
    "raw, and oneDNN's products": Side(),
    "raw, and compiled": Side(compiled=True),
    "raw, bf16": Side(bf16=True),
    "raw, bf16, compiled": Side(bf16=True, compiled=True),
}
TRAINER = {
    "raw": Side(),
    "Trainer, 1 update a step": Side(trainer=True),
    "Trainer, 8 updates a step": Side(trainer=True, updates_per_step=8),
    "Trainer, captured": Side(trainer=True, captured=True),
    "Trainer, captured, 8 updates a step": Side(trainer=True, captured=True, updates_per_step=8),
    "plain torch": Side(plain=True),
}
TRAINER_BF16 = {
    "raw, bf16": Side(bf16=True),
    "Trainer, bf16": Side(trainer=True, bf16=True),
    "plain torch, bf16": Side(plain=True, bf16=True),
}
PLAIN = {"mlp": bare.make_mlp, "nature": bare.Nature, "nature_256": bare.Nature}
"""Networks of plain torch, of the workloads that have one."""


class Windows:
    """An endless dataloader that hands out the batches of one window each time it is asked to.

    Args:
        pipe: Brings the number of updates of a window, takes its seconds; closed at the end.
        batches: What is learnt from, over and over.
        updates_per_step: More than one come as a tuple.
    """

    def __init__(self, pipe: Connection, batches: Sequence[Batch], updates_per_step: int) -> None:
        self.pipe, self.batches, self.updates_per_step = pipe, batches, updates_per_step

    def __iter__(self) -> Iterator[Any]:
        batches = itertools.cycle(self.batches)
        while updates := self.pipe.recv():
            began = time.perf_counter()
            yield from hand_out(batches, updates, self.updates_per_step)
            self.pipe.send(time.perf_counter() - began)


def serve(pipe: Connection, name: str, side: Side, threads: int) -> None:
    """Make updates, in a process of their own, whenever the pipe asks for some."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # its lines divide the tables
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    set_up(side)
    workload = WORKLOADS[name]
    batches = [make_batch(workload, seed) for seed in range(_PARTS)]
    windows = Windows(pipe, batches, side.updates_per_step)
    if side.plain:
        bare.train(PLAIN[name](), windows, side.bf16)
        return
    module = make_module(workload, side)
    if side.trainer:
        _with_trainer(module, windows, side.bf16)
    else:
        _raw(module, windows, side.bf16)


def set_up(side: Side) -> None:
    """Set what is of the whole process."""
    if side.keeps_memory:
        keep_freed_memory()
    if not side.channels_last:
        encoders.ConvEncoder.takes_channels_last = False
    if not side.onednn:
        linear._multiply = None  # pyright: ignore[reportPrivateUsage]


def make_module(workload: Workload, side: Side) -> DQN:
    """Return lrl's module for a workload."""
    module = DQN(
        workload.encoder,
        workload.head,
        optimizer=functools.partial(torch.optim.Adam, lr=1e-4, fused=side.fused),
        target_update_period_learner_steps=bare.TARGET_PERIOD,
        updates_per_step=side.updates_per_step,
        updater="captured" if side.captured else "eager",
        env_spec=workload.spec,
    )
    if side.compiled:
        module.updater = CompiledUpdater(module)
    return module


def _raw(module: DQN, windows: Windows, bf16: bool) -> None:
    optimizer = module.configure_optimizers()
    for step, batch in enumerate(windows):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):
            loss = module.updater.losses(batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        module.move_target(step + 1)


def _with_trainer(module: DQN, windows: Windows, bf16: bool) -> None:
    trainer = L.Trainer(
        accelerator="cpu",
        precision="bf16-mixed" if bf16 else "32-true",
        max_epochs=1,
        limit_train_batches=1_000_000,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1000,
    )
    trainer.fit(module, train_dataloaders=windows)


@contextlib.contextmanager
def running(name: str, side: Side, threads: int, updates: int) -> Iterator[Callable[[], float]]:
    """Start a side; gives what measures the milliseconds of an update in one window."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(there, name, side, threads), daemon=True
    )
    process.start()
    there.close()

    def window() -> float:
        here.send(updates)
        return 1e3 * here.recv() / updates

    try:
        yield window
        here.send(0)
        process.join(10.0)
    finally:
        process.kill()
        process.join()


def measure(
    name: str, sides: dict[str, Side], updates: int, rounds: int, threads: int = 1
) -> list[Measurement]:
    """Compare sides with the first of them, in milliseconds of an update.

    Args:
        name: A key of `WORKLOADS`.
        sides: Ways to make the updates; plain torch only where `PLAIN` has a network of it.
        updates: Learner steps of a window, a multiple of every `updates_per_step`.
        rounds: Windows of each side.
        threads: Of torch.
    """
    sides = {label: side for label, side in sides.items() if name in PLAIN or not side.plain}
    with contextlib.ExitStack() as stack:
        windows = {
            label: stack.enter_context(running(name, side, threads, updates))
            for label, side in sides.items()
        }
        values = by_turns(windows, rounds)
    return compared(f"{name}, batch {WORKLOADS[name].batch_size}", "ms", values, next(iter(sides)))


def updates_in(name: str, seconds: float) -> int:
    """Return how many updates fill about so many seconds, a multiple of 8."""
    per_second = 1000 if name == "mlp" else 800 // WORKLOADS[name].batch_size
    return max(8, int(seconds * per_second) // 8 * 8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and, where asked, write it as JSON."""
    parser = argparse.ArgumentParser(prog="benchmark.parts.learner", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--rounds", type=count, default=7, help="windows of each side")
    parser.add_argument("--seconds", type=duration, default=1.0, help="length of a window, roughly")
    parser.add_argument("--threads", type=threads, default=1, help="threads of torch")
    parser.add_argument("--json", type=output, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)  # what is noted of this machine
    measurements: list[Measurement] = []
    for name in options.workloads:
        updates = updates_in(name, options.seconds)
        for sides in (LADDER, TRAINER, TRAINER_BF16):
            found = measure(name, sides, updates, options.rounds, options.threads)
            measurements += found
            print(table(found), flush=True)
    if options.json is not None:
        write(options.json, measurements, {"rounds": options.rounds, "seconds": options.seconds})


if __name__ == "__main__":
    main()
