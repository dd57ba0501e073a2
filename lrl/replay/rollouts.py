"""Learning without a replay: rollouts, learnt from a few times and forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lrl.functional.returns import lambda_return
from lrl.processes.memory import available_bytes, format_bytes
from lrl.replay.experience import StoredExperience
from lrl.replay.streams import TERMINATED, IndexArray, Streams
from lrl.replay.transitions import Transitions
from lrl.types import Batch, ConfigError, EnvSpec, Rows, leaves_from


class Rollouts(StoredExperience):
    """Lambda-returns of the newest rows, in shuffled minibatches, with neither replay nor target.

    When the environments have made `num_steps` steps each on average, each of which but the newest
    is followed by another row, returns are computed from the values that the policy saw as it
    acted, and stay as they are while the rollout is learnt from `epochs` times. Then the next one
    is collected, which begins with the rows that were still without a successor. Where episodes
    end, some environments have more steps in a rollout than others; of the few rows beyond a whole
    number of minibatches each epoch leaves other ones out.

    In synchronous mode acting and learning take strict turns. Actors in the background fill the
    next rollout meanwhile, with older policies, and then wait. Goes with the bootstrap rule
    `NoBootstrap`.

    Reference: Gallici et al. 2024 (PQN), https://arxiv.org/abs/2407.04811, Algorithm 1.

    Args:
        spec: The environment.
        num_streams: Environments of all actors.
        num_steps: Steps of each environment in a rollout.
        num_minibatches: Batches in an epoch; a batch has num_steps * environments / num_minibatches
            steps.
        epochs: Times that a rollout is learnt from.
        gamma: Discount of one environment step.
        lambda_: Weight of longer returns: 0 bootstraps after one step, 1 at the rollout's end.
        seed: Seed of the order of steps, the same on all ranks; `data.seed` does not change it.
    """

    sets_pace = True
    needs_values = True
    gives_returns = True

    def __init__(
        self,
        spec: EnvSpec,
        num_streams: int,
        num_steps: int = 32,
        num_minibatches: int = 4,
        epochs: int = 2,
        gamma: float = 0.99,
        lambda_: float = 0.65,
        seed: int = 0,
    ) -> None:
        counts = {"num_steps": num_steps, "num_minibatches": num_minibatches, "epochs": epochs}
        for name, value in counts.items():
            if value < 1:
                raise ConfigError(f"experience.{name} must be at least 1, got {value}")
        for name, value in {"gamma": gamma, "lambda_": lambda_}.items():
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"experience.{name} must be between 0 and 1, got {value}")
        self._size = num_steps * num_streams
        if self._size % num_minibatches:
            raise ConfigError(
                f"experience.num_minibatches is {num_minibatches}, which does not divide the "
                f"{self._size} steps of a rollout (num_steps {num_steps} x {num_streams} "
                "environments)"
            )
        self.batch_size = self._size // num_minibatches
        self.batches_per_rollout = num_minibatches * epochs
        self.rows_left_out = 0
        self._spec = spec
        self._settings = {**counts, "gamma": gamma, "lambda_": lambda_}
        self.gamma = gamma
        # A rollout that is learnt from and one that is filled, or a rollout of episodes of one
        # step, which have a row at their end and those of a first stack at their beginning.
        rows_per_stream = (num_steps + 2) * max(4, spec.frame_stack + 1)
        needed = Streams.bytes_needed(spec, rows_per_stream * num_streams, num_streams)
        needed += 8 * epochs * self._size  # the order of all epochs
        _check_memory(needed, num_steps, num_streams, epochs)
        self.streams = Streams(replace(spec, values=True), rows_per_stream, num_streams)
        self._transitions = Transitions(self.streams, spec.frame_stack, n_step=1, gamma=gamma)
        self._generator = torch.Generator().manual_seed(seed)
        self._first = np.zeros(num_streams, np.int64)
        """Each stream's first row that was in no rollout yet."""
        self._missing = self._size
        """Steps that have to come before the next rollout can be complete."""
        self._learnt_from = self._first
        """Each stream's first row of the rollout that is learnt from."""
        self._keys = np.empty((0, 2), np.int64)
        self._returns = np.empty(0, np.float32)
        self._order = np.empty((0, self.batch_size), np.int64)
        """Batches that are still to be drawn, as positions in the rollout."""

    def add(self, rows: Rows) -> None:
        """Append rows; with the last one of a rollout, begin to learn from it."""
        steps = self.streams.append(rows)
        self.env_steps += steps
        self._missing -= steps
        if len(self._order):
            self._leave_out_overwritten()
        self._begin_if_complete()

    def has_room(self) -> bool:
        """Tell whether the next rollout misses rows, which overwrite none that is learnt from."""
        rows = self.streams.counts - self._learnt_from
        return self._missing > 0 and int(rows.max()) <= self.streams.rows_per_stream // 2

    def can_draw(self) -> bool:
        """Tell whether there is a rollout to learn from."""
        return len(self._order) > 0

    def draw(self, batches: int) -> list[Batch]:
        """Return the next batches of the rollout."""
        chosen, self._order = self._order[:batches], self._order[batches:]
        drawn = [self._batch(self._keys[index], self._returns[index]) for index in chosen]
        self._begin_if_complete()
        return drawn

    def metrics(self) -> dict[str, float]:
        """Return how many rows were overwritten before they were learnt from."""
        return {"count/rows_left_out": float(self.rows_left_out)}

    @property
    def fill(self) -> float:
        """Share of the next rollout that is there."""
        return 1.0 - min(max(self._missing / self._size, 0.0), 1.0)

    def settings(self) -> dict[str, Any]:
        """Return what must be the same where saved rows are restored."""
        return {
            "env_spec": self._spec.as_dict(),
            "experience": self._settings,
            "number of environments": self.streams.num_streams,
        }

    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return steps and generator, and with rows what is still to be learnt from them."""
        state = {"env_steps": self.env_steps, "generator": self._generator.get_state()}
        if with_rows:
            state |= {
                "counts": self.streams.counts,
                "first": self._first,
                "missing": self._missing,
                "learnt_from": self._learnt_from,
                "keys": self._keys,
                "returns": self._returns,
                "order": self._order,
                "left_out": self.rows_left_out,
            }
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`: the rows that belong to it, if any, are in `streams` again."""
        self.env_steps = state["env_steps"]
        self._generator.set_state(state["generator"])
        if "counts" in state:
            self._first, self._missing = state["first"], state["missing"]
            self._learnt_from = state["learnt_from"]
            self._keys, self._returns = state["keys"], state["returns"]
            self._order = state["order"]
            self.rows_left_out = state["left_out"]

    def _begin_if_complete(self) -> None:
        """Compute the returns of a rollout, once the one before it is learnt from."""
        if len(self._order) or self._missing > 0:
            return
        streams = self.streams
        first = np.maximum(self._first, streams.oldest)
        numbers = first[:, None] + np.arange(int((streams.counts - first).max()) + 1)
        slots = streams.slots(np.arange(streams.num_streams), numbers)
        known = numbers < streams.counts[:, None]
        keys = np.stack((known.nonzero()[0], numbers[known]), axis=1)
        learnable = np.zeros_like(known)
        learnable[known] = self._transitions.stored_samplable(keys)
        keys = keys[learnable[known]]
        if len(keys) < self._size:  # the newest rows are without a successor, some behind a gap
            self._missing = self._size - len(keys)
            return
        self.rows_left_out += int((first - self._first).sum())
        newest = (streams.counts - first - 1).clip(0)[:, None]
        is_over = np.take_along_axis(learnable, newest, axis=1)[:, 0] | (first == streams.counts)
        self._first, self._learnt_from = streams.counts - ~is_over, first
        self._missing = self._size
        self._keys, self._returns = keys, self._compute(slots, learnable)[learnable]
        self._order = self._shuffled(len(keys))

    def _compute(
        self, slots: IndexArray, learnable: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float32]:
        """Return lambda-returns `[streams, rows]`; those of rows that are not learnable mean none.

        Args:
            slots: Where the rows lie, `[streams, rows]`, the last of them unknown.
            learnable: Which rows are steps that are followed by another row, or terminated.
        """
        streams = self.streams
        returns = np.zeros(slots.shape, np.float32)
        before = slots[:, :-1]
        returns[:, :-1] = lambda_return(
            torch.from_numpy(streams.rewards(before)),
            streams.take({"value": slots[:, 1:]})["value"],
            torch.from_numpy((streams.flags(before) & TERMINATED).view(np.bool_)),
            torch.from_numpy(learnable[:, 1:]),
            self._settings["gamma"],
            self._settings["lambda_"],
        ).numpy()
        return returns

    def _shuffled(self, count: int) -> IndexArray:
        """Return the steps of each batch of all epochs, `[batches, batch_size]`."""
        orders = [
            torch.randperm(count, generator=self._generator)[: self._size]
            for _ in range(self._settings["epochs"])
        ]
        return torch.cat(orders).view(-1, self.batch_size).numpy()

    def _batch(self, keys: IndexArray, returns: npt.NDArray[np.float32]) -> Batch:
        streams = self.streams
        stack = np.arange(1 - self._spec.frame_stack, 1)
        slots = streams.slots(keys[:, 0], keys[:, 1:] + stack)
        stacks = {n: column.stack for n, column in streams.carried.items()}
        taken = streams.take({name: slots[:, -stack:] for name, stack in stacks.items()})
        columns = {n: block if stacks[n] > 1 else block[:, 0] for n, block in taken.items()}
        count = len(keys)
        return Batch(
            observation=leaves_from("frame", columns),
            action=torch.from_numpy(streams.actions(slots[:, -1])),
            reward=torch.from_numpy(returns),
            discount=torch.zeros(count),
            next_observation=None,
            weights=torch.ones(count),
            keys=torch.from_numpy(keys),
            action_mask=columns.get("action_mask"),
            memory=leaves_from("memory", columns) or None,
        )

    def _leave_out_overwritten(self) -> None:
        """Forget steps of the rollout whose rows are there no more: too many came at once."""
        first = self._learnt_from - self._spec.frame_stack + 1
        if not (self.streams.oldest > first).any():
            return
        stacked = self._keys - (0, self._spec.frame_stack - 1)
        left = self._order[self.streams.stored(stacked)[self._order]]
        self.rows_left_out += self._order.size - len(left)
        batches = len(left) // self.batch_size
        whole: IndexArray = left[: batches * self.batch_size]
        self._order = whole.reshape(batches, self.batch_size)


def _check_memory(needed: int, num_steps: int, num_streams: int, epochs: int) -> None:
    free = available_bytes()
    if free is not None and needed > free:
        raise ConfigError(
            f"experience.num_steps {num_steps} x {num_streams} environments, learnt from in "
            f"{epochs} epochs, need {format_bytes(needed)}, but {format_bytes(free)} are available"
        )
