"""A prioritised index of rows on a device: draws and new priorities that ask the host nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrl.functional.returns import return_with_powers
from lrl.parts.device_copies import to_device, to_device_together
from lrl.replay.prioritized import PrioritizedSampler
from lrl.replay.samplers import Sampler, not_enough_rows
from lrl.replay.streams import TERMINATED, TRUNCATED, IndexArray
from lrl.replay.sum_tree import DeviceSumTree
from lrl.replay.transitions import Transitions, key_ranges
from lrl.types import AnyBatch, Batch, ConfigError, EnvSpec


class DeviceIndex:
    """Chooses rows as `PrioritizedSampler` does, builds their batch, and takes their priorities.

    Lives in the learner process, on the device of the streams, whose rows it indexes. `draw` and
    `set_priorities` are tensor operations of fixed shapes: both, and the learner step between
    them, can be captured in one CUDA graph and repeated. What changes between repetitions is
    in tensors that `prepare` and `rows_changed` fill in outside of it. Only another `n_step`
    changes shapes: what was recorded before must then be recorded again.

    Streams and windows, on the host, decide as ever which row lies where and which may be sampled;
    of each change the device is told in one copy. Not thread-safe.

    Args:
        windows: The transitions, with their streams, which are empty.
        sampler: Its settings; it is not attached to anything itself.
        generator: Of the streams' device, and registered with graphs; the default generator of
            that device if None.

    Raises:
        ConfigError: The sampler is not proportional, or normalises over several ranks.
    """

    def __init__(
        self,
        windows: Transitions,
        sampler: Sampler,
        generator: torch.Generator | None = None,
    ) -> None:
        sampler = proportional(sampler)
        streams = windows.streams
        self.device = streams.device
        self._windows, self._streams, self._sampler = windows, streams, sampler
        self._generator = generator
        self._ring = streams.num_slots // streams.num_streams
        self._known = np.zeros_like(streams.counts)  # rows of each stream that the device has
        self._batches = 0
        slots = torch.arange(streams.num_slots)
        flags, action, reward = map(torch.from_numpy, streams.numbers(slots.numpy()))
        there = {"flags": flags, "action": action, "reward": reward}
        sent = to_device_together(there, self.device)
        self._flags, self._action, self._reward = (sent[name] for name in there)
        self._number = torch.full((streams.num_slots,), -1, device=self.device)
        """Number of the row last written to each slot, -1 where none was."""
        by_buffer = sampler.weight_normalisation == "buffer"
        self._tree = DeviceSumTree(streams.num_slots, self.device, track_minimum=by_buffer)
        self._priority_max = torch.ones((), dtype=torch.float64, device=self.device)
        self._went_wrong = torch.zeros((), dtype=torch.bool, device=self.device)
        self._beta = torch.zeros((), dtype=torch.float64, device=self.device)
        self._powers: dict[int, Tensor] = {}
        """Powers of gamma by `n_step`; what was recorded with one goes on reading its tensor."""
        self._gammas: dict[int, float] = {}

    @property
    def layout(self) -> int:
        """What shapes depend on: what was recorded with another cannot be repeated."""
        return self._windows.n_step

    @staticmethod
    def bytes_needed(spec: EnvSpec, slots: int) -> int:
        """Return the bytes that are kept on the device beside so many slots for rows."""
        columns = 1 + spec.action.column.nbytes + 4 + 8  # flags, action, reward, number
        return slots * columns + DeviceSumTree.bytes_needed(slots)

    def rows_changed(self, added: IndexArray, removed: IndexArray) -> None:
        """Take over the rows that were appended since the last call, in one copy.

        Args:
            added: Keys `[count, 2]` that are samplable from now on; they get the highest priority.
            removed: Keys that no longer are, and maybe some that never were.
        """
        numbers = self._unknown_rows()
        slots = numbers.pop("slots")
        new, gone = self._slots(added), self._slots(removed)
        gone = gone[~np.isin(gone, new)]  # a new row may lie in an old slot
        changed = {
            "slots": slots,
            "leaves": np.concatenate((new, gone)),
            "is_new": np.arange(len(new) + len(gone)) < len(new),
            **numbers,
        }
        sent = to_device_together(
            {name: torch.from_numpy(array) for name, array in changed.items()}, self.device
        )
        self._flags[sent["slots"]] = sent["flags"]
        self._action[sent["slots"]] = sent["action"]
        self._reward[sent["slots"]] = sent["reward"]
        self._number[sent["slots"]] = sent["number"]
        self._tree.set(sent["leaves"], sent["is_new"] * self._weigh(self._priority_max))

    def prepare(self, batches: int = 1) -> None:
        """Fill in what changes between draws: beta, and gamma where it did.

        To be called before each draw, or each repetition of what was recorded.

        Args:
            batches: Batches that are drawn until the next call; all with the same beta.
        """
        self._beta.fill_(self._sampler.beta(self._batches))
        self._batches += batches
        n, gamma = self._windows.n_step, self._windows.gamma
        if self._gammas.get(n) != gamma:
            self._gammas[n] = gamma
            powers = torch.tensor([gamma**step for step in range(n + 1)])
            sent = to_device(powers, self.device)
            if n in self._powers:
                self._powers[n].copy_(sent)
            else:
                self._powers[n] = sent

    def draw(self, batch_size: int) -> Batch:
        """Draw transitions with replacement, one from each of `batch_size` parts of the sum.

        Everything in the batch is on the device, keys too. With `n_step` 1 a transition's
        observation and next observation overlap in memory: do not write into them.

        Raises:
            NotEnoughRows: No row is samplable. What was recorded does not look: ask before.
            RuntimeError: `n_step` was changed, and `prepare` not called.
        """
        if not self._windows.any_samplable():
            raise not_enough_rows(self._windows)
        if self._windows.n_step not in self._powers:
            raise RuntimeError("n_step was changed: call DeviceIndex.prepare before draw")
        uniforms = torch.rand(
            batch_size, generator=self._generator, dtype=torch.float64, device=self.device
        )
        return self._batch(*self._choose(uniforms))

    @torch.no_grad()
    def set_priorities(self, keys: Tensor, priorities: Tensor) -> None:
        """Set the priorities of rows that were drawn; those of rows that are gone are dropped.

        Of a row that is there twice the last priority counts, as long as it is still samplable. A
        priority that is negative, NaN or infinite is left out: `metrics` tells of it later.

        Args:
            keys: Keys on the device, int64 `[batch, 2]`, of at least one row. Each is compared with
                each: `batch`^2 bytes are taken meanwhile.
            priorities: `[batch]`.
        """
        number, spare = keys[:, 1], self._tree.spare
        slots = keys[:, 0] * self._ring + number % self._ring
        given = priorities.float().double()  # as precise as those of the host
        invalid = ~((given >= 0) & (given < torch.inf))
        self._went_wrong.logical_or_(invalid.any())
        given = given.masked_fill_(invalid, 0.0)
        self._priority_max.clamp_(min=given.max())
        gone = (self._number[slots] != number) | (self._tree.get(slots) == 0)
        places = slots.masked_fill_(gone | invalid, spare)
        # Which value stays where an element is written twice is undefined: write it once, the last.
        comes_again = (places[:, None] == places).triu_(1).any(1)
        places = places.masked_fill_(comes_again, spare)
        self._tree.set(places, self._weigh(given))

    def metrics(self) -> dict[str, float]:
        """Return the highest priority seen and the exponent of the next importance weights.

        Waits for the device.

        Raises:
            ValueError: A priority was negative, NaN or infinite.
        """
        highest, went_wrong = torch.stack((self._priority_max, self._went_wrong.double())).tolist()
        if went_wrong:
            raise ValueError(
                "a priority was negative, NaN or infinite: absolute TD errors and losses are not "
                "negative, and one that is not finite says that learning has diverged: lower the "
                "learning rate (model.optimizer), or set model.gradient_clip_norm"
            )
        beta = float(self._sampler.beta(self._batches))
        return {"replay/priority_max": highest, "replay/beta": beta}

    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return what `PrioritizedSampler.state` returns. Waits for the device."""
        state: dict[str, Any] = {
            "batches": self._batches,
            "priority_max": self._priority_max.item(),
        }
        if with_rows:
            state["rows"] = {"leaves": self._tree.leaves.cpu().numpy()}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`, or from that of a `PrioritizedSampler`.

        Rows that belong to it, if any, are in the streams again.
        """
        self._batches = state.get("batches", self._batches)
        if "priority_max" in state:
            self._priority_max.fill_(state["priority_max"])
        if rows := state.get("rows"):
            nothing = np.empty((0, 2), np.int64)
            self.rows_changed(nothing, nothing)
            leaves = torch.from_numpy(np.array(rows["leaves"], np.float64))
            self._tree.load(to_device(leaves, self.device))

    def _slots(self, keys: IndexArray) -> IndexArray:
        return self._streams.slots(keys[:, 0], keys[:, 1:]).reshape(-1)

    def _unknown_rows(self) -> dict[str, Any]:
        """Return the slots of rows that the device does not have, and what is in them."""
        streams = self._streams
        rows = key_ranges(np.maximum(self._known, streams.oldest), streams.counts)
        self._known[:] = streams.counts
        slots, number = self._slots(rows), rows[:, 1]
        flags, action, reward = streams.numbers(slots)
        return {
            "slots": slots,
            "number": number,
            "flags": flags,
            "action": action,
            "reward": reward,
        }

    def _weigh(self, priorities: Tensor) -> Tensor:
        return (priorities + self._sampler.epsilon) ** self._sampler.alpha

    def _choose(self, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Return slots of rows, and their importance weights.

        Args:
            uniforms: Float64 from 0 to 1 (excluded), `[batch]`.
        """
        batch_size = len(uniforms)
        shares = (uniforms + torch.arange(batch_size, device=self.device)) / batch_size
        slots = self._tree.find(shares)
        leaves = self._tree.get(slots)
        by_batch = self._sampler.weight_normalisation == "batch"
        smallest = leaves.min() if by_batch else self._tree.minimum
        return slots, ((smallest / leaves) ** self._beta).float()

    def _batch(self, slots: Tensor, weights: Tensor) -> Batch:
        windows, streams = self._windows, self._streams
        frames, n = windows.frame_stack, windows.n_step
        stream = slots // self._ring
        base = (stream * self._ring)[:, None]
        offsets = torch.arange(1 - frames, n + 1, device=self.device)
        window = (slots[:, None] - base + offsets) % self._ring + base
        rows, reward, discount = self._one_step(window) if n == 1 else self._n_step(window)
        stacks = {
            name: windows.both(rows, column.stack, torch.concatenate)
            for name, column in streams.carried.items()
        }
        numbers = {
            "action": self._action[slots].long(),
            "reward": reward,
            "discount": discount,
            "weights": weights,
        }
        keys = torch.stack((stream, self._number[slots]), 1)
        return windows.assembled({**streams.take_there(stacks), **numbers}, keys)

    def _one_step(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slots of both stacks, which overlap, the reward and the discount."""
        start, after = window[:, -2], window[:, -1]
        terminated = (self._flags[start] & TERMINATED).view(torch.bool)
        # Where nothing is bootstrapped, the row after may not exist: stay on the first.
        after = torch.where(terminated, start, after)
        rows = torch.cat((window[:, :-1], after[:, None]), 1)
        return rows, self._reward[start], ~terminated * self._powers[1][1]

    def _n_step(self, window: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slots of both stacks one after the other, the return and the discount."""
        frames = self._windows.frame_stack
        steps_of = window[:, frames - 1 : -1]
        flags = self._flags[steps_of]
        returns, discount, steps = return_with_powers(
            self._reward[steps_of],
            (flags & TERMINATED).view(torch.bool),
            (flags & TRUNCATED) != 0,
            self._powers[self._windows.n_step],
        )
        final = steps - (discount == 0).long()
        columns = final[:, None] + torch.arange(frames, device=self.device)
        rows = torch.cat((window[:, :frames], window.gather(1, columns)), 1)
        return rows, returns, discount


@dataclass(frozen=True)
class Drawing(AnyBatch):
    """A batch that the learner step itself draws, and of which nobody else sees the rows.

    Attributes:
        keys: -1, int64 `[batch, 2]`: of no row, since the index takes priorities itself.
        index: Where it is drawn.
    """

    keys: Tensor
    index: DeviceIndex

    @property
    def batch_size(self) -> int:
        """Its transitions."""
        return len(self.keys)

    def columns(self) -> dict[str, Tensor]:
        """Return nothing: it has no tensors yet."""
        return {}

    def __getattr__(self, name: str) -> Any:
        """Say why there is nothing to look at.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(
            f"the batch has no {name} yet: with replay.index device it is drawn in the learner "
            "step itself; look at it in compute_loss, or set replay.index to host"
        )


def proportional(sampler: Sampler) -> PrioritizedSampler:
    """Return a sampler whose settings an index on the device can have.

    Raises:
        ConfigError: It is another, or normalises over several ranks.
    """
    if type(sampler) is not PrioritizedSampler:  # a subclass may weigh rows otherwise
        raise ConfigError(
            f"replay.index is device, which draws in proportion to priorities, but replay.sampler "
            f"is {type(sampler).__name__}: set it to PrioritizedSampler, or index to host"
        )
    if sampler.minimum_of_ranks is not None:
        raise ConfigError(
            "replay.index is device, which knows one learner rank, but there are several, whose "
            "importance weights have one maximum: set index to host"
        )
    return sampler
