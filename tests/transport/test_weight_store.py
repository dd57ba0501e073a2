import multiprocessing
import pickle
import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from lrl.transport import WeightStore
from lrl.types import ConfigError

LAST_VERSION = 10**9


def read_until_the_last(store: WeightStore, result: Connection) -> None:
    """Read as fast as possible; report reads and mixtures. Version v is a vector of v % 1000."""
    out = np.empty(store.num_parameters, dtype=np.float32)
    version, reads, mixtures = -1, 0, 0
    result.send(None)
    while version != LAST_VERSION:
        newer = store.read(out, newer_than=version)
        if newer is None:
            continue
        reads += 1
        mixtures += not (newer > version and (out == newer % 1000).all())
        version = newer
    result.send((reads, mixtures))


def check_torn(method: str, readers: int, seconds: float, size: int) -> None:
    context = multiprocessing.get_context(method)
    store = WeightStore(size)
    processes, results = [], []
    for _ in range(readers):
        result, child_result = context.Pipe(duplex=False)
        process = context.Process(  # pyright: ignore[reportAttributeAccessIssue]
            target=read_until_the_last, args=(store, child_result), daemon=True
        )
        process.start()
        child_result.close()
        processes.append(process)
        results.append(result)
    vector = np.empty(size, dtype=np.float32)
    for result in results:
        assert result.poll(30)
        result.recv()  # the reader is ready
    version, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        vector[:] = version % 1000
        store.publish(vector, version)
        version += 1
    vector[:] = LAST_VERSION % 1000
    store.publish(vector, LAST_VERSION)
    for result in results:
        assert result.poll(30)
        reads, mixtures = result.recv()
        assert reads > 1
        assert mixtures == 0
    for process in processes:
        process.join()
    assert version > 10


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_reader_never_sees_a_mixture(method):
    check_torn(method, readers=3, seconds=0.7, size=50_001)


@pytest.mark.slow
def test_reader_never_sees_a_mixture_of_an_atari_network():
    check_torn("forkserver", readers=6, seconds=10.0, size=1_684_128)


def test_nothing_to_read_before_the_first_version():
    store = WeightStore(3)
    out = np.full(3, 5, dtype=np.float32)
    assert store.version == -1
    assert store.read(out) is None
    assert out.tolist() == [5, 5, 5]


def test_latest_version_wins():
    store, out = WeightStore(3), np.empty(3, dtype=np.float32)
    for version in (0, 4, 5):
        store.publish(np.full(3, version / 2, dtype=np.float32), version)
        assert store.version == version
    assert store.read(out) == 5
    assert out.tolist() == [2.5, 2.5, 2.5]
    assert store.read(out, newer_than=5) is None
    assert store.read(out, newer_than=4) == 5


def test_a_read_vector_is_a_copy_and_so_is_a_published_one():
    store, out = WeightStore(2), np.empty(2, dtype=np.float32)
    vector = np.array([1, 2], dtype=np.float32)
    store.publish(vector, 0)
    vector[:] = 9
    assert store.read(out) == 0
    for version in (1, 2):
        store.publish(vector, version)
    assert out.tolist() == [1, 2]


def test_interrupted_publication_is_never_read():
    store, out = WeightStore(2), np.empty(2, dtype=np.float32)
    store.publish(np.ones(2, dtype=np.float32), 0)

    class Interrupting(np.ndarray):
        def __array_function__(self, *_: object, **__: object):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.publish(np.zeros(2, dtype=np.float32).view(Interrupting), 1)
    assert store.version == 0
    assert store.read(out) == 0
    assert out.tolist() == [1, 1]
    store.publish(np.full(2, 3, dtype=np.float32), 1)
    assert store.read(out) == 1
    assert out.tolist() == [3, 3]


def test_checksum_refuses_a_copy_that_changed_under_its_number():
    store, out = WeightStore(2), np.empty(2, dtype=np.float32)
    store.publish(np.ones(2, dtype=np.float32), 0)
    store._copies[1][0] = 7
    healer = threading.Timer(0.05, store.publish, (np.full(2, 4, dtype=np.float32), 1))
    healer.start()
    assert store.read(out) == 1
    assert out.tolist() == [4, 4]
    healer.join()


@pytest.mark.parametrize("vector", [np.zeros(3), np.zeros(2, dtype=np.float32)])
def test_other_vectors_are_refused(vector):
    store = WeightStore(3)
    with pytest.raises(ValueError, match=r"vector is .* expected float32\[3\]"):
        store.publish(vector, 0)
    with pytest.raises(ValueError, match=r"out is "):
        store.read(vector)


def test_versions_only_grow():
    store = WeightStore(1)
    store.publish(np.zeros(1, dtype=np.float32), 3)
    with pytest.raises(ValueError, match="version is 3; version 3 is published already"):
        store.publish(np.zeros(1, dtype=np.float32), 3)


def test_empty_vectors_and_plain_pickle_are_refused():
    with pytest.raises(ConfigError, match="num_parameters is 0"):
        WeightStore(0)
    with pytest.raises(RuntimeError):
        pickle.dumps(WeightStore(1))
