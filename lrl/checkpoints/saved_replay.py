"""A saved replay: its files, the manifest that vouches for them, and how it is read.

A folder `replay/rank-K` holds *segments* `rows-*.bin` (records of rows, in the order in which they
were appended), `state-ID.bin` (arrays of the sampler and others) for each save, and one
`manifest-STEP.json` for each save, written last, which names the files, their sizes and their
SHA-256. A segment grows with later saves: a manifest vouches for so many of its first bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from lrl.checkpoints.atomic_files import digest_of, sync_file
from lrl.checkpoints.compatibility import differing_settings
from lrl.checkpoints.plain_state import decode, read_arrays
from lrl.envs.config import without_unused
from lrl.processes.memory import available_bytes, format_bytes
from lrl.replay.experience import StoredExperience
from lrl.replay.streams import IndexArray, Streams
from lrl.types import ConfigError, EnvSpec

_FORMAT = 2


class SavedReplayError(ValueError):
    """A saved replay cannot be restored; the message says why."""


@dataclass(frozen=True)
class SavedFile:
    """The first `num_bytes` bytes of a file."""

    name: str
    num_bytes: int
    sha256: str
    stop: list[int]
    """Of a segment: for each stream, the number after that of its last row."""


@dataclass(frozen=True)
class Manifest:
    """What a save consists of."""

    learner_step: int
    saved_id: str
    """The same as in the checkpoint beside which the replay was saved."""
    settings: dict[str, Any]
    """What must be the same where the replay is restored."""
    segments: list[SavedFile]
    state: SavedFile
    tree: Any
    """The state, as `plain_state.encode` returned it."""

    @property
    def name(self) -> str:
        """Name of its own file."""
        return manifest_name(self.learner_step)

    @property
    def file_names(self) -> set[str]:
        """Names of all files, its own included."""
        return {self.name, self.state.name, *(segment.name for segment in self.segments)}

    def to_bytes(self) -> bytes:
        """Return the content of its file, with a checksum of its own."""
        body = {"format": _FORMAT, **asdict(self)}
        return json.dumps({"sha256": _digest(body), **body}, indent=1).encode()


def replay_folder(checkpoints: Path, rank: int = 0) -> Path:
    """Return the folder in which a rank saves its replays, beside a run's checkpoints."""
    return checkpoints / "replay" / f"rank-{rank}"


def replay_beside(checkpoint: Path, rank: int = 0) -> Path:
    """Return the folder of a rank's replays beside a checkpoint, or beside what it is a link to."""
    folder = replay_folder(checkpoint.parent, rank)
    return folder if folder.is_dir() else replay_folder(checkpoint.resolve().parent, rank)


def manifest_name(learner_step: int) -> str:
    """Return the name of the manifest of that learner step."""
    return f"manifest-{learner_step}.json"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest and check it, but not the files that it names.

    Raises:
        SavedReplayError: It is missing, damaged, of another format, or names files elsewhere.
    """
    content = _regular(path).read_bytes()
    try:
        body = json.loads(content)
        checksum = body.pop("sha256")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SavedReplayError(f"{path} is damaged: it is no manifest of a replay") from error
    if checksum != _digest(body):
        raise SavedReplayError(f"{path} is damaged: its SHA-256 differs")
    if body.pop("format", None) != _FORMAT:
        raise SavedReplayError(f"{path} has another format than {_FORMAT}, which this lrl reads")
    try:
        segments = [SavedFile(**segment) for segment in body.pop("segments")]
        manifest = Manifest(segments=segments, state=SavedFile(**body.pop("state")), **body)
    except (TypeError, KeyError) as error:
        raise SavedReplayError(f"{path} is damaged: it is no manifest of a replay") from error
    for name in manifest.file_names:
        if not re.fullmatch(r"\w[\w.-]*", str(name), re.ASCII):
            raise SavedReplayError(f"{path} names the file {name!r}, which is not in its folder")
    return manifest


class HashedFile:
    """A file that is written from some place on, with the SHA-256 of all of it."""

    def __init__(self, path: Path, num_bytes: int = 0, digest: Any = None) -> None:
        self.num_bytes = num_bytes
        self.digest = digest or hashlib.sha256()
        self._name = path.name
        self._file = path.open("r+b" if num_bytes else "wb", buffering=2**20)
        self._file.seek(num_bytes)
        self._file.truncate()

    def write(self, data: Any) -> None:
        """Write bytes, or an array of them."""
        self._file.write(data)
        self.digest.update(data)
        self.num_bytes += memoryview(data).nbytes

    def sync(self) -> None:
        """Wait until it is on the disk."""
        sync_file(self._file)

    def close(self) -> None:
        """Close it; idempotent."""
        self._file.close()

    def described(self, stop: IndexArray | None) -> SavedFile:
        """Return what a manifest says of it."""
        rows = [] if stop is None else stop.tolist()
        return SavedFile(self._name, self.num_bytes, self.digest.hexdigest(), rows)


def load_replay(
    folder: Path,
    replay: StoredExperience,
    settings: dict[str, Any],
    learner_step: int,
    saved_id: str,
) -> dict[str, Any]:
    """Bring the rows of a saved replay back, after all its files were verified.

    The learner step and the saved replay's name are those that the checkpoint gives. Where an error
    is raised, the buffer is as empty as it was.

    Returns:
        The state that was saved with the rows; `"replay"` in it is for the buffer to restore.

    Raises:
        SavedReplayError: The replay is missing, damaged, of another checkpoint or of other
            settings.
        OSError: A file could not be read.
    """
    manifest = read_manifest(folder / manifest_name(learner_step))
    if manifest.saved_id != saved_id:
        raise SavedReplayError(f"{folder / manifest.name} belongs to another checkpoint")
    now = json.loads(json.dumps({**replay.settings(), **settings}))
    saved = dict(manifest.settings)
    if "env" in saved:
        saved["env"] = without_unused(saved["env"])
    if different := differing_settings(saved, now):
        said = "; ".join(f"{name} was {a} and is {b}" for name, (a, b) in different.items())
        raise SavedReplayError(f"it was saved with other settings: {said}")
    try:
        return _read(folder, manifest, replay.streams)
    except BaseException:
        replay.streams.clear()
        raise


def read_streams(folder: Path, manifest: Manifest) -> tuple[Streams, EnvSpec]:
    """Read the rows alone of a replay that was saved there, after all its files were verified.

    Returns:
        The rows, and what they are rows of.

    Raises:
        SavedReplayError: It is damaged, or was no replay.
        ConfigError: Its rows do not fit into the memory.
        OSError: A file could not be read.
    """
    settings = manifest.settings
    if "replay" not in settings:
        raise SavedReplayError(f"{folder / manifest.name} is of a data.experience, not of a replay")
    spec, num_streams = EnvSpec.of(settings["env_spec"]), settings["number of environments"]
    rows_per_stream = settings["replay"]["capacity"] // num_streams
    stops = [segment.stop for segment in manifest.segments]
    rows = int(np.minimum(np.max(stops, axis=0, initial=0), rows_per_stream).sum())
    needed, free = Streams.bytes_needed(spec, rows, num_streams), available_bytes()
    if free is not None and needed > free:  # places without rows take nothing
        raise ConfigError(
            f"the {rows:,} rows of the saved replay need {format_bytes(needed)}, but "
            f"{format_bytes(free)} are available: read them on a machine with more memory"
        )
    streams = Streams(spec, rows_per_stream, num_streams)
    _read(folder, manifest, streams)
    return streams, spec


def _read(folder: Path, manifest: Manifest, streams: Streams) -> dict[str, Any]:
    """Read rows to empty streams, after all files were verified; return the state."""
    for file in (*manifest.segments, manifest.state):
        _verify(folder, file)
    state, counts = _read_state(folder, manifest)
    _read_rows(folder, manifest, streams, counts)
    return state


def write_record(file: Any, streams: Streams, start: IndexArray, stop: IndexArray) -> None:
    """Write rows `start[s]` to `stop[s] - 1` of every stream s, column by column."""
    file.write(np.stack((start, stop)).astype("<i8").tobytes())
    for column in streams.columns.values():
        for span in streams.spans(start, stop):
            file.write(bytes_of(column[span].cpu()))


def bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous tensor on the CPU, as a view."""
    return tensor.numpy().reshape(-1).view(np.uint8)


def _verify(folder: Path, file: SavedFile) -> None:
    """Check that a file has the content that a manifest says.

    Raises:
        SavedReplayError: It has not; the message names it.
        OSError: It could not be read.
    """
    path = _regular(folder / file.name)
    if path.stat().st_size < file.num_bytes:
        raise SavedReplayError(
            f"{path} is damaged: it has {path.stat().st_size} bytes instead of {file.num_bytes}"
        )
    with path.open("rb") as opened:
        digest = digest_of(opened, file.num_bytes)
    if digest.hexdigest() != file.sha256:
        raise SavedReplayError(f"{path} is damaged: its SHA-256 differs")


def _regular(path: Path) -> Path:
    """Check that a file is there, and not a link that leads elsewhere."""
    if path.is_symlink():
        raise SavedReplayError(f"{path} is a link, which could lead out of its folder")
    if not path.is_file():
        raise SavedReplayError(f"{path} is missing")
    return path


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_state(folder: Path, manifest: Manifest) -> tuple[dict[str, Any], IndexArray]:
    """Return the state, and of it how many rows were ever appended to each stream."""
    path = folder / manifest.state.name
    try:
        with path.open("rb") as file:
            state = decode(manifest.tree, read_arrays(file, manifest.state.num_bytes))
        return state, state["replay"]["counts"]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise SavedReplayError(f"{path} does not hold what {manifest.name} says") from error


def _read_rows(folder: Path, manifest: Manifest, streams: Streams, counts: IndexArray) -> None:
    """Read all rows to their places; rows that later ones overwrote come first."""
    covered = np.maximum(counts - streams.rows_per_stream, 0)
    for segment in manifest.segments:
        with (folder / segment.name).open("rb") as file:
            while file.tell() < segment.num_bytes:
                start, stop = _read_record(file, streams)
                covered = np.where(start <= covered, np.maximum(covered, stop), covered)
    if not np.array_equal(covered, counts):
        raise SavedReplayError(f"{folder / manifest.name} does not name all rows")
    streams.restore(counts)


def _read_record(file: BinaryIO, streams: Streams) -> tuple[IndexArray, IndexArray]:
    header = np.empty((2, streams.num_streams), "<i8")
    _read_into(file, header.reshape(-1).view(np.uint8))
    start, stop = header.astype(np.int64)
    for column in streams.columns.values():
        for span in streams.spans(start, stop):
            part = column[span]
            host = part if part.device.type == "cpu" else torch.empty_like(part, device="cpu")
            _read_into(file, bytes_of(host))
            if host is not part:
                part.copy_(host)
    return start, stop


def _read_into(file: Any, array: npt.NDArray[np.uint8]) -> None:
    if file.readinto(array) != array.nbytes:
        raise SavedReplayError(f"{file.name} ends too early")
