"""Messages and chunks that were changed on their way are never accepted, and nothing crashes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark.chaos.messages import Line, change_messages


@pytest.fixture
def line():
    made = Line()
    yield made
    made.close()


def test_the_message_itself_is_accepted_also_after_rubbish(line):
    assert line.send(line.message)
    assert not line.send(b"")
    assert not line.send(bytes(len(line.message)))
    assert line.send(line.message)


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_changed_message_is_accepted(count):
    assert change_messages(count) == {"sent": count, "accepted": 0, "crashed": 0}


def test_a_changed_byte_of_a_chunk_is_not_accepted(line):
    rng = np.random.default_rng(0)
    for position in rng.permutation(line.chunk.size)[:1000]:
        before = line.chunk[position]
        line.chunk[position] = before ^ rng.integers(1, 256)
        assert not line.send(line.message)
        line.chunk[position] = before
    assert line.send(line.message)
