"""Figures with their spread.

A machine's speed drifts, so a ratio is the median of the ratios of rounds, which cancels the drift
where sides take turns. The ladder's are measured one after the other: drift stays in its ratios.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from lrl.checkpoints.atomic_files import write_asked
from lrl.checkpoints.stamp import processor_name
from lrl.preflight.cores import available_cores


@dataclass(frozen=True)
class Measurement:
    """One line of a table.

    Attributes:
        section: What was looked at.
        name: The side.
        unit: Of the values.
        values: One of each round.
        ratio: The median over rounds of this side's value over that of the side it is compared
            with; None where it is compared with none.
    """

    section: str
    name: str
    unit: str
    values: tuple[float, ...]
    ratio: float | None = None

    @property
    def median(self) -> float:
        """The median over rounds."""
        return median(self.values)


def compared(
    section: str, unit: str, values: Mapping[str, Sequence[float]], reference: str | None = None
) -> list[Measurement]:
    """Return the values of sides by round as measurements, compared with one of them.

    Example:
        >>> compared("learner", "ms", {"raw": [2.0, 4.0], "tuned": [1.0, 3.0]}, "raw")[1].ratio
        0.625
    """
    measurements = []
    for name, of_side in values.items():
        ratio = None
        if reference is not None and name != reference:
            pairs = zip(of_side, values[reference], strict=True)
            ratio = median(value / other for value, other in pairs)
        measurements.append(Measurement(section, name, unit, tuple(of_side), ratio))
    return measurements


def table(measurements: Sequence[Measurement]) -> str:
    """Return measurements as a Markdown table.

    Example:
        >>> print(table(compared("learner", "ms", {"raw": [2.0, 4.0], "tuned": [1.0, 3.0]}, "raw")))
        | what | side | median | lowest to highest | ratio |
        | --- | --- | --- | --- | --- |
        | learner | raw | 3.00 ms | 2.00 to 4.00 | |
        | learner | tuned | 2.00 ms | 1.00 to 3.00 | 0.62 |
    """
    lines = [
        "| what | side | median | lowest to highest | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in measurements:
        spread = f"{_short(min(one.values))} to {_short(max(one.values))}"
        ratio = "" if one.ratio is None else f"{one.ratio:.2f} "
        value = f"{_short(one.median)} {one.unit}"
        lines.append(f"| {one.section} | {one.name} | {value} | {spread} | {ratio}|")
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Return what the figures depend on beside the code."""
    return {
        "processor": processor_name(),
        "cores": available_cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def write(
    path: Path,
    measurements: Sequence[Measurement],
    settings: Mapping[str, Any] | None = None,
    remarks: Sequence[str] = (),
) -> None:
    """Write measurements as JSON, with the machine, how it was measured and what was remarked."""
    measured = [asdict(one) for one in measurements]
    content = {"machine": machine(), **(settings or {}), "measurements": measured}
    if remarks:
        content["remarks"] = [*remarks]
    write_asked("--json", path, json.dumps(content, indent=2) + "\n")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
