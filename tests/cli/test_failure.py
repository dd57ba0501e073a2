"""What is said of an error that is no mistake in the settings, and where its traceback goes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from lrl.actors.manager import ActorError
from lrl.cli import failure
from lrl.cli.commands import report_mistake
from lrl.cli.failure import report_error, report_failure
from lrl.types import ConfigError

YOURS = """
def fails():
    return {}["colour"]
"""
ACTOR = """\
actor 0 (pid 7) failed:
Traceback (most recent call last):
  File "{lrl}/actors/actor.py", line 50, in step
    self.envs.step(actions)
  File "/home/me/robot.py", line 12, in step
    raise RuntimeError("the motor is hot")
RuntimeError: the motor is hot
(data.actors.on_failure is 'fail')"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.delenv("LRL_DEBUG", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def raised_in(path: Path) -> Exception:
    path.write_text(YOURS)
    namespace: dict = {}
    exec(compile(YOURS, str(path), "exec"), namespace)
    with pytest.raises(KeyError) as caught:
        namespace["fails"]()
    return caught.value


def test_an_error_of_yours_names_your_line_and_the_file_with_the_traceback(tmp_path, capsys):
    error, run = raised_in(tmp_path / "mine.py"), tmp_path / "run"
    run.mkdir()
    assert report_error(error, run) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"lrl: error: KeyError: 'colour' at {tmp_path}/mine.py:3; ")
    assert str(run / "error.txt") in said
    assert (run / "error.txt").read_text().startswith("Traceback")


def test_an_error_of_lrl_says_that_it_may_be_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(failure, "_is_own", lambda path: False)
    with pytest.raises(KeyError) as caught:
        raise KeyError("index")
    assert report_error(caught.value) == 1
    said = capsys.readouterr().err
    assert "may be at fault itself" in said
    (path,) = tmp_path.glob("lrl-*-error.txt")
    assert str(path) in said


def test_what_no_file_takes_is_printed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    report_error(raised_in(tmp_path / "mine.py"), tmp_path / "gone")
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert said.endswith(f"lrl: error: KeyError: 'colour' at {tmp_path}/mine.py:3\n")


def test_memory_is_no_mistake_of_lrl(capsys):
    report_error(RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"))
    assert "a smaller replay, batch or network; the traceback" in capsys.readouterr().err


def test_the_error_of_an_actor_is_a_sentence_and_a_file(tmp_path, capsys):
    message = ACTOR.format(lrl=Path(failure.__file__).parents[1])
    assert report_failure(ActorError(message), tmp_path) == 1
    assert capsys.readouterr().err == (
        "lrl: error: actor 0 (pid 7) failed: RuntimeError: the motor is hot at "
        "/home/me/robot.py:12 (data.actors.on_failure is 'fail'); the traceback is in "
        f"{tmp_path}/error.txt, and --debug shows it\n"
    )
    assert (tmp_path / "error.txt").read_text() == message


def test_what_needs_no_traceback_has_none(tmp_path, capsys):
    report_failure(ActorError("actor 0 was killed by signal 9\n(failed 3 times)"), tmp_path)
    assert capsys.readouterr().err == (
        "lrl: error: actor 0 was killed by signal 9 (failed 3 times)\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_tracebacks_also_of_mistakes(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("LRL_DEBUG", "")
    failure.debug()
    report_error(raised_in(tmp_path / "mine.py"))
    report_mistake(ConfigError("data.n is 0, but must be 1"))
    said = capsys.readouterr().err
    assert said.count("Traceback (most recent call last)") == 1
    assert said.endswith("lrl: error: data.n is 0, but must be 1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_libraries_are_not_yours():
    assert failure.own_place(f'  File "{sys.modules["tempfile"].__file__}", line 3, in x') is None
    assert failure.own_place(f'  File "{pytest.__file__}", line 3, in x') is None
    assert failure.own_place('  File "<frozen runpy>", line 3, in x') is None
