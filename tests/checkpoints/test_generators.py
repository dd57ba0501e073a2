"""Global random generators go on where a run goes on, whatever else is saved."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from helpers.exact_runs import assert_same
from helpers.training_runs import AfterEachStep, make_run, quiet

from lrl import ActorLearnerCallback
from lrl.checkpoints.generators import generator_states, load_generator_states

pytestmark = quiet


def draw() -> list[Any]:
    """Draw from each generator, also an odd number of normal variates, of which pairs are made."""
    torch_draws = torch.rand(3), torch.randn(3), torch.randperm(5)
    python_draws = random.random(), random.gauss(0.0, 1.0), random.randrange(9)
    numpy_draws = np.random.rand(), np.random.randn(), np.random.randint(9)  # noqa: NPY002
    return [*torch_draws, *python_draws, *numpy_draws]


def test_states_survive_a_checkpoint(tmp_path):
    draw()
    torch.save(generator_states(), tmp_path / "states")
    expected = [draw(), draw()]
    load_generator_states(torch.load(tmp_path / "states", weights_only=True))
    assert_same([draw(), draw()], expected)


def test_a_run_goes_on_with_them_without_a_replay(tmp_path):
    """This agent draws from none of them."""
    first = make_run(tmp_path, AfterEachStep(lambda *_: draw()), ActorLearnerCallback(5, 0, 0))
    first.fit()
    expected, seen = generator_states(), []
    second = make_run(
        tmp_path,
        AfterEachStep(lambda *_: seen.append(generator_states())),
        ActorLearnerCallback(5, 0, 0),
        seed=1,
        max_steps=22,
    )
    second.fit(first.checkpoint("last"))
    assert_same(seen, [expected, expected])


def test_another_generator_of_numpy_goes_on_too(tmp_path):
    module: Any = np.random  # whose stubs lack two functions
    before = module.get_bit_generator()
    module.set_bit_generator(np.random.PCG64(3))
    try:
        torch.save(generator_states(), tmp_path / "states")
        expected = draw()
        load_generator_states(torch.load(tmp_path / "states", weights_only=True))
        assert_same(draw(), expected)
    finally:
        module.set_bit_generator(before)
