"""Evaluation episodes in the shape of a dataloader: evaluation is Lightning's validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lrl.actors.policy import NetworkPolicy
from lrl.evaluation import EvaluationConfig, run_episodes

if TYPE_CHECKING:
    from lrl.learner.datamodule import ReplayDataModule


class EvaluationLoader:
    """Plays this rank's share of the episodes when iterated, and yields one batch of results.

    The batch holds `return`, `length` and `timed_out`, tensors of shape `[episodes]` in the order
    of the seeds. The network acts in evaluation mode, without noise.

    Args:
        datamodule: Knows the environment and, through its trainer, the module.
        seeds: Seeds of all ranks' episodes.
        config: Exploration and the cap on frames.
    """

    def __init__(
        self, datamodule: ReplayDataModule, seeds: Sequence[int], config: EvaluationConfig
    ) -> None:
        self.datamodule = datamodule
        self.seeds = seeds
        self.config = config

    def __len__(self) -> int:
        """Return the number of batches."""
        return 1

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Play the episodes with the module's current weights."""
        trainer = self.datamodule.trainer
        assert trainer is not None
        module: Any = trainer.lightning_module
        policy = NetworkPolicy(module.online, module.device, noise=False)
        episodes = run_episodes(
            self.datamodule.evaluation_env,
            lambda observation: policy(observation)[0],
            self.seeds[trainer.global_rank :: trainer.world_size],
            epsilon=self.config.epsilon_for(self.datamodule.env),
            max_frames=self.config.max_frames_per_episode,
            check=self.datamodule.check,
            num_threads=torch.get_num_threads(),
        )
        yield {
            "return": torch.from_numpy(episodes.returns),
            "length": torch.from_numpy(episodes.lengths).double(),
            "timed_out": torch.from_numpy(episodes.timed_out),
        }
