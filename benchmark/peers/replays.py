"""Replay buffers of several libraries on the same frames: `python -m benchmark.peers.replays`.

All are in one process, so that the allocator is the same for all. What is drawn ends as torch
tensors. Prioritised sampling includes giving the batch new priorities.
"""

from __future__ import annotations

import argparse
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmark.arguments import count, duration, output, threads
from benchmark.parts.replay import ATARI, CHUNK_ROWS, NUM_STREAMS, make_chunk
from benchmark.turns import by_turns
from lrl.bench.measure import Measurement, compared, table, write
from lrl.replay import PrioritizedSampler, Replay

_STEPS = 64  # vector steps of made-up play, over and over
_EPISODE_STEPS = 500
_ALPHA, _BETA = 0.6, 0.4


class Play:
    """What eight environments answered, as stacks: what other libraries take."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        frames = rng.integers(0, 256, (_STEPS + 4, NUM_STREAMS, 84, 84), dtype=np.uint8)
        self.stacks = [np.stack([*frames[t : t + 4]], axis=1) for t in range(_STEPS + 1)]
        self.action = rng.integers(0, ATARI.num_actions, (_STEPS, NUM_STREAMS))
        self.reward = rng.standard_normal((_STEPS, NUM_STREAMS), dtype=np.float32)

    def step(self, number: int) -> tuple[Any, Any, Any, Any, Any]:
        """Return observation, next observation, action, reward and whether episodes ended."""
        at = number % _STEPS
        ended = np.full(NUM_STREAMS, number % _EPISODE_STEPS == _EPISODE_STEPS - 1)
        return self.stacks[at], self.stacks[at + 1], self.action[at], self.reward[at], ended


class Side(ABC):
    """A buffer with priorities or without.

    Args:
        capacity: Environment steps.
        prioritized: Whether it has priorities.
    """

    rows_per_append = NUM_STREAMS

    def __init__(self, capacity: int, prioritized: bool) -> None:
        self.play, self.prioritized = Play(), prioritized
        self.rng = np.random.default_rng(0)
        self.build(capacity)

    @abstractmethod
    def build(self, capacity: int) -> None:
        """Make the buffer."""

    @abstractmethod
    def append(self, number: int) -> None:
        """Store the vector step of that number."""

    @abstractmethod
    def sample(self, batch_size: int) -> Any:
        """Draw a batch, and give its rows priorities if it has any."""

    def priorities(self, batch_size: int) -> Any:
        """Return new priorities."""
        return self.rng.random(batch_size) + 0.1


class Lrl(Side):
    """Ours; actors send chunks of 64 rows."""

    rows_per_append = CHUNK_ROWS

    def build(self, capacity: int) -> None:
        """Make the buffer."""
        sampler = PrioritizedSampler(_ALPHA) if self.prioritized else None
        self.buffer = Replay(ATARI, capacity, NUM_STREAMS, sampler=sampler)
        firsts = range(0, 2 * _EPISODE_STEPS, CHUNK_ROWS // NUM_STREAMS)
        self.chunks = [make_chunk(self.rng, first) for first in firsts]

    def append(self, number: int) -> None:
        """Store a chunk."""
        self.buffer.add(self.chunks[number % len(self.chunks)])

    def sample(self, batch_size: int) -> Any:
        """Draw a batch."""
        batch = self.buffer.sample(batch_size)
        if self.prioritized:
            self.buffer.learnt(batch.keys, torch.as_tensor(self.priorities(batch_size)))
        return batch


class StableBaselines(Side):
    """Stable-Baselines3's, each observation once; it has no priorities."""

    def build(self, capacity: int) -> None:
        """Make the buffer."""
        from gymnasium.spaces import Box, Discrete
        from stable_baselines3.common.buffers import ReplayBuffer as Buffer

        space = Box(0, 255, (4, 84, 84), np.uint8)
        self.buffer = Buffer(
            capacity, space, Discrete(ATARI.num_actions), "cpu", n_envs=NUM_STREAMS,
            optimize_memory_usage=True, handle_timeout_termination=False,
        )  # fmt: skip

    def append(self, number: int) -> None:
        """Store a vector step."""
        observation, following, action, reward, ended = self.play.step(number)
        self.buffer.add(observation, following, action, reward, ended, [{}] * NUM_STREAMS)

    def sample(self, batch_size: int) -> Any:
        """Draw a batch."""
        return self.buffer.sample(batch_size)


class Tianshou(Side):
    """Tianshou's, each frame once."""

    def build(self, capacity: int) -> None:
        """Make the buffer."""
        from tianshou.data import Batch, PrioritizedVectorReplayBuffer, VectorReplayBuffer

        shape = {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}
        self.batch = Batch
        if self.prioritized:
            self.buffer: Any = PrioritizedVectorReplayBuffer(
                capacity, NUM_STREAMS, alpha=_ALPHA, beta=_BETA, **shape
            )
        else:
            self.buffer = VectorReplayBuffer(capacity, NUM_STREAMS, **shape)

    def append(self, number: int) -> None:
        """Store a vector step."""
        observation, following, action, reward, ended = self.play.step(number)
        self.buffer.add(
            self.batch(
                obs=observation, act=action, rew=reward, terminated=ended,
                truncated=np.zeros_like(ended), obs_next=following, info={},
            )
        )  # fmt: skip

    def sample(self, batch_size: int) -> Any:
        """Draw a batch."""
        batch, index = self.buffer.sample(batch_size)
        if self.prioritized:
            self.buffer.update_weight(index, self.priorities(batch_size))
        return torch.as_tensor(batch.obs), torch.as_tensor(batch.obs_next)


class TorchRL(Side):
    """TorchRL's tensor storage."""

    def build(self, capacity: int) -> None:
        """Make the buffer."""
        from tensordict import TensorDict
        from torchrl.data import (
            LazyTensorStorage,
            TensorDictPrioritizedReplayBuffer,
            TensorDictReplayBuffer,
        )

        self.dict, storage = TensorDict, LazyTensorStorage(capacity)
        if self.prioritized:
            self.buffer: Any = TensorDictPrioritizedReplayBuffer(
                alpha=_ALPHA, beta=_BETA, storage=storage, priority_key="priority"
            )
        else:
            self.buffer = TensorDictReplayBuffer(storage=storage)

    def append(self, number: int) -> None:
        """Store a vector step."""
        names = ("observation", "next", "action", "reward", "done")
        columns = zip(names, self.play.step(number), strict=True)
        content = {name: torch.as_tensor(column) for name, column in columns}
        self.buffer.extend(self.dict(content, batch_size=[NUM_STREAMS]))

    def sample(self, batch_size: int) -> Any:
        """Draw a batch."""
        batch = self.buffer.sample(batch_size)
        if self.prioritized:
            batch["priority"] = torch.as_tensor(self.priorities(batch_size), dtype=torch.float32)
            self.buffer.update_tensordict_priority(batch)
        return batch


class Cpprb(Side):
    """cpprb's."""

    def build(self, capacity: int) -> None:
        """Make the buffer."""
        import cpprb

        stack = {"shape": (4, 84, 84), "dtype": np.uint8}
        shapes = {"obs": stack, "next_obs": stack, "act": {}, "rew": {}, "done": {}}
        if self.prioritized:
            self.buffer = cpprb.PrioritizedReplayBuffer(capacity, shapes, alpha=_ALPHA)
        else:
            self.buffer = cpprb.ReplayBuffer(capacity, shapes)

    def append(self, number: int) -> None:
        """Store a vector step."""
        observation, following, action, reward, ended = self.play.step(number)
        self.buffer.add(obs=observation, next_obs=following, act=action, rew=reward, done=ended)

    def sample(self, batch_size: int) -> Any:
        """Draw a batch."""
        if not self.prioritized:
            batch = self.buffer.sample(batch_size)
        else:
            batch = self.buffer.sample(batch_size, beta=_BETA)
            self.buffer.update_priorities(batch["indexes"], self.priorities(batch_size))
        return torch.as_tensor(batch["obs"]), torch.as_tensor(batch["next_obs"])


SIDES: dict[str, type[Side]] = {
    "lrl": Lrl, "sb3": StableBaselines, "tianshou": Tianshou, "torchrl": TorchRL, "cpprb": Cpprb,
}  # fmt: skip


def per_second(call: Callable[[int], object], seconds: float, units: int) -> float:
    """Return how many units a second calls do, over at least so many seconds."""
    began, calls = perf_counter(), 0
    while perf_counter() < began + seconds or calls < 3:
        call(calls)
        calls += 1
    return units * calls / (perf_counter() - began)


def filled(name: str, capacity: int, prioritized: bool) -> Side | None:
    """Return a full buffer; None, with a word, where the library cannot make one."""
    try:
        side = SIDES[name](capacity, prioritized)
        for number in range(capacity // side.rows_per_append + 1):
            side.append(number)
        side.sample(4)
    except Exception as error:
        print(f"{name} cannot be measured: {type(error).__name__}: {error}")
        return None
    return side


def measure(
    names: Sequence[str], capacity: int, prioritized: bool, seconds: float, rounds: int
) -> list[Measurement]:
    """Fill the buffers, then compare appending and sampling with the first of them."""
    made = {name: filled(name, capacity, prioritized) for name in names}
    sides = {name: side for name, side in made.items() if side is not None}
    if not sides:
        return []
    kind = "prioritised" if prioritized else "uniform"

    def turns(what: str, unit: str, rate: Callable[[Side], float]) -> list[Measurement]:
        calls = {name: functools.partial(rate, side) for name, side in sides.items()}
        return compared(f"{what}, {kind}", unit, by_turns(calls, rounds), next(iter(sides)))

    found = turns(
        "append", "rows/s", lambda side: per_second(side.append, seconds, side.rows_per_append)
    )
    for batch_size in (32, 256):

        def rate(side: Side, batch_size: int = batch_size) -> float:
            return per_second(lambda _: side.sample(batch_size), seconds, 1)

        found += turns(f"sample {batch_size}", "batches/s", rate)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and, where asked, write it as JSON."""
    parser = argparse.ArgumentParser(prog="benchmark.peers.replays", description=__doc__)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--capacity", type=count, default=20_000, help="environment steps")
    parser.add_argument("--seconds", type=duration, default=0.5, help="of a measurement")
    parser.add_argument("--rounds", type=count, default=5, help="measurements of each side")
    parser.add_argument("--threads", type=threads, default=1, help="of torch")
    parser.add_argument("--json", type=output, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found: list[Measurement] = []
    for prioritized in (False, True):
        names = [n for n in options.sides if not (prioritized and n == "sb3")]
        found += measure(names, options.capacity, prioritized, options.seconds, options.rounds)
    print(table(found))
    if options.json is not None:
        write(options.json, found)


if __name__ == "__main__":
    main()
