"""The tasks of `python -m benchmark.scores.measure`: recipes, bars and parts of algorithms."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Task:
    """A recipe and what it has to reach.

    Attributes:
        name: Name of the task.
        recipe: Name of the YAML file in `configs/`.
        bar: Least score.
        seconds: Most seconds of `lrl fit`, start-up and evaluations included.
        seeds: Training seeds.
        settings: Further arguments of the command line.
        algorithm: Name of the algorithm; "" where the recipe is the task.
        checkpoint: Which one is tested, "best" or "last".
        test_settings: Arguments of `lrl test` alone.
        machines: Further arguments of `lrl fit`, by name of a machine that trains with them.
    """

    name: str
    recipe: str
    bar: float
    seconds: float
    seeds: range = range(5)
    settings: tuple[str, ...] = ()
    algorithm: str = ""
    checkpoint: str = "best"
    test_settings: tuple[str, ...] = ()
    machines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Checksum of recipe and settings, 8 hex digits: rows with another one do not count."""
        files = [f"configs/{self.recipe}.yaml", *(s for s in self.settings if s.endswith(".yaml"))]
        lines = [line for file in files for line in Path(file).read_text().splitlines()]
        settings = "".join(line for line in lines if not line.startswith("#"))
        return f"{zlib.crc32((settings + repr(self.settings)).encode()):08x}"

    @property
    def tested(self) -> dict[str, str]:
        """How its score is measured, in columns of its rows: the digest does not hold it."""
        return {"checkpoint": self.checkpoint, "test_settings": " ".join(self.test_settings)}

    def has(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row is of the present recipe, tested as now."""
        present = {**self.tested, "digest": self.digest}
        return all(row[name] == value for name, value in present.items())


_HEADS: dict[str, tuple[str, ...]] = {
    "ScalarHead": (),
    "CategoricalHead": ("num_atoms=51", "v_min=0", "v_max=200"),
    "QuantileHead": ("num_quantiles=32",),
    "ImplicitQuantileHead": (
        "num_quantiles=8",
        "num_target_quantiles=8",
        "num_acting_quantiles=16",
        "embedding_size=32",
    ),
}


def _algorithm(
    name: str,
    head: str = "ScalarHead",
    bootstrap: str = "MaxBootstrap",
    options: tuple[str, ...] = (),
    prioritized: bool = False,
    exploration: str | None = None,
) -> Task:
    """Return CartPole's task with an algorithm's parts; sizes, rates and n stay the recipe's."""
    settings = [f"--model.bootstrap=lrl.learner.{bootstrap}"]
    if head != "ScalarHead":
        settings.append(f"--model.head=lrl.networks.{head}")
    settings += [f"--model.head.{option}" for option in (*_HEADS[head], *options)]
    if prioritized:
        settings.append("--data.replay.sampler=lrl.replay.PrioritizedSampler")
    if exploration is not None:
        settings.append(f"--data.exploration=lrl.actors.exploration.{exploration}")
    return Task(
        f"parts_{name}", "cartpole", bar=475, seconds=120, seeds=range(3), settings=tuple(settings)
    )


_NOISY = ("dueling=true", "noisy=true")
_ALGORITHMS = (
    _algorithm("dqn"),
    _algorithm("double_dqn", bootstrap="DoubleBootstrap"),
    _algorithm("dueling_double_dqn", bootstrap="DoubleBootstrap", options=("dueling=true",)),
    _algorithm("prioritized", bootstrap="DoubleBootstrap", prioritized=True),
    _algorithm("c51", "CategoricalHead"),
    _algorithm("qr_dqn", "QuantileHead"),
    _algorithm("iqn", "ImplicitQuantileHead"),
    _algorithm("munchausen_dqn", bootstrap="MunchausenBootstrap"),
    _algorithm("munchausen_iqn", "ImplicitQuantileHead", "MunchausenBootstrap"),
    _algorithm("rainbow", "CategoricalHead", "DoubleBootstrap", _NOISY, True, "Greedy"),
    _algorithm("apex", "ScalarHead", "DoubleBootstrap", ("dueling=true",), True, "EpsilonLadder"),
    _algorithm("beyond_the_rainbow", "ImplicitQuantileHead", "MunchausenBootstrap", _NOISY, True),
)


def _minatar(game: str, bar: float, recipe: str = "minatar", seconds: float = 1200) -> Task:
    """Return a game's task."""
    settings = ("--data.env.id", f"lrl/MinAtar{game}-v0")
    return Task(f"{recipe}_{game.lower()}", recipe, bar, seconds, range(3), settings)


TASKS = (
    Task("cartpole", "cartpole", bar=475, seconds=60),
    Task("cartpole_sync", "cartpole_sync", bar=475, seconds=60),
    Task(
        "cartpole_central",
        "cartpole",
        bar=475,
        seconds=60,
        settings=("--config", "configs/system/central_inference.yaml"),
    ),
    Task("cartpole_rainbow", "cartpole_rainbow", bar=475, seconds=60),
    Task("cartpole_iqn", "cartpole_iqn", bar=475, seconds=60),
    Task("cartpole_masked", "cartpole_masked", bar=450, seconds=300),
    Task("recall", "recall", bar=0.95, seconds=120),
    Task("signpost", "signpost", bar=0.95, seconds=240),
    Task("cartpole_pqn", "cartpole_pqn", bar=475, seconds=45),
    Task("lunarlander", "lunarlander", bar=200, seconds=600),
    Task("mountaincar", "mountaincar", bar=-110, seconds=180),
    # The optimum is -8, and the bar 98 % of it.
    Task("dials", "dials", bar=-8.16, seconds=60),
    # Young and Tian 2019, https://arxiv.org/abs/1903.03176, DQN after a million frames.
    _minatar("Breakout", bar=9),
    _minatar("Asterix", bar=12),
    _minatar("Freeway", bar=48),
    _minatar("SpaceInvaders", bar=32),
    _minatar("Breakout", bar=10, recipe="minatar_pqn", seconds=360),
    _minatar("SpaceInvaders", bar=50, recipe="minatar_pqn", seconds=360),
    # Tested over 20 games. Earlier recipes were run with seeds 0 to 2, which test this one no more.
    Task("pong_laptop", "pong_laptop", bar=18, seconds=3600, seeds=range(3, 7)),
    *_ALGORITHMS,
)
