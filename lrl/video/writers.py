"""Frames to files: MP4, GIF, and PNG for a still."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image
from typing_extensions import override

from lrl.checkpoints.files import temporary_beside
from lrl.processes.interrupt import AT_ONCE
from lrl.types import ConfigError
from lrl.video.film import FilmFrame

Frame = npt.NDArray[np.uint8]
_GIF_FPS = 20.0
_HOLD_SECONDS = 1.5


class Writer(ABC):
    """Write frames of one size, `[height, width, 3]` in RGB with even sides, and count them."""

    def __init__(self, target: Path, fps: float) -> None:
        self.target = target
        self.fps = fps
        self.frames = 0

    @abstractmethod
    def add(self, frame: Frame) -> None:
        """Show a frame until the next one."""

    @abstractmethod
    def hold(self, frame: Frame) -> None:
        """Show a frame long enough to be read."""

    @abstractmethod
    def close(self) -> None:
        """Complete the file."""


class Mp4Writer(Writer):
    """H.264 in MP4, in the pixel format that browsers play; needs the extra `video`."""

    def __init__(self, target: Path, fps: float) -> None:
        super().__init__(target, fps)
        self._av = _import_av()
        self._container: Any
        self._stream: Any

    @override
    def add(self, frame: Frame) -> None:
        if self.frames == 0:
            self._open(*frame.shape[:2])
        picture = self._av.VideoFrame.from_ndarray(frame, format="rgb24")
        self._container.mux(self._stream.encode(picture))
        self.frames += 1

    @override
    def hold(self, frame: Frame) -> None:
        for _ in range(max(1, round(self.fps * _HOLD_SECONDS))):
            self.add(frame)

    @override
    def close(self) -> None:
        if self.frames:
            self._container.mux(self._stream.encode(None))
            self._container.close()

    def _open(self, height: int, width: int) -> None:
        # With the index at its front, a file plays before it is loaded as a whole.
        self._container = self._av.open(
            str(self.target), "w", format="mp4", options={"movflags": "+faststart"}
        )
        self._stream = self._container.add_stream(
            "libx264", rate=Fraction(self.fps).limit_denominator(1000), options={"crf": "20"}
        )
        self._stream.width, self._stream.height = width, height
        self._stream.pix_fmt = "yuv420p"


class GifWriter(Writer):
    """An animated GIF, for short films: all of it is in memory until it is written.

    Browsers slow faster ones down, so at most 20 frames a second are kept of those that are added.
    """

    def __init__(self, target: Path | BinaryIO, fps: float) -> None:
        super().__init__(target if isinstance(target, Path) else Path(), fps)
        self._file = target
        self._stride = max(1, -int(-fps // _GIF_FPS))
        self._added = 0
        self._images: list[Image.Image] = []
        self._starts: list[float] = []
        self._now = 0.0

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the frames."""
        return self._images[0].height, self._images[0].width

    @override
    def add(self, frame: Frame) -> None:
        if self._added % self._stride == 0:
            self._keep(frame)
        self._added += 1
        self._now += 1.0 / self.fps

    @override
    def hold(self, frame: Frame) -> None:
        self._keep(frame)
        self._now += _HOLD_SECONDS

    @override
    def close(self) -> None:
        if not self._images:
            return
        # A GIF counts hundredths of a second: rounded alone, 15 frames a second would be 14.
        ticks = [round(100 * start) for start in (*self._starts, self._now)]
        durations = [10 * (end - start) for start, end in pairwise(ticks)]
        first, *rest = self._images
        first.save(self._file, "GIF", save_all=True, append_images=rest, duration=durations, loop=0)

    def _keep(self, frame: Frame) -> None:
        self._images.append(Image.fromarray(frame).quantize(method=Image.Quantize.FASTOCTREE))
        self._starts.append(self._now)
        self.frames += 1


class PngWriter(Writer):
    """The last frame that is added: a still."""

    @override
    def add(self, frame: Frame) -> None:
        self._last = frame
        self.frames = 1

    @override
    def hold(self, frame: Frame) -> None:
        """Do nothing: the last frame of a still is that of the last step."""

    @override
    def close(self) -> None:
        if self.frames:
            Image.fromarray(self._last).save(self.target, "PNG", optimize=True)


_WRITERS: dict[str, type[Writer]] = {".mp4": Mp4Writer, ".gif": GifWriter, ".png": PngWriter}


@contextlib.contextmanager
def open_video(path: Path, fps: float, overwrite: bool = False) -> Iterator[Writer]:
    """Open a video for writing; the suffix of the path says what it is.

    The file is written under another name and takes its own when it is complete: at the end, or at
    a Ctrl-C between two frames. What is not completed is removed.

    Args:
        path: Ends in `.mp4`, `.gif`, or `.png` for a still of the last frame.
        fps: Frames in a second.
        overwrite: Whether a file of that name may be replaced.
    """
    if path.suffix.lower() not in _WRITERS:
        raise ConfigError(f"video {path} must end in {', '.join(_WRITERS)}")
    if path.exists() and not overwrite:
        raise ConfigError(
            f"video {path} exists: choose another one by --video, or --overwrite true"
        )
    temporary = temporary_beside(path)
    writer = _WRITERS[path.suffix.lower()](temporary, fps)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:
        raise ConfigError(f"video {path} cannot be written: {error}") from error
    try:
        try:
            yield writer
        except KeyboardInterrupt as interruption:
            if AT_ONCE not in interruption.args:  # in the middle of something
                _complete(writer, path)
            raise
        _complete(writer, path)
    finally:
        temporary.unlink(missing_ok=True)


def shoot(
    writer: Writer, frames: Iterable[FilmFrame], paint: Callable[[FilmFrame], Frame]
) -> FilmFrame:
    """Write the frames of an episode, and return the last one."""
    frame = None
    for frame in frames:
        (writer.hold if frame.ending else writer.add)(paint(frame))
    assert frame is not None
    return frame


def _complete(writer: Writer, path: Path) -> None:
    writer.close()
    if writer.frames:
        writer.target.replace(path)
        print(f"film: {path}")


def _import_av() -> Any:
    try:
        import av
    except ImportError as error:
        raise ConfigError(
            f"video needs the package av for MP4, which cannot be imported ({error}): "
            "pip install 'lrl[video]', or write a .gif"
        ) from error
    return av
