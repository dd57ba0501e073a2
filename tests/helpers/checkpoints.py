"""Checkpoints of small agents, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers.training_runs import make_run, small_agent, small_data
from lrl.evaluation.episodes import Episodes


def trained(folder: Path, env_id: str = "lrl/Identity-v0", **settings: Any) -> Path:
    """Train for a moment; return the checkpoint of the last step."""
    run = make_run(folder, module=small_agent(), data=small_data(env_id, **settings), max_steps=5)
    return run.fit().checkpoint("last")


def edited(path: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Path:
    """Return a copy of a checkpoint whose content was changed."""
    content = torch.load(path, weights_only=True)
    change(content)
    copy = path.with_name(f"{name}.ckpt")
    torch.save(content, copy)
    return copy


def with_nan(content: dict[str, Any]) -> None:
    weights = content["state_dict"]
    next(tensor for name, tensor in weights.items() if name.startswith("online"))[0] = torch.nan


def plain(episodes: Episodes) -> list[list[Any]]:
    """Return results in a form that compares."""
    return [episodes.returns.tolist(), episodes.lengths.tolist(), episodes.timed_out.tolist()]
