import itertools
import math
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lrl.schedules import Constant, Exponential, Linear
from lrl.types import ConfigError

values = st.floats(-10.0, 10.0)
steps = st.integers(0, 2**40)
durations = st.integers(1, 2**40)


def test_linear_by_hand():
    schedule = Linear(start=1.0, end=0.2, duration=4)
    assert [schedule(step) for step in (-1, 0, 1, 2, 3, 4, 5, 2**62)] == pytest.approx(
        [1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]
    )


def test_a_linear_schedule_that_begins_later_by_hand():
    schedule = Linear(start=1.0, end=0.2, duration=4, begin=10)
    assert [schedule(step) for step in (-1, 0, 4, 10, 11, 12, 13, 14, 15, 2**62)] == pytest.approx(
        [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]
    )


def test_no_schedule_begins_before_the_run():
    with pytest.raises(ConfigError, match="begin must be at least step 0, got -1"):
        Linear(1.0, 0.5, 10, begin=-1)


@given(values, values, durations, steps, steps, steps)
def test_linear_is_monotone_between_its_ends(
    start: float, end: float, duration: int, begin: int, step: int, other: int
):
    schedule = Linear(start, end, duration, begin)
    assert schedule(0) == schedule(begin) == start
    assert schedule(begin + duration) == end
    early, late = schedule(min(step, other)), schedule(max(step, other))
    slack = 1e-12
    assert (late - early) * (end - start) >= -slack
    assert min(start, end) - slack <= early <= max(start, end) + slack


def test_linear_moves():
    # A schedule that is rewritten to a constant keeps both ends, so look in the middle.
    assert Linear(1.0, 0.0, 1000)(1) == 0.999
    assert Linear(1.0, 0.0, 1000)(999) == pytest.approx(0.001)


def test_a_duration_of_one_step():
    assert [Linear(1.0, 0.0, 1)(step) for step in (0, 1)] == [1.0, 0.0]


@pytest.mark.parametrize("duration", [0, -5])
@pytest.mark.parametrize("schedule", [Linear, Exponential])
def test_a_schedule_without_a_slope(schedule, duration: int):
    with pytest.raises(ConfigError, match=f"duration must be at least 1 step, got {duration}"):
        schedule(1.0, 0.5, duration)


@pytest.mark.parametrize(
    ("schedule", "values"), [(Constant, ("1",)), (Linear, ("1", 0, 9)), (Exponential, ("1", 2, 9))]
)
def test_a_schedule_of_text(schedule, values: tuple):
    with pytest.raises(ConfigError, match=f"^{schedule.__name__}[.].* is '1', but must be a numb"):
        schedule(*values)


def test_exponential_by_hand():
    schedule = Exponential(start=1.0, end=16.0, duration=4)
    assert [schedule(step) for step in (-1, 0, 1, 2, 3, 4, 5, 2**62)] == pytest.approx(
        [1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0]
    )


def test_a_discount_approaches_1_by_equal_factors():
    """As in BBF: log(1 - gamma) is a straight line."""
    gamma = Exponential(0.97, 0.997, 10_000, limit=1.0)
    lines = [math.log(1 - gamma(step)) for step in range(0, 10_001, 1000)]
    slopes = [after - before for before, after in itertools.pairwise(lines)]
    assert slopes == pytest.approx([math.log(0.1) / 10] * 10)
    assert (gamma(0), gamma(10_000)) == (0.97, 0.997)


@given(values, values, values, durations, steps, steps)
def test_exponential_is_monotone_between_its_ends(
    start: float, end: float, limit: float, duration: int, step: int, other: int
):
    assume((start - limit) * (end - limit) > 0)
    schedule = Exponential(start, end, duration, limit)
    assert schedule(0) == start
    assert schedule(duration) == schedule(duration + step) == end
    early, late = schedule(min(step, other)), schedule(max(step, other))
    slack = 1e-12
    assert (late - early) * (end - start) >= -slack
    assert min(start, end) - slack <= early <= max(start, end) + slack


@pytest.mark.parametrize(("start", "end", "limit"), [(1, 0, 0), (0, 1, 0), (0.9, 1, 1), (-1, 2, 0)])
def test_an_exponential_schedule_never_reaches_its_limit(start, end, limit):
    with pytest.raises(ConfigError, match=f"start {start} and end {end} must both be .* limit"):
        Exponential(start, end, 10, limit)


@given(values, steps)
def test_constant(value: float, step: int):
    assert Constant(value)(step) == value


def test_schedules_travel_to_actors():
    for schedule in (Constant(0.3), Linear(1.0, 0.1, 7, 2), Exponential(0.9, 0.99, 7, 1.0)):
        copy = pickle.loads(pickle.dumps(schedule))
        assert copy == schedule
        assert math.isclose(copy(3), schedule(3))
