"""Frames kept in a file behave as those in memory, and leave nothing on the disk."""

from __future__ import annotations

import errno
import os

import pytest
from helpers.saved_replays import Feed, contents, learn, load, make_buffer, save
from helpers.training_runs import make_run, quiet, small_data

from lrl.checkpoints.replay_saver import ReplaySaver
from lrl.replay import Replay, ReplayConfig
from lrl.types import ConfigError, EnvSpec

FRAMES = EnvSpec.box((84, 84), "uint8", num_actions=4)


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_it_samples_the_same_and_can_be_saved(tmp_path, frame_stack):
    settings = {"frame_stack": frame_stack, "seed": 3, "capacity": 60}
    one, feed = make_buffer(**settings, memory_map=str(tmp_path)), Feed(0, 2, frame_stack)
    other, same_feed = make_buffer(**settings), Feed(0, 2, frame_stack)
    for _ in range(4):
        one.add(feed.rows(40))
        other.add(same_feed.rows(40))
        assert learn(one, feed) == learn(other, same_feed) != []
    assert contents(one) == contents(other)
    assert list(tmp_path.iterdir()) == []
    save(ReplaySaver(tmp_path / "saved", one, {}), 1)
    restored = make_buffer(**settings, memory_map=str(tmp_path))
    load(tmp_path / "saved", restored, 1)
    assert contents(restored) == contents(other)


def test_frames_in_a_file_need_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("lrl.replay.replay.available_bytes", lambda: 1_000_000)
    with pytest.raises(ConfigError, match=r"needs 7\.07 MB on cpu.*with replay\.memory_map"):
        Replay(FRAMES, 1000, 1)
    Replay(FRAMES, 1000, 1, memory_map=str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs 1\.80 MB on cpu.*at most 11111\d rows fit$"):
        Replay(FRAMES, 200_000, 1, memory_map=str(tmp_path))


def test_the_folder_may_be_given_from_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "frames").mkdir()
    Replay(FRAMES, 1000, 1, memory_map="~/frames")


def test_more_environments_than_there_is_memory_for_are_told(monkeypatch):
    monkeypatch.setattr("lrl.replay.replay.available_bytes", lambda: 1_000_000)
    with pytest.raises(ConfigError, match=r"not even one row of each of 500 environments \(of all"):
        Replay(FRAMES, 50_000, 500)


def test_a_missing_folder_and_a_full_disk_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"replay\.memory_map is .*nowhere, but there is no such"):
        Replay(FRAMES, 1000, 1, memory_map=str(tmp_path / "nowhere"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"memory_map needs 7.06 MB in .*No space left"):
        Replay(FRAMES, 1000, 1, memory_map=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_files_is_refused(monkeypatch, tmp_path):
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(ConfigError, match=r"choose another folder \(Permission denied\)"):
        Replay(FRAMES, 1000, 1, memory_map=str(tmp_path))


def test_it_needs_the_cpu():
    with pytest.raises(ConfigError, match=r"replay\.memory_map is /tmp, but replay.device is cuda"):
        ReplayConfig(device="cuda", memory_map="/tmp")


class TestARun:
    pytestmark = quiet

    def test_trains_with_it(self, tmp_path):
        (tmp_path / "frames").mkdir()
        replay = ReplayConfig(2000, 8, memory_map=str(tmp_path / "frames"))
        run = make_run(tmp_path, data=small_data(replay=replay), max_steps=5).fit()
        assert run.trainer.global_step == 5
        assert list((tmp_path / "frames").iterdir()) == []
