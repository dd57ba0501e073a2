"""Replays that are saved, restored and compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.replay_rows import RandomStream, make_spec, pack
from lrl.checkpoints.replay_saver import ReplaySaver
from lrl.checkpoints.saved_replay import load_replay
from lrl.replay import PrioritizedSampler, RankSampler, Replay, Sampler, UniformSampler
from lrl.schedules import Linear
from lrl.types import Rows

SAMPLERS: dict[str, type[Sampler]] = {
    "uniform": UniformSampler,
    "proportional": PrioritizedSampler,
    "rank": RankSampler,
}


class Feed:
    """Random rows of several streams; all that it draws follows from its seed."""

    def __init__(
        self, seed: int, num_streams: int = 2, frame_stack: int = 1, masks: bool = False
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.masks = masks
        self.environments = [RandomStream(self.rng, frame_stack, 0.1) for _ in range(num_streams)]

    def rows(self, count: int) -> Rows:
        streams = self.rng.integers(len(self.environments), size=count)
        rows = pack([(int(s), self.environments[s].next_row()) for s in streams])
        mask = self.rng.random((count, 5)) < 0.5
        return replace(rows, action_mask=mask) if self.masks else rows


def make_buffer(
    sampler: str | Sampler = "proportional",
    *,
    frame_stack: int = 1,
    capacity: int = 100,
    num_streams: int = 2,
    masks: bool = False,
    seed: int = 0,
    **settings: Any,
) -> Replay:
    if isinstance(sampler, str):
        beta = Linear(0.4, 1.0, 50)
        chosen = {
            "uniform": UniformSampler,
            "proportional": lambda: PrioritizedSampler(0.6, beta, weight_normalisation="buffer"),
            "rank": lambda: RankSampler(0.7, beta, sort_period_batches=3),
        }[sampler]()
    else:
        chosen = sampler
    spec = make_spec(frame_stack, action_masks=masks)
    return Replay(spec, capacity, num_streams, sampler=chosen, seed=seed, **settings)


def learn(buffer: Replay, feed: Feed, batches: int = 2) -> list[list[Any]]:
    """Sample and set priorities; return all that was drawn."""
    drawn = []
    for _ in range(batches):
        if not buffer.can_draw():
            continue
        batch = buffer.sample(4)
        parts = (part for part in vars(batch).values() if part is not None)
        drawn.append([part.tolist() for part in parts])
        priorities = torch.from_numpy(feed.rng.integers(0, 40, 4) / 8)
        if buffer.needs_priorities:
            buffer.learnt(batch.keys, priorities)
    return drawn


def contents(buffer: Replay) -> dict[str, Any]:
    """Return all that the buffer holds, as lists that compare."""
    streams, sampler = buffer.streams, buffer._sampler
    keys = [key for chunk in streams.all_keys() for key in chunk.tolist()]
    array = np.array(keys, np.int64).reshape(-1, 2)
    slots = torch.from_numpy(streams.slots(array[:, 0], array[:, 1:]).reshape(-1))
    found: dict[str, Any] = {
        "keys": keys,
        "flags of all slots": streams.columns["flags"].tolist(),
        "counts": streams.counts.tolist(),
        "num_steps": len(buffer),
        "env_steps_inserted": buffer.env_steps,
        "n_step": buffer.n_step,
        "metrics": buffer.metrics(),
        "generator": buffer.state(with_rows=False)["generator"].tolist(),
    }
    found |= {name: column[slots].tolist() for name, column in streams.columns.items()}
    for name, value in sampler.state(with_rows=True).get("rows", {}).items():
        found[name] = value.tolist() if isinstance(value, np.ndarray) else value
    if buffer.needs_priorities and hasattr(sampler, "_tree"):
        found["sums"] = vars(sampler)["_tree"]._sums.tolist()
    return found


def save(saver: ReplaySaver, learner_step: int, state: dict[str, Any] | None = None) -> None:
    """Save in this thread."""
    take(saver, learner_step, state)
    try:
        saver.write()
    finally:
        saver.discard()


def take(saver: ReplaySaver, learner_step: int, state: dict[str, Any] | None = None) -> None:
    """Note the replay of this moment."""
    replay = saver._replay.state(with_rows=True)
    saver.take(learner_step, name_of(learner_step), {**(state or {}), "replay": replay})


def name_of(learner_step: int) -> str:
    return f"id{learner_step}"


def load(folder: Path, buffer: Replay, learner_step: int, **settings: Any) -> dict[str, Any]:
    state = load_replay(folder, buffer, settings, learner_step, name_of(learner_step))
    buffer.restore(state.pop("replay"))
    return state


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}
