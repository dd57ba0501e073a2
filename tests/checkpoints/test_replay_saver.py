"""Saving a replay meets damage, kills, full disks and slow ones; whole saves stay usable."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.inference import in_background
from helpers.replay_rows import pack
from helpers.saved_replays import Feed, contents, files, load, make_buffer, name_of, save, take

from lrl.checkpoints import atomic_files
from lrl.checkpoints import replay_saver as saver_module
from lrl.checkpoints.replay_saver import ReplaySaver
from lrl.checkpoints.saved_replay import HashedFile, Manifest, SavedReplayError, read_manifest
from lrl.replay import Replay


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def saved_twice(folder: Path) -> tuple[ReplaySaver, Replay, Feed, list[dict[str, Any]]]:
    """Save after 60 rows and after 90; return what each save holds."""
    buffer, feed, expected = make_buffer(), Feed(0), []
    saver = ReplaySaver(folder, buffer, {})
    for step, rows in ((1, 60), (2, 30)):
        buffer.add(feed.rows(rows))
        save(saver, step)
        expected.append(contents(buffer))
    return saver, buffer, feed, expected


def assert_holds(folder: Path, step: int, expected: dict[str, Any]) -> None:
    restored = make_buffer()
    load(folder, restored, step)
    assert contents(restored) == expected


# --- Damage ---------------------------------------------------------------------------------


def remove(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_a_link(path: Path) -> None:
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove, "is missing"),
        (cut_off, "is damaged"),
        (empty, "is damaged"),
        (change_a_byte, "is damaged"),
        (make_a_link, "is a link"),
        (make_a_folder, "is missing"),
    ],
)
def test_every_damaged_file_is_named_and_nothing_is_loaded(damage, said, tmp_path):
    saved_twice(tmp_path / "good")
    names = sorted(read_manifest(tmp_path / "good" / "manifest-2.json").file_names)
    assert len(names) > 5
    for name in names:
        folder = tmp_path / "bad"
        shutil.copytree(tmp_path / "good", folder)
        damage(folder / name)
        buffer = make_buffer()
        with pytest.raises(SavedReplayError, match=f"{name} {said}"):
            load(folder, buffer, 2)
        assert contents(buffer) == contents(make_buffer())
        shutil.rmtree(folder)


def test_no_random_damage_is_overlooked(tmp_path):
    saved_twice(tmp_path)
    rng = np.random.default_rng(0)
    manifest = read_manifest(tmp_path / "manifest-2.json")
    sizes = {s.name: s.num_bytes for s in (*manifest.segments, manifest.state)}
    for _ in range(300):
        path = tmp_path / str(rng.choice(sorted(manifest.file_names)))
        whole = path.read_bytes()
        place = int(rng.integers(sizes.get(path.name, len(whole))))
        content = bytearray(whole)
        if rng.random() < 0.3:
            content = content[:place]
        else:
            content[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(content)
        with pytest.raises(SavedReplayError, match=path.name):
            load(tmp_path, make_buffer(), 2)
        path.write_bytes(whole)
    load(tmp_path, make_buffer(), 2)


def test_what_lies_behind_the_part_that_a_manifest_vouches_for_is_not_read(tmp_path):
    _, _, _, expected = saved_twice(tmp_path)
    with (tmp_path / read_manifest(tmp_path / "manifest-2.json").segments[-1].name).open("ab") as f:
        f.write(b"from a save that was killed")
    assert_holds(tmp_path, 1, expected[0])
    assert_holds(tmp_path, 2, expected[1])


@pytest.mark.parametrize(
    "name", ["../secret.bin", "/etc/passwd", "inner/rows.bin", "..", "", ".hidden", "a\\b", "C:x"]
)
def test_a_manifest_cannot_name_files_outside_its_folder(name, tmp_path):
    saved_twice(tmp_path)
    path = tmp_path / "manifest-2.json"
    manifest = read_manifest(path)
    for changed in (
        replace(manifest, state=replace(manifest.state, name=name)),
        replace(manifest, segments=[replace(manifest.segments[0], name=name)]),
    ):
        path.write_bytes(changed.to_bytes())  # with the right checksum
        with pytest.raises(SavedReplayError, match="which is not in its folder"):
            load(tmp_path, make_buffer(), 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: replace(m, tree={"object": 1}), "does not hold what"),
        (lambda m: replace(m, tree={"array": 99}), "does not hold what"),
        (lambda m: replace(m, tree=3), "does not hold what"),
        (lambda m: replace(m, segments=[]), "does not name all rows"),
        (lambda m: replace(m, segments=m.segments[1:]), "does not name all rows"),
        (lambda m: replace(m, state=m.segments[0]), "does not hold what"),
        (lambda m: replace(m, segments=[m.state]), "ends too early|does not name all rows"),
    ],
)
def test_a_manifest_that_fits_its_checksum_but_nothing_else_is_refused(change, said, tmp_path):
    saved_twice(tmp_path)
    path = tmp_path / "manifest-2.json"
    path.write_bytes(change(read_manifest(path)).to_bytes())
    buffer = make_buffer()
    with pytest.raises(SavedReplayError, match=said):
        load(tmp_path, buffer, 2)
    assert contents(buffer) == contents(make_buffer())


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"sha256": 1}', "[" * 100_000, "\xff"])
def test_what_is_no_manifest_is_refused(text, tmp_path):
    (tmp_path / "manifest-1.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SavedReplayError, match=r"manifest-1\.json is damaged"):
        load(tmp_path, make_buffer(), 1)


def test_another_format_is_refused(tmp_path, monkeypatch):
    saved_twice(tmp_path)
    monkeypatch.setattr("lrl.checkpoints.saved_replay._FORMAT", 3)
    with pytest.raises(SavedReplayError, match="another format than 3"):
        load(tmp_path, make_buffer(), 2)


# --- Kills ----------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here; nothing after it happens."""


class Killer:
    """Counts operations on files; from one of them on, each is one that did not happen."""

    def __init__(self, patch: pytest.MonkeyPatch, survives: int) -> None:
        self.survives, self.operations = survives, 0
        for owner, name in (
            (Path, "open"),
            (Path, "replace"),
            (Path, "unlink"),
            (Path, "mkdir"),
            (HashedFile, "write"),
            (HashedFile, "sync"),
            (saver_module, "sync_folder"),
            (atomic_files, "sync_folder"),
        ):
            patch.setattr(owner, name, self.counting(getattr(owner, name)))

    def counting(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.operations += 1
            if self.operations > self.survives:
                raise Killed
            return operation(*args, **kwargs)

        return counted


def kills(folder: Path) -> Iterator[int]:
    """Begin a third save in a copy of the folder and kill it after 0, 1, 2... operations."""
    for survives in range(1000):
        shutil.rmtree(folder, ignore_errors=True)
        saver, buffer, feed, expected = saved_twice(folder)
        buffer.add(feed.rows(45))
        expected.append(contents(buffer))
        with pytest.MonkeyPatch.context() as patch:
            killer = Killer(patch, survives)
            try:
                save(saver, 3)
            except Killed:
                pass
            else:
                assert killer.operations == survives > 20
                return
        yield survives
        done = (folder / "manifest-3.json").exists()
        assert_holds(folder, 2, expected[1])
        assert_holds(folder, *((3, expected[2]) if done else (1, expected[0])))


def test_a_kill_between_any_two_operations_keeps_the_saves_before(tmp_path):
    assert sum(1 for _ in kills(tmp_path / "replay")) > 20


def test_the_next_run_in_the_folder_clears_away_what_a_killed_one_left(tmp_path):
    folder = tmp_path / "replay"
    for survives in kills(folder):
        if survives % 4:
            continue
        done = (folder / "manifest-3.json").exists()
        newest = folder / f"manifest-{3 if done else 2}.json"
        manifest = read_manifest(newest)
        buffer = make_buffer()
        buffer.add(Feed(5).rows(20))
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        (copy / "note.txt").write_text("of somebody else")
        save(ReplaySaver(copy, buffer, {}), 9)
        ours = read_manifest(copy / "manifest-9.json").file_names
        assert set(files(copy)) == ours | manifest.file_names | {"note.txt"}
        assert_holds(copy, 9, contents(buffer))


# --- Full disks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files_kind", "writes"), [("rows", 0), ("rows", 1), ("rows", 20), ("state", 0), ("state", 3)]
)
def test_a_full_disk_keeps_the_saves_before_and_the_next_one_works(
    files_kind, writes, tmp_path, monkeypatch, caplog
):
    saver, buffer, feed, expected = saved_twice(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    buffer.add(feed.rows(45))
    whole, left = HashedFile.write, [writes]

    def write(file: HashedFile, data: Any) -> None:
        left[0] -= file.described(None).name.startswith(files_kind)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        whole(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(HashedFile, "write", write)
        take(saver, 3)
        saver.start()
        saver.finish()
    assert "the replay could not be saved in" in caplog.text
    assert "No space left on device" in caplog.text
    assert "Traceback" not in caplog.text
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert_holds(tmp_path, 2, expected[1])
    save(saver, 4)
    assert_holds(tmp_path, 4, contents(buffer))
    assert_holds(tmp_path, 2, expected[1])


def test_too_little_space_is_said_before_the_first_save(tmp_path, monkeypatch, caplog):
    usage = shutil.disk_usage(tmp_path)._replace(free=1234)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    buffer = make_buffer(capacity=100_000)
    ReplaySaver(tmp_path, buffer, {})
    assert buffer.nbytes > 1.7e6
    assert "checkpoint_replay: the full replay needs up to 3.52 MB in" in caplog.text
    assert "but 1.23 kB are free" in caplog.text


# --- In the background ----------------------------------------------------------------------


class HeldWriter:
    """Lets a save write one record each time it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Semaphore(0)
        self.records = 0
        whole = saver_module.write_record

        def write_record(*args: Any) -> None:
            assert self.go.acquire(timeout=60)
            whole(*args)
            self.records += 1

        monkeypatch.setattr(saver_module, "write_record", write_record)


def test_appending_waits_only_where_a_row_is_still_to_be_written(tmp_path, monkeypatch):
    buffer, feed = make_buffer(num_streams=1), Feed(0, num_streams=1)
    buffer.add(feed.rows(80))
    saver, writer = ReplaySaver(tmp_path, buffer, {}), HeldWriter(monkeypatch)
    take(saver, 1)
    expected = contents(buffer)
    saver.start()
    buffer.add(feed.rows(20))  # fills the ring: nothing is overwritten
    appended = in_background(buffer.add, feed.rows(15))
    writer.go.release()
    while writer.records < 1:
        threading.Event().wait(0.001)
    assert not appended.done()  # 12 rows fill a record, and 15 go
    writer.go.release()
    appended.result(60)
    writer.go.release(100)
    saver.finish()
    assert_holds_one_stream(tmp_path, expected)
    buffer.add(feed.rows(500))  # nothing is waited for


def assert_holds_one_stream(folder: Path, expected: dict[str, Any]) -> None:
    restored = make_buffer(num_streams=1)
    load(folder, restored, 1)
    assert contents(restored) == expected


def test_a_save_that_fails_lets_appending_go_on(tmp_path, monkeypatch, caplog):
    buffer, feed = make_buffer(), Feed(0)
    buffer.add(feed.rows(200))
    saver = ReplaySaver(tmp_path, buffer, {})
    reached, fail = threading.Event(), threading.Event()

    def write_record(*args: Any) -> None:
        reached.set()
        assert fail.wait(60)
        raise ValueError("of our own making")

    monkeypatch.setattr(saver_module, "write_record", write_record)
    take(saver, 1)
    saver.start()
    assert reached.wait(60)
    appended = in_background(buffer.add, feed.rows(50))
    fail.set()
    appended.result(60)
    saver.finish()
    assert "ValueError: of our own making" in caplog.text
    assert "Traceback" in caplog.text
    assert not list(tmp_path.glob("manifest*"))


def test_without_a_thread_it_is_written_at_once(tmp_path, monkeypatch):
    """Where the system allows no more of them; appending would wait for one that never came."""
    buffer, feed = make_buffer(), Feed(0)
    buffer.add(feed.rows(200))
    saver = ReplaySaver(tmp_path, buffer, {})

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    take(saver, 1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        saver.start()
    assert_holds(tmp_path, 1, contents(buffer))
    buffer.add(feed.rows(200))
    saver.finish()


@pytest.mark.parametrize("gone", ["a segment", "everything"])
def test_what_was_deleted_meanwhile_is_saved_again(tmp_path, caplog, gone):
    folder = tmp_path / "replay"
    saver, buffer, feed, _ = saved_twice(folder)
    if gone == "everything":
        shutil.rmtree(folder)
    for path in folder.glob("rows-*"):
        path.unlink()
    for step in (3, 4):
        buffer.add(feed.rows(5))
        take(saver, step)
        saver.start()
        saver.finish()
    assert [m.startswith("the replay was not saved") for m in caplog.messages].count(True) == 1
    assert_holds(folder, 4, contents(buffer))


def test_the_next_save_waits_for_the_one_before_and_says_so(tmp_path, monkeypatch, caplog):
    buffer = make_buffer()
    buffer.add(Feed(0).rows(20))
    saver, writer = ReplaySaver(tmp_path, buffer, {}), HeldWriter(monkeypatch)
    take(saver, 1)
    saver.start()
    second = in_background(take, saver, 2)
    while "training waits" not in caplog.text:
        threading.Event().wait(0.001)
    assert not second.done()
    writer.go.release(100)
    second.result(60)
    assert_holds(tmp_path, 1, contents(buffer))
    saver.discard()


def test_what_is_taken_can_be_given_up(tmp_path):
    buffer, feed = make_buffer(), Feed(0)
    buffer.add(feed.rows(200))
    saver = ReplaySaver(tmp_path, buffer, {})
    take(saver, 1)
    saver.discard()
    buffer.add(feed.rows(200))
    assert files(tmp_path) == {}


@pytest.mark.usefixtures("janitor")
def test_nothing_is_left_running(tmp_path):
    buffer = make_buffer()
    buffer.add(Feed(0).rows(20))
    saver = ReplaySaver(tmp_path, buffer, {})
    take(saver, 1)
    saver.start()
    saver.finish()
    saver.finish()


def test_the_manifest_is_plain_json_with_sizes_and_checksums(tmp_path):
    saved_twice(tmp_path)
    content = json.loads((tmp_path / "manifest-2.json").read_text())
    assert content["format"] == 2
    assert (content["learner_step"], content["saved_id"]) == (2, name_of(2))
    for file in (*content["segments"], content["state"]):
        assert file["num_bytes"] <= (tmp_path / file["name"]).stat().st_size
        assert len(file["sha256"]) == 64
    assert isinstance(read_manifest(tmp_path / "manifest-2.json"), Manifest)


def test_a_silent_stream_does_not_keep_the_segments_of_others(tmp_path: Path):
    buffer, feed = make_buffer(), Feed(0)
    saver = ReplaySaver(tmp_path, buffer, {})
    buffer.add(feed.rows(100))
    save(saver, 1)
    held = []
    for step in range(2, 40):
        buffer.add(pack([(0, feed.environments[0].next_row()) for _ in range(25)]))
        save(saver, step)
        sizes = files(tmp_path).items()
        held.append(sum(size for name, size in sizes if name.startswith("rows")))
    restored = make_buffer()
    load(tmp_path, restored, 39)
    assert contents(restored) == contents(buffer)
    assert max(held[20:]) <= max(held[:20])


@pytest.mark.parametrize("seed", range(6))
def test_streams_of_any_pace_come_back(tmp_path: Path, seed: int):
    buffer, feed = make_buffer(num_streams=3), Feed(seed, 3)
    saver, rng = ReplaySaver(tmp_path, buffer, {}), np.random.default_rng(seed)
    pace = rng.dirichlet(np.full(3, 0.3))
    for step in range(1, 16):
        streams = rng.choice(3, size=int(rng.integers(1, 120)), p=pace)
        buffer.add(pack([(int(s), feed.environments[s].next_row()) for s in streams]))
        save(saver, step)
        restored = make_buffer(num_streams=3)
        load(tmp_path, restored, step)
        assert contents(restored) == contents(buffer)
