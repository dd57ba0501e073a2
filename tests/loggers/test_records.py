"""What of a run's files goes to a server, and when none do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.training_runs import make_run, quiet
from lightning.pytorch.loggers import Logger

from lrl import ActorLearnerCallback
from lrl.loggers import records
from lrl.loggers.records import RunFiles
from lrl.processes.interrupt import AT_ONCE

pytestmark = quiet


class Server(Logger):
    """Knows no folder: the run's is the Trainer's `default_root_dir`, where a user has files."""

    @property
    def name(self) -> str:
        return "server"

    @property
    def version(self) -> str:
        return "0"

    def log_metrics(self, *args: Any, **more: Any) -> None: ...

    def log_hyperparams(self, *args: Any, **more: Any) -> None: ...


@pytest.fixture
def given(monkeypatch) -> list[str]:
    """Names of files that a logger was given."""
    found: list[str] = []
    monkeypatch.setattr(records, "_give", lambda _, files: found.extend(f.name for f in files))
    return found


def test_only_what_a_run_has_written_itself_goes_to_a_server(tmp_path, given):
    (tmp_path / "config.yaml").write_text("password: of the user's project\n")
    callback = ActorLearnerCallback(5, 0, 0)
    make_run(tmp_path, callback, logger=Server(), default_root_dir=tmp_path).fit()
    assert given == ["summary.json"]


@pytest.mark.parametrize(("words", "files"), [((), ["summary.json"]), ((AT_ONCE,), [])])
def test_a_run_that_ends_at_once_waits_for_no_server(tmp_path, given, words, files):
    (tmp_path / "summary.json").touch()
    callback = ActorLearnerCallback(5, 0, 0)
    callback.summary.written = [Path(tmp_path, "summary.json")]
    trainer: Any = SimpleNamespace(
        loggers=[Server()], callbacks=[callback], state=SimpleNamespace(fn="fit")
    )
    module: Any = None
    RunFiles(callback.best).on_exception(trainer, module, KeyboardInterrupt(*words))
    assert given == files
