"""Which strategies are taken."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy
from torch import distributed

from lrl.preflight.ranks import check_strategy
from lrl.ranks.meeting import Ranks
from lrl.types import ConfigError


def trainer(strategy: Any) -> Any:
    return SimpleNamespace(strategy=strategy)


class OwnDDP(DDPStrategy):
    """A user's."""


@pytest.mark.parametrize(
    "strategy",
    [SingleDeviceStrategy("cpu"), DDPStrategy(), DDPStrategy(start_method="spawn"), OwnDDP()],
)
def test_one_device_and_data_parallel_ranks_are_taken(strategy):
    check_strategy(trainer(strategy))


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (FSDPStrategy(), "trainer.strategy is FSDPStrategy.*set it to ddp"),
        (DDPStrategy(start_method="fork"), "by fork.*set it to ddp"),
    ],
)
def test_split_networks_and_forked_ranks_are_refused(strategy, words):
    with pytest.raises(ConfigError, match=words):
        check_strategy(trainer(strategy))


def test_one_rank_asks_nobody():
    alone = Ranks()
    assert alone.gathered({"a": 3}) == [{"a": 3}]
    assert (alone.minimum(0.5), alone.maximum(0.5)) == (0.5, 0.5)


def test_ranks_are_asked_from_host_to_host(monkeypatch, tmp_path):
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        made = []
        new_group = distributed.new_group
        monkeypatch.setattr(
            distributed, "new_group", lambda **how: made.append(how) or new_group(**how)
        )
        ranks = Ranks(2)
        assert (ranks.minimum(0.1), ranks.maximum(15)) == (0.1, 15.0)
        # Its own, since that of the Trainer ends a rank that waits for half an hour.
        assert made == [{"backend": "gloo", "timeout": timedelta(days=30)}]
    finally:
        distributed.destroy_process_group()
