"""Streams that go away: nothing that is printed fails, and somebody is told once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.training_runs import environment_for_subprocess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no /dev/full")
SAY = """
import sys
from lrl.processes import outputs
outputs.guard()
{}
for stream in (sys.stdout, sys.stderr):
    for _ in range(2000):
        print("something", file=stream, flush=True)
print("buffered until the end")
"""
BUFFERED = {**environment_for_subprocess(), "PYTHONUNBUFFERED": ""}
FULL_DEVICE = Path("/dev/full")
FULL = "lrl: warning: standard {} cannot be written (No space left on device): "


def say(tell: str, *options: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    """Print on both streams in a process of its own, standard output ending with its buffer."""
    return subprocess.run(
        [sys.executable, *options, "-c", SAY.format(tell)], env=BUFFERED,
        text=True, timeout=50, **streams,
    )  # fmt: skip


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_the_stream_that_works_says_once_that_the_other_one_is_full(options):
    with FULL_DEVICE.open("w") as full:
        out = say("outputs.tell()", *options, stdout=full, stderr=subprocess.PIPE)
        err = say("outputs.tell()", *options, stdout=subprocess.PIPE, stderr=full)
    assert (out.returncode, err.returncode) == (0, 0)
    warning, *lines = out.stderr.splitlines()
    assert warning.startswith(FULL.format("output"))
    assert lines == ["something"] * 2000
    lines = err.stdout.splitlines()
    assert lines.count("something") == 2000
    assert len([line for line in lines if line.startswith(FULL.format("error"))]) == 1
    assert lines[-1] == "buffered until the end"


def test_what_was_lost_before_is_told_when_it_matters():
    early = 'print("something", flush=True)\nassert not outputs._tells\noutputs.tell()'
    with FULL_DEVICE.open("w") as full:
        result = say(early, stdout=full, stderr=subprocess.PIPE)
        silent = say("", stdout=full, stderr=subprocess.PIPE)
    assert result.stderr.startswith(FULL.format("output"))
    assert silent.stderr.splitlines() == ["something"] * 2000
    assert result.returncode == silent.returncode == 0


@pytest.mark.parametrize("options", [(), ("-u",)])
def test_a_pipe_that_nobody_reads_ends_nothing(options):
    reading, writing = os.pipe()
    os.close(reading)
    result = say("outputs.tell()", *options, stdout=writing, stderr=writing)
    os.close(writing)
    assert result.returncode == 0


def test_streams_that_were_closed_from_the_start_leave_their_numbers_to_nobody(tmp_path):
    path = tmp_path / "file"
    code = SAY.format(f"file = open({str(path)!r}, 'w'); number = file.fileno()") + (
        "file.write(str(number))"
    )
    command = ["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(command, env=BUFFERED, timeout=200).returncode == 0
    assert int(path.read_text()) > 2


def test_a_slow_reader_of_a_pipe_that_does_not_block_is_waited_for():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    command = [sys.executable, "-c", SAY.format("") + "print('x' * 200_000)"]
    process = subprocess.Popen(command, env=BUFFERED, stdout=writing, stderr=subprocess.DEVNULL)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    assert process.wait(50) == 0
    assert text.count("something") == 2000
    assert len(text) > 200_000


def test_an_actor_whose_environment_prints_does_not_fail():
    code = "from lrl.actors.process import isolate; isolate(); print('x' * 100_000, flush=True)"
    with FULL_DEVICE.open("w") as full:
        result = subprocess.run(
            [sys.executable, "-c", code], env=BUFFERED, timeout=50,
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
