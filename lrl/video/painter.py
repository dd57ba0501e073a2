"""Frames of a video: the game, and beside it what the agent expects and does."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from lrl.functional.distributional import project_categorical
from lrl.video.film import FilmFrame

_PANEL_WIDTH, _MARGIN = 300, 12
_GAME_HEIGHT = 420  # what small screens are scaled up to, about
_HEADER, _ROW, _NAMED_ROW, _SMALLEST_ROW = 112, 18, 12, 3
_BARS_HEIGHT = 18 * _ROW  # for Atari's full action set; more actions get thinner rows
_NAME_WIDTH, _NUMBER_WIDTH = 110, 56
_CHART_TOP, _CHART_HEIGHT, _CHART_LABELS = 24, 72, 18  # its title above, its labels below
_COLUMNS, _HISTORY = 51, 100

_BACKGROUND, _LINE = (22, 24, 30), (58, 62, 72)
_TEXT, _DIM, _FAINT = (235, 237, 240), (150, 156, 168), (92, 98, 110)
_BAR, _CHOSEN, _RANDOM = (88, 96, 112), (72, 166, 255), (255, 178, 56)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
_FONT_SIZES = (13, 12, 22)


class Scale:
    """A range of values for an axis: it widens at once and narrows slowly, so nothing flickers.

    Args:
        narrowing: Share of the way to the present values that each call goes.

    Example:
        >>> scale = Scale(narrowing=0.5)
        >>> scale.cover(np.array([0.0, 8.0])), scale.cover(np.array([-1.0, 4.0]))
        ((0.0, 8.0), (-1.0, 6.0))
    """

    def __init__(self, narrowing: float = 0.02) -> None:
        self.narrowing = narrowing
        self._range: tuple[float, float] | None = None

    def cover(self, values: npt.NDArray[np.floating]) -> tuple[float, float]:
        """Return a range that holds these values, those that are finite."""
        finite = values[np.isfinite(values)]
        if len(finite):
            low, high = float(finite.min()), float(finite.max())
            if self._range is not None:
                before_low, before_high = self._range
                low = min(low, before_low + self.narrowing * (low - before_low))
                high = max(high, before_high + self.narrowing * (high - before_high))
            self._range = low, high
        return self._range or (0.0, 0.0)


class Painter:
    """Paints the frames of one agent's episodes, all in the same size and layout."""

    def __init__(self, title: str, subtitle: str, action_names: Sequence[str]) -> None:
        self.title = title
        self.subtitle = subtitle
        self.action_names = list(action_names)
        count = len(self.action_names)
        self._normal, self._small, self._large = map(ImageFont.load_default, _FONT_SIZES)
        self._row = max(_SMALLEST_ROW, min(_ROW, _BARS_HEIGHT // count))
        self._q_scale = Scale()
        self._q_size = Scale(narrowing=0.0)
        self._returns_scale = Scale(narrowing=0.0)
        self._probability_scale = Scale()
        self._best: deque[float] = deque(maxlen=_HISTORY)

    def __call__(self, frame: FilmFrame) -> npt.NDArray[np.uint8]:
        """Return a frame, uint8 `[height, width, 3]` with even sides."""
        game = _enlarged(frame.picture)
        left, top = game.width + 2 * _MARGIN, _HEADER + len(self.action_names) * self._row + _MARGIN
        needed = top + _CHART_TOP + _CHART_HEIGHT + _CHART_LABELS
        width, height = left + _PANEL_WIDTH + _MARGIN, max(game.height + 2 * _MARGIN, needed)
        height += height % 2
        image = Image.new("RGB", (width + width % 2, height), _BACKGROUND)
        image.paste(game, (_MARGIN, (height - game.height) // 2))
        draw = ImageDraw.Draw(image)
        self._header(draw, left, frame)
        self._bars(draw, left, frame)
        draw.line((left, top, left + _PANEL_WIDTH, top), _LINE)
        chart = self._history if frame.values.returns is None else self._distribution
        chart(draw, left, top + _CHART_TOP, frame)
        return np.asarray(image)

    def _header(self, draw: ImageDraw.ImageDraw, left: int, frame: FilmFrame) -> None:
        right = left + _PANEL_WIDTH
        title = _fitted(self.title, _PANEL_WIDTH - 90, self._normal)
        draw.text((left, 10), title, _TEXT, self._normal)
        draw.text((right, 10), f"seed {frame.seed}", _DIM, self._normal, anchor="ra")
        draw.text((left, 28), _fitted(self.subtitle, _PANEL_WIDTH, self._small), _DIM, self._small)
        for x, name, value in (
            (0, "return", _amount(frame.total)),
            (120, "reward", _amount(frame.reward, "+")),
            (220, "step", str(frame.step)),
        ):
            draw.text((left + x, 47), name, _DIM, self._small)
            draw.text((left + x, 58), value, _TEXT, self._large)
        draw.line((left, 90, right, 90), _LINE)
        state, colour = frame.ending, _TEXT
        if frame.at_random and not frame.ending:
            state, colour = "random action", _RANDOM
        names = "" if self._row >= _NAMED_ROW else f", taken: {self._names(frame)}"
        draw.text((left, 94), f"value of each action{names}", _DIM, self._small)
        draw.text((right, 94), state, colour, self._small, anchor="ra")

    def _bars(self, draw: ImageDraw.ImageDraw, left: int, frame: FilmFrame) -> None:
        q = frame.values.q
        low, high = self._q_scale.cover(q)
        decimals = _decimals(*self._q_size.cover(q))
        bar_left, bar_right = left + _NAME_WIDTH, left + _PANEL_WIDTH - _NUMBER_WIDTH
        for action, value in enumerate(q.tolist()):
            y = _HEADER + action * self._row
            colour, text = _BAR, _DIM
            if action in frame.taken:
                colour, text = self._colour(frame), _TEXT
            elif frame.allowed is not None and not frame.allowed[action]:
                colour, text = _LINE, _FAINT
            if math.isfinite(value):
                share = (value - low) / (high - low) if high > low else 1.0
                length = max(1, round(share * (bar_right - bar_left)))
                gap = 3 if self._row >= 8 else 1
                draw.rectangle((bar_left, y + gap, bar_left + length, y + self._row - gap), colour)
            if self._row >= _NAMED_ROW:
                middle = y + self._row // 2
                name = _fitted(self.action_names[action], _NAME_WIDTH - 6, self._normal)
                draw.text((left, middle), name, text, self._normal, anchor="lm")
                number = f"{value:.{decimals}f}"
                draw.text((left + _PANEL_WIDTH, middle), number, text, self._normal, anchor="rm")

    def _distribution(
        self, draw: ImageDraw.ImageDraw, left: int, top: int, frame: FilmFrame
    ) -> None:
        """Draw how likely the returns of what is taken in any branch are, and their mean."""
        values, right, bottom = frame.values, left + _PANEL_WIDTH, top + _CHART_HEIGHT
        assert values.returns is not None
        assert values.probabilities is not None
        name = _fitted(self._names(frame), _PANEL_WIDTH - 120, self._small)
        draw.text((left, top - 19), f"returns expected of {name}", _DIM, self._small)
        low, high = _rounded(*self._returns_scale.cover(values.returns))
        chances = values.probabilities[frame.taken] / len(frame.taken)
        returns = values.returns[frame.taken].flatten()
        shares = histogram(returns, chances.flatten().astype(np.float32), low, high)
        _, most = self._probability_scale.cover(shares)
        colour, width = self._colour(frame), _PANEL_WIDTH / _COLUMNS
        for index, share in enumerate(shares.tolist()):
            x, height = left + index * width, round(share / (most or 1.0) * _CHART_HEIGHT)
            if height:
                draw.rectangle((round(x), bottom - height, round(x + width) - 2, bottom), colour)
        draw.line((left, bottom, right, bottom), _LINE)
        draw.text((left, bottom + 3), f"{low:g}", _DIM, self._small)
        draw.text((right, bottom + 3), f"{high:g}", _DIM, self._small, anchor="ra")
        q = float(values.q[frame.taken].mean())
        if low <= q <= high:
            x = left + (q - low) / (high - low) * (_PANEL_WIDTH - width) + width / 2
            draw.line((x, top, x, bottom), _TEXT)

    def _history(self, draw: ImageDraw.ImageDraw, left: int, top: int, frame: FilmFrame) -> None:
        """Draw how the value of the best action went, the present at the right."""
        if frame.step == 0:
            self._best.clear()
        self._best.append(frame.best)
        low, high = _rounded(*self._returns_scale.cover(np.array(self._best)))
        right, bottom = left + _PANEL_WIDTH, top + _CHART_HEIGHT
        draw.text((left, top - 19), f"best value, last {_HISTORY} steps", _DIM, self._small)
        draw.text((right, top - 19), f"{high:g}", _DIM, self._small, anchor="ra")
        draw.text((right, bottom + 3), f"{low:g}", _DIM, self._small, anchor="ra")
        draw.line((left, bottom, right, bottom), _LINE)
        points = [
            (right - age * _PANEL_WIDTH / (_HISTORY - 1), bottom - share * _CHART_HEIGHT)
            for age, value in enumerate(reversed(self._best))
            if math.isfinite(share := (value - low) / (high - low))
        ]
        draw.line(points, _CHOSEN, width=2, joint="curve")

    def _names(self, frame: FilmFrame) -> str:
        """Return the name of the action taken: of the choice in each branch."""
        return ", ".join(self.action_names[index] for index in frame.taken)

    @staticmethod
    def _colour(frame: FilmFrame) -> tuple[int, int, int]:
        return _RANDOM if frame.at_random else _CHOSEN


def histogram(
    returns: npt.NDArray[np.float32],
    probabilities: npt.NDArray[np.float32],
    low: float,
    high: float,
) -> npt.NDArray[np.float32]:
    """Return the probabilities of evenly spaced returns; one between two is shared by them.

    Returns and their probabilities are `[n]`; the columns stand from `low` to `high`.

    Example:
        >>> columns = histogram(np.float32([0.0, 9.0]), np.float32([0.25, 0.75]), 0.0, 9.0)
        >>> len(columns), float(columns[0]), float(columns[-1])
        (51, 0.25, 0.75)
    """
    finite = torch.from_numpy(np.nan_to_num(returns)[np.newaxis])
    weights = torch.from_numpy(np.nan_to_num(probabilities)[np.newaxis])
    return project_categorical(finite, weights, torch.linspace(low, high, _COLUMNS))[0].numpy()


def _enlarged(picture: npt.NDArray[np.uint8]) -> Image.Image:
    image = Image.fromarray(picture)
    factor = max(1, min(round(_GAME_HEIGHT / image.height), 640 // image.width))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def _fitted(text: str, width: int, font: Font) -> str:
    """Return the text, shortened where it is too wide."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def _amount(value: float, sign: str = "") -> str:
    """Return a number of any size, shortly; with sign "+", all but 0 have theirs."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.01:
        return f"{value:{sign}.2g}"
    return f"{value:{sign}.0f}" if size >= 1e5 else f"{round(value, 3):{sign}g}"


def _decimals(low: float, high: float) -> int:
    """Return how many decimals numbers of this size need."""
    size = max(abs(low), abs(high))
    return next((n for limit, n in ((10, 3), (100, 2), (10_000, 1)) if size < limit), 0)


def _rounded(low: float, high: float) -> tuple[float, float]:
    """Return round ends of an axis that holds a range.

    Example:
        >>> _rounded(0.13, 9.2), _rounded(-10.0, 10.0), _rounded(3.0, 3.0)
        ((0.0, 10.0), (-10.0, 10.0), (2.0, 4.0))
        >>> _rounded(2e-9, 7e-8), _rounded(0.5, 0.5000001)
        ((0.0, 7e-08), (-1.0, 2.0))
    """
    size = max(abs(low), abs(high))
    if high - low <= max(1e-4 * size, 1e-30):  # float32 hardly tells its columns apart
        low, high = low - max(1.0, 1e-3 * size), high + max(1.0, 1e-3 * size)
    power = math.floor(math.log10((high - low) / 2))
    step = next(s for f in (1, 2) if (s := f * 10.0**power) >= (high - low) / 10)
    ends = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    return round(ends[0] * step, 6 - power), round(ends[1] * step, 6 - power)
