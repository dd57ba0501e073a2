from itertools import product

import numpy as np
import pytest

from lrl.actors.slot import TRAINING_SEED_FLOOR, ActorSlot

RANKS, ACTORS, ENVS, INCARNATIONS = 4, 16, 8, 5


def all_slots(seed: int = 0) -> list[ActorSlot]:
    return [
        ActorSlot(seed, rank, RANKS, actor, ACTORS, ENVS, incarnation)
        for rank, actor, incarnation in product(range(RANKS), range(ACTORS), range(INCARNATIONS))
    ]


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**40 + 7])
def test_no_two_environments_of_a_run_share_a_seed(seed: int):
    seeds = [s for slot in all_slots(seed) for s in slot.env_seeds()]
    assert len(seeds) == RANKS * ACTORS * INCARNATIONS * ENVS
    assert len(set(seeds)) == len(seeds)
    assert min(seeds) >= TRAINING_SEED_FLOOR
    assert max(seeds) < 2**31  # ALE takes no more


def test_seeds_stay_in_range_where_they_wrap_around():
    # Some run seeds begin close to the end of the span; many environments cross it.
    for seed in range(20):
        seeds = ActorSlot(seed, envs_per_actor=512, incarnation=4_000_000).env_seeds()
        assert len(set(seeds)) == 512
        assert min(seeds) >= TRAINING_SEED_FLOOR
        assert max(seeds) < 2**31


def test_seeds_depend_on_the_run_alone():
    assert ActorSlot(3, envs_per_actor=4).env_seeds() == ActorSlot(3, envs_per_actor=4).env_seeds()
    first, second = (set(ActorSlot(seed, envs_per_actor=64).env_seeds()) for seed in (3, 4))
    assert not first & second


def test_seeds_are_plain_integers():
    assert all(type(seed) is int for seed in ActorSlot(0, envs_per_actor=3).env_seeds())


def test_environments_of_all_actors_partition_the_run():
    slots = [ActorSlot(0, r, RANKS, a, ACTORS, ENVS) for r in range(RANKS) for a in range(ACTORS)]
    indices = np.concatenate([slot.environments for slot in slots])
    assert sorted(indices) == list(range(RANKS * ACTORS * ENVS))
    assert {slot.total_environments for slot in slots} == {RANKS * ACTORS * ENVS}


def test_environments_by_hand():
    slot = ActorSlot(0, rank=1, world_size=2, actor=2, num_actors=3, envs_per_actor=4)
    assert slot.environments.tolist() == [20, 21, 22, 23]
    assert slot.total_environments == 24
    assert slot.streams.tolist() == [8, 9, 10, 11]


def test_streams_partition_a_rank():
    slots = [ActorSlot(0, 1, RANKS, actor, ACTORS, ENVS) for actor in range(ACTORS)]
    assert np.concatenate([slot.streams for slot in slots]).tolist() == list(range(ACTORS * ENVS))


def test_generators_differ():
    draws = {tuple(slot.generator().integers(2**62, size=2)) for slot in all_slots()}
    assert len(draws) == RANKS * ACTORS * INCARNATIONS


def test_seeds_of_policies_differ_and_are_repeatable():
    seeds = {slot.policy_seed() for slot in all_slots()}
    assert len(seeds) == RANKS * ACTORS * INCARNATIONS
    assert seeds == {slot.policy_seed() for slot in all_slots()}
    assert ActorSlot(6).policy_seed() != ActorSlot(5).policy_seed()


def test_a_generator_is_that_of_its_slot_and_of_nothing_else():
    slot = ActorSlot(5)
    draw = slot.generator().random()
    assert slot.generator().random() == draw
    assert ActorSlot(6).generator().random() != draw
    # Environments and samplers may be seeded with the run's seed itself.
    assert np.random.default_rng(5).random() != draw


def test_restarted_changes_the_incarnation_alone():
    slot = ActorSlot(9, 1, 2, 3, 4, 5)
    assert slot.restarted() == ActorSlot(9, 1, 2, 3, 4, 5, incarnation=1)
    assert slot.restarted().restarted().incarnation == 2
    assert slot.restarted().streams.tolist() == slot.streams.tolist()
