"""Networks and batches whose updates are measured: one for each head, with batches of noise."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lrl.networks import (
    CategoricalHead,
    ConvEncoder,
    ImplicitQuantileHead,
    MLPEncoder,
    NatureEncoder,
    QuantileHead,
    ScalarHead,
)
from lrl.types import Batch, EnvSpec


@dataclass(frozen=True)
class Workload:
    """A network with its batches."""

    spec: EnvSpec
    encoder: Callable[..., Any]
    head: Callable[..., Any]
    batch_size: int


_ATARI = EnvSpec.box((4, 84, 84), "uint8", num_actions=6, frame_stack=4, frame_skip=4)
_CARTPOLE = EnvSpec.box((4,), "float32", num_actions=2)
_CONV = functools.partial(NatureEncoder, hidden_size=None)
_LAST = {"hidden_size": 512}
_SCALAR = functools.partial(ScalarHead, loss="huber")
_DER_CONV = functools.partial(ConvEncoder, layers=[(32, 5, 5), (64, 5, 5)], hidden_size=None)
_DER_HEAD = functools.partial(CategoricalHead, hidden_size=256, dueling=True, noisy=True)
WORKLOADS = {
    "mlp": Workload(_CARTPOLE, MLPEncoder, _SCALAR, 128),
    "nature": Workload(_ATARI, _CONV, functools.partial(_SCALAR, **_LAST), 32),
    "dueling": Workload(_ATARI, _CONV, functools.partial(_SCALAR, dueling=True, **_LAST), 32),
    "c51": Workload(_ATARI, _CONV, functools.partial(CategoricalHead, **_LAST), 32),
    "qr": Workload(_ATARI, _CONV, functools.partial(QuantileHead, **_LAST), 32),
    "iqn": Workload(_ATARI, _CONV, functools.partial(ImplicitQuantileHead, **_LAST), 32),
    "der": Workload(_ATARI, _DER_CONV, _DER_HEAD, 32),
    "nature_256": Workload(_ATARI, _CONV, functools.partial(_SCALAR, **_LAST), 256),
}


def make_batch(workload: Workload, seed: int) -> Batch:
    """Return a batch of noise whose next observations overlap with its observations."""
    generator = torch.Generator().manual_seed(seed)
    size, shape = workload.batch_size, workload.spec.observation_shape
    if workload.spec.observation_dtype == "uint8":
        window = (size, shape[0] + 1, *shape[1:])
        frames = torch.randint(0, 256, window, dtype=torch.uint8, generator=generator)
        observation, following = frames[:, :-1], frames[:, 1:]
    else:
        observation, following = torch.randn(2, size, *shape, generator=generator)
    return Batch(
        observation=observation,
        action=torch.randint(0, workload.spec.num_actions, (size,), generator=generator),
        reward=torch.randn(size, generator=generator),
        discount=torch.full((size,), 0.99),
        next_observation=following,
        weights=torch.ones(size),
        keys=torch.zeros(size, 2, dtype=torch.int64),
    )


def hand_out(
    batches: Iterator[Batch], updates: int, updates_per_step: int
) -> Iterator[Batch | tuple[Batch, ...]]:
    """Yield the batches of so many updates as a dataloader does: several a step as a tuple."""
    for _ in range(-(-updates // updates_per_step)):
        group = tuple(itertools.islice(batches, updates_per_step))
        yield group if updates_per_step > 1 else group[0]
