"""Answers that count as late in the attack on a slow network."""

from __future__ import annotations

import time
from types import SimpleNamespace

from benchmark.chaos.slow_path import DELAY, SlowRay


def test_an_answer_is_ready_only_after_the_delay():
    there = SimpleNamespace(wait=lambda calls, num_returns, timeout: (calls[:num_returns], []))
    ray = SlowRay(there)
    started = time.monotonic()
    assert ray.wait(["a", "b"], 2, timeout=0.0)[0] == []
    assert ray.wait(["a", "b"], 1, timeout=5.0)[0] == ["a"]
    assert time.monotonic() - started >= DELAY
