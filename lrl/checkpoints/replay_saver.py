"""Saving a replay while training goes on: what is new is written by a thread."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lrl.checkpoints.atomic_files import replace_file, sync_folder
from lrl.checkpoints.plain_state import Array, encode, write_arrays
from lrl.checkpoints.saved_replay import (
    HashedFile,
    Manifest,
    SavedFile,
    SavedReplayError,
    read_manifest,
    write_record,
)
from lrl.processes.memory import format_bytes
from lrl.replay.experience import StoredExperience
from lrl.replay.streams import IndexArray

_log = logging.getLogger(__name__)

_SEGMENTS = 8
"""A segment is full when it holds this part of the replay's size."""
_PIECE_BYTES = 4 * 2**20
_OURS = re.compile(r"(rows-\w+-\d+\.bin|state-\w+\.bin|manifest-\d+\.json)(\.tmp)?")


class ReplaySaver:
    """Saves a replay again and again, each time only the rows that are new.

    Created by a callback, in the learner process. `take` notes what there is at that moment and
    copies the state (that of a sampler has 8 to 24 bytes a row); `start` has a thread write it, and
    `finish` waits for that. Rows never change, so they are written as they lie in their rings;
    appending waits where it would overwrite a row that is still to be written. The last two saves
    are kept, and whenever the process ends, those that were complete can be read.

    Args:
        folder: Where this rank's replay is saved; made if it is not there.
        replay: The buffer, or what else holds rows.
        settings: Further settings that must be the same where the replay is restored.
    """

    def __init__(self, folder: Path, replay: StoredExperience, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._replay = replay
        self._settings = {**replay.settings(), **settings}
        self._prefix = f"rows-{secrets.token_hex(4)}"
        self._segment_bytes = replay.nbytes // _SEGMENTS
        self._segments_made = 0
        self._saved = _Progress([], np.zeros_like(replay.streams.counts), hashlib.sha256())
        self._starts: dict[str, IndexArray] = {}  # of each segment, by stream: its first row
        self._kept: list[Manifest] | None = None  # None before the first save
        self._snapshot: _Snapshot | None = None
        self._thread: threading.Thread | None = None
        self._written = threading.Condition()
        self._next: IndexArray | None = None  # each stream's first row that is still to be written
        replay.streams.before_overwriting = self._wait_until_written
        folder.mkdir(parents=True, exist_ok=True)
        self._announce()

    def take(self, learner_step: int, saved_id: str, state: dict[str, Any]) -> None:
        """Note the replay of this moment; waits for an earlier save that is still written.

        The learner step and the name are those of the checkpoint; the state goes with the rows, as
        `plain_state.encode` takes it, and `"replay"` in it is the buffer's own.
        """
        if self.is_writing:
            _log.warning(
                "training waits, since the replay of the save before is still being written in %s; "
                "if this is so at each save, raise actor_learner.save_period_learner_steps",
                self._folder,
            )
        self.finish()
        streams, arrays = self._replay.streams, []
        tree = encode(state, arrays)
        start = np.maximum(self._saved.stop, streams.oldest)
        stop, oldest = streams.counts.copy(), streams.oldest.copy()
        self._snapshot = _Snapshot(learner_step, saved_id, start, stop, oldest, tree, arrays)
        self._next = start

    @property
    def is_writing(self) -> bool:
        """Whether a save is written in the background."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Have what was taken written in the background; errors are logged.

        Where the system allows no more threads, it is written before this returns.
        """
        self._thread = threading.Thread(target=self._run, name="lrl-replay-saver", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            self._run()

    def finish(self) -> None:
        """Wait until the save in the background is written, if there is one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def discard(self) -> None:
        """Forget what was taken."""
        with self._written:
            self._snapshot = self._next = None
            self._written.notify_all()

    def write(self) -> None:
        """Write what was taken, in this thread.

        Raises:
            OSError: It could not be written; the earlier saves are as they were.
        """
        snapshot = self._snapshot
        assert snapshot is not None, "take it first"
        if self._kept is None:
            self._kept = self._newest_manifest()
        saved, state = self._write_rows(snapshot), self._write_state(snapshot)
        step, name = snapshot.learner_step, snapshot.saved_id
        manifest = Manifest(step, name, self._settings, saved.segments, state, snapshot.tree)
        sync_folder(self._folder)
        content = manifest.to_bytes()
        replace_file(self._folder / manifest.name, lambda file: file.write(content))
        self._saved = saved
        others = [kept for kept in self._kept if kept.name != manifest.name]
        self._kept = [*others[-1:], manifest]
        self._clean()

    def _run(self) -> None:
        try:
            self.write()
        except FileNotFoundError as error:
            _log.error(
                "the replay was not saved, and the next save will write all of it: %s", error
            )
            self._forget()
        except Exception as error:  # training goes on, and the next save may succeed
            _log.error(
                "the replay could not be saved in %s, and is filled again by a run that goes on "
                "from this checkpoint: %s: %s",
                self._folder,
                type(error).__name__,
                error,
                exc_info=not isinstance(error, OSError),
            )
            with contextlib.suppress(OSError):
                self._undo()
        finally:
            self.discard()

    def _write_rows(self, snapshot: _Snapshot) -> _Progress:
        """Write the rows that no segment holds; return what segments hold then."""
        needed = [segment for segment in self._saved.segments if self._is_needed(segment, snapshot)]
        progress = _Progress(needed, snapshot.stop, self._saved.digest)
        out = None
        try:
            for start, stop in self._pieces(snapshot):
                if out is None or out.num_bytes >= self._segment_bytes:
                    out = self._next_segment(out, progress.segments)
                    self._starts.setdefault(progress.segments[-1].name, start)
                write_record(out, self._replay.streams, start, stop)
                progress.segments[-1] = out.described(stop)
                self._note_written(stop)
            if out is not None:
                out.sync()
                progress.digest = out.digest
        finally:
            if out is not None:
                out.close()
        return progress

    def _is_needed(self, segment: SavedFile, snapshot: _Snapshot) -> bool:
        """Return whether a segment has a row that is still there, or will have."""
        stop = np.array(segment.stop)
        is_there = (stop > snapshot.oldest) & (stop > self._starts[segment.name])
        is_last = segment is self._saved.segments[-1]
        return bool(is_there.any()) or (is_last and segment.num_bytes < self._segment_bytes)

    def _next_segment(self, full: HashedFile | None, segments: list[SavedFile]) -> HashedFile:
        """Go on with the last segment of the save before, or else begin a new one."""
        last = segments[-1] if segments else None
        if full is None and last is not None and last.num_bytes < self._segment_bytes:
            return HashedFile(self._folder / last.name, last.num_bytes, self._saved.digest.copy())
        if full is not None:
            full.sync()
            full.close()
        out = HashedFile(self._folder / f"{self._prefix}-{self._segments_made}.bin")
        self._segments_made += 1
        segments.append(out.described(self._saved.stop))
        return out

    def _pieces(self, snapshot: _Snapshot) -> Iterator[tuple[IndexArray, IndexArray]]:
        """Divide the new rows, oldest first and all streams side by side."""
        streams = self._replay.streams
        round_bytes = streams.nbytes // streams.num_slots * streams.num_streams
        rows = max(1, min(_PIECE_BYTES, self._segment_bytes) // round_bytes)
        start = snapshot.start
        while (start < snapshot.stop).any():
            stop = np.minimum(start + rows, snapshot.stop)
            yield start, stop
            start = stop

    def _write_state(self, snapshot: _Snapshot) -> SavedFile:
        out = HashedFile(self._folder / f"state-{snapshot.saved_id}.bin")
        try:
            write_arrays(out, snapshot.arrays)
            out.sync()
        finally:
            out.close()
        return out.described(None)

    def _note_written(self, stop: IndexArray) -> None:
        with self._written:
            self._next = stop
            self._written.notify_all()

    def _wait_until_written(self, oldest: IndexArray) -> None:
        """Wait until no row before these is still to be written."""
        if self._next is None:
            return

        def written() -> bool:
            if self._next is None or self._snapshot is None:
                return True
            return bool(((oldest <= self._next) | (self._next >= self._snapshot.stop)).all())

        with self._written:
            self._written.wait_for(written)

    def _newest_manifest(self) -> list[Manifest]:
        """Find what an earlier run saved in the same folder."""
        found = []
        for path in self._folder.glob("manifest-*.json"):
            with contextlib.suppress(SavedReplayError, OSError):
                manifest = read_manifest(path)
                found.append((path.stat().st_mtime_ns, manifest.learner_step, manifest))
        return [manifest for _, _, manifest in sorted(found, key=lambda entry: entry[:2])][-1:]

    def _clean(self) -> None:
        """Delete the files that no kept manifest names."""
        needed = {name for manifest in self._kept or [] for name in manifest.file_names}
        for path in self._folder.iterdir():
            if path.name not in needed and _OURS.fullmatch(path.name):
                with contextlib.suppress(OSError):  # the next save tries again
                    path.unlink()

    def _undo(self) -> None:
        """Delete what a save that failed left behind: it may be what fills the disk."""
        if self._kept is None:
            return
        self._clean()
        if self._saved.segments:
            last = self._saved.segments[-1]
            os.truncate(self._folder / last.name, last.num_bytes)

    def _forget(self) -> None:
        """Begin anew, as if nothing had been saved."""
        self._saved = _Progress([], np.zeros_like(self._saved.stop), hashlib.sha256())
        self._kept = None
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)

    def _announce(self) -> None:
        arrays: list[Array] = []
        encode(self._replay.state(with_rows=True), arrays)
        state_bytes = sum(array.nbytes for array in arrays)
        needed = (self._replay.nbytes * (_SEGMENTS + 1)) // _SEGMENTS + 2 * state_bytes
        free = shutil.disk_usage(self._folder).free
        _log.info("the replay is saved in %s: up to %s", self._folder, format_bytes(needed))
        if free < needed:
            _log.warning(
                "actor_learner.checkpoint_replay: the full replay needs up to %s in %s, but %s "
                "are free: free some, lower replay.capacity, or set checkpoint_replay to false",
                format_bytes(needed),
                self._folder,
                format_bytes(free),
            )


@dataclass
class _Snapshot:
    """What is to be saved: rows from `start` to `stop` are new, those before `oldest` are gone."""

    learner_step: int
    saved_id: str
    start: IndexArray
    stop: IndexArray
    oldest: IndexArray
    tree: Any
    arrays: list[Array]


@dataclass
class _Progress:
    """What the segments of a save hold: all rows before `stop`."""

    segments: list[SavedFile]
    stop: IndexArray
    digest: Any
    """SHA-256 of the last segment so far."""
