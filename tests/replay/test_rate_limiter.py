from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.replay import RateLimiter, RateLimiterConfig
from lrl.types import ConfigError


class NaiveLimiter:
    """Keeps a list of everything that happened and counts it anew for each question."""

    def __init__(self, ratio: str, slack: Fraction, min_size: int, insert_size: int) -> None:
        self.ratio, self.slack = Fraction(ratio), slack
        self.min_size, self.insert_size = min_size, insert_size
        self.events: list[tuple[str, int]] = []

    def count(self, kind: str) -> int:
        return sum(size for name, size in self.events if name == kind)

    def ahead(self) -> Fraction:
        """Samples that actors are ahead of the learner."""
        earning = max(0, self.count("insert") - self.min_size)
        return earning * self.ratio - self.count("sample")

    def can_sample(self, batch_size: int) -> bool:
        return self.count("insert") >= self.min_size and self.ahead() >= batch_size

    def can_insert(self) -> bool:
        if self.count("insert") < self.min_size:
            return True
        return self.ahead() + self.ratio * self.insert_size <= self.slack


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    ratio=st.sampled_from(["8.0", "0.29", "1.0", "0.1", "3.7"]),
    batch_size=st.integers(1, 64),
    insert_size=st.integers(1, 64),
    min_size=st.integers(1, 200),
    slack=st.integers(0, 500),
    choices=st.lists(st.tuples(st.booleans(), st.integers(1, 64)), max_size=120),
)
def test_equals_twin_and_never_deadlocks(
    ratio: str, batch_size: int, insert_size: int, min_size: int, slack: int, choices: list
) -> None:
    max_samples_ahead = Fraction(ratio) * insert_size + batch_size + slack
    config = RateLimiterConfig(float(ratio), float(max_samples_ahead), min_size)
    limiter = RateLimiter(config, batch_size, insert_size)
    twin = NaiveLimiter(ratio, max_samples_ahead, min_size, insert_size)
    for prefers_sample, size in choices:
        can_sample, can_insert = limiter.can_sample(), limiter.can_insert()
        assert (can_sample, can_insert) == (twin.can_sample(batch_size), twin.can_insert())
        assert can_sample or can_insert
        earned = limiter.batches_earned()
        assert earned is not None
        assert twin.can_sample(earned * batch_size) if earned else not can_sample
        assert not twin.can_sample((earned + 1) * batch_size)
        if can_sample and (prefers_sample or not can_insert):
            limiter.record_sample(batch_size)
            twin.events.append(("sample", batch_size))
        else:
            env_steps = min(size, insert_size)
            limiter.record_insert(env_steps)
            twin.events.append(("insert", env_steps))


def synchronous_run(limiter: RateLimiter, env_steps: int, batch_size: int, insert: int) -> list:
    """Learn whenever possible, else step; return the environment step of each batch."""
    batches, inserted = [], 0
    while inserted < env_steps:
        if limiter.can_sample():
            limiter.record_sample(batch_size)
            batches.append(inserted)
        else:
            assert limiter.can_insert()
            limiter.record_insert(insert)
            inserted += insert
    return batches


def test_one_batch_every_four_steps_after_the_warm_up() -> None:
    limiter = RateLimiter(RateLimiterConfig(warm_up_env_steps=100), batch_size=32)
    batches = synchronous_run(limiter, 1001, 32, insert=1)
    assert batches == list(range(104, 1001, 4))
    assert limiter.samples_per_insert == pytest.approx(8.0, rel=0.01)


def test_two_batches_per_step_of_eight_environments() -> None:
    limiter = RateLimiter(RateLimiterConfig(warm_up_env_steps=80), 32, insert_size=8)
    batches = synchronous_run(limiter, 105, 32, insert=8)
    assert batches == [88, 88, 96, 96, 104, 104]


def test_fractions_do_not_drift() -> None:
    limiter = RateLimiter(RateLimiterConfig(0.29, warm_up_env_steps=1), batch_size=29)
    assert synchronous_run(limiter, 1002, 29, insert=1) == list(range(101, 1002, 100))


def test_nothing_is_sampled_in_the_warm_up() -> None:
    limiter = RateLimiter(RateLimiterConfig(None, warm_up_env_steps=10), batch_size=4)
    limiter.record_insert(9)
    assert not limiter.can_sample()
    limiter.record_insert(1)
    assert limiter.can_sample()
    assert limiter.samples_per_insert == 0.0


def test_free_running_never_holds_anyone_back() -> None:
    limiter = RateLimiter(RateLimiterConfig(None, warm_up_env_steps=1), batch_size=4)
    limiter.record_insert(10**6)
    assert limiter.can_insert()
    limiter.record_sample(10**9)
    assert limiter.can_sample()


def test_default_max_samples_ahead_is_twice_the_least() -> None:
    limiter = RateLimiter(RateLimiterConfig(8.0, warm_up_env_steps=1), 32, insert_size=4)
    limiter.record_insert(1)
    inserts = 0
    while limiter.can_insert():
        limiter.record_insert(4)
        inserts += 1
    assert inserts * 4 * 8 == 2 * (32 + 4 * 8)


@pytest.mark.parametrize("max_samples_ahead", [31.0, 39.0])
def test_max_samples_ahead_that_deadlocks_is_refused(max_samples_ahead: float) -> None:
    config = RateLimiterConfig(8.0, max_samples_ahead)
    with pytest.raises(ConfigError, match=r"rate.max_samples_ahead is .* at least 40"):
        RateLimiter(config, batch_size=32)


@pytest.mark.parametrize(
    "field", ["samples_per_insert", "max_samples_ahead", "max_learner_steps_per_second"]
)
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_wrong_settings_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"rate.{field} is {value}"):
        replace(RateLimiterConfig(), **{field: value})


def test_warm_up_must_be_possible() -> None:
    with pytest.raises(ConfigError, match=r"rate.warm_up_env_steps is 0"):
        RateLimiterConfig(warm_up_env_steps=0)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size 0"):
        RateLimiter(RateLimiterConfig(), batch_size=0)


def test_maximum_rate() -> None:
    now = 100.0
    config = RateLimiterConfig(warm_up_env_steps=1, max_learner_steps_per_second=10.0)
    limiter = RateLimiter(config, batch_size=4, clock=lambda: now)
    assert limiter.seconds_until_next_step() == 0.0
    limiter.record_sample(4)
    assert limiter.seconds_until_next_step() == pytest.approx(0.1)
    now += 0.06
    assert limiter.seconds_until_next_step() == pytest.approx(0.04)
    limiter.record_sample(4)  # early: the time is still owed
    assert limiter.seconds_until_next_step() == pytest.approx(0.14)
    now += 5.0
    limiter.record_sample(4)  # late: the time is not made up for
    assert limiter.seconds_until_next_step() == pytest.approx(0.1)
    limiter.record_sample(12)  # three batches
    assert limiter.seconds_until_next_step() == pytest.approx(0.4)
    assert RateLimiter(RateLimiterConfig(), 4).seconds_until_next_step() == 0.0


def test_how_many_batches_may_be_sampled_at_once() -> None:
    paced = RateLimiter(RateLimiterConfig(None, None, 1, max_learner_steps_per_second=10.0), 4)
    free = RateLimiter(RateLimiterConfig(None, warm_up_env_steps=1), 4)
    for limiter in (paced, free):
        assert limiter.batches_earned() == 0
        limiter.record_insert(5)
    assert paced.batches_earned() == 1
    assert free.batches_earned() is None


def test_resume_continues() -> None:
    config = RateLimiterConfig(8.0, warm_up_env_steps=10)
    limiter = RateLimiter(config, batch_size=32)
    limiter.record_insert(17)
    limiter.record_sample(32)
    resumed = RateLimiter(config, batch_size=32)
    resumed.load_state_dict(limiter.state_dict())
    assert resumed.samples_per_insert == limiter.samples_per_insert == pytest.approx(32 / 7)
    resumed.record_insert(1)
    assert resumed.can_sample()


@pytest.mark.parametrize(("ratio", "earned"), [(2.0, 40), (8.0, 0)])
def test_a_resumed_run_goes_on_with_the_counts_of_its_own_ratio_alone(
    ratio: float, earned: int
) -> None:
    """100 steps after the warm-up earned 200 samples, of which 40 were taken."""
    before = RateLimiter(RateLimiterConfig(2.0, warm_up_env_steps=10), batch_size=4)
    before.record_insert(110)
    before.record_sample(40)
    limiter = RateLimiter(RateLimiterConfig(ratio, warm_up_env_steps=10), batch_size=4)
    limiter.load_state_dict(before.state_dict())
    assert limiter.batches_earned() == earned
    limiter.record_insert(2)
    assert limiter.batches_earned() == earned + 2 * ratio / 4
