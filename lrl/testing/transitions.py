"""What must hold of one sampled transition of `LedgerEnv`, whatever it was sampled from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lrl.testing.ledger_env import REMEMBERED_ACTIONS, LedgerEnv

if TYPE_CHECKING:
    from lrl.types import Batch

_Frames = npt.NDArray[np.generic]  # [batch, frames, rows, 4]
_Flags = npt.NDArray[np.bool_]


def valid_transitions(
    batch: Batch, env: LedgerEnv, reward_clip: float | None, n_step: int, gamma: float
) -> _Flags:
    """Tell which transitions are right: stacks, successor, actions, n-step sum, discount, ends.

    A transition of m steps bootstraps from the observation m steps on. One that terminated ends
    with the frame of its last step instead, whose action is unknown: there must then be an action
    that terminates there and explains the reward.

    Args:
        batch: The transitions.
        env: The environment.
        reward_clip: As in `EnvConfig`.
        n_step: Environment steps of a transition at most, up to 8.
        gamma: Discount of one environment step, above 0.
    """
    stack, next_stack = _frames(batch.observation.numpy()), _frames(batch.next_observation.numpy())
    place, next_place = LedgerEnv.decode(stack[:, -1]), LedgerEnv.decode(next_stack[:, -1])
    action, reward = batch.action.numpy(), batch.reward.numpy()
    terminated = batch.discount.numpy() == 0
    valid = _one_episode(stack) & LedgerEnv.intact(next_stack[:, -1])
    valid &= terminated | _one_episode(next_stack)
    known = next_place[:, 2] - place[:, 2]  # steps whose actions are known
    steps = known + terminated
    valid &= (place[:, :2] == next_place[:, :2]).all(axis=1) & (steps >= 1) & (steps <= n_step)
    total = np.zeros(len(action))
    remembered = LedgerEnv.decode_actions(next_stack[:, -1])
    for step in range(n_step):
        back = np.clip(known - 1 - step, 0, REMEMBERED_ACTIONS - 1)
        taken = np.take_along_axis(remembered, back[:, None], axis=1)[:, 0]
        here = place + np.array((0, 0, step))
        terminates, truncates = env.ends(here, taken)
        last = step == steps - 1
        right = np.where(last, ~terminates & (truncates | (steps == n_step)), ~terminates)
        right &= last | ~truncates
        right &= (taken == action) | (step > 0)
        valid &= right | (step >= known)
        gained = gamma**step * _rewards(here, taken, reward_clip)
        total += np.where(step < known, gained, 0.0)
    bootstraps = np.isclose(total, reward, atol=1e-4)
    bootstraps &= np.isclose(batch.discount.numpy(), gamma ** np.maximum(steps, 0), atol=1e-5)
    explained = np.zeros_like(valid)
    here = place + np.outer(known, (0, 0, 1))
    for candidate in range(int(env.action_space.n)):  # pyright: ignore[reportAttributeAccessIssue]
        taken = np.full_like(action, candidate)
        gained = gamma ** np.maximum(known, 0) * _rewards(here, taken, reward_clip)
        possible = np.isclose(total + gained, reward, atol=1e-4) & env.ends(here, taken)[0]
        explained |= possible & ((known > 0) | (taken == action))
    return valid & np.where(terminated, explained, bootstraps)


def _frames(observation: npt.NDArray[np.generic]) -> _Frames:
    """Return observations with an axis of frames, also where there is no stack."""
    return observation if observation.ndim == 4 else observation[:, None]


def _one_episode(stack: _Frames) -> _Flags:
    """Tell which stacks are intact frames of one episode, up to now; the first one repeats."""
    place = LedgerEnv.decode(stack)
    ago = np.arange(stack.shape[1])[::-1]
    valid = LedgerEnv.intact(stack).all(axis=1)
    valid &= (place[..., 2] == np.maximum(place[:, -1:, 2] - ago, 0)).all(axis=1)
    return valid & (place[..., :2] == place[:, -1:, :2]).all(axis=(1, 2))


def _rewards(
    place: npt.NDArray[np.int64], action: npt.NDArray[np.int64], reward_clip: float | None
) -> npt.NDArray[np.float64]:
    reward = LedgerEnv.reward(place[:, 1], place[:, 2], action)
    return reward if reward_clip is None else np.clip(reward, -reward_clip, reward_clip)
