"""What is left of a run of the command line that ends, and what it says."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lrl.cli.exit_status import Outcome
from lrl.processes.ending import StoppedError, ending


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    outcome = Outcome()
    outcome.folder = tmp_path / "version_0"
    (outcome.folder / "checkpoints").mkdir(parents=True)
    (outcome.folder / "config.yaml").touch()
    return outcome


@pytest.fixture
def signalled() -> Iterator[None]:
    """A signal came before training."""
    ending.number = signal.SIGHUP
    yield
    ending.__init__()


def end(outcome: Outcome, error: type[BaseException]) -> None:
    with outcome.tidied():
        raise error


def test_a_run_that_has_not_learned_leaves_no_folder(outcome, tmp_path):
    with pytest.raises(ZeroDivisionError):
        end(outcome, ZeroDivisionError)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_learned_or_saved_leaves_its_folder(outcome, tmp_path):
    nothing: Any = None
    saved = outcome.folder / "checkpoints" / "last.ckpt"
    saved.touch()
    with pytest.raises(ZeroDivisionError):
        end(outcome, ZeroDivisionError)
    saved.unlink()
    outcome.on_train_batch_start(nothing, nothing, nothing, 0)
    with pytest.raises(ZeroDivisionError):
        end(outcome, ZeroDivisionError)
    assert (tmp_path / "version_0/config.yaml").exists()


def test_what_an_import_makes_of_a_signal_is_a_signal(outcome, signalled, capsys, tmp_path):
    with pytest.raises(StoppedError):
        end(outcome, ImportError)
    assert outcome.exit_code() == 129
    assert capsys.readouterr().err == "lrl: stopped by SIGHUP\n"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_stopped_says_how_to_go_on(outcome, signalled, capsys):
    nothing: Any = None
    outcome.on_train_batch_start(nothing, nothing, nothing, 0)
    outcome.exception, outcome.log_dir = StoppedError(), outcome.folder
    outcome.saved = outcome.folder / "checkpoints/last.ckpt"
    assert outcome.exit_code() == 129
    assert capsys.readouterr().err == "lrl: stopped by SIGHUP\n"
    outcome.saved.touch()
    assert outcome.exit_code() == 129
    command = f"lrl fit --config {outcome.folder}/config.yaml --ckpt_path {outcome.saved}"
    assert capsys.readouterr().err == f"lrl: stopped by SIGHUP; go on with: {command}\n"


def test_an_error_of_training_is_none_of_a_signal(outcome, signalled):
    nothing: Any = None
    outcome.on_train_start(nothing, nothing)
    with pytest.raises(ZeroDivisionError):
        end(outcome, ZeroDivisionError)
