"""What frames show."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrl.video import painter as painting
from lrl.video.film import ActionValues, FilmFrame
from lrl.video.painter import Painter, Scale, _amount, _rounded, histogram

NAMES = ["NOOP", "LEFT", "RIGHT"]
CHOSEN, RANDOM, BAR = painting._CHOSEN, painting._RANDOM, painting._BAR


def film_frame(q: Any = (0.0, 2.0, 1.0), returns: Any = None, **changes: Any) -> FilmFrame:
    q = np.array(q, np.float32)
    values = ActionValues(q)
    if returns is not None:
        returns = np.array(returns, np.float32)
        values = ActionValues(q, returns, np.full_like(returns, 1.0 / returns.shape[-1]))
    allowed = changes.get("allowed")
    settings = {
        "best": float((q if allowed is None else q[allowed]).max()),
        "picture": np.zeros((20, 30, 3), np.uint8),
        "values": values,
        "taken": [int(q.argmax())],
        "at_random": False,
        "allowed": None,
        "seed": 0,
        "step": 0,
        "reward": 0.0,
        "total": 0.0,
    }
    return FilmFrame(**{**settings, **changes})


def painter(names: list[str] = NAMES) -> Painter:
    return Painter("Game-v0", "best.ckpt", names)


def area(frame: npt.NDArray[np.uint8], colour: tuple[int, int, int]) -> int:
    return int((frame == np.array(colour, np.uint8)).all(axis=2).sum())


def bars(frame: npt.NDArray[np.uint8], count: int) -> list[int]:
    """Lengths of the bars, those of the action taken included."""
    is_bar = np.zeros(frame.shape[:2], np.bool_)
    for colour in (CHOSEN, RANDOM, BAR, painting._LINE):
        is_bar |= (frame == np.array(colour, np.uint8)).all(axis=2)
    rows = [painting._HEADER + index * painting._ROW + painting._ROW // 2 for index in range(count)]
    return [int(is_bar[row].sum()) for row in rows]


@pytest.mark.parametrize("size", [(210, 160), (10, 10), (84, 84), (400, 600), (501, 333), (1, 1)])
def test_the_game_is_shown_pixel_by_pixel_at_a_whole_scale(size: tuple[int, int]):
    picture = np.random.default_rng(0).integers(256, size=(*size, 3)).astype(np.uint8)
    frame = painter()(film_frame(picture=picture))
    assert frame.dtype == np.uint8
    assert frame.shape[0] % 2 == frame.shape[1] % 2 == 0
    factor = max(1, min(round(420 / size[0]), 640 // size[1]))
    shown = picture.repeat(factor, axis=0).repeat(factor, axis=1)
    top = (frame.shape[0] - shown.shape[0]) // 2
    assert np.array_equal(frame[top : top + shown.shape[0], 12 : 12 + shown.shape[1]], shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1.0, "+1"), (0.0862566, "+0.086"), (-11.70843, "-11.708"), (2e-5, "+2e-05"),
     (1234567.0, "+1234567")],
)  # fmt: skip
def test_amounts_are_short(value: float, text: str):
    assert _amount(value, "+") == text


def test_every_frame_has_the_same_size():
    paint = painter()
    sizes = {
        paint(shown).shape
        for shown in (
            film_frame(),
            film_frame(q=(-12345.6, 1e9, 0.001), step=100_000, total=-1234567.0, reward=1e6),
            film_frame(q=(0.0, 0.0, 0.0), ending="terminated", at_random=True),
            film_frame(q=(np.nan, np.inf, -np.inf)),
            film_frame(allowed=np.array([True, False, True])),
        )
    }
    assert len(sizes) == 1


def test_bars_are_as_long_as_values_are_high():
    lengths = bars(painter()(film_frame(q=(0.0, 4.0, 3.0))), 3)
    full = painting._PANEL_WIDTH - painting._NAME_WIDTH - painting._NUMBER_WIDTH
    assert lengths == pytest.approx([1, full, 0.75 * full], abs=2)


@pytest.mark.parametrize(
    ("changes", "chosen", "at_random"), [({}, True, False), ({"at_random": True}, False, True)]
)
def test_the_action_taken_stands_out(changes: dict[str, Any], chosen: bool, at_random: bool):
    for returns in (None, np.zeros((3, 5))):
        frame = painter()(film_frame(returns=returns, **changes))
        row = painting._HEADER + painting._ROW + painting._ROW // 2
        assert (area(frame[row : row + 1], CHOSEN) > 0) == chosen
        assert (area(frame[row : row + 1], RANDOM) > 0) == at_random


def test_a_forbidden_action_is_pale():
    allowed = np.array([True, True, False])
    row = slice(painting._HEADER + 2 * painting._ROW + 3, painting._HEADER + 3 * painting._ROW - 3)
    frames = [painter()(film_frame(allowed=mask))[row] for mask in (None, allowed)]
    assert [area(frame, BAR) > 0 for frame in frames] == [True, False]


def test_a_value_that_is_no_number_has_no_bar():
    assert bars(painter()(film_frame(q=(np.nan, 4.0, 0.0))), 3)[0] == 0


def test_many_actions_have_thin_rows():
    names = [f"action {index}" for index in range(100)]
    frame = painter(names)(film_frame(q=np.arange(100.0)))
    assert frame.shape[0] < 600
    assert area(frame, BAR) > 0


def test_text_changes_with_what_it_says():
    base = painter()(film_frame())
    for change in ({"total": 5.0}, {"reward": -1.0}, {"step": 7}, {"seed": 3}, {"ending": "over"}):
        frame = painter()(film_frame(**change))
        assert frame.shape == base.shape
        assert not np.array_equal(frame, base)


def distribution_area(frame: npt.NDArray[np.uint8], actions: int = 3) -> npt.NDArray[np.int64]:
    """Pixels of each column of the distribution."""
    top = painting._HEADER + actions * painting._ROW + painting._MARGIN + painting._CHART_TOP
    left = frame.shape[1] - painting._PANEL_WIDTH - painting._MARGIN
    colours = frame[top:, left : left + painting._PANEL_WIDTH] == np.array(CHOSEN, np.uint8)
    return colours.all(axis=2).sum(axis=0)


def test_the_distribution_is_that_of_the_action_taken():
    returns = [[0.0, 10.0], [2.0, 2.0], [5.0, 5.0]]
    columns = distribution_area(
        painter()(film_frame(q=(5.0, 2.0, 5.0), returns=returns, taken=[1]))
    )
    filled = np.flatnonzero(columns)
    share = filled.mean() / painting._PANEL_WIDTH
    assert share == pytest.approx(0.2, abs=0.02)  # of an axis from 0 to 10
    columns = distribution_area(
        painter()(film_frame(q=(5.0, 2.0, 5.0), returns=returns, taken=[0]))
    )
    assert columns[:5].max() == columns[-6:-1].max() > 50  # one half at either end
    assert columns[10:140].sum() == 0


def test_the_axis_of_returns_stays_where_it_is():
    """Frames of one film: what is between the ends of the axis moves, the axis does not."""
    paint = painter()
    for high in (10.0, 4.0, 7.0):
        shown = film_frame(q=(0.0, high, 0.0), returns=[[0.0, 0.0], [high, high], [0.0, 0.0]])
        filled = np.flatnonzero(distribution_area(paint(shown)))
        assert filled.mean() / painting._PANEL_WIDTH == pytest.approx(high / 10, abs=0.03)


def test_the_history_begins_anew_with_an_episode():
    paint = painter()
    first = paint(film_frame(step=0))
    later = [paint(film_frame(step=step)) for step in range(1, 30)]
    assert area(later[-1], CHOSEN) > area(first, CHOSEN)
    assert np.array_equal(paint(film_frame(step=0)), first)


VALUES = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5)


@given(st.lists(VALUES, min_size=1, max_size=8))
def test_a_scale_holds_what_it_covers_and_narrows_slowly(batches: list[list[float]]):
    scale, before = Scale(narrowing=0.25), None
    for batch in batches:
        values = np.array(batch)
        low, high = scale.cover(values)
        assert low <= values.min()
        assert high >= values.max()
        if before is not None:
            assert low <= before[0] + 0.25 * abs(values.min() - before[0]) + 1e-6
            assert high >= before[1] - 0.25 * abs(values.max() - before[1]) - 1e-6
        before = low, high


@given(st.floats(-1e9, 1e9, width=32), st.floats(0.0, 1e9, width=32))
def test_an_axis_has_two_ends_around_what_it_holds(low: float, width: float):
    high = low + width
    start, end = _rounded(low, high)
    assert start < end
    slack = 1e-5 * (end - start)
    assert start - slack <= low <= high <= end + slack
    halves = np.array([0.5, 0.5], np.float32)
    shares = histogram(np.array([low, high], np.float32), halves, start, end)
    assert shares.sum() == pytest.approx(1.0, abs=1e-3)


def test_a_scale_ignores_what_is_not_finite():
    scale = Scale()
    assert scale.cover(np.array([np.nan])) == (0.0, 0.0)
    assert scale.cover(np.array([np.inf, 1.0, np.nan, 3.0])) == (1.0, 3.0)
    assert scale.cover(np.array([np.nan])) == (1.0, 3.0)


@given(st.lists(st.floats(-5.0, 5.0, width=32), min_size=1, max_size=20))
def test_a_histogram_keeps_mass_and_mean(returns: list[float]):
    values = np.array(returns, np.float32)
    columns = histogram(values, np.full_like(values, 1.0 / len(values)), -5.0, 5.0)
    assert columns.sum() == pytest.approx(1.0, abs=1e-4)
    assert (columns * np.linspace(-5.0, 5.0, len(columns))).sum() == pytest.approx(
        values.mean(), abs=1e-3
    )


def test_what_is_taken_in_each_branch_stands_out_and_shares_the_chart():
    returns = [[0.0, 0.0], [2.0, 2.0], [5.0, 5.0], [10.0, 10.0]]
    shown = film_frame(q=(0.0, 2.0, 5.0, 10.0), returns=returns, taken=[0, 3])
    names = ["0: 0", "0: 1", "1: 0", "1: 1"]
    frame = painter(names)(shown)
    rows = [painting._HEADER + index * painting._ROW + painting._ROW // 2 for index in range(4)]
    assert [area(frame[row : row + 1], CHOSEN) > 0 for row in rows] == [True, False, False, True]
    columns = distribution_area(frame, 4)
    assert columns[:5].max() == columns[-6:-1].max() > 50  # half of it for each of them
    assert columns[10:-10].max() < 5
