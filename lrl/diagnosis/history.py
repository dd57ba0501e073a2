"""What is known of a run when it is diagnosed: its metrics, and the few settings that matter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
        )


def _name(part: Mapping[str, Any]) -> str:
    return str(part.get("class_path", "")).rpartition(".")[2]


def _numbers(value: Any) -> list[float]:
    """Return the values that a number or a schedule, as YAML has it, moves between."""
    if isinstance(value, Mapping):
        ends = value.get("init_args", value)
        return [float(ends[name]) for name in ("start", "end", "value") if name in ends]
    return [] if value is None else [float(value)]


class History:
    """The metrics of a run so far, which may be one that goes on from an earlier one.

    Args:
        rows: Rows as `metrics.csv` has them, numbers or their text; what is empty is left out.
        settings: Those of the run.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], settings: Settings) -> None:
        self.settings = settings
        known = [{name: _number(value) for name, value in row.items()} for row in rows]
        self._rows = [{n: v for n, v in row.items() if v is not None} for row in known]
        steps = self.series("count/learner_steps")
        self.learner_steps = int(max(steps, default=0.0))
        self.session_learner_steps = self.learner_steps - int(min(steps, default=0.0))
        planned = settings.max_learner_steps or self.learner_steps
        self.progress = self.learner_steps / planned if planned else 0.0
        """Share of the planned learner steps that was made; 1 where no number is planned."""

    def series(self, name: str) -> list[float]:
        """Return all values of a metric, in their order."""
        return [row[name] for row in self._rows if name in row]

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
        if not began or self.session_learner_steps < 0.9 * self.learner_steps:
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
