"""A trained agent for scripts: one call from observations to actions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lrl.deploy.hub import fetched
from lrl.deploy.observations import read_observation
from lrl.deploy.played_env import PlayedEnv
from lrl.evaluation.episodes import choose_actions, differing_spaces
from lrl.learner.agent import Agent, find_device, load_agent
from lrl.types import ConfigError, EnvSpec, Memory


class TrainedPolicy:
    """Chooses actions as the agent's evaluation does; `lrl.load_policy` makes one.

    It takes observations as the agent's environment gives them with all its preprocessing, nothing
    less: frames stacked along the first axis (newest last), pixels as uint8, wrappers of
    `env.wrappers` applied, categories numbered from 0. `make_env` makes that environment, and
    `spec.observation` lists the shapes and types. Nothing else has to be done: networks scale
    pixels and expand categories themselves.

    Args:
        agent: The agent.
        epsilon: Probability of a random action where actions are drawn; None takes that of its
            evaluation.
        seed: For what is drawn; None seeds from the system.

    Attributes:
        agent: The agent: its module, environment and protocol stamp.
        epsilon: Probability of a random action where actions are drawn.
    """

    def __init__(self, agent: Agent, epsilon: float | None = None, seed: int | None = None) -> None:
        self.agent = agent
        self.epsilon: float = agent.evaluation(epsilon)["epsilon"]
        self._policy = agent.policy()
        self._rng = np.random.default_rng(seed)

    @property
    def spec(self) -> EnvSpec:
        """Observations and actions of the agent."""
        spec = self.agent.module.env_spec
        assert spec is not None
        return spec

    def predict(
        self,
        observation: Any,
        state: Memory | None = None,
        episode_start: npt.ArrayLike | None = None,
        deterministic: bool = True,
        *,
        action_masks: npt.ArrayLike | None = None,
    ) -> tuple[Any, Memory | None]:
        """Return the action for an observation, or those for a batch, and the next state.

        Args:
            observation: One, or a batch with one more axis in front: an array, or a dict of arrays
                for the leaves of Dict and Tuple spaces (see the class for what is expected).
            state: What the last call returned; None where all episodes begin. Only agents with a
                recurrent core have one: rows of arrays, one for each observation.
            episode_start: Where an episode begins, `[n]` or one flag; the state is forgotten there.
            deterministic: Take the best action; otherwise a random one with probability `epsilon`,
                in each branch apart.
            action_masks: Which actions are allowed, `[actions]`, or `[n, actions]` for a batch,
                those of several branches side by side. Needed where the environment of `make_env`
                has masks, for which it gives `info["action_mask"]`.

        Returns:
            Actions, int64, numbered from 0: one number or `[n]`, with several branches `[branches]`
            or `[n, branches]`; and the next state, None for an agent that remembers nothing.

        Raises:
            ValueError: An argument has another shape or type than the agent learnt with.
        """
        batch, count, is_one = read_observation(observation, self.spec.observation)
        mask = self._mask(action_masks, count, is_one)
        memory = self._memory(state, episode_start, count)
        values, _, memory = self._policy(batch, memory)
        epsilon = 0.0 if deterministic else self.epsilon
        generators = [self._rng] * count
        actions = choose_actions(values, epsilon, generators, mask, self.spec.action)
        actions = actions.astype(np.int64)
        return (actions[0] if is_one else actions), memory

    def make_env(self, render_mode: str | None = None) -> PlayedEnv:
        """Make the environment of the agent's evaluation, which gives what `predict` takes.

        Args:
            render_mode: None, or `rgb_array` for pictures.

        Raises:
            ConfigError: It cannot be made here, or is another than it was in training.
        """
        env = PlayedEnv(self.agent.env, render_mode)
        if other := differing_spaces(self.spec, env.env_spec):
            env.close()
            raise ConfigError(
                f"{self.agent.env.id} has {', '.join(other)} here: use the versions of the "
                "checkpoint's stamp (policy.agent.stamp['versions'])"
            )
        return env

    def _mask(
        self, given: npt.ArrayLike | None, count: int, is_one: bool
    ) -> npt.NDArray[np.bool_] | None:
        spec, actions = self.spec.action, self.spec.num_actions
        if given is None:
            if self.agent.env.action_masks:
                raise ValueError(
                    "this agent's environment says which actions are allowed: give action_masks, "
                    "which are in info['action_mask']"
                )
            return None
        mask = np.asarray(given)
        expected = (actions,) if is_one else (count, actions)
        if mask.shape != expected or mask.dtype.kind not in "biu":
            raise ValueError(
                f"action_masks are {mask.dtype} of the shape {mask.shape}, but must be booleans of "
                f"the shape {expected}"
            )
        mask = mask.astype(np.bool_).reshape(count, actions)
        if not all(part.any(axis=1).all() for part in spec.split(mask)):
            raise ValueError("action_masks allow no action at all in some row")
        return mask

    def _memory(
        self, state: Memory | None, episode_start: npt.ArrayLike | None, count: int
    ) -> Memory | None:
        columns, fresh = self._policy.memory, self._policy.begin(count)
        if fresh is None:
            if state is not None:
                raise ValueError("state is given, but this agent remembers nothing: give None")
            return None
        starts = np.zeros(count, np.bool_)
        if episode_start is not None:
            starts = np.asarray(episode_start)
            if starts.shape not in ((), (1,), (count,)) or starts.dtype.kind not in "biu":
                raise ValueError(
                    f"episode_start is {starts.dtype} of the shape {starts.shape}, but must be one "
                    f"flag, or {count}, one for each observation"
                )
            starts = np.broadcast_to(starts.astype(np.bool_), (count,))
        if state is None or starts.all():
            return fresh
        _check_state(state, fresh)
        memory = {name: np.array(state[name], columns[name].type) for name in fresh}
        for name, value in memory.items():
            value[starts] = fresh[name][starts]
        return memory


def _check_state(state: Any, fresh: Memory) -> None:
    expected = {name: value.shape for name, value in fresh.items()}
    found = {name: np.shape(value) for name, value in state.items()} if isinstance(
        state, Mapping) else type(state).__name__  # fmt: skip
    if found != expected:
        raise ValueError(
            f"state is {found}, but must be what the last call of predict returned, with a row for "
            f"each observation: {expected}"
        )


def load_policy(
    path: str | Path,
    device: torch.device | str = "cpu",
    *,
    epsilon: float | None = None,
    seed: int | None = None,
) -> TrainedPolicy:
    """Load the policy of a checkpoint that lrl wrote; nothing else is needed, no code in it runs.

    Args:
        path: The checkpoint, or the address of one on the Hugging Face Hub (extra `hub`):
            `hub:owner/name`, or `hub:owner/name@revision`.
        device: Where its network shall act: auto, cpu, cuda, ...
        epsilon: Probability of a random action where `predict` is not deterministic; None takes
            that of the agent's evaluation.
        seed: For the random actions; None seeds from the system.

    Raises:
        ConfigError: There is no such file, it is damaged, or no checkpoint of lrl's, or it needs a
            part or an environment of yours whose module is not imported yet.

    Example:
        policy = lrl.load_policy("runs/cartpole/version_0/checkpoints/best.ckpt")
        env = policy.make_env()
        observation, info = env.reset(seed=0)
        action, state = policy.predict(observation)
    """
    return TrainedPolicy(load_agent(fetched(path), find_device(str(device))), epsilon, seed)
