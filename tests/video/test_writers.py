"""Files of videos: what they hold, and that none is ever half a file."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lrl.processes.interrupt import AT_ONCE
from lrl.types import ConfigError
from lrl.video.writers import Frame, GifWriter, open_video


def frame(number: int, height: int = 40, width: int = 64) -> Frame:
    """A dark frame with a bright square, further right in every one."""
    picture = np.full((height, width, 3), (20, 30, 40), np.uint8)
    left = 4 * (number % 12)
    picture[8:24, left : left + 16] = (250, 200, 90)
    return picture


def decode(path: Path):
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [found.to_ndarray(format="rgb24") for found in container.decode(stream)]
        facts = (
            stream.codec_context.name,
            stream.codec_context.pix_fmt,
            float(stream.average_rate),
            container.duration / av.time_base,
        )
    return frames, facts


@pytest.mark.parametrize("fps", [15.0, 50.0, 29.97])
def test_an_mp4_holds_every_frame(tmp_path, fps: float):
    path = tmp_path / "new" / "film.mp4"
    with open_video(path, fps) as writer:
        for number in range(20):
            writer.add(frame(number))
        writer.hold(frame(20))
    held = round(1.5 * fps)
    assert writer.frames == 20 + held
    frames, (codec, pixels, rate, seconds) = decode(path)
    assert (codec, pixels) == ("h264", "yuv420p")
    assert rate == pytest.approx(fps, rel=1e-3)
    assert seconds == pytest.approx((20 + held) / fps, abs=0.05)
    assert len(frames) == 20 + held
    for number in (0, 7, 19, 20):
        error = np.abs(frames[number].astype(int) - frame(number)).mean()
        assert error < 6  # lossy
    assert [p.name for p in path.parent.iterdir()] == ["film.mp4"]


def gif_frames(image: Image.Image) -> tuple[list[Frame], list[int]]:
    frames, durations = [], []
    for index in range(getattr(image, "n_frames", 1)):
        image.seek(index)
        frames.append(np.asarray(image.convert("RGB")))
        durations.append(int(image.info["duration"]))
    return frames, durations


def test_a_gif_holds_every_frame_for_its_time(tmp_path):
    path = tmp_path / "film.gif"
    with open_video(path, 15.0) as writer:
        for number in range(9):
            writer.add(frame(number))
        writer.hold(frame(9))
    with Image.open(path) as image:
        frames, durations = gif_frames(image)
        assert image.info["loop"] == 0
    assert len(frames) == writer.frames == 10
    assert all(np.array_equal(frames[n], frame(n)) for n in range(10))
    assert sum(durations[:9]) == 600
    assert set(durations[:9]) == {60, 70}
    assert durations[9] == 1500


def test_a_quick_gif_leaves_frames_out_and_keeps_its_speed():
    file = io.BytesIO()
    writer = GifWriter(file, 50.0)
    for number in range(30):
        writer.add(frame(number))
    writer.close()
    assert writer.size == (40, 64)
    frames, durations = gif_frames(Image.open(file))
    assert len(frames) == writer.frames == 10
    assert np.array_equal(frames[4], frame(12))
    assert sum(durations) == 600


def test_a_png_is_the_last_frame_before_the_end(tmp_path):
    with open_video(tmp_path / "still.png", 15.0) as writer:
        for number in range(3):
            writer.add(frame(number))
        writer.hold(frame(3))
    with Image.open(tmp_path / "still.png") as image:
        assert np.array_equal(np.asarray(image), frame(2))


SUFFIXES = ["mp4", "gif", "png"]


def write_until(error: BaseException, path: Path, frames: int = 1, **settings: bool) -> None:
    with open_video(path, 15.0, **settings) as writer:
        for number in range(frames):
            writer.add(frame(number))
        raise error


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_error_leaves_no_file(tmp_path, suffix: str):
    with pytest.raises(ZeroDivisionError):
        write_until(ZeroDivisionError(), tmp_path / f"film.{suffix}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ctrl_c_between_frames_completes_the_file(tmp_path, suffix: str):
    path = tmp_path / f"film.{suffix}"
    with pytest.raises(KeyboardInterrupt):
        write_until(KeyboardInterrupt(), path, frames=5)
    assert list(tmp_path.iterdir()) == [path]
    if suffix == "mp4":
        assert len(decode(path)[0]) == 5
    else:
        with Image.open(path) as image:
            assert getattr(image, "n_frames", 1) == (5 if suffix == "gif" else 1)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ctrl_c_in_the_middle_of_something_or_before_anything_leaves_no_file(tmp_path, suffix: str):
    path = tmp_path / f"film.{suffix}"
    for error, frames in ((KeyboardInterrupt(AT_ONCE), 5), (KeyboardInterrupt(), 0)):
        with pytest.raises(KeyboardInterrupt):
            write_until(error, path, frames)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_kept_unless_it_may_be_replaced(tmp_path):
    path = tmp_path / "film.gif"
    path.write_text("precious")
    with (
        pytest.raises(
            ConfigError, match=r"film\.gif exists: choose another one by --video, or --overw"
        ),
        open_video(path, 15.0),
    ):
        pytest.fail("opened")
    assert path.read_text() == "precious"
    with pytest.raises(ZeroDivisionError):
        write_until(ZeroDivisionError(), path, overwrite=True)
    assert path.read_text() == "precious"
    with open_video(path, 15.0, overwrite=True) as writer:
        writer.add(frame(0))
    assert path.read_bytes().startswith(b"GIF89a")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("film.avi", r"film\.avi must end in \.mp4, \.gif, \.png"),
        ("film", r"film must end in"),
        ("file/film.gif", r"film\.gif cannot be written: .*file"),
    ],
)
def test_a_path_that_cannot_be_used(tmp_path, name: str, message: str):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=message), open_video(tmp_path / name, 15.0):
        pytest.fail("opened")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_the_extra_mp4_is_refused_and_gif_is_not(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'lrl\[video\]', or write a \.gif"),
        open_video(tmp_path / "film.mp4", 15.0),
    ):
        pytest.fail("opened")
    with open_video(tmp_path / "film.gif", 15.0) as writer:
        writer.add(frame(0))
    assert [path.name for path in tmp_path.iterdir()] == ["film.gif"]
