"""Several pools as one, such as actors on a cluster and others on this machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from typing_extensions import override

from lrl.networks import QNetwork
from lrl.pools.pool import ActorPool, Delivery, PoolCounts

_TURN_SECONDS = 0.02


class JoinedPools(ActorPool):
    """Several pools as one: each is asked in turn.

    Args:
        pools: Whose streams have numbers of their own.
    """

    def __init__(self, pools: Sequence[ActorPool]) -> None:
        self.pools = pools
        self._rows = [0] * len(pools)
        self.num_streams = sum(pool.num_streams for pool in pools)

    @override
    def start(self, network: QNetwork, run_env_steps: int) -> None:
        with contextlib.ExitStack() as undo:
            for pool in self.pools:
                pool.start(network, run_env_steps)
                undo.callback(pool.close, lambda delivery: None)
            undo.pop_all()

    @override
    def publish(self, network: QNetwork, version: int) -> None:
        for pool in self.pools:
            pool.publish(network, version)

    @override
    def check(self) -> None:
        for pool in self.pools:
            pool.check()

    @override
    def poll(self, timeout: float) -> Iterator[Delivery]:
        deadline, wait = time.monotonic() + timeout, 0.0
        while True:
            found = False
            for index in sorted(range(len(self.pools)), key=self._rows_of_a_stream):
                for delivery in self.pools[index].poll(wait):
                    found = True
                    self._rows[index] += sum(len(rows) for rows in delivery.rows)
                    yield delivery
            if found or time.monotonic() >= deadline:
                return
            wait = min(_TURN_SECONDS, timeout)

    @override
    def close(self, take: Callable[[Delivery], object]) -> None:
        with contextlib.ExitStack() as all_of_them:  # though one raises an error
            for pool in reversed(self.pools):
                all_of_them.callback(pool.close, take)

    @override
    def counts(self) -> PoolCounts:
        parts = [pool.counts() for pool in self.pools]
        return PoolCounts(
            [actor for part in parts for actor in part.actors],
            sum(part.restarts for part in parts),
            sum(part.rows_dropped for part in parts),
            max(part.queue_fill for part in parts),
        )

    @override
    def metrics(self) -> dict[str, float]:
        found: dict[str, Any] = {}
        for pool in self.pools:
            found |= pool.metrics()
        return found

    def _rows_of_a_stream(self, index: int) -> float:
        """Return what was taken of a pool: the least comes first, where not all is taken."""
        return self._rows[index] / self.pools[index].num_streams
