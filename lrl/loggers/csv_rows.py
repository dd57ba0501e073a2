"""Rows of `metrics.csv`: each is there as a whole or not at all, though the disk was full."""

from __future__ import annotations

import csv
import functools
import io
import os
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from lrl.checkpoints.atomic_files import replace_file


def keep_whole(writer: ExperimentWriter) -> None:
    """Have Lightning's writer leave its file as it was where it cannot write all; idempotent.

    It keeps the rows and writes all of them the next time, behind what it wrote of them before.
    A new column makes it empty the file and write it anew: a run killed then would lose all rows.
    """
    if "save" not in vars(writer):
        vars(writer)["save"] = functools.partial(_save, writer)


def _save(writer: ExperimentWriter) -> None:
    path = Path(writer.metrics_file_path)
    size = -1
    if path.is_file():
        columns = sorted({*writer.metrics_keys, *(name for row in writer.metrics for name in row)})
        if columns != writer.metrics_keys:
            _widen(path, columns)
            writer.metrics_keys = columns
        size = path.stat().st_size
    try:
        type(writer).save(writer)
    except BaseException:
        if size >= 0:
            os.truncate(path, size)
        else:
            path.unlink(missing_ok=True)
        raise


def _widen(path: Path, columns: Sequence[str]) -> None:
    """Write a file of rows anew, with more columns."""
    text = io.StringIO(newline="")
    rows = csv.DictWriter(text, columns)
    rows.writeheader()
    with path.open(newline="") as file:
        rows.writerows(csv.DictReader(file))
    replace_file(path, lambda file: file.write(text.getvalue().encode()))
