"""Checkpoints of small agents, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers.training_runs import make_run, small_agent, small_data
from lrl.checkpoints.files import write_checkpoint
from lrl.checkpoints.stamp import STAMP_KEY, make_stamp
from lrl.envs import EnvConfig, make_spec
from lrl.evaluation.episodes import Episodes, EvaluationConfig


def trained(folder: Path, env_id: str = "lrl/Identity-v0", **settings: Any) -> Path:
    """Train for a moment; return the checkpoint of the last step."""
    run = make_run(folder, module=small_agent(), data=small_data(env_id, **settings), max_steps=5)
    return run.fit().checkpoint("last")


def untrained(folder: Path, env: EnvConfig, epsilon: float | None = None, **settings: Any) -> Path:
    """Write the checkpoint of an agent with random weights, without a run; return its path."""
    torch.manual_seed(0)
    agent = small_agent(env_spec=make_spec(env), **settings)
    counters = {"seed": 0, "learner_steps": 0, "env_steps": 0, "frames": 0}
    path = folder / "untrained.ckpt"
    content = {
        "state_dict": agent.state_dict(),
        "hyper_parameters": dict(agent.hparams),
        "global_step": 0,
        "loops": {},
        "pytorch-lightning_version": "2.6.6",
        STAMP_KEY: make_stamp(env, EvaluationConfig(epsilon=epsilon), **counters),
    }
    write_checkpoint(content, path)
    return path


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
