"""A trained agent, ready to act: all that evaluation and video need of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lrl.actors.policy import NetworkPolicy
from lrl.envs import EnvConfig
from lrl.learner.dqn import DQN
from lrl.learner.stamp import STAMP_KEY, env_of
from lrl.types import ConfigError


@dataclass(frozen=True)
class Agent:
    """A module with the environment it was trained in.

    Attributes:
        path: The checkpoint.
        module: The agent, in evaluation mode.
        env: Its environment.
        stamp: Its protocol stamp.
    """

    path: Path
    module: DQN
    env: EnvConfig
    stamp: Mapping[str, Any]

    def policy(self) -> NetworkPolicy:
        """Return the greedy policy's action values, without noise."""
        return NetworkPolicy(self.module.online, self.module.device, noise=False)


def load_agent(path: str | Path, device: torch.device | str = "cpu") -> Agent:
    """Load a checkpoint that lrl wrote; nothing else is needed, and no code in it runs.

    Args:
        path: The checkpoint.
        device: Where its network shall act.

    Raises:
        ConfigError: There is no such file, it is damaged, it is no checkpoint of lrl's, a part of
            the agent cannot be found, or its weights are no numbers.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"checkpoint {path}: there is no such file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, by what is damaged
        raise ConfigError(f"checkpoint {path} cannot be read: {_reason(error)}") from error
    if not isinstance(content, dict) or STAMP_KEY not in content:
        raise ConfigError(
            f"checkpoint {path} has no protocol stamp: it was not written by lrl, or by a version "
            "before 0.2; train again, or load it in a script with DQN.load_from_checkpoint"
        )
    stamp = content[STAMP_KEY]
    try:
        env = env_of(stamp)
        module = DQN.load_from_checkpoint(path, map_location=device, weights_only=True).eval()
    except ConfigError as error:
        raise ConfigError(f"checkpoint {path}: {error}") from error
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigError(f"checkpoint {path} is not complete: {_reason(error)}") from error
    weights = module.online.state_dict().values()
    if not all(bool(torch.isfinite(tensor).all()) for tensor in weights):
        raise ConfigError(
            f"checkpoint {path} holds weights that are NaN or infinite: its training diverged, so "
            "its actions mean nothing; take an earlier one"
        )
    return Agent(path, module, env, stamp)


def find_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one.

    Raises:
        ConfigError: There is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros((), device=name).device
    except (RuntimeError, AssertionError) as error:  # the latter from a torch without CUDA
        raise ConfigError(
            f"device is {name!r}, which cannot be used here: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    """Return the kind of an error and the beginning of what it says."""
    return f"{type(error).__name__} {' '.join(str(error).split())[:200]}".strip()
