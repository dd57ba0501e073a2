"""What stays of metrics.csv where a row could not be written as a whole."""

from __future__ import annotations

import csv
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger

from lrl.loggers import records


@contextmanager
def no_file_above(nbytes: int) -> Iterator[None]:
    """Let the system refuse what would make a file larger; as on a full disk, a part is written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class Log:
    """A logger whose rows have 30 numbers each; one that failed is not left alone."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "_PAUSE_SECONDS", 0.0)
        self.logger = CSVLogger(str(folder), "run", "version_0")
        self.file = folder / "run" / "version_0" / "metrics.csv"

    def write(self, step: int, *more: str) -> None:
        trainer: Any = SimpleNamespace(loggers=[self.logger], callbacks=[])
        names = [*(f"train/number_{index}" for index in range(30)), *more]
        records.log_metrics(trainer, dict.fromkeys(names, step + 0.123456789), step)

    def steps(self) -> list[int]:
        with self.file.open(newline="") as file:
            header, *rows = csv.reader(file)
        assert {len(row) for row in rows} <= {len(header)}
        return [int(row[header.index("step")]) for row in rows]


@pytest.fixture
def log(tmp_path, monkeypatch) -> Log:
    return Log(tmp_path, monkeypatch)


@pytest.mark.parametrize("more", [(), ("eval/return_mean",)], ids=["a row", "another column"])
def test_a_full_disk_leaves_no_part_of_a_row_and_none_twice(log, caplog, more):
    log.write(10)
    log.write(20)
    size = log.file.stat().st_size
    for room in (1, 100, 600):  # a row has about 400 bytes: the last time, one of two fits
        with no_file_above(size + room):
            log.write(30 + room, *more)
        assert log.steps() == [10, 20]
    assert caplog.text.count("File too large") == 3
    log.logger = pickle.loads(pickle.dumps(log.logger))  # as a strategy that spawns would
    log.write(1000, *more)
    assert log.steps() == [10, 20, 31, 130, 630, 1000]


def test_a_disk_that_was_full_from_the_beginning(log, caplog):
    with no_file_above(700):  # the header has about 500
        log.write(10)
        assert not log.file.exists()
    log.write(20)
    assert log.steps() == [10, 20]
    assert "File too large" in caplog.text
