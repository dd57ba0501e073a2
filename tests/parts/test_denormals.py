"""Numbers below 1e-38 are taken as 0 while an agent learns, and are numbers again after it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.training_runs import make_run
from lightning.pytorch import Callback

from lrl.parts.denormals import flush_denormals

TINY = 1e-40


def is_number() -> bool:
    return bool(torch.tensor(TINY) * 1.0)


@pytest.fixture(autouse=True)
def numbers_again() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


def test_it_says_whether_there_is_something_to_undo():
    assert flush_denormals()
    assert not is_number()
    assert not flush_denormals()


def test_momentum_that_shrinks_is_0_in_the_end():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([weight])
    flush_denormals()
    for step in range(1000):
        weight.grad = torch.full((4,), float(step < 10))
        optimizer.step()
    assert not optimizer.state[weight]["exp_avg"].view(torch.int32).any()


def test_numpy_does_not_warn_of_it():
    import numpy as np

    flush_denormals()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.finfo(np.float32).max > 0


class Look(Callback):
    during: bool = True

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.during = is_number()


def test_a_run_takes_them_as_0_and_gives_them_back(tmp_path):
    look = Look()
    run = make_run(tmp_path, look, max_steps=3)
    run.trainer.fit(run.module, datamodule=run.data)
    assert (look.during, is_number()) == (False, True)
