"""The files of a saved replay, the manifest that vouches for them, and how both are verified.

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
from typing import Any

from lrl.checkpoints.atomic_files import digest_of, sync_file
from lrl.replay.streams import IndexArray

FORMAT = 2


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
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({"sha256": _digest(body), **body}, indent=1).encode()


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
    if body.pop("format", None) != FORMAT:
        raise SavedReplayError(f"{path} has another format than {FORMAT}, which this lrl reads")
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


def verify(folder: Path, file: SavedFile) -> None:
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
