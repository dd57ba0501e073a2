"""Which file `best` and `last` are, also where some are damaged, and folders of new versions."""

from __future__ import annotations

import math
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger

from benchmark.chaos.checkpoints import some_checkpoint
from lrl.checkpoints.files import CheckpointError, read_checkpoint, write_checkpoint
from lrl.checkpoints.runs import (
    find_best,
    new_version,
    resolve_checkpoint,
    runs_folder,
    versions,
)
from lrl.checkpoints.saved_replay import Manifest, SavedFile
from lrl.checkpoints.stamp import STAMP_KEY
from lrl.types import ConfigError

STEPS = {"previous": 10, "last": 20, "best": 15}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of the newest of two versions."""
    for version in (3, 12):
        folder = tmp_path / "run" / f"version_{version}" / "checkpoints"
        for name, step in STEPS.items():
            write_checkpoint(some_checkpoint(step, 64), folder / f"{name}.ckpt")
    return tmp_path / "run/version_12/checkpoints"


def damage(folder: Path, *names: str) -> None:
    for name in names:
        os.truncate(folder / f"{name}.ckpt", 300)


@pytest.mark.parametrize("name", ["last", "best"])
def test_the_newest_is_found_and_nothing_is_said(tmp_path: Path, folder: Path, caplog, name: str):
    assert resolve_checkpoint(name, tmp_path, "run") == str(folder / f"{name}.ckpt")
    assert caplog.text == ""


def test_the_best_of_a_run_that_went_on_is_that_of_where_it_began(
    tmp_path: Path, folder, caplog, monkeypatch
):
    began = tmp_path / "run/version_3/checkpoints/best.ckpt"  # version 12 is of another training
    state = {"best_model_path": str(began), "best_model_score": 2.0}
    lightnings = {"best_model_path": str(folder / "best.ckpt"), "best_model_score": None, "mode": 0}
    content = {**some_checkpoint(30, 64), "callbacks": {"snapshots": lightnings, "lrl's": state}}
    went_on = tmp_path / "run/version_13/checkpoints"
    write_checkpoint(content, went_on / "last.ckpt")
    assert resolve_checkpoint("best", tmp_path, "run") == str(began)
    (warning,) = caplog.messages
    assert f"version_13 has none, {began} is taken" in warning
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # which finds the first rank's new folder
    assert resolve_checkpoint("best", tmp_path, "run") == str(began)
    assert caplog.messages == [warning]
    moved = tmp_path / "moved/run"
    shutil.copytree(tmp_path / "run", moved)
    other = {"best_model_path": str(began), "best_model_score": 3.0}  # of a run that is there now
    write_checkpoint({**content, "callbacks": {"lrl's": other}}, began)
    found = resolve_checkpoint("best", tmp_path / "moved", "run")
    assert found == str(moved / "version_3/checkpoints/best.ckpt")
    assert resolve_checkpoint("best", tmp_path, "run") == str(folder / "best.ckpt")
    write_checkpoint(content, went_on / "best.ckpt")
    assert resolve_checkpoint("best", tmp_path, "run") == str(went_on / "best.ckpt")
    for name in STEPS:
        (went_on / f"{name}.ckpt").unlink(missing_ok=True)
    assert resolve_checkpoint("best", tmp_path, "run") == str(folder / "best.ckpt")


def test_a_damaged_last_gives_way_to_the_one_before_with_a_warning(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
):
    damage(folder, "last")
    assert resolve_checkpoint("last", tmp_path, "run") == str(folder / "previous.ckpt")
    (warning,) = caplog.messages
    assert f"{folder / 'last.ckpt'} is damaged" in warning
    assert f": {folder / 'previous.ckpt'} is used, of learner step 10" in warning


def with_replays(folder: Path, *written: str) -> None:
    """Checkpoints that name replays, of which some were written to their end."""
    for name in ("previous", "last"):
        content = some_checkpoint(STEPS[name], 64)
        content["loops"] = {
            "fit_loop": {"state_dict": {"combined_loader": [{"saved_replay": name}]}}
        }
        write_checkpoint(content, folder / f"{name}.ckpt")
        state = SavedFile("state-0.bin", 0, "", [])
        manifest = Manifest(STEPS[name], name, {"ranks": 2}, [], state, {})
        for rank in (0, 1):
            if name in written or f"{name} of rank {rank}" in written:
                path = folder / "replay" / f"rank-{rank}" / manifest.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(manifest.to_bytes())


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (("previous", "last"), "last"),
        (("previous",), "previous"),
        (("previous", "last of rank 0"), "previous"),
        (("last",), "last"),
        ((), "last"),
    ],
)
def test_a_replay_that_was_not_written_to_its_end_leads_to_the_one_before(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture, written: tuple, found: str
):
    with_replays(folder, *written)
    assert resolve_checkpoint("last", tmp_path, "run") == str(folder / f"{found}.ckpt")
    assert ("was not written to its end" in caplog.text) == (found == "previous")


def test_previous_alone_is_enough(tmp_path: Path, folder: Path):
    (folder / "last.ckpt").unlink()
    assert resolve_checkpoint("last", tmp_path, "run") == str(folder / "previous.ckpt")


def test_the_run_before_is_gone_on_with_where_nothing_else_is_whole(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
):
    damage(folder, "last", "previous")
    before = tmp_path / "run/version_3/checkpoints/last.ckpt"
    assert resolve_checkpoint("last", tmp_path, "run") == str(before)
    assert f"{folder / 'last.ckpt'} is damaged" in caplog.text
    (warning,) = caplog.messages
    assert warning.endswith(f": {before} is used, of learner step 20")


@pytest.mark.parametrize("step", [19, 20, 21])
def test_a_resumed_run_without_a_whole_replay_leads_to_the_run_before(
    tmp_path: Path, folder: Path, step: int
):
    before = tmp_path / "run/version_3/checkpoints"
    with_replays(before, "last")
    with_replays(folder)
    (folder / "previous.ckpt").unlink()
    content = dict(read_checkpoint(before / "last.ckpt"))
    write_checkpoint({**content, "global_step": step}, before / "last.ckpt")
    manifest = Manifest(step, "last", {}, [], SavedFile("state-0.bin", 0, "", []), {})
    (before / "replay" / "rank-0" / manifest.name).write_bytes(manifest.to_bytes())
    # One of a later step is of another training.
    expected = (before if step <= 20 else folder) / "last.ckpt"
    assert resolve_checkpoint("last", tmp_path, "run") == str(expected)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_replay_is_filled_again_rather_than_much_training_repeated(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture, seed: int
):
    before = tmp_path / "run/version_3/checkpoints"
    with_replays(before, "last")
    with_replays(folder)
    for path, its_seed in ((before / "last.ckpt", 0), (folder / "last.ckpt", seed)):
        stamp = {STAMP_KEY: {"training": {"seed": its_seed}}}
        write_checkpoint({**read_checkpoint(path), **stamp}, path)
    assert resolve_checkpoint("last", tmp_path, "run") == str(folder / "last.ckpt")
    assert not caplog.messages  # a run that goes on says that its replay is filled again
    (folder / "previous.ckpt").unlink()  # it was killed while it saved for the first time
    expected = folder if seed else before
    assert resolve_checkpoint("last", tmp_path, "run") == str(expected / "last.ckpt")


def test_a_job_that_starts_again_may_have_saved_nothing(tmp_path: Path, caplog):
    assert resolve_checkpoint("last", tmp_path, "run", may_be_missing=True) is None
    assert "no run in" in caplog.text
    with pytest.raises(ConfigError, match=r"has checkpoints/last\.ckpt"):
        resolve_checkpoint("last", tmp_path, "run")


@pytest.mark.parametrize(
    ("asked", "names", "advice"),
    [
        ("last", ["last", "previous"], r"best\.ckpt is whole: use that"),
        ("last", ["last", "previous", "best"], "no other checkpoint beside it is whole"),
        ("best", ["best"], r"last\.ckpt is whole: use that"),
        ("best", ["best", "last"], r"previous\.ckpt is whole: use that"),
    ],
)
def test_nothing_whole_is_an_error_and_no_older_best_is_taken(
    tmp_path: Path, folder: Path, asked: str, names: list[str], advice: str
):
    if asked == "last":
        shutil.rmtree(tmp_path / "run/version_3")
    damage(folder, *names)
    with pytest.raises(CheckpointError, match=rf"version_12.*{asked}\.ckpt is damaged.*{advice}"):
        resolve_checkpoint(asked, tmp_path, "run")


def test_a_path_is_read_too(tmp_path: Path, folder: Path):
    path = str(folder / "last.ckpt")
    assert resolve_checkpoint(path, tmp_path, "other") == path
    damage(folder, "last")
    with pytest.raises(CheckpointError, match=r"last\.ckpt is damaged.*previous\.ckpt is whole"):
        resolve_checkpoint(path, tmp_path, "run")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.ckpt", "--ckpt_path nowhere.ckpt: there is no such file"),
        ("https://nowhere.test/a.ckpt", "only files of this machine are read"),
        ("weights.ckpt", "not written by a training run"),
    ],
)
def test_a_path_that_is_no_checkpoint_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, message: str
):
    monkeypatch.chdir(tmp_path)
    write_checkpoint({"weight": 1}, "weights.ckpt")
    with pytest.raises(ConfigError, match=message):
        resolve_checkpoint(path, tmp_path, "run")


def test_no_two_processes_get_the_same_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All look before any of them makes its folder."""
    barrier = threading.Barrier(4)
    mkdir = Path.mkdir
    waited = threading.local()

    def wait_once(self: Path, *arguments: Any, **settings: bool) -> None:
        if not hasattr(waited, "done"):
            waited.done = True
            barrier.wait(30)
        mkdir(self, *arguments, **settings)

    monkeypatch.setattr(Path, "mkdir", wait_once)
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(new_version(tmp_path, "run"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [f"version_{number}" for number in range(4)]
    assert [folder.name for folder in versions(tmp_path, "run")] == sorted(made)


def test_a_folder_that_is_not_seen_ends_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run/version_0").mkdir(parents=True)
    (tmp_path / "run/version_²").mkdir()
    monkeypatch.setattr(Path, "glob", lambda path, pattern: iter(()))  # it may not be listed
    assert new_version(tmp_path, "run") == "version_1"
    monkeypatch.undo()
    assert [folder.name for folder in versions(tmp_path, "run")] == ["version_0", "version_1"]


@pytest.mark.parametrize("leads_nowhere", [False, True])
def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, leads_nowhere: bool):
    if leads_nowhere:
        (tmp_path / "file").symlink_to(tmp_path / "a-disk-that-is-gone")
    else:
        (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--runs .*file: .*version_0 cannot be made: "):
        new_version(tmp_path / "file", "run")


# --- The best that a checkpoint names ---------------------------------------------------------


def put(path: Path, step: int, score: float, named: Path | str = "", seed: int = 0) -> Path:
    state = {"best_model_score": score, "best_model_path": str(named)}
    more = {"callbacks": {"lrl's": state}, STAMP_KEY: {"training": {"seed": seed}}}
    write_checkpoint({**some_checkpoint(step, 64), **more}, path)
    return path


@pytest.fixture
def last(tmp_path: Path) -> Path:
    """A run's last checkpoint, of step 10, which names its best, of score 5."""
    folder = tmp_path / "mine/version_0/checkpoints"
    put(folder / "best.ckpt", 8, 5.0, folder / "best.ckpt")
    return put(folder / "last.ckpt", 10, 5.0, folder / "best.ckpt")


def found(last: Path) -> tuple[Path, float] | None:
    return find_best(last, read_checkpoint(last))


@pytest.mark.parametrize(
    "place", ["last.ckpt", "checkpoints/last.ckpt", "version_0/checkpoints/last.ckpt"]
)
def test_a_best_is_found_from_a_path_of_any_length(last: Path, monkeypatch, place: str):
    monkeypatch.chdir(last.parents[len(Path(place).parts) - 1])
    best = found(Path(place))
    assert best is not None
    assert (best[0].resolve(), best[1]) == (last.with_name("best.ckpt"), 5.0)


@pytest.mark.parametrize(
    ("step", "score", "seed", "expected"),
    [
        (12, 9.0, 0, 9.0),  # it was killed after an evaluation
        (12, 4.0, 0, 5.0),  # the disk was full for a moment, and its score could not be written
        (9, 9.0, 0, 5.0),
        (12, 9.0, 1, 5.0),
    ],
)
def test_the_score_of_what_lies_beside(last: Path, step, score, seed, expected):
    put(last.with_name("best.ckpt"), step, score, seed=seed)
    assert found(last) == (last.with_name("best.ckpt"), expected)


def test_a_best_of_before_the_first_evaluation_that_was_saved(last: Path):
    put(last, 4, -math.inf)
    assert found(last) == (last.with_name("best.ckpt"), 5.0)


def test_a_checkpoint_that_was_copied_beside_another_best_keeps_its_own(last: Path):
    other = last.parents[2] / "version_1/checkpoints"
    put(other / "best.ckpt", 20, 100.0)
    shutil.copy(last, other / "last.ckpt")
    assert found(other / "last.ckpt") == (last.with_name("best.ckpt"), 5.0)


def test_what_is_gone_is_not_replaced_by_another_runs(last: Path, tmp_path: Path):
    last.with_name("best.ckpt").unlink()
    assert found(last) is None
    (tmp_path / "mine").rename(tmp_path / "moved")
    put(last.with_name("best.ckpt"), 8, 7.0)
    assert found(tmp_path / "moved/version_0/checkpoints/last.ckpt") is None


def test_a_best_that_was_handed_on_and_is_damaged_is_named(last: Path, tmp_path: Path):
    name = last.parents[2].name
    put(last.parents[2] / "version_1/checkpoints/best.ckpt", 20, 100.0)
    put(last.parents[2] / "version_2/checkpoints/last.ckpt", 12, 5.0, last.with_name("best.ckpt"))
    assert resolve_checkpoint("best", tmp_path, name) == str(last.with_name("best.ckpt"))
    last.with_name("best.ckpt").write_bytes(b"half")
    with pytest.raises(ConfigError, match=r"version_0/checkpoints/best\.ckpt is damaged"):
        resolve_checkpoint("best", tmp_path, name)


def test_a_best_that_no_training_run_wrote_is_left_alone(last: Path):
    write_checkpoint([1], last.with_name("best.ckpt"))
    assert found(last) is None


def test_a_folder_is_where_loggers_write(monkeypatch):
    """A shell leaves `--runs=~/runs` as it is, as YAML does."""
    monkeypatch.setenv("HOME", "/home/of/me")
    monkeypatch.setenv("SCRATCH", "~/disk")
    for given, expected in (("~/runs", "/home/of/me/runs"), ("$SCRATCH/x", "/home/of/me/disk/x")):
        assert runs_folder(given) == Path(expected)
        logger = TensorBoardLogger(given, "name", "version_0")
        assert logger.log_dir == f"{expected}/name/version_0"
