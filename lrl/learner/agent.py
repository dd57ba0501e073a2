"""A trained agent, ready to act: all that evaluation and video need of a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from lrl.actors.policy import NetworkPolicy
from lrl.checkpoints.compatibility import check_finite
from lrl.checkpoints.files import read_checkpoint, reason
from lrl.checkpoints.stamp import STAMP_KEY, env_of
from lrl.envs import EnvConfig, kind_of
from lrl.evaluation.episodes import EvaluationConfig
from lrl.learner.dqn import DQN
from lrl.parts.devices import usable_device
from lrl.types import ConfigError


@dataclass(frozen=True)
class Agent:
    """A module with the environment it is evaluated in.

    Attributes:
        path: The checkpoint.
        module: The agent, in evaluation mode.
        env: The environment of its evaluation; training's, unless `data.evaluation.env` said more.
        stamp: Its protocol stamp.
    """

    path: Path
    module: DQN
    env: EnvConfig
    stamp: Mapping[str, Any]

    def policy(self) -> NetworkPolicy:
        """Return the greedy policy's action values, without noise."""
        return NetworkPolicy(self.module.online, self.module.device, noise=False)

    def evaluation(
        self, epsilon: float | None = None, max_frames: int | None = None
    ) -> dict[str, Any]:
        """Return the `epsilon` and the `max_frames_per_episode` that the agent is evaluated with.

        Args:
            epsilon: Probability of a random action; None takes that of its evaluation in training.
            max_frames: Frames after which an episode is cut off; None likewise.

        Raises:
            ConfigError: One is out of range, or the game ends before `max_frames`.
        """
        kind = kind_of(self.env)
        if max_frames is not None and (kind.frames_limit or max_frames) < max_frames:
            raise ConfigError(
                f"max_frames_per_episode is {max_frames}, but the game of checkpoint {self.path} "
                f"ends after env.{kind.frames_limit_setting} {kind.frames_limit}: give at most that"
            )
        own = self.stamp["evaluation"]
        config = EvaluationConfig(
            epsilon=own["epsilon"] if epsilon is None else epsilon,
            max_frames_per_episode=(
                own["max_frames_per_episode"] if max_frames is None else max_frames
            ),
        )
        return {
            "epsilon": config.epsilon_for(self.env),
            "max_frames_per_episode": config.max_frames_for(self.env),
        }


def load_agent(path: str | Path, device: torch.device | str = "cpu") -> Agent:
    """Load a checkpoint that lrl wrote; nothing else is needed, and no code in it runs.

    Args:
        path: The checkpoint.
        device: Where its network shall act.

    Raises:
        ConfigError: There is no such file, it is damaged, it is no checkpoint of lrl's, a part of
            the agent cannot be found, or its weights are no numbers.
    """
    content = read_checkpoint(path)
    path = Path(path)
    if not isinstance(content, dict) or STAMP_KEY not in content:
        raise ConfigError(
            f"checkpoint {path} has no protocol stamp: it was not written by lrl, or before "
            "checkpoints carried stamps; train again, or load it in a script with "
            "DQN.load_from_checkpoint"
        )
    try:
        agent = _build(path, content, device)
    except ConfigError as error:
        raise ConfigError(f"checkpoint {path}: {error}") from error
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigError(f"checkpoint {path} is not complete: {reason(error)}") from error
    return agent


def find_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one.

    Raises:
        ConfigError: There is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return usable_device("device", name)


def _build(path: Path, content: Mapping[str, Any], device: torch.device | str) -> Agent:
    """Return the agent of a checkpoint's content, once nothing is missing that a score needs."""
    stamp = content[STAMP_KEY]
    env = env_of(stamp)
    known = inspect.signature(DQN).parameters  # a subclass may have saved more
    settings = {n: v for n, v in content["hyper_parameters"].items() if n in known}
    module = DQN(**settings)
    module.load_state_dict(content["state_dict"])
    check_finite(module, content["state_dict"])
    agent = Agent(path, module.to(device).eval(), env, stamp)
    agent.evaluation()
    itemgetter("seed", "learner_steps", "frames")(stamp["training"])
    return agent
