"""What is known of a run when it is diagnosed: its metrics, and the few settings that matter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Settings:
    """Settings of a run that its metrics cannot be judged without.

    Attributes:
        max_learner_steps: Learner steps that are planned; None if nobody knows.
        gamma: Discount of one environment step; None if nobody knows.
        n_step: Environment steps of a transition.
        samples_per_batch: Transitions in a batch.
        gives_returns: Whether the rewards of batches are whole returns.
        adds_bonus: Whether the bootstrap rule adds something to rewards.
        rescales: Whether the head learns something else than returns as they are: rescaled ones,
            or a distribution over given atoms.
        is_synchronous: Whether the learner acts itself.
        is_slowed: Whether `rate.max_learner_steps_per_second` is set.
        has_own_pool: Whether rows come from a `data.pool`.
        takes_weights: Whether whoever acts has to be sent weights.
    """

    max_learner_steps: int | None = None
    gamma: float | None = None
    n_step: int = 1
    samples_per_batch: int = 1
    gives_returns: bool = False
    adds_bonus: bool = False
    rescales: bool = False
    is_synchronous: bool = False
    is_slowed: bool = False
    has_own_pool: bool = False
    takes_weights: bool = True

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Settings:
        """Return the settings of a run's `config.yaml`."""
        data, model = config.get("data", {}), config.get("model", {})
        model = model.get("init_args", model)
        replay, rate = data.get("replay") or {}, data.get("rate") or {}
        head, rule = model.get("head") or {}, model.get("bootstrap") or {}
        experience = data.get("experience")
        gammas = _numbers((experience or {}).get("init_args", {}).get("gamma"))
        if experience is None:
            gammas = _numbers(replay.get("gamma"))
        sequences = replay.get("sequences") or {}
        planned = config.get("trainer", {}).get("max_steps", -1)
        return cls(
            max_learner_steps=planned if planned and planned > 0 else None,
            gamma=max(gammas, default=None),
            n_step=round(min(_numbers(replay.get("n_step")), default=1.0)),
            samples_per_batch=replay.get("batch_size", 1) * sequences.get("length", 1),
            gives_returns=_name(rule) == "NoBootstrap",
            adds_bonus=_name(rule) not in ("", "MaxBootstrap", "DoubleBootstrap", "NoBootstrap"),
            rescales=_name(head) == "CategoricalHead"
            or head.get("init_args", {}).get("value_rescaling") is not None,
            is_synchronous=not (data.get("actors") or {}).get("num_actors")
            and data.get("cluster") is None,
            is_slowed=rate.get("max_learner_steps_per_second") is not None,
            has_own_pool=data.get("pool") is not None,
            takes_weights=data.get("pool") is None,  # of one's own nobody knows
        )


def _name(part: Mapping[str, Any]) -> str:
    return str(part.get("class_path", "")).rpartition(".")[2]


def _numbers(value: Any) -> list[float]:
    """Return the values that a number or a schedule, as YAML has it, moves between."""
    if isinstance(value, Mapping):
        ends = value.get("init_args", value)
        return [float(ends[name]) for name in ("start", "end", "value") if name in ends]
    return [] if value is None else [float(value)]


METRICS = (
    "count/env_steps",
    "count/learner_steps",
    "eval/length_mean",
    "eval/return_mean",
    "replay/priority_max",
    "replay/size",
    "rollout/episodes",
    "rollout/length_mean",
    "rollout/return_mean",
    "rollout/start_value_mean",
    "speed/actor_wait_fraction",
    "speed/learner_wait_fraction",
    "sync/policy_lag_mean",
    "train/dead_units",
    "train/distinct_rows",
    "train/epsilon",
    "train/lr",
    "train/q_mean",
    "train/reward_abs_max",
    "train/reward_mean",
    "train/target_updates",
)
"""All that a diagnosis looks at."""


class History:
    """The metrics of a run so far, which may be one that goes on from an earlier one.

    Args:
        settings: Those of the run.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._series: dict[str, list[float]] = {name: [] for name in METRICS}

    def add(self, row: Mapping[str, Any]) -> None:
        """Take a row as `metrics.csv` has it, numbers or their text; empty is left out."""
        for name in METRICS:
            if (value := _number(row.get(name))) is not None:
                self._series[name].append(value)

    def add_column(self, name: str, values: Sequence[float]) -> None:
        """Take the known values of one of `METRICS`, in their order."""
        self._series[name].extend(values)

    @property
    def learner_steps(self) -> int:
        """Learner steps so far, earlier sessions included."""
        return int(self.total("count/learner_steps"))

    @property
    def session_learner_steps(self) -> int:
        """Learner steps from the first row to the last one."""
        return self.learner_steps - int(min(self.series("count/learner_steps"), default=0.0))

    @property
    def is_whole(self) -> bool:
        """Whether the first row is one of the beginning, and not of a run that goes on."""
        first, *later = self.series("count/learner_steps") or [0.0]
        return bool(later) and first <= 2 * (later[0] - first)

    @property
    def progress(self) -> float:
        """Share of the planned learner steps that was made; 1 where no number is planned."""
        planned = self.settings.max_learner_steps or self.learner_steps
        return self.learner_steps / planned if planned else 0.0

    def series(self, name: str) -> list[float]:
        """Return all values of a metric, in their order."""
        return self._series[name]

    def newest(self, name: str, share: float = 0.25) -> list[float]:
        """Return the last share of a metric's values, at least one; none if there is none."""
        values = self.series(name)
        return values[-max(1, round(share * len(values))) :] if values else []

    def level(self, name: str, share: float = 0.25) -> float | None:
        """Return the median of the last share of a metric's values."""
        values = self.newest(name, share)
        return median(values) if values else None

    def total(self, name: str) -> float:
        """Return the largest value of a metric, the last one of a count; 0 if there is none."""
        return max(self.series(name), default=0.0)

    @property
    def is_flat(self) -> bool:
        """Whether no return rose: neither of training episodes nor of evaluations.

        A rise is a quarter of where it began, from the first value to the highest of eight later
        medians. Of a run that goes on from an earlier one nobody knows where it began.
        """
        began = [s for s in (self.series(name) for name in _RETURNS) if len(s) >= _FEWEST]
        if not began or not self.is_whole:
            return False
        scale = max(abs(returns[0]) for returns in began)
        return all(_highest(returns) - returns[0] <= 0.25 * scale for returns in began)


_RETURNS = ("rollout/return_mean", "eval/return_mean")
_FEWEST = 4  # values by which a course can be told


def _highest(values: Sequence[float]) -> float:
    size = -(-len(values) // 8)
    return max(median(values[start : start + size]) for start in range(0, len(values), size))


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):  # empty in metrics.csv
        return None
    return None if math.isnan(number) else number
