"""The figures of a report, drawn by matplotlib (extra `report`), which is imported when needed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from lrl.report.comparison import RAW, Profile
from lrl.report.curves import Curve
from lrl.report.statistics import Estimate
from lrl.types import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Apart for colour-blind readers, too: Okabe and Ito, without the yellow that white swallows."""
MOST_COLOURS = len(_COLOURS)
"""Groups that a colour alone tells apart."""
_LINES = ("-", "--", ":")
_WIDTH = 9.6  # inches
_DPI = 120
_MOST_LINES = 24  # thin ones of single runs, in one panel
_LONGEST_NAME = 34
_PALETTE = 128
_RARE = 0.02  # share of runs of which a profile's tail is not drawn

Style = Mapping[str, Any]


def check_matplotlib() -> None:
    """Raise `ConfigError` unless the extra `report` is installed."""
    try:
        import jinja2
        import matplotlib

        del jinja2, matplotlib
    except ImportError as error:
        raise ConfigError(
            f"lrl report needs an extra, pip install 'lrl[report]': {error.name} is not installed"
        ) from error


def styles(groups: Sequence[str]) -> dict[str, Style]:
    """Return the colour and the line of each group, the same in all figures."""
    pairs = zip([line for line in _LINES for _ in _COLOURS], cycle(_COLOURS), strict=False)
    return {
        group: {"color": colour, "linestyle": line}
        for group, (line, colour) in zip(groups, cycle(pairs), strict=False)
    }


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG of few colours, a third of the size."""
    from PIL import Image

    raw, packed = io.BytesIO(), io.BytesIO()
    figure.savefig(raw, format="png", dpi=_DPI)
    image = Image.open(raw).convert("RGB").quantize(_PALETTE, dither=Image.Dither.NONE)
    image.save(packed, format="png", optimize=True)
    return packed.getvalue()


def draw_curves(
    panels: Mapping[str, Mapping[str, Curve]],
    ylabel: str,
    styles: Mapping[str, Style],
    one_task: bool,
) -> Figure:
    """Draw learning curves: a line per group, its band, and its seeds thinly.

    Args:
        panels: Curves by group, by the name of their horizontal axis or of their environment.
        ylabel: What the values are.
        styles: Of the groups.
        one_task: The panels are of one environment, so that they share their vertical axis.
    """
    columns = min(4, len(panels)) if len(panels) != 4 else 2
    rows = -(-len(panels) // columns)
    figure = _figure(max(2.7, 2.5 * rows + 0.6))
    axes: Any = figure.subplots(rows, columns, squeeze=False, sharey=one_task)
    drawn: dict[str, Any] = {}
    for place, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        is_clear = sum(len(curve.seeds) for curve in curves.values()) <= _MOST_LINES
        for group, curve in curves.items():
            line = _draw_curve(place, curve, styles[group], is_clear)
            drawn.setdefault(group, line)
        _finish(place, title)
    for place in axes.flat[len(panels) :]:
        place.remove()
    for row in axes:
        row[0].set_ylabel(ylabel)
    _legend(figure, drawn)
    return figure


def _draw_curve(axes: Axes, curve: Curve, style: Style, draws_seeds: bool) -> Any:
    if draws_seeds and len(curve.seeds) > 1:
        for at, values in curve.seeds:
            axes.plot(at, values, color=style["color"], linewidth=0.6, alpha=0.35)
    if curve.low is not None and curve.high is not None:
        axes.fill_between(curve.at, curve.low, curve.high, color=style["color"], alpha=0.15, lw=0)
    marker = "o" if curve.at.size == 1 else None
    (line,) = axes.plot(curve.at, curve.middle, linewidth=1.8, marker=marker, **style)
    return line


def draw_intervals(
    aggregates: Mapping[str, Mapping[str, Estimate]], unit: str, styles: Mapping[str, Style]
) -> Figure:
    """Draw the aggregates of groups, a panel for each statistic, with their intervals."""
    names = list(next(iter(aggregates.values())))
    groups = list(aggregates)
    figure = _figure(1.1 + 0.3 * len(groups))
    axes: Any = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for place, name in zip(axes, names, strict=True):
        for row, group in enumerate(groups):
            found, colour = aggregates[group][name], styles[group]["color"]
            if found.low is not None and found.high is not None:
                place.barh(row, found.high - found.low, 0.6, found.low, color=colour, alpha=0.35)
            place.plot(found.value, row, marker="|", markersize=13, mew=2.2, color=colour)
        place.set_title(name if name != "optimality gap" else "optimality gap (lower is better)")
        _light(place)
        place.use_sticky_edges = False
        place.grid(visible=False, axis="y")
        place.locator_params(axis="x", nbins=5)
    axes[0].set_yticks(range(len(groups)), [_short(group) for group in groups])
    axes[0].set_ylim(len(groups) - 0.4, -0.6)
    figure.supxlabel(unit, fontsize=9)
    return figure


def draw_profiles(
    profiles: Mapping[str, Profile], unit: str, styles: Mapping[str, Style]
) -> Figure:
    """Draw performance profiles with their bands."""
    figure = _figure(3.4)
    axes = figure.subplots()
    drawn = {}
    for group, found in profiles.items():
        style = styles[group]
        if found.low is not None and found.high is not None:
            axes.fill_between(
                found.thresholds, found.low, found.high, color=style["color"], alpha=0.12, lw=0,
                step="post",
            )  # fmt: skip
        (drawn[group],) = axes.step(
            found.thresholds, found.share, where="post", linewidth=1.8, **style
        )
    ends = []
    for found in profiles.values():
        common = int(np.sum(found.share >= _RARE))  # shares only fall
        ends.append(found.thresholds[min(common, len(found.thresholds) - 1)])
    begin = min(found.thresholds[0] for found in profiles.values())
    axes.set_xlim(begin, max(ends) + 0.04 * (max(ends) - begin))
    axes.set_ylabel("share of runs above")
    axes.set_ylim(-0.02, 1.02)
    _finish(axes, unit if unit != RAW else "mean return")
    _legend(figure, drawn)
    return figure


_SHARES = {
    "wait": ("starved (waiting for environment steps)", "#E69F00"),
    "sample": ("sampling", "#56B4E9"),
    "optimise": ("updating", "#009E73"),
    "evaluate": ("evaluating", "#CC79A7"),
    "other": ("all else", "#BBBBBB"),
}


def draw_shares(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw where the learner's time went, a bar for each group."""
    figure = _figure(1.0 + 0.34 * len(shares))
    axes = figure.subplots()
    drawn: dict[str, Any] = {}
    begins = np.zeros(len(shares))
    for name, (said, colour) in _SHARES.items():
        widths = np.array([100.0 * found[name] for found in shares.values()])
        drawn[said] = axes.barh(
            range(len(shares)), widths, 0.62, begins, color=colour, edgecolor="white", linewidth=0.5
        )
        begins = begins + widths
    axes.set_yticks(range(len(shares)), [_short(group) for group in shares])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    _finish(axes, "% of the learner's time")
    axes.grid(visible=False, axis="y")
    _legend(figure, drawn, is_cut=False)
    return figure


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(_WIDTH, height), layout="constrained")


def _finish(axes: Axes, xlabel: str) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(xlabel)
    _light(axes)
    if axes.get_xlim()[1] >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.locator_params(axis="x", nbins=5)


def _light(axes: Axes) -> None:
    axes.grid(visible=True, color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, length=3, color="#888888")
    axes.title.set_fontsize(9)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#888888")


def _legend(figure: Figure, drawn: Mapping[str, Any], is_cut: bool = True) -> None:
    """Put the legend below all axes, where it covers nothing."""
    names = [*map(_short, drawn)] if is_cut else [*drawn]
    widths = [len(name) + 10 for name in names]
    columns = len(names) if sum(widths) <= 150 else max(1, 150 // max(widths))
    figure.legend(
        list(drawn.values()), names, loc="outside lower center", ncols=columns, frameon=False,
        fontsize=8.5,
    )  # fmt: skip


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
