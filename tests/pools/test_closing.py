"""What is closed, and what is taken, where the last rows of a run are refused."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from lrl.pools.joined import JoinedPools
from lrl.pools.processes import ProcessPool


def test_actors_can_end_and_servers_are_closed_though_rows_are_refused():
    chunks, taken, done = [1, 2, 3, 4], [], []

    def get(timeout: float) -> int:
        if not chunks:
            raise queue.Empty
        return chunks.pop(0)

    def take(chunk: Any) -> None:
        taken.append(chunk)
        if chunk == 2:
            raise ValueError("a row of its own")

    plan: Any = SimpleNamespace(actors=SimpleNamespace(num_actors=1, envs_per_actor=1))
    pool: Any = ProcessPool(plan)
    pool._delivery = lambda chunk: chunk
    pool.queue = SimpleNamespace(get=get, release=done.append, close=lambda: done.append("queue"))
    pool.inference = SimpleNamespace(close=lambda: done.append("servers"))
    pool.manager = SimpleNamespace(stop=lambda drain: (drain(), done.append("actors")))
    with pytest.raises(ValueError, match="of its own"):
        pool.close(take)
    assert taken == [1, 2]
    assert done == [1, 2, 3, 4, "actors", "queue", "servers"]  # full rings would hold actors up
    pool.close(take)


def test_all_pools_that_are_joined_are_closed_though_one_fails():
    closed = []

    def pool(name: str, fails: bool) -> Any:
        def close(take: Any) -> None:
            closed.append(name)
            if fails:
                raise RuntimeError(f"{name} cannot be reached")

        return SimpleNamespace(num_streams=1, close=close)

    with pytest.raises(RuntimeError, match="cluster cannot"):
        JoinedPools([pool("cluster", fails=True), pool("processes", fails=False)]).close(print)
    assert closed == ["cluster", "processes"]


def test_servers_are_closed_though_the_end_of_the_actors_is_interrupted():
    done: list[str] = []

    def interrupted(drain: Any) -> None:
        raise KeyboardInterrupt

    plan: Any = SimpleNamespace(actors=SimpleNamespace(num_actors=1, envs_per_actor=1))
    pool: Any = ProcessPool(plan)
    pool.queue = SimpleNamespace(close=lambda: done.append("queue"))
    pool.inference = SimpleNamespace(close=lambda: done.append("servers"))
    pool.manager = SimpleNamespace(stop=interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.close(print)
    assert done == ["queue", "servers"]
