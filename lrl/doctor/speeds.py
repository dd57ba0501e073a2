"""How fast this machine learns and acts, measured in a few seconds with plain torch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import gymnasium
import torch
from torch import Tensor, nn

_WARM_UP = 3


@dataclass(frozen=True)
class Speeds:
    """What was measured.

    Attributes:
        mlp: Milliseconds of an update of CartPole's network, with 512 rows and one thread.
        env_steps: Steps a second of one CartPole, in this process.
        nature: Milliseconds of an update of Nature's network, with 32 rows and all cores.
        nature_bfloat16: The same in bfloat16; None where the processor has none.
    """

    mlp: float
    env_steps: float
    nature: float
    nature_bfloat16: float | None


def measure(cores: int, bfloat16: bool, seconds: float = 0.75) -> Speeds:
    """Measure; it takes about four times as long as each measurement.

    Args:
        cores: Threads of the larger network's update.
        bfloat16: Whether it is also made in bfloat16.
        seconds: Length of each measurement.
    """
    mlp = nn.Sequential(
        nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
    )
    with _threads(1):
        small = _milliseconds(_update(mlp, torch.randn(512, 4)), seconds)
        acted = _milliseconds(_steps(100), seconds)
    nature = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(),
        nn.Linear(512, 6),
    )  # fmt: skip
    frames = torch.rand(32, 4, 84, 84)
    with _threads(cores):
        large = _milliseconds(_update(nature, frames), seconds)
        halved = None
        if bfloat16:
            with torch.autocast("cpu", torch.bfloat16):
                halved = _milliseconds(_update(nature, frames), seconds)
    return Speeds(small, 100 * 1e3 / acted, large, halved)


def _update(network: nn.Module, inputs: Tensor) -> Callable[[], object]:
    """Return what makes an update: target values, values, gradients and a step of Adam."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4, fused=True)

    def update() -> None:
        with torch.no_grad():
            following = network(inputs).amax(1)
        loss = nn.functional.mse_loss(network(inputs)[:, 0].float(), following.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return update


def _steps(count: int) -> Callable[[], object]:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)

    def steps() -> None:
        for index in range(count):
            _, _, terminated, truncated, _ = env.step(index % 2)
            if terminated or truncated:
                env.reset()

    return steps


def _milliseconds(function: Callable[[], object], seconds: float) -> float:
    """Return the median time of a call."""
    for _ in range(_WARM_UP):
        function()
    times: list[float] = []
    ends = time.perf_counter() + seconds
    while not times or time.perf_counter() < ends:
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return 1e3 * median(times)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
