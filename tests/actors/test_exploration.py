import math
import pickle
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrl.actors.exploration import (
    Boltzmann,
    EpsilonExploration,
    EpsilonGreedy,
    EpsilonLadder,
    EpsilonSpread,
    Exploration,
    Greedy,
    Mixture,
    Moment,
    PerActor,
)
from lrl.actors.slot import ActorSlot
from lrl.schedules import Constant, Linear
from lrl.types import ConfigError

probabilities = st.floats(0.0, 1.0)


def all_epsilons(exploration: Exploration, count: int, env_steps: int = 0) -> list[float]:
    return exploration.epsilons(env_steps, np.arange(count), count).tolist()


# --- epsilons -------------------------------------------------------------------------------


def test_the_default_follows_its_line():
    exploration = EpsilonGreedy()
    assert all_epsilons(exploration, 2, env_steps=0) == [1.0, 1.0]
    assert all_epsilons(exploration, 2, env_steps=25_000) == pytest.approx([0.51, 0.51])
    assert all_epsilons(exploration, 2, env_steps=50_000) == [0.02, 0.02]
    assert all_epsilons(exploration, 2, env_steps=10**9) == [0.02, 0.02]


def test_spread_of_six_environments():
    expected = [0.001, 0.0808, 0.1606, 0.2404, 0.3202, 0.4]  # 0.001 + 0.399 * i / 5
    assert all_epsilons(EpsilonSpread(), 6) == pytest.approx(expected, abs=1e-12)


def test_ladder_of_four_environments():
    exploration = EpsilonLadder(base=0.5, alpha=6.0)  # exponents 1, 3, 5, 7
    assert all_epsilons(exploration, 4) == pytest.approx([1 / 2, 1 / 8, 1 / 32, 1 / 128])


def test_ladder_of_the_paper():
    epsilons = all_epsilons(EpsilonLadder(), 360)
    assert epsilons[0] == pytest.approx(0.4)
    assert epsilons[-1] == pytest.approx(0.4**8)
    assert epsilons == sorted(epsilons, reverse=True)


def test_a_single_environment_explores():
    assert all_epsilons(EpsilonSpread(0.001, 0.4), 1) == [0.4]
    assert all_epsilons(EpsilonLadder(0.4, 7.0), 1) == [0.4]


@pytest.mark.parametrize("exploration", [EpsilonSpread(), EpsilonLadder()])
def test_an_actor_gets_its_share_of_all_environments(exploration: Exploration):
    expected = all_epsilons(exploration, 12)
    for first in (0, 4, 8):
        part = exploration.epsilons(0, np.arange(first, first + 4), 12)
        assert part.tolist() == expected[first : first + 4]


@pytest.mark.parametrize("exploration", [EpsilonSpread(), EpsilonLadder()])
def test_constants_ignore_the_step(exploration: Exploration):
    assert all_epsilons(exploration, 5, 0) == all_epsilons(exploration, 5, 10**9)


@given(
    st.one_of(
        st.builds(EpsilonSpread, probabilities, probabilities),
        st.builds(EpsilonLadder, probabilities, st.floats(0.0, 100.0)),
        st.builds(
            EpsilonGreedy,
            st.builds(Linear, probabilities, probabilities, st.integers(1, 1000)),
        ),
    ),
    st.integers(1, 300),
    st.integers(0, 2000),
)
def test_every_epsilon_is_a_probability(exploration: Exploration, count: int, env_steps: int):
    epsilons = exploration.epsilons(env_steps, np.arange(count), count)
    assert epsilons.shape == (count,)
    assert epsilons.dtype == np.float64
    assert np.all((epsilons >= 0.0) & (epsilons <= 1.0 + 1e-12))  # False for NaN


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: EpsilonGreedy(Constant(1.5)), r"schedule \(its start\)"),
        (lambda: EpsilonGreedy(Linear(1.0, -0.1, 5)), r"schedule \(its end\)"),
        (lambda: EpsilonGreedy(Constant(math.nan)), "schedule"),
        (lambda: EpsilonSpread(-0.1, 0.4), "minimum"),
        (lambda: EpsilonSpread(0.1, 1.4), "maximum"),
        (lambda: EpsilonLadder(base=2.0), "base"),
        (lambda: EpsilonLadder(alpha=-1.0), "alpha"),
        (lambda: EpsilonLadder(alpha=math.nan), "alpha"),
        (lambda: EpsilonLadder(alpha=math.inf), "alpha"),  # 0 * inf is NaN
        (lambda: PerActor([]), "explorations must be a list of explorations"),
        (
            lambda: PerActor([Greedy(), cast("Any", 0.1)]),
            "explorations must be a list of explorations",
        ),
        (lambda: Mixture(Greedy(), Greedy(), Constant(1.5)), r"share \(its start\)"),
        (lambda: Mixture(Greedy(), Greedy(), Linear(0.0, -1.0, 9)), r"share \(its end\)"),
    ],
)
def test_refuses_what_is_no_probability(build, name: str):
    with pytest.raises(ConfigError, match=rf"exploration\.{name}"):
        build()


def test_explorations_travel_to_actors():
    for exploration in (EpsilonGreedy(), EpsilonSpread(), EpsilonLadder(), TWO):
        assert pickle.loads(pickle.dumps(exploration)) == exploration


def test_what_has_no_epsilon_shows_zero():
    assert all_epsilons(Greedy(), 3) == [0.0, 0.0, 0.0]
    assert all_epsilons(Boltzmann(Constant(1.0)), 2) == [0.0, 0.0]


def test_a_mixture_shows_the_mean_epsilon():
    mixture = Mixture(EpsilonSpread(0.2, 0.4), Greedy(), Linear(0.0, 1.0, 100))
    assert all_epsilons(mixture, 2, env_steps=0) == [0.2, 0.4]
    assert all_epsilons(mixture, 2, env_steps=25) == pytest.approx([0.15, 0.3])
    assert all_epsilons(mixture, 2, env_steps=100) == [0.0, 0.0]


# --- one for each actor ---------------------------------------------------------------------

TWO = PerActor([EpsilonGreedy(Linear(1.0, 0.0, 100)), EpsilonSpread(0.1, 0.4)])


def test_each_actor_has_the_epsilons_of_its_own_exploration():
    # 2 actors of 4 environments; the spread of the second is over its own four: 0.1 + 0.3 * i / 3.
    assert all_epsilons(TWO, 8, env_steps=25) == pytest.approx([0.75] * 4 + [0.1, 0.2, 0.3, 0.4])
    for actor, expected in ((0, [0.75] * 4), (1, [0.1, 0.2, 0.3, 0.4])):
        slot = ActorSlot(0, actor=actor, num_actors=2, envs_per_actor=4)
        epsilons = TWO.epsilons(25, slot.environments, slot.total_environments)
        assert epsilons.tolist() == pytest.approx(expected)
        groups = [
            TWO.epsilons(25, group.environments, group.total_environments).tolist()
            for group in slot.split(2)
        ]
        assert groups == [pytest.approx(expected[:2]), pytest.approx(expected[2:])]


def test_actors_are_counted_over_all_ranks():
    exploration = PerActor([EpsilonGreedy(Constant(actor / 4)) for actor in range(4)])
    for rank, actor in ((0, 0), (0, 1), (1, 0), (1, 1)):
        slot = ActorSlot(0, rank, 2, actor, num_actors=2, envs_per_actor=3)
        epsilons = exploration.epsilons(0, slot.environments, slot.total_environments)
        assert epsilons.tolist() == [(2 * rank + actor) / 4] * 3


def test_an_actor_acts_as_if_its_exploration_were_the_only_one():
    q = np.random.default_rng(1).random((4, 3)).astype(np.float32)
    mask = np.array([[True, True, False]] * 4)
    slot = ActorSlot(0, actor=1, num_actors=2, envs_per_actor=4)
    for allowed in (None, mask):
        one, other = (
            exploration.select(q, Moment(7, places, total, np.random.default_rng(2), allowed))
            for exploration, places, total in (
                (TWO, slot.environments, slot.total_environments),
                (EpsilonSpread(0.1, 0.4), np.arange(4), 4),
            )
        )
        assert one.tolist() == other.tolist()


def test_environments_of_several_actors_may_be_asked_for_at_once():
    q = np.zeros((4, 50), np.float32)
    q[:, 7] = 1.0
    extremes = PerActor([Greedy(), EpsilonGreedy(Constant(1.0))])
    moment = Moment(0, np.array([2, 0, 3, 1]), 4, np.random.default_rng(0))
    actions = extremes.select(q, moment)
    assert actions[[1, 3]].tolist() == [7, 7]  # environments 0 and 1 are the first actor's
    assert (actions[[0, 2]] != 7).all()


@pytest.mark.parametrize(
    "exploration", [TWO, Mixture(Greedy(), TWO, Constant(0.5)), Mixture(TWO, Greedy(), Constant(0))]
)
def test_another_number_of_actors_is_refused(exploration: Exploration):
    exploration.check_actors(2)
    with pytest.raises(ConfigError, match=r"has 2 explorations for 3 actors: give one for each"):
        exploration.check_actors(3)


def test_an_exploration_within_has_one_actor():
    PerActor([PerActor([Greedy()]), Greedy()]).check_actors(2)
    with pytest.raises(ConfigError, match="has 2 explorations for 1 actors"):
        PerActor([TWO, Greedy()]).check_actors(2)


# --- select ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given(EpsilonExploration):
    """Every environment has the epsilon that the test says."""

    values: np.ndarray

    def epsilons(self, env_steps, environments, total_environments) -> np.ndarray:
        return self.values


def select_often(epsilons: np.ndarray, q: np.ndarray, times: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    exploration, moment = Given(epsilons), Moment(0, np.arange(len(q)), len(q), rng)
    return np.stack([exploration.select(q, moment) for _ in range(times)])


def test_the_actor_tells_where_it_is_and_when():
    q = np.tile(np.array([0.0, 1.0], np.float32), (1000, 1))
    for exploration, env_steps, environments, expected in (
        (EpsilonGreedy(Linear(0.0, 1.0, 10)), 0, np.arange(1000), 0.0),
        (EpsilonGreedy(Linear(0.0, 1.0, 10)), 10, np.arange(1000), 0.5),
        (EpsilonSpread(0.0, 1.0), 0, np.zeros(1000, int), 0.0),
        (EpsilonSpread(0.0, 1.0), 0, np.full(1000, 1000), 0.5),
    ):
        rng = np.random.default_rng(0)
        actions = exploration.select(q, Moment(env_steps, environments, 1001, rng))
        assert (actions == 0).mean() == pytest.approx(expected, abs=0.08)


def test_epsilon_zero_is_greedy_and_ties_go_to_the_first():
    q = np.array([[1, 3, 2], [0, 0, -1], [-5, -7, -4]], np.float32)
    actions = select_often(np.zeros(3), q, times=200)
    assert actions.dtype == np.int32
    assert (actions == [1, 0, 2]).all()


def within_five_sigma(count: int, trials: int, probability: float) -> bool:
    return abs(count - trials * probability) <= 5 * math.sqrt(
        trials * probability * (1 - probability)
    )


def test_epsilon_one_is_uniform_over_all_actions_the_greedy_one_too():
    times, environments, num_actions = 2000, 4, 5
    q = np.zeros((environments, num_actions), np.float32)
    q[:, 2] = 9.0
    actions = select_often(np.ones(environments), q, times)
    for action in range(num_actions):
        for environment in range(environments):
            count = int((actions[:, environment] == action).sum())
            assert within_five_sigma(count, times, 1 / num_actions)


def test_every_environment_explores_as_often_as_its_own_epsilon_says():
    times, num_actions = 4000, 4
    epsilons = np.array([0.0, 0.05, 0.4, 0.9, 1.0])
    q = np.zeros((5, num_actions), np.float32)
    q[:, 3] = 1.0
    deviates = select_often(epsilons, q, times) != 3
    for environment, epsilon in enumerate(epsilons):
        expected = epsilon * (num_actions - 1) / num_actions
        assert within_five_sigma(int(deviates[:, environment].sum()), times, expected)


def test_environments_decide_independently():
    # With one coin for all, either every environment explores in a step or none does.
    times, environments, epsilon = 2000, 32, 0.5
    q = np.zeros((environments, 1000), np.float32)
    q[:, 0] = 1.0
    deviates = select_often(np.full(environments, epsilon), q, times) != 0
    per_step = deviates.sum(axis=1)
    assert per_step.min() > 0
    assert per_step.max() < environments
    variance = environments * epsilon * (1 - epsilon)  # of a binomial; of one coin 256
    assert abs(per_step.var() - variance) < 0.25 * variance
    pairs = np.corrcoef(deviates.T.astype(float))[np.triu_indices(environments, 1)]
    assert abs(pairs).max() < 5.5 / math.sqrt(times)


def test_random_actions_are_drawn_per_environment():
    q = np.zeros((16, 1000), np.float32)
    (actions,) = select_often(np.ones(16), q, times=1)
    assert len(set(actions.tolist())) > 8


def test_the_same_generator_gives_the_same_actions():
    q = np.random.default_rng(1).random((8, 3)).astype(np.float32)
    first, again, other = (select_often(np.full(8, 0.5), q, 20, seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
