"""Explorations other than epsilon-greedy, and what all of them do with action masks."""

import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrl.actors.exploration import (
    Boltzmann,
    EpsilonGreedy,
    EpsilonLadder,
    EpsilonSpread,
    Exploration,
    Greedy,
    Mixture,
    Moment,
    greedy_actions,
    in_branches,
    random_actions,
)
from lrl.schedules import Constant, Linear
from lrl.types import ActionSpec, ConfigError

CHI_SQUARE_LIMIT = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5}
"""Values that a chi-square statistic exceeds once in 10 000 draws, by degrees of freedom."""


def select(
    exploration: Exploration,
    q: np.ndarray,
    *,
    env_steps: int = 0,
    mask: np.ndarray | None = None,
    seed: int = 0,
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return exploration.select(q, Moment(env_steps, np.arange(len(q)), len(q), rng, mask))


def chi_square(actions: np.ndarray, probabilities: np.ndarray) -> float:
    counts = np.bincount(actions, minlength=len(probabilities))
    possible = probabilities > 0
    assert not counts[~possible].any()
    expected = len(actions) * probabilities[possible]
    return float(((counts[possible] - expected) ** 2 / expected).sum())


def softmax(q: np.ndarray, temperature: float) -> np.ndarray:
    weights = np.exp((q - q.max()) / temperature)
    return weights / weights.sum()


@dataclass(frozen=True)
class Always(Exploration):
    action: int

    def select(self, q, moment) -> np.ndarray:
        return np.full(len(q), self.action, np.int32)


# --- Greedy ---------------------------------------------------------------------------------


def test_greedy_takes_the_best_and_draws_nothing():
    q = np.array([[1, 3, 2], [0, 0, -1]], np.float32)
    actions = select(Greedy(), q)
    assert actions.tolist() == [1, 0]
    assert actions.dtype == np.int32
    rng = np.random.default_rng(0)
    Greedy().select(q, Moment(0, np.arange(2), 2, rng))
    assert rng.random() == np.random.default_rng(0).random()


# --- Boltzmann ------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("mask", [None, [True, False, True, True]])
def test_frequencies_are_those_of_the_softmax(temperature, mask):
    q = np.array([0.0, 3.0, 0.5, -1.0], np.float32)
    trials = 20_000
    masks = None if mask is None else np.tile(mask, (trials, 1))
    actions = select(Boltzmann(Constant(temperature)), np.tile(q, (trials, 1)), mask=masks)
    allowed = np.ones(4, bool) if mask is None else np.array(mask)
    probabilities = softmax(np.where(allowed, q, -np.inf), temperature)
    assert actions.dtype == np.int32
    assert chi_square(actions, probabilities) < CHI_SQUARE_LIMIT[int(allowed.sum()) - 1]


def test_the_temperature_follows_its_schedule():
    exploration = Boltzmann(Linear(100.0, 0.001, 50))
    q = np.tile(np.array([0.0, 1.0], np.float32), (2000, 1))
    assert select(exploration, q).mean() == pytest.approx(0.5025, abs=0.06)
    assert select(exploration, q, env_steps=50).all()
    assert select(exploration, q, env_steps=10**9).all()


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1.0, 1e30, 1e300])
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1.0, 1e38])
def test_extreme_values_and_temperatures_neither_overflow_nor_forbid(temperature, scale):
    q = np.tile(np.array([1, -1, 0, 3], np.float32) * np.float32(scale), (500, 1))
    mask = np.tile([True, True, True, False], (500, 1))
    with np.errstate(all="raise", under="ignore"):
        actions = select(Boltzmann(Constant(temperature)), q, mask=mask)
    assert set(actions.tolist()) <= {0, 1, 2}
    if scale > 1e3 * temperature:
        assert not actions.any()


@pytest.mark.parametrize(
    ("schedule", "end"),
    [
        (Constant(0.0), r"\(its start\)"),
        (Constant(math.nan), r"\(its start\)"),
        (Constant(math.inf), r"\(its start\)"),
        (Linear(1.0, 0.0, 10), r"\(its end\)"),
        (Linear(-1.0, 1.0, 10), r"\(its start\)"),
    ],
)
def test_temperatures_must_be_above_zero_at_both_ends(schedule, end):
    with pytest.raises(
        ConfigError, match=rf"exploration\.temperature {end} must be a finite number"
    ):
        Boltzmann(schedule)


# --- Mixture --------------------------------------------------------------------------------


@pytest.mark.parametrize(("env_steps", "share"), [(0, 0.0), (25, 0.25), (100, 1.0), (10**9, 1.0)])
def test_a_mixture_acts_by_the_second_as_often_as_its_share(env_steps, share):
    mixture = Mixture(Always(0), Always(1), Linear(0.0, 1.0, 100))
    actions = select(mixture, np.zeros((20_000, 2), np.float32), env_steps=env_steps)
    assert actions.dtype == np.int32
    assert chi_square(actions, np.array([1 - share, share])) < CHI_SQUARE_LIMIT[1]


def test_mixtures_may_be_nested():
    inner = Mixture(Always(1), Always(2), Constant(0.5))
    mixture = Mixture(Always(0), inner, Constant(0.4))
    actions = select(mixture, np.zeros((20_000, 3), np.float32))
    assert chi_square(actions, np.array([0.6, 0.2, 0.2])) < CHI_SQUARE_LIMIT[2]


def test_the_parts_of_a_mixture_are_told_what_it_is_told():
    mixture = Mixture(EpsilonGreedy(Linear(1.0, 0.0, 10)), EpsilonSpread(0.0, 0.0), Constant(0.5))
    q = np.tile(np.array([0.0, 1.0], np.float32), (2000, 1))
    assert 0.15 < (select(mixture, q) == 0).mean() < 0.35  # a half of a half
    assert select(mixture, q, env_steps=10).all()


# --- All of them ----------------------------------------------------------------------------

EXPLORATIONS = [
    Greedy(),
    Boltzmann(Constant(2.0)),
    EpsilonGreedy(Constant(0.5)),
    EpsilonSpread(0.5, 1.0),
    EpsilonLadder(),
    Mixture(EpsilonGreedy(Constant(1.0)), Boltzmann(Constant(1.0)), Constant(0.5)),
]


@pytest.mark.parametrize("exploration", EXPLORATIONS, ids=lambda one: type(one).__name__)
def test_a_forbidden_action_is_never_taken_however_good_it_looks(exploration):
    q = np.tile(np.array([9e9, 0.0, 1.0, 8e9, 1.0], np.float32), (5000, 1))
    mask = np.tile([False, True, True, False, True], (5000, 1))
    taken = set(select(exploration, q, mask=mask).tolist())
    assert taken <= {1, 2, 4}
    assert taken == ({2} if exploration == Greedy() else {1, 2, 4})
    only_one = np.tile([False, True, False, False, False], (5000, 1))
    assert set(select(exploration, q, mask=only_one).tolist()) == {1}


@pytest.mark.parametrize("exploration", EXPLORATIONS, ids=lambda one: type(one).__name__)
def test_a_mask_that_allows_all_changes_no_probability(exploration):
    q = np.tile(np.array([0.0, 1.0, -1.0], np.float32), (20_000, 1))
    free = select(exploration, q, seed=1)
    masked = select(exploration, q, seed=2, mask=np.ones(q.shape, bool))
    counts = [np.bincount(actions, minlength=3) for actions in (free, masked)]
    difference = (counts[0] - counts[1]) ** 2 / np.maximum(counts[0] + counts[1], 1)
    assert difference.sum() < CHI_SQUARE_LIMIT[2]


@pytest.mark.parametrize("exploration", EXPLORATIONS[1:], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("masked", [False, True])
def test_environments_decide_independently(exploration, masked):
    """One decision for all would make every environment take the same action in a step."""
    q = np.tile(np.array([0.0, 1.0, 0.5], np.float32), (64, 1))
    mask = np.ones(q.shape, bool) if masked else None
    rng = np.random.default_rng(0)
    for step in range(50):
        actions = exploration.select(q, Moment(step, np.zeros(64, int), 65, rng, mask))
        assert len(set(actions.tolist())) > 1


def test_a_mixture_tosses_a_coin_for_each_environment():
    rng = np.random.default_rng(0)
    mixture = Mixture(Always(0), Always(1), Constant(0.5))
    q = np.zeros((32, 2), np.float32)
    moment = Moment(0, np.arange(32), 32, rng)
    actions = np.stack([mixture.select(q, moment) for _ in range(2000)])
    per_step = actions.sum(axis=1)
    assert per_step.min() > 0
    assert per_step.max() < 32
    assert abs(per_step.var() - 8.0) < 2.0  # of a binomial; of one coin 256
    pairs = np.corrcoef(actions.T.astype(float))[np.triu_indices(32, 1)]
    assert abs(pairs).max() < 5.5 / math.sqrt(2000)


@pytest.mark.parametrize("exploration", EXPLORATIONS, ids=lambda one: type(one).__name__)
def test_they_travel_to_actors_and_are_repeatable(exploration):
    assert pickle.loads(pickle.dumps(exploration)) == exploration
    q = np.random.default_rng(1).random((50, 4)).astype(np.float32)
    np.testing.assert_array_equal(select(exploration, q, seed=7), select(exploration, q, seed=7))


def test_random_actions_are_uniform_over_the_allowed():
    trials = 20_000
    mask = np.tile([True, False, True, True, False], (trials, 1))
    actions = random_actions(trials, 5, np.random.default_rng(0), mask)
    assert chi_square(actions, np.array([1, 0, 1, 1, 0]) / 3) < CHI_SQUARE_LIMIT[2]


@given(st.data())
def test_greedy_equals_a_loop(data):
    num_actions = data.draw(st.integers(1, 5))
    q = data.draw(
        st.lists(
            st.lists(st.sampled_from([-2.0, 0.0, 1.0, 1e30]), min_size=num_actions,
                     max_size=num_actions),
            min_size=1, max_size=4,
        )
    )  # fmt: skip
    allowed = [
        data.draw(st.sets(st.integers(0, num_actions - 1), min_size=1)) for _ in range(len(q))
    ]
    mask = np.array([[a in row for a in range(num_actions)] for row in allowed])
    expected = [
        max(sorted(row), key=lambda action: values[action])
        for values, row in zip(q, allowed, strict=True)
    ]
    assert greedy_actions(np.array(q, np.float32), mask).tolist() == expected


# --- Branches -------------------------------------------------------------------------------


@given(
    st.sampled_from(EXPLORATIONS), st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.integers(1, 5), st.data(),
)  # fmt: skip
def test_no_branch_takes_a_forbidden_choice(exploration, sizes, environments, data):
    spec = ActionSpec(tuple(sizes))
    rows = [
        [data.draw(st.sets(st.integers(0, size - 1), min_size=1)) for size in sizes]
        for _ in range(environments)
    ]
    mask = np.array(
        [
            [c in allowed for size, allowed in zip(sizes, row, strict=True) for c in range(size)]
            for row in rows
        ]
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    q = rng.normal(size=mask.shape).astype(np.float32)

    def choose(q, mask):
        return exploration.select(q, Moment(0, np.arange(environments), environments, rng, mask))

    taken = in_branches(choose, np.where(mask, q, 9e9).astype(np.float32), mask, spec)
    assert taken.shape == (environments, len(sizes))
    assert taken.dtype == np.int32
    for choices, row in zip(taken.tolist(), rows, strict=True):
        assert all(choice in allowed for choice, allowed in zip(choices, row, strict=True))


def test_branches_explore_independently():
    """One decision for all would make an action either random or greedy in both."""
    exploration, spec = EpsilonGreedy(Constant(0.5)), ActionSpec((4, 4))
    q = np.tile(np.array([1, 0, 0, 0] * 2, np.float32), (20_000, 1))
    rng = np.random.default_rng(0)

    def choose(q, mask):
        return exploration.select(q, Moment(0, np.arange(len(q)), len(q), rng, mask))

    greedy = in_branches(choose, q, None, spec) == 0
    both = greedy[:, 0] * 2 + greedy[:, 1]
    share = 0.5 + 0.5 / 4
    rest = 1 - share
    probabilities = np.array([rest * rest, rest * share, share * rest, share * share])
    assert chi_square(both, probabilities) < CHI_SQUARE_LIMIT[3]


def test_one_branch_is_asked_as_it_is():
    q, mask = np.zeros((2, 3), np.float32), np.ones((2, 3), bool)
    asked = []

    def choose(q, mask):
        asked.append((q, mask))
        return np.zeros(2, np.int32)

    assert in_branches(choose, q, mask, ActionSpec((3,))).shape == (2,)
    ((same_q, same_mask),) = asked
    assert same_q is q
    assert same_mask is mask
