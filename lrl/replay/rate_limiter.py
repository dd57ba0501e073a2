"""The rate limiter holds the ratio of learning to acting, whatever the speed of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lrl.parts.renamed import knows_old_names
from lrl.parts.settings import check_types
from lrl.types import ConfigError


@knows_old_names
@dataclass(frozen=True)
class RateLimiterConfig:
    """How much is learnt from how much is experienced.

    Reference: Cassirer et al. 2021, "Reverb: A Framework for Experience Replay",
    https://arxiv.org/abs/2102.04736, section 3.3.
    """

    samples_per_insert: float | None = 8.0
    """Batch size x batches / environment steps; 8 is a batch of 32 every 4 environment steps (Mnih
    et al. 2015) or one of 512 every 64. Of a sequence each row that may be learnt from is a sample.
    None lets actors and learner run free."""

    max_samples_ahead: float | None = None
    """Samples by which actors may be ahead of the ratio before they wait; the learner is never
    ahead. None takes twice the least that cannot deadlock: 2 x (batch size + samples_per_insert
    x environment steps of one insert)."""

    warm_up_env_steps: int = 1000
    """Environment steps inserted before learning starts; they count for no sample."""

    max_learner_steps_per_second: float | None = None
    """Upper bound on the learner's speed, in batches where gradients are accumulated; None for no
    bound."""

    def __post_init__(self) -> None:
        """Check each setting by itself."""
        check_types(self, "rate")
        for name in ("samples_per_insert", "max_samples_ahead", "max_learner_steps_per_second"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"rate.{name} is {value}: it must be positive, or null")
        if self.warm_up_env_steps < 1:
            raise ConfigError(
                f"rate.warm_up_env_steps is {self.warm_up_env_steps}: set it to at least 1, "
                "since nothing can be learnt from an empty replay"
            )


class RateLimiter:
    """Says when the learner may sample and when actors may insert; one of both always may.

    Created by the datamodule and asked by the dataset, in the learner process. It only counts:
    it starts nothing, waits for nothing, and looks at a clock for the maximum rate alone. After
    the warm-up each inserted environment step earns `samples_per_insert` samples. A batch may be
    sampled once it is earned in full, so the ratio is met exactly; an insert must not raise what
    is earned but not yet sampled above `max_samples_ahead`. In the warm-up everything may be
    inserted.

    Args:
        config: The ratio and its bounds.
        batch_size: Samples of one learner step.
        insert_size: Most environment steps that one insert brings: a chunk, or in synchronous
            mode the number of environments.
        clock: Seconds from any fixed moment.

    Raises:
        ConfigError: `max_samples_ahead` is so small that neither side could go on.
    """

    def __init__(
        self,
        config: RateLimiterConfig,
        batch_size: int,
        insert_size: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if batch_size < 1 or insert_size < 1:
            raise ConfigError(
                f"batch_size {batch_size} and insert_size {insert_size} must both be at least 1"
            )
        self._config = config
        self._batch_size = batch_size
        self._insert_size = insert_size
        self._clock = clock
        self._next_step_seconds = -float("inf")
        self._warm_up_left = config.warm_up_env_steps
        self._inserted = 0
        self._sampled = 0
        # Exact, because 0.29 * 100 < 29 in floating point would let a batch wait for one insert.
        ratio = Fraction(str(config.samples_per_insert or 0))
        least = batch_size + ratio * insert_size
        self._ratio = ratio
        self._max_samples_ahead = 2 * least
        if config.max_samples_ahead is not None:
            self._max_samples_ahead = Fraction(str(config.max_samples_ahead))
        if config.samples_per_insert is not None and self._max_samples_ahead < least:
            raise ConfigError(
                f"rate.max_samples_ahead is {config.max_samples_ahead}, so learner and actors "
                f"could wait for each other for ever: one batch of {batch_size} and one insert of "
                f"{insert_size} environment steps need at least {float(least):g}"
            )

    def can_sample(self) -> bool:
        """Tell whether a batch is earned."""
        if self._warm_up_left:
            return False
        if self._config.samples_per_insert is None:
            return True
        return self._earned() >= self._batch_size

    def batches_earned(self) -> int | None:
        """Return how many batches may be sampled at once; None for any number."""
        if self._config.max_learner_steps_per_second is not None:
            return int(self.can_sample())
        if self._config.samples_per_insert is None and not self._warm_up_left:
            return None
        return 0 if self._warm_up_left else int(self._earned() // self._batch_size)

    def can_insert(self) -> bool:
        """Tell whether actors stay within `max_samples_ahead` with one more insert."""
        if self._warm_up_left or self._config.samples_per_insert is None:
            return True
        return self._earned() + self._ratio * self._insert_size <= self._max_samples_ahead

    def record_insert(self, env_steps: int) -> None:
        """Count environment steps that were inserted."""
        warm_up = min(env_steps, self._warm_up_left)
        self._warm_up_left -= warm_up
        self._inserted += env_steps - warm_up

    def record_sample(self, samples: int) -> None:
        """Count samples that were taken; a batch is one learner step for the maximum rate."""
        self._sampled += samples
        if self._config.max_learner_steps_per_second is not None:
            learner_steps = samples / self._batch_size
            start = max(self._clock(), self._next_step_seconds)
            seconds = learner_steps / self._config.max_learner_steps_per_second
            self._next_step_seconds = start + seconds

    @property
    def samples_per_insert(self) -> float:
        """The ratio measured since the warm-up; 0 until something was inserted after it."""
        return self._sampled / self._inserted if self._inserted else 0.0

    def seconds_until_next_step(self) -> float:
        """Return how long the learner should wait for the sake of the maximum rate."""
        if self._config.max_learner_steps_per_second is None:
            return 0.0
        return max(0.0, self._next_step_seconds - self._clock())

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, as integers, and the ratio they were held to."""
        return {
            "samples_per_insert": str(self._ratio),
            "warm_up_left": self._warm_up_left,
            "inserted": self._inserted,
            "sampled": self._sampled,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; counts for another ratio would allow a burst."""
        self._warm_up_left = state["warm_up_left"]
        same_ratio = state["samples_per_insert"] == str(self._ratio)
        self._inserted = state["inserted"] if same_ratio else 0
        self._sampled = state["sampled"] if same_ratio else 0

    def _earned(self) -> Fraction:
        """Samples that may still be taken for what was inserted."""
        return self._ratio * self._inserted - self._sampled
