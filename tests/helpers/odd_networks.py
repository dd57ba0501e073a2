"""Networks that fail on purpose; inference servers import this module."""

from __future__ import annotations

import multiprocessing

from torch import Tensor

from lrl.networks import MLPEncoder


class BreaksInServers(MLPEncoder):
    """Raises at its first calls in an inference server, and nowhere else."""

    def __init__(
        self, observation_shape: tuple[int, ...], hidden_sizes: tuple[int, ...], times: int
    ) -> None:
        super().__init__(observation_shape, hidden_sizes)
        in_server = multiprocessing.current_process().name.startswith("lrl-inference-server")
        self.failures_left = times if in_server else 0

    def forward(self, observation: Tensor) -> Tensor:
        if self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("the weights are lost")
        return super().forward(observation)
