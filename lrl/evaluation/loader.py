"""Evaluation episodes in the shape of a dataloader: evaluation is Lightning's validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lrl.actors.policy import NetworkPolicy
from lrl.envs import EnvConfig
from lrl.evaluation.episodes import run_episodes


class EvaluationLoader:
    """Plays this rank's share of the episodes when iterated, and yields one batch of results.

    The batch holds `return`, `length` and `timed_out`, tensors of shape `[episodes]` in the order
    of the seeds. The network acts in evaluation mode, without noise.

    Args:
        trainer: The Lightning Trainer, which has the module when the episodes are played.
        env: Environment of the episodes.
        seeds: Seeds of all ranks' episodes.
        epsilon: Probability of a random action.
        max_frames: Frames after which an episode is cut off.
        check: Called between steps; raises when the run should stop, or returns whether it should
            once all ranks know.
        meet: Called after the episodes; the ranks meet there, and it raises if one should stop.
    """

    def __init__(
        self,
        trainer: Any,
        env: EnvConfig,
        seeds: Sequence[int],
        epsilon: float,
        max_frames: int,
        check: Callable[[], object],
        meet: Callable[[], object] = lambda: None,
    ) -> None:
        self.trainer = trainer
        self.env = env
        self.seeds = seeds
        self.epsilon = epsilon
        self.max_frames = max_frames
        self.check, self.meet = check, meet

    def __len__(self) -> int:
        """Return the number of batches."""
        return 1

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Play the episodes with the module's current weights."""
        module = self.trainer.lightning_module
        policy = NetworkPolicy(module.online, module.device, noise=False)
        try:
            episodes = run_episodes(
                self.env,
                policy,
                self.seeds[self.trainer.global_rank :: self.trainer.world_size],
                epsilon=self.epsilon,
                max_frames=self.max_frames,
                check=self._check,
                num_threads=torch.get_num_threads(),
            )
        except _StopError:
            episodes = None
        self.meet()
        assert episodes is not None, "one that should stop is heard by all"
        yield {
            "return": torch.from_numpy(episodes.returns),
            "length": torch.from_numpy(episodes.lengths).double(),
            "timed_out": torch.from_numpy(episodes.timed_out),
        }

    def _check(self) -> None:
        if self.check():
            raise _StopError


class _StopError(Exception):
    """This rank should stop, and leaves its episodes to tell the others."""
