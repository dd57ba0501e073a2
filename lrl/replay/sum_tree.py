"""Sum trees of the host and of a device: weights of rows, found by the sum of those before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Weights = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_WIDTH = 64
"""Leaves under one parent."""

_TINY = float(np.nextafter(0.0, 1.0))


class SumTree:
    """Leaves of weight 0 or more, their sum, and the leaf at any part of that sum.

    Created and used by a sampler alone. Two levels: blocks of 64 leaves, each with its sum. A
    sum is always computed anew from the leaves under it, never corrected by a difference, so
    rounding errors do not add up. Once a batch the sums of all blocks are added up: with a
    million leaves and 32 rows that took 50 us of finding and setting, with deeper trees 60 to 80.

    Args:
        capacity: Number of leaves, at least 1; all weights are 0 at first.
        track_minimum: Whether `minimum` may be asked for.

    Example:
        >>> tree = SumTree(3)
        >>> tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
        >>> tree.total
        4.0
        >>> tree.find(np.array([0.5, 1.5, 4.0])).tolist()
        [0, 2, 2]
    """

    def __init__(self, capacity: int, track_minimum: bool = False) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}, but a sum tree has at least 1 leaf")
        blocks = -(-capacity // _WIDTH)
        self._blocks = np.zeros((blocks, _WIDTH))
        self._leaves = self._blocks.reshape(-1)[:capacity]
        self._sums = np.zeros(blocks)
        self._ends: Weights | None = None  # cumulative sums of the blocks, made when asked for
        self._minima = np.full(blocks, np.inf) if track_minimum else None
        self._largest = np.finfo(np.float64).max / (2 * capacity)  # so that no sum is infinite

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """Return the bytes of a tree: the leaves, and a sum, its end and a minimum per block."""
        blocks = -(-capacity // _WIDTH)
        return 8 * blocks * (_WIDTH + 3)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums.sum())  # pairwise, so more exact than the last of `_ends`

    @property
    def minimum(self) -> float:
        """Smallest weight above 0, infinite where there is none; needs `track_minimum`."""
        assert self._minima is not None, "build the tree with track_minimum=True"
        return float(self._minima.min())

    def get(self, indices: Indices) -> Weights:
        """Return the weights of leaves."""
        return self._leaves.take(indices)

    @property
    def leaves(self) -> Weights:
        """The weights of all leaves; write with `set` alone."""
        return self._leaves

    def positive(self) -> Indices:
        """List the leaves with a weight above 0, in order."""
        return np.flatnonzero(self._leaves)

    def set(self, indices: Indices, weights: Weights) -> None:
        """Set the weights of leaves; of an index that is repeated the last weight counts.

        Raises:
            ValueError: A weight is negative, NaN or infinite; nothing was changed.
            IndexError: There is no such leaf; nothing was changed.
        """
        if not len(indices):
            return
        if not (weights.min() >= 0 and weights.max() <= self._largest):  # NaN fails both
            raise ValueError(
                f"weights lie between {weights.min()} and {weights.max()}, but must lie between 0 "
                f"and {self._largest:.3g}"
            )
        if indices.min() < 0:
            raise IndexError(f"there is no leaf {indices.min()}")
        self._leaves[indices] = weights
        # Many leaves may share few blocks: then each block once is less work.
        changed = indices // _WIDTH if len(indices) < len(self._sums) else slice(None)
        children = self._blocks[changed]
        self._sums[changed] = children.sum(axis=1)
        if self._minima is not None:
            positive = np.where(children > 0, children, np.inf)
            self._minima[changed] = positive.min(axis=1)
        self._ends = None

    def find(self, prefix: Weights) -> Indices:
        """Return for each x the first leaf up to which the weights sum to x or more.

        Leaf i is found for every x above the sum before it, up to and including the sum with it:
        a leaf of weight 0 never is, whatever is rounded.

        Args:
            prefix: Numbers from 0 to `total`, which must not be 0; others count as the nearer end.
        """
        if self._ends is None:
            self._ends = _cumulative(self._sums)
        # Sums made in different orders are rounded differently: on each level x is brought
        # between the smallest number above 0 and what that level sums to.
        rest = np.minimum(prefix, self._ends[-1])
        np.maximum(rest, _TINY, out=rest)
        block = self._ends.searchsorted(rest)
        rest -= self._ends.take(block) - self._sums.take(block)
        inside = _cumulative(self._blocks.take(block, axis=0))
        np.minimum(rest, inside[:, -1], out=rest)
        np.maximum(rest, _TINY, out=rest)
        return block * _WIDTH + (inside >= rest[:, None]).argmax(axis=1)


def _cumulative(weights: Weights) -> Weights:
    """Sum up along the last axis; for 256 blocks torch needs an eighth of numpy's time."""
    return torch.from_numpy(weights).cumsum(-1).numpy()


class DeviceSumTree:
    """A sum tree of tensors: `SumTree` as operations of fixed shapes that ask the host nothing.

    Created and used by a `DeviceIndex` alone. `set`, `get`, `find` and `minimum` can be part of a
    CUDA graph. Arguments are not checked, for that would be to read them.

    Args:
        capacity: Number of leaves, at least 1; all weights are 0 at first.
        device: Where it lives.
        track_minimum: Whether `minimum` may be asked for.

    Attributes:
        spare: An index beside those of leaves, which counts in no sum: where to write what is not
            to be written.

    Example:
        >>> tree = DeviceSumTree(3, torch.device("cpu"))
        >>> tree.set(torch.tensor([0, 2]), torch.tensor([1.0, 3.0]).double())
        >>> tree.find(torch.tensor([0.125, 0.375, 1.0]).double())
        tensor([0, 2, 2])
    """

    def __init__(self, capacity: int, device: torch.device, track_minimum: bool = False) -> None:
        blocks = -(-capacity // _WIDTH)
        self.spare = blocks * _WIDTH
        self._capacity = capacity
        self._blocks = torch.zeros(blocks + 1, _WIDTH, dtype=torch.float64, device=device)
        self._leaves = self._blocks.view(-1)
        self._sums = torch.zeros(blocks + 1, dtype=torch.float64, device=device)
        self._minima = torch.full_like(self._sums, torch.inf) if track_minimum else None

    @staticmethod
    def bytes_needed(capacity: int) -> int:
        """Return the bytes of a tree: the leaves, and a sum and a minimum per block."""
        return 8 * (-(-capacity // _WIDTH) + 1) * (_WIDTH + 2)

    @property
    def minimum(self) -> Tensor:
        """Smallest weight above 0, infinite where there is none; needs `track_minimum`."""
        assert self._minima is not None, "build the tree with track_minimum=True"
        return self._minima[:-1].min()

    @property
    def leaves(self) -> Tensor:
        """The weights of all leaves; write with `set` or `load` alone."""
        return self._leaves[: self._capacity]

    def get(self, indices: Tensor) -> Tensor:
        """Return the weights of leaves."""
        return self._leaves[indices]

    def set(self, indices: Tensor, weights: Tensor) -> None:
        """Set the weights of leaves, 0 or more; no leaf may be there twice with two weights."""
        self._leaves[indices] = weights
        blocks = indices // _WIDTH
        children = self._blocks[blocks]  # a block that is there twice gets the same sum twice
        self._sums[blocks] = children.sum(1)
        if self._minima is not None:
            self._minima[blocks] = _minima(children)

    def load(self, weights: Tensor) -> None:
        """Set the weights of all leaves."""
        self._leaves[: self._capacity] = weights
        self._sums.copy_(self._blocks.sum(1))
        if self._minima is not None:
            self._minima.copy_(_minima(self._blocks))

    def find(self, shares: Tensor) -> Tensor:
        """Return for each share x of the total the first leaf up to which weights sum to x or more.

        A leaf of weight 0 is never found, whatever is rounded; some weight must be above 0.

        Args:
            shares: Float64 from 0 to 1, `[batch]`.
        """
        ends = _ends(self._sums[:-1])
        rest = (shares * ends[-1]).clamp_(min=_TINY)
        block = torch.searchsorted(ends, rest)
        rest -= ends[block] - self._sums[block]
        inside = _ends(self._blocks[block])
        # Both levels are rounded differently: bring what is left between 0 and the block's end.
        rest = rest.clamp_(min=_TINY).minimum(inside[:, -1])
        return torch.searchsorted(inside, rest[:, None])[:, 0].add(block, alpha=_WIDTH)


def _ends(weights: Tensor) -> Tensor:
    """Sum up along the last axis, such that sums grow at weights above 0 and nowhere else.

    A GPU makes each sum in an order of its own. One may then be smaller than the sum before it, or
    larger although the weight between them is 0, which would be found there.
    """
    return weights.cumsum(-1).masked_fill_(weights == 0, 0.0).cummax(-1).values


def _minima(blocks: Tensor) -> Tensor:
    return blocks.masked_fill(blocks == 0, torch.inf).amin(1)
