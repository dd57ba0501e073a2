import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrl.schedules import Constant, Linear
from lrl.types import ConfigError

values = st.floats(-10.0, 10.0)
steps = st.integers(0, 2**40)
durations = st.integers(1, 2**40)


def test_linear_by_hand():
    schedule = Linear(start=1.0, end=0.2, duration=4)
    assert [schedule(step) for step in (-1, 0, 1, 2, 3, 4, 5, 2**62)] == pytest.approx(
        [1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]
    )


@given(values, values, durations, steps, steps)
def test_linear_is_monotone_between_its_ends(
    start: float, end: float, duration: int, step: int, other: int
):
    schedule = Linear(start, end, duration)
    assert schedule(0) == start
    assert schedule(duration) == end
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
def test_linear_without_a_slope(duration: int):
    with pytest.raises(ConfigError, match=f"duration must be at least 1 step, got {duration}"):
        Linear(1.0, 0.0, duration)


@given(values, steps)
def test_constant(value: float, step: int):
    assert Constant(value)(step) == value


def test_schedules_travel_to_actors():
    for schedule in (Constant(0.3), Linear(1.0, 0.1, 7)):
        copy = pickle.loads(pickle.dumps(schedule))
        assert copy == schedule
        assert math.isclose(copy(3), schedule(3))
