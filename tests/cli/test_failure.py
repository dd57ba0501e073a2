"""What is said of an error that is no mistake in the settings, and where its traceback goes."""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from helpers.command_line import BASE, Project, quiet_commands

from lrl.actors.manager import ActorError
from lrl.cli import failure
from lrl.cli.commands import report_mistake
from lrl.cli.failure import report_error, report_failure
from lrl.types import ConfigError

pytestmark = quiet_commands

YOURS = """
def fails(error):
    raise error("colour")
"""
CALLBACK = """
import lightning as L
class Fails(L.Callback):
    def on_train_batch_end(self, *_):
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


def raised_in(path: Path, kind: type[Exception] = KeyError) -> Exception:
    path.write_text(YOURS)
    namespace: dict = {}
    exec(compile(YOURS, str(path), "exec"), namespace)
    with pytest.raises(kind) as caught:
        namespace["fails"](kind)
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


FULL = "DefaultCPUAllocator: can't allocate memory: 8 bytes"


def test_memory_is_no_mistake_of_lrl_and_a_learner_can_do_with_less(capsys):
    report_error(RuntimeError(FULL), learns=True)
    assert f"{FULL}: the learner needs less with a smaller replay, " in capsys.readouterr().err
    report_error(RuntimeError(FULL))
    assert f"{FULL}; the traceback" in capsys.readouterr().err


@pytest.mark.parametrize("learns", [True, False])
def test_memory_that_runs_out_in_your_code_names_your_line(tmp_path, capsys, learns: bool):
    error = raised_in(tmp_path / "mine.py", MemoryError)
    report_error(error, learns=learns)
    said = capsys.readouterr().err
    assert said.startswith(f"lrl: error: MemoryError: colour at {tmp_path}/mine.py:3")
    assert ("smaller replay" in said) == learns


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


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """A command in a project with a callback of its own that fails, in synchronous mode."""
    (tmp_path / "fails.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "fails", raising=False)  # of the test before
    settings = yaml.safe_load(BASE)
    settings["trainer"] |= {"enable_progress_bar": False, "callbacks": ["fails.Fails"]}
    settings["data"]["actors"] = {"num_actors": 0, "envs_per_actor": 2}
    project = Project(tmp_path)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(settings))
    return functools.partial(project.call, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("logger", "folder"),
    [
        ("true", "runs/small/version_0"),
        ("lightning.pytorch.loggers.CSVLogger", "logs/mine/version_0"),
    ],
)
def test_the_traceback_of_an_error_in_training_is_in_the_folder_of_the_run(
    command, tmp_path, logger, folder
):
    places = [f"--trainer.logger.{key}" for key in ("save_dir=logs", "name=mine")]
    options = ["--trainer.logger", logger, *(places if logger != "true" else [])]
    code, _, err = command("fit", "--config", "base.yaml", *options)
    assert code == 1
    place = f"KeyError: 'colour' at {tmp_path}/fails.py:5"
    hint = f"the traceback is in {folder}/error.txt, and --debug shows it"
    assert f"lrl: error: {place}; {hint}\n" in err
    assert "Traceback" not in err
    assert (tmp_path / folder / "error.txt").read_text().startswith("Traceback")


def test_debug_shows_the_traceback_of_an_error_in_training(command, tmp_path, monkeypatch):
    monkeypatch.setenv("LRL_DEBUG", "")
    code, _, err = command("--debug", "fit", "--config", "base.yaml", "--trainer.logger", "false")
    assert code == 1
    assert err.count("Traceback (most recent call last)") == 1
    assert err.endswith(f"lrl: error: KeyError: 'colour' at {tmp_path}/fails.py:5\n")
    assert not list(tmp_path.rglob("error.txt"))


def test_libraries_are_not_yours():
    assert failure.own_place(f'  File "{sys.modules["tempfile"].__file__}", line 3, in x') is None
    assert failure.own_place(f'  File "{pytest.__file__}", line 3, in x') is None
    assert failure.own_place('  File "<frozen runpy>", line 3, in x') is None
