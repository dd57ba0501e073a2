from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.replay.sum_tree import DeviceSumTree, SumTree


def tree_of(*weights: float, track_minimum: bool = False) -> SumTree:
    tree = SumTree(len(weights), track_minimum)
    tree.set(np.arange(len(weights)), np.array(weights))
    return tree


def test_the_vectors_of_border() -> None:
    tree = SumTree(8)
    tree.set(np.arange(7), np.array([0.5, 0.2, 0.8, 0.3, 1.1, 2.5, 3.9]))
    prefix = np.array([0.0, 0.4, 0.5, 0.6, 1.2, 1.6, 2.0, 2.8])
    assert tree.find(prefix).tolist() == [0, 0, 0, 1, 2, 3, 4, 4]
    assert tree.total == pytest.approx(9.3, abs=1e-15)
    assert tree.find(np.array([9.3, 5.4])).tolist() == [6, 5]


class NaiveTree:
    """A list of weights, gone through from the start for every question."""

    def __init__(self, capacity: int) -> None:
        self.weights = [0] * capacity

    def find(self, prefix: float) -> int:
        total = 0
        for index, weight in enumerate(self.weights):
            total += weight
            if weight > 0 and total >= prefix:
                return index
        raise AssertionError


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), capacity=st.integers(1, 300))
def test_equals_twin(data: st.DataObject, capacity: int) -> None:
    """With whole numbers as weights every sum is exact, in whatever order it is made."""
    tree, twin = SumTree(capacity, track_minimum=True), NaiveTree(capacity)
    updates = st.lists(
        st.tuples(st.integers(0, capacity - 1), st.integers(0, 9) | st.just(10**6)), max_size=40
    )
    for _ in range(4):
        pairs = data.draw(updates)
        tree.set(
            np.array([index for index, _ in pairs], np.int64),
            np.array([weight for _, weight in pairs], np.float64),
        )
        for index, weight in pairs:  # of a repeated index the last weight counts
            twin.weights[index] = weight
        total = sum(twin.weights)
        assert tree.total == total
        assert tree.get(np.arange(capacity)).tolist() == twin.weights
        positive = [index for index, weight in enumerate(twin.weights) if weight]
        assert tree.positive().tolist() == positive
        assert tree.minimum == min((twin.weights[index] for index in positive), default=math.inf)
        if total:
            prefix = np.linspace(0, total, 101)
            assert tree.find(prefix).tolist() == [twin.find(float(x)) for x in prefix]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    weights=st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1e-16, 0.1, 1.0, 3.7, 1e16]))
    .map(np.array)
    .filter(np.any),
    before=st.integers(0, 70),
    share=st.lists(st.floats(0.0, 1.0), min_size=1),
)
def test_a_leaf_without_weight_is_never_found(weights, before: int, share: list[float]) -> None:
    """Not even where a sum is too large for its smaller parts to count."""
    tree = SumTree(before + len(weights) + 3)
    tree.set(before + np.arange(len(weights)), weights)
    total = tree.total
    edges = [0.0, total, np.nextafter(total, np.inf), 2 * total]
    found = tree.find(np.array([*(np.array(share) * total), *weights.cumsum(), *edges]))
    assert (tree.get(found) > 0).all()


def test_nothing_may_be_left_of_a_sum_for_the_leaf_to_be_found_in() -> None:
    """1e16 + 2 and 1 are 1e16 + 4 when rounded, and that without 1 again is 1e16 + 4."""
    tree = SumTree(200)
    tree.set(np.array([5, 150]), np.array([1e16 + 2, 1.0]))
    assert tree.find(np.array([1e16 + 2, 1e16 + 4])).tolist() == [5, 150]


def test_the_sum_does_not_drift() -> None:
    """A million updates later the sum is still that of the leaves."""
    rng = np.random.default_rng(0)
    tree = SumTree(3001)
    for _ in range(4000):
        tree.set(rng.integers(0, 3001, 250), rng.random(250) ** 4)
    exact = math.fsum(tree.get(np.arange(3001)))
    assert abs(tree.total - exact) <= 1e-9 * min(1.0, exact)


def test_a_large_weight_that_goes_leaves_no_trace() -> None:
    tree = tree_of(0.25, 1e17, 0.5)
    tree.set(np.array([1]), np.array([0.0]))
    assert tree.total == 0.75
    assert tree.find(np.array([0.25, 0.3, 0.75])).tolist() == [0, 2, 2]


def test_most_leaves_at_once() -> None:
    """More leaves than there are blocks take another way."""
    tree = SumTree(1000, track_minimum=True)
    tree.set(np.arange(1000), np.arange(1000.0))
    assert tree.total == 499_500
    assert tree.minimum == 1
    tree.set(np.arange(500, 1000), np.zeros(500))
    assert tree.total == 124_750


def test_setting_nothing_changes_nothing() -> None:
    tree = tree_of(1.0, 2.0)
    tree.set(np.array([], np.int64), np.array([]))
    assert tree.total == 3.0


@pytest.mark.parametrize("weight", [-1.0, -1e-300, math.nan, math.inf, 1e308])
def test_weights_without_a_meaning_are_refused(weight: float) -> None:
    tree = tree_of(1.0, 2.0, track_minimum=True)
    with pytest.raises(ValueError, match=r"must lie between 0 and 4.49e\+307"):
        tree.set(np.array([0, 1]), np.array([5.0, weight]))
    assert tree.get(np.arange(2)).tolist() == [1, 2]
    assert (tree.total, tree.minimum) == (3, 1)


@pytest.mark.parametrize("index", [-1, 2, 63, 64])
def test_leaves_that_do_not_exist_are_refused(index: int) -> None:
    tree = tree_of(1.0, 2.0)
    with pytest.raises(IndexError):
        tree.set(np.array([0, index]), np.array([5.0, 5.0]))
    assert tree.get(np.arange(2)).tolist() == [1, 2]


def test_a_tree_has_a_leaf() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        SumTree(0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), capacity=st.integers(1, 300))
def test_the_tree_of_a_device_equals_that_of_the_host(data: st.DataObject, capacity: int) -> None:
    """With whole numbers as weights every sum is exact, in whatever order it is made."""
    tree = DeviceSumTree(capacity, torch.device("cpu"), track_minimum=True)
    host = SumTree(capacity, track_minimum=True)
    shares = torch.arange(129, dtype=torch.float64) / 128
    updates = st.dictionaries(
        st.integers(0, capacity - 1), st.integers(0, 9) | st.just(10**6), max_size=40
    )
    for _ in range(4):
        update = data.draw(updates)
        indices, weights = np.array(list(update), np.int64), np.array(list(update.values()), float)
        host.set(indices, weights)
        tree.set(torch.from_numpy(indices), torch.from_numpy(weights))
        tree.set(torch.tensor([tree.spare] * 3), torch.tensor([5.0, 6.0, 7.0]).double())
        assert tree.leaves.tolist() == host.leaves.tolist()
        assert tree.minimum.item() == host.minimum
        loaded = DeviceSumTree(capacity, torch.device("cpu"), track_minimum=True)
        loaded.load(torch.from_numpy(host.leaves))
        assert loaded.minimum.item() == host.minimum
        if host.total:
            expected = host.find(shares.numpy() * host.total).tolist()
            assert tree.find(shares).tolist() == loaded.find(shares).tolist() == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 5e-324, 1e-300, 1e-16, 0.1, 1.0, 3.7, 1e16]))
    .map(np.array)
    .filter(np.any),
    before=st.integers(0, 70),
    share=st.lists(st.floats(0.0, 1.0), min_size=1),
    seed=st.integers(0, 1000),
)
def test_a_device_finds_no_leaf_without_weight(
    weights, before: int, share: list[float], seed: int
) -> None:
    """Not even where each sum is rounded in a way of its own."""
    tree = DeviceSumTree(before + len(weights) + 3, torch.device("cpu"))
    tree.set(torch.arange(before, before + len(weights)), torch.from_numpy(weights))
    generator, cumsum = torch.Generator().manual_seed(seed), torch.Tensor.cumsum

    def rounded(self: torch.Tensor, dim: int) -> torch.Tensor:
        sums = cumsum(self, dim)
        noise = torch.randint(-1, 2, sums.shape, generator=generator) * 0.01 + 1
        return torch.where(sums == self.new_tensor(0), sums, (sums * noise).clamp(min=5e-324))

    shares = torch.tensor([*share, 0.0, 1.0, *(k / 16 for k in range(17))]).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "cumsum", rounded)
        assert (tree.get(tree.find(shares)) > 0).all()
