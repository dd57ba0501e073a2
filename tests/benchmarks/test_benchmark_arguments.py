"""What the benchmarks' scripts refuse before they measure."""

from __future__ import annotations

import argparse

import pytest

from benchmark.arguments import count, duration, output, threads
from benchmark.peers import installed


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (count, "0", "at least 1"),
        (count, "-3", "at least 1"),
        (threads, "0", "at least 1"),
        (threads, "1025", "at most 1024"),
        (duration, "0", "above 0"),
        (duration, "nan", "above 0"),
        (duration, "inf", "above 0"),
        (output, "nowhere/at/all.json", "there is no folder nowhere/at"),
        (output, "", "is a folder"),
        (output, ".", "is a folder"),
    ],
)
def test_what_measures_nothing_is_refused(kind, text, words):
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        kind(text)


def test_a_library_that_is_not_there_is_named_with_what_installs_it(monkeypatch, capsys):
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    parser = argparse.ArgumentParser()
    installed.check_installed(parser, ["lrl, bf16"])
    with pytest.raises(SystemExit):
        installed.check_installed(parser, ["lrl", "sb3, 1 thread"])
    assert "sb3, 1 thread needs stable_baselines3: run `pip install" in capsys.readouterr().err
