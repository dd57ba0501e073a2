import errno
import multiprocessing
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.transport_actors import names_in

import lrl.processes.shared_memory
from benchmark.leftovers import named_segments, segments_since
from lrl.processes.shared_memory import SharedBlock
from lrl.types import ConfigError

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc and memfd are Linux's")


def double_first(block: SharedBlock) -> None:
    block.array(np.int64, 4)[0] *= 2
    block.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_child_writes_what_the_parent_reads(method):
    block = SharedBlock(64)
    block.array(np.int64, 4)[:] = 21
    process = multiprocessing.get_context(method).Process(target=double_first, args=(block,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert block.array(np.int64, 4).tolist() == [42, 21, 21, 21]


def test_block_is_zeroed_and_views_lie_where_they_should():
    block = SharedBlock(100)
    assert not block.array(np.uint8, 100).any()
    block.array(np.uint16, (2, 3), offset=10)[1, 2] = 0x0201
    assert np.flatnonzero(block.array(np.uint8, 100)).tolist() == [20, 21]
    with pytest.raises(TypeError):
        block.array(np.uint8, 101)


def test_views_outlive_a_closed_block():
    block = SharedBlock(64)
    view = block.array(np.uint8, 64)
    view[:] = 7
    block.close()
    block.close()
    assert (view == 7).all()
    with pytest.raises(ValueError, match="closed"):
        block.array(np.uint8, 1)


def test_more_than_the_free_memory_is_refused(monkeypatch):
    monkeypatch.setattr(lrl.processes.shared_memory, "available_bytes", lambda: 2_000_000)
    with pytest.raises(ConfigError) as error:
        SharedBlock(3_000_000, "lower x")
    assert str(error.value) == "3.00 MB of shared memory are needed, 2.00 MB are free: lower x"
    SharedBlock(1_000_000).close()


@linux
def test_system_that_refuses_memory_says_so_too(monkeypatch):
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lrl.processes.shared_memory, "available_bytes", lambda: None)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    descriptors = names_in("/proc/self/fd")
    with pytest.raises(ConfigError, match="less is free: lower x"):
        SharedBlock(1_000_000, "lower x")
    assert names_in("/proc/self/fd") == descriptors


def test_plain_pickle_is_refused():
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(SharedBlock(64))


@linux
def test_block_has_no_name_and_leaves_no_descriptor():
    names, descriptors = named_segments(), names_in("/proc/self/fd")
    block = SharedBlock(64)
    assert segments_since(names) == []
    assert block._arena is not None
    link = Path("/proc/self/fd", str(block._arena.fd)).readlink()
    assert str(link) == "/memfd:lrl (deleted)"
    block.close()
    assert names_in("/proc/self/fd") == descriptors
