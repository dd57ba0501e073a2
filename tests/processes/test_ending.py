"""Signals in the phases of a command, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from helpers.training_runs import environment_for_subprocess

from lrl.processes.ending import Ending

LISTEN = """
import signal, sys
from lrl.processes.ending import StoppedError, ending
ending.listen()
"""
CODES = [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
if sys.platform != "win32":
    CODES.append((signal.SIGHUP, 129, "SIGHUP"))


def run(code: str, before: str = "") -> tuple[int, str, str]:
    result = subprocess.run(
        [sys.executable, "-c", f"import signal\n{before}\n{LISTEN}\n{code}"],
        env=environment_for_subprocess(), capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    return result.returncode, result.stdout, result.stderr


@pytest.mark.parametrize(("number", "code", "name"), CODES)
def test_a_signal_during_an_import_ends_at_once_whatever_would_catch_it(number, code, name):
    swallow = f"try:\n signal.raise_signal({int(number)})\nexcept BaseException: print('caught')"
    assert run(f"print('before')\n{swallow}") == (code, "before\n", f"lrl: stopped by {name}\n")


@pytest.mark.parametrize(("number", "code", "name"), CODES)
def test_a_signal_later_raises_and_what_cleans_up_does(number, code, name):
    script = f"""
try:
    with ending.raising():
        try:
            signal.raise_signal({int(number)})
        finally:
            print("cleaned")
except (KeyboardInterrupt, StoppedError) as error:
    sys.exit(ending.report(0))
"""
    assert run(script) == (code, "cleaned\n", f"lrl: stopped by {name}\n")


def test_one_that_comes_again_while_the_process_goes_down_adds_no_word():
    script = "ending.report(signal.SIGTERM)\nsignal.raise_signal(signal.SIGINT)"
    assert run(script) == (143, "", "lrl: stopped by SIGTERM\n")


def test_what_is_held_waits_for_the_check():
    script = """
with ending.raising():
    with ending.held():
        signal.raise_signal(signal.SIGTERM)
        print("whole")
    try:
        ending.check()
    except StoppedError:
        print("raised")
"""
    assert run(script) == (0, "whole\nraised\n", "")


@pytest.mark.parametrize(("number", "code", "name"), CODES)
def test_an_ignored_signal_stays_ignored(number, code, name):
    ignore = f"signal.signal({int(number)}, signal.SIG_IGN)"
    assert run(f"signal.raise_signal({int(number)})", before=ignore) == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGHUP")
def test_while_the_trainer_listens_a_sighup_is_a_sigterm_with_a_code_of_its_own():
    script = """
found = signal.getsignal(signal.SIGTERM)
def compose(number, frame):  # as Lightning does
    print("the Trainer's")
    found(number, frame)
signal.signal(signal.SIGTERM, compose)
with ending.raising():
    signal.raise_signal(signal.SIGHUP)
    ending.check()  # nothing is due here
sys.exit(ending.report(signal.SIGTERM))
"""
    assert run(script) == (129, "the Trainer's\n", "lrl: stopped by SIGHUP\n")


def test_without_a_signal_nothing_is_due():
    Ending().check()


def test_a_library_that_is_stuck_keeps_no_process_from_its_exit_code():
    code = (
        "import atexit, sys\n"
        "from lrl.processes.ending import ending\n"
        "atexit.register(input)\n"
        "ending.skips_libraries = True\n"
        "print('done', end='')\n"
        "ending.exit(3)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.wait(100) == 3
        assert process.stdout.read() == "done"
