"""Prioritised samplers on a real buffer: frequencies, weights, what is kept and what is dropped."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from helpers.replay_rows import Row, episode, filled, leaves, make_spec, pack

from lrl.replay import NotEnoughRows, PrioritizedSampler, RankSampler, Replay
from lrl.schedules import Constant, Linear
from lrl.types import ConfigError, RowKind

SAMPLERS = [PrioritizedSampler, RankSampler]


def buffer_with(priorities: list[float], sampler: Any, **settings: Any) -> Replay:
    """One terminated episode, whose row t has priority `priorities[t]`."""
    buffer = filled(episode([1.0] * len(priorities)), sampler=sampler, **settings)
    set_priorities(buffer, dict(enumerate(priorities)))
    return buffer


def set_priorities(buffer: Replay, priorities: dict[int, float]) -> None:
    keys = torch.tensor([(0, number) for number in priorities])
    buffer.learnt(keys, torch.tensor(list(priorities.values())))


def frequencies(buffer: Replay, batch_size: int, batches: int) -> Counter:
    return Counter(
        number for _ in range(batches) for number in buffer.sample(batch_size).keys[:, 1].tolist()
    )


def chi_square(counts: Counter, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.total()
    observed = np.array([counts[number] for number in range(len(probabilities))])
    return float(((observed - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(("batch_size", "batches"), [(1, 5000), (32, 600)])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_frequencies_are_proportional_to_priorities_to_the_alpha(
    alpha, batch_size, batches
) -> None:
    priorities = [0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 3.0, 20.0]
    buffer = buffer_with(priorities, PrioritizedSampler(alpha, epsilon=0.1), seed=1)
    weights = (np.array(priorities, np.float32).astype(np.float64) + 0.1) ** alpha
    counts = frequencies(buffer, batch_size, batches)
    assert chi_square(counts, weights / weights.sum()) < 24.3  # 1 in 1000 with 7 degrees of freedom


def test_frequencies_follow_ranks() -> None:
    priorities = [0.3, 100.0, 0.0, 7.0, 7.1]
    buffer = buffer_with(priorities, RankSampler(0.7), seed=1)
    ranks = np.array([4.0, 1.0, 5.0, 3.0, 2.0])
    weights = ranks**-0.7
    counts = frequencies(buffer, 10, 2000)
    assert chi_square(counts, weights / weights.sum()) < 18.5  # with 4 degrees of freedom
    assert list(leaves(buffer).values()) == pytest.approx(weights.tolist())


def test_a_batch_takes_one_row_of_each_equal_part_of_the_sum() -> None:
    buffer = buffer_with([1.0, 1.0, 2.0, 4.0], PrioritizedSampler(1.0, epsilon=1e-9))
    for _ in range(50):
        drawn = buffer.sample(8).keys[:, 1].tolist()
        assert drawn == [0, 1, 2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("normalisation", ["batch", "buffer"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_by_hand(normalisation, beta) -> None:
    """Leaves 1, 2 and 4: P is 1/7, 2/7 and 4/7, N is 3."""
    sampler = PrioritizedSampler(0.5, beta, 0.25, normalisation)
    buffer = buffer_with([0.75, 3.75, 15.75], sampler)
    assert list(leaves(buffer).values()) == [1, 2, 4]
    raw = [(3 * 1 / 7) ** -beta, (3 * 2 / 7) ** -beta, (3 * 4 / 7) ** -beta]
    seen = set()
    for _ in range(60):
        batch = buffer.sample(2)
        drawn = batch.keys[:, 1].tolist()
        largest = max(raw[number] for number in drawn) if normalisation == "batch" else raw[0]
        expected = [raw[number] / largest for number in drawn]
        assert batch.weights.tolist() == pytest.approx(expected)
        assert batch.weights.dtype == torch.float32
        seen.add(tuple(drawn))
    assert seen == {(0, 2), (1, 2), (2, 2)}


@pytest.mark.parametrize("of_the_other", [1 / 14, 1 / 2])
def test_importance_weights_beside_another_rank_by_hand(of_the_other) -> None:
    """Leaves 1, 2 and 4 again; the other rank has a row of half the least P, or none below it."""
    sampler = PrioritizedSampler(0.5, Constant(0.5), 0.25, "buffer")
    asked = []

    def minimum(number: float) -> float:
        asked.append(number)
        return min(number, of_the_other)

    sampler.minimum_of_ranks = minimum
    buffer = buffer_with([0.75, 3.75, 15.75], sampler)
    batch = buffer.sample(50)
    probability = np.array([1 / 7, 2 / 7, 4 / 7])[batch.keys[:, 1].numpy()]
    least = min(1 / 7, of_the_other)
    assert batch.weights.tolist() == pytest.approx(((least / probability) ** 0.5).tolist())
    assert asked == pytest.approx([1 / 7])


@pytest.mark.parametrize("normalisation", ["batch", "buffer"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_alpha_0_is_uniform_whatever_beta_is(sampler, normalisation) -> None:
    built = sampler(alpha=0.0, beta=Constant(0.7), weight_normalisation=normalisation)
    buffer = buffer_with([0.0, 5.0, 1e6], built)
    assert set(leaves(buffer).values()) == {1.0}
    assert buffer.sample(6).weights.tolist() == [1.0] * 6
    assert frequencies(buffer, 3, 100) == {0: 100, 1: 100, 2: 100}


def test_beta_reaches_its_end_at_its_own_horizon_which_counts_batches() -> None:
    buffer = buffer_with([1.0, 3.0], PrioritizedSampler(1.0, Linear(0.2, 1.0, 4), epsilon=1e-9))
    ratios, betas = [], []
    for batch_size in (2, 50, 3, 2, 9, 2):
        betas.append(buffer.metrics()["replay/beta"])
        ratios.append(float(buffer.sample(batch_size).weights[-1]))
        set_priorities(buffer, {0: 1.0, 1: 3.0})  # updates do not count
    assert betas == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    # A batch of 2 may hold row 1 alone.
    assert ratios[1:5:3] == pytest.approx([(1 / 3) ** 0.4, 1 / 3])


def test_priorities_are_neither_squared_nor_changed_otherwise() -> None:
    buffer = buffer_with([2.0, 3.0, 0.5], PrioritizedSampler(1.0, epsilon=1e-6))
    assert list(leaves(buffer).values()) == [2.0 + 1e-6, 3.0 + 1e-6, 0.5 + 1e-6]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_row_of_high_priority_is_drawn_more_often(sampler) -> None:
    buffer = buffer_with([1.0] * 20, sampler())
    before = frequencies(buffer, 20, 50)[7]
    set_priorities(buffer, {number: 0.01 * number for number in range(20)} | {7: 50.0})
    assert frequencies(buffer, 20, 50)[7] > 2 * before


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_new_rows_start_at_the_highest_priority_ever_seen(sampler) -> None:
    buffer = filled(episode([1.0] * 3, end="open"), sampler=sampler())
    assert buffer.metrics()["replay/priority_max"] == 1.0
    assert len(set(leaves(buffer).values())) == 1
    set_priorities(buffer, {0: 9.0})
    set_priorities(buffer, {0: 2.0, 1: 4.0})
    assert buffer.metrics()["replay/priority_max"] == 9.0
    buffer.add(pack([(0, row) for row in episode([1.0] * 2)]))
    new = leaves(buffer)[0, 3]
    set_priorities(buffer, {1: 9.0})
    assert leaves(buffer)[0, 1] == new


def test_of_a_row_that_is_twice_in_a_batch_the_last_priority_counts() -> None:
    buffer = buffer_with([1.0, 1.0], PrioritizedSampler(1.0, epsilon=0.5))
    buffer.learnt(torch.tensor([[0, 1], [0, 0], [0, 1]]), torch.tensor([8.0, 2.0, 3.0]))
    assert leaves(buffer) == {(0, 0): 2.5, (0, 1): 3.5}
    sampler: Any = buffer._sampler
    assert sampler._tree.total == 6.0


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_stale_priorities_are_dropped(sampler) -> None:
    rows = episode([1.0] * 10, end="open", frame_stack=3)
    buffer = filled(rows, capacity=10, frame_stack=3, sampler=sampler())
    assert {number for _, number in leaves(buffer)} == {4, 5, 6, 7, 8, 9, 10}
    before = leaves(buffer)
    # Overwritten (its slot is another row's), without its stack, not complete, not written yet.
    set_priorities(buffer, {0: 0.1, 3: 0.1, 11: 0.1, 12: 0.1, 99: 0.1})
    assert leaves(buffer) == before
    set_priorities(buffer, {0: 0.1, 5: 3.0})
    assert {key for key, leaf in leaves(buffer).items() if leaf != before[key]} <= {(0, 5)}
    set_priorities(buffer, {})


@pytest.mark.parametrize(
    ("priority", "cause"),
    [
        (math.nan, r"row \(0, 1\) is nan: the loss has diverged"),
        (math.inf, r"row \(0, 1\) is inf: the loss has diverged"),
        (-0.5, r"row \(0, 1\) is -0.5: it is negative, but absolute TD errors"),
    ],
)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_priorities_that_mean_nothing_are_refused(sampler, priority, cause) -> None:
    buffer = buffer_with([1.0, 2.0, 3.0], sampler())
    before = leaves(buffer)
    with pytest.raises(ValueError, match=cause):
        set_priorities(buffer, {0: 5.0, 1: priority, 2: 0.0})
    assert leaves(buffer) == before
    assert buffer.metrics()["replay/priority_max"] == 3.0


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_buffer_without_a_samplable_row_says_so(sampler) -> None:
    buffer = Replay(make_spec(), 100, 2, sampler=sampler())
    with pytest.raises(NotEnoughRows, match="0 rows are stored in 2 streams"):
        buffer.sample(4)
    buffer.add(pack([(1, row) for row in episode([1.0] * 4, end="open")]))
    assert buffer.sample(2).keys[:, 0].tolist() == [1, 1]
    buffer.n_step = 20
    with pytest.raises(NotEnoughRows, match="4 rows are stored in 2 streams"):
        buffer.sample(4)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_same_seed_same_draws_and_resume_continues_them(sampler, tmp_path) -> None:
    priorities = [0.1, 5.0, 2.0, 0.0, 1.0] * 10
    one, two = (buffer_with(priorities, sampler(), seed=7) for _ in range(2))
    assert torch.equal(one.sample(32).keys, two.sample(32).keys)
    other = buffer_with(priorities, sampler(), seed=8)
    assert not torch.equal(one.sample(32).keys, other.sample(32).keys)
    torch.save(one.state(with_rows=False), tmp_path / "state.pt")
    resumed = filled(episode([1.0] * 50), sampler=sampler())
    resumed.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed.metrics() == one.metrics()
    assert resumed.metrics()["replay/beta"] > other.metrics()["replay/beta"]
    set_priorities(resumed, dict(enumerate(priorities)))
    resumed_batch, batch = resumed.sample(32), one.sample(32)
    assert torch.equal(resumed_batch.keys, batch.keys)
    assert torch.equal(resumed_batch.weights, batch.weights)


def test_a_run_may_go_on_from_one_with_uniform_sampling() -> None:
    buffer = buffer_with([1.0, 6.0], PrioritizedSampler())
    buffer.restore(filled(episode([1.0])).state(with_rows=False))
    assert buffer.metrics()["replay/priority_max"] == 6.0


def test_ranks_are_those_of_the_last_sort_until_the_next() -> None:
    buffer = buffer_with([1.0, 2.0, 3.0, 4.0], RankSampler(1.0, sort_period_batches=2))
    buffer.sample(1)
    assert list(leaves(buffer).values()) == pytest.approx([1 / 4, 1 / 3, 1 / 2, 1])
    set_priorities(buffer, {0: 3.5})  # ranked second among the priorities of the sort
    buffer.sample(1)
    assert list(leaves(buffer).values()) == pytest.approx([1 / 2, 1 / 3, 1 / 2, 1])
    buffer.sample(1)
    assert list(leaves(buffer).values()) == pytest.approx([1 / 2, 1 / 4, 1 / 3, 1])


def test_a_buffer_that_was_asked_too_early_is_sorted_at_its_first_batch() -> None:
    buffer = Replay(make_spec(), 100, 1, sampler=RankSampler(1.0))
    with pytest.raises(NotEnoughRows):
        buffer.sample(1)
    buffer.add(pack([(0, row) for row in episode([1.0] * 2)]))
    set_priorities(buffer, {0: 1.0, 1: 2.0})
    buffer.sample(1)
    assert list(leaves(buffer).values()) == pytest.approx([1 / 2, 1])


def test_rows_of_equal_priority_share_the_best_of_their_ranks() -> None:
    buffer = buffer_with([2.0, 7.0, 2.0, 1.0], RankSampler(1.0))
    buffer.sample(1)
    assert list(leaves(buffer).values()) == pytest.approx([1 / 2, 1, 1 / 2, 1 / 4])


def test_what_a_gap_cuts_off_is_never_drawn() -> None:
    rows = [*episode([1.0] * 3, end="open"), Row(RowKind.GAP, -1), *episode([1.0] * 2, first=9)]
    buffer = filled(rows, sampler=PrioritizedSampler(), n_step=2)
    assert {number for _, number in leaves(buffer)} == {0, 4, 5}


def test_a_sampler_serves_one_buffer() -> None:
    sampler = PrioritizedSampler()
    filled(episode([1.0]), sampler=sampler)
    with pytest.raises(ValueError, match="serves another buffer"):
        filled(episode([1.0]), sampler=sampler)


@pytest.mark.parametrize(
    ("sampler", "settings", "message"),
    [
        (PrioritizedSampler, {"alpha": -0.1}, "PrioritizedSampler.alpha .* got -0.1"),
        (RankSampler, {"alpha": 1.5}, "RankSampler.alpha .* got 1.5"),
        (PrioritizedSampler, {"beta": Linear(0.4, 1.2, 9)}, "PrioritizedSampler.beta .* got 1.2"),
        (RankSampler, {"beta": Constant(-1.0)}, "RankSampler.beta .* got -1.0"),
        (PrioritizedSampler, {"epsilon": 0.0}, "epsilon must be a finite .* never be drawn again"),
        (PrioritizedSampler, {"epsilon": math.nan}, r"epsilon must be a finite .* got nan"),
        (PrioritizedSampler, {"weight_normalisation": "all"}, "'batch' or 'buffer', got 'all'"),
        (RankSampler, {"sort_period_batches": 0}, "sort_period_batches must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_named(sampler, settings, message) -> None:
    with pytest.raises(ConfigError, match=message):
        sampler(**settings)
