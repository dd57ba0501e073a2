"""The replay: the newest rows are kept; transitions or sequences of them are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lrl.parts.devices import usable_device
from lrl.processes.memory import available_bytes, format_bytes
from lrl.replay.config import check_index
from lrl.replay.device_index import DeviceIndex, Drawing
from lrl.replay.experience import StoredExperience
from lrl.replay.samplers import Sampler, TrackingSampler, UniformSampler
from lrl.replay.sequences import SequenceConfig, Sequences
from lrl.replay.streams import Streams, keys_without
from lrl.replay.transitions import Transitions, Windows
from lrl.schedules import Schedule, ends_of, value_at
from lrl.types import AnyBatch, ConfigError, EnvSpec, Rows

BytesOfSlots: TypeAlias = Callable[[int], int]
"""Returns the bytes that are kept beside so many slots for rows, as `Sampler.bytes_needed` does."""


class Replay(StoredExperience):
    """Keeps the newest rows of every stream; n-step transitions are built when they are sampled.

    Created by the datamodule; fed and sampled by the dataset, in the learner process. It never
    blocks and is not thread-safe. A rank's replay knows nothing of other ranks.

    Attributes:
        streams: The stored rows.

    Args:
        spec: Environment whose frames are stored.
        capacity: Rows over all streams; each stream keeps `capacity // num_streams` of them.
        num_streams: Environments of all actors that feed this replay.
        batch_size: Transitions in a batch that is drawn.
        n_step: Environment steps of a transition, unless the episode ends earlier; of a schedule of
            learner steps `anneal` takes the nearest integer.
        gamma: Discount of one environment step, or a schedule of learner steps.
        sampler: Chooses rows; uniform by default.
        seed: Seed of the sampling generator.
        device: Where frames are stored and batches are built.
        index: Where rows are chosen: `host`, or `device`, in the learner step.
        memory_map: Folder of a file in which frames are stored instead of in memory.
        rank: Learner process it belongs to: a checkpoint holds the generator of rank 0, from which
            the others' follow.
        sequences: How rows are cut into sequences, which are then sampled; None samples
            transitions.

    Raises:
        ConfigError: A setting is out of range, the rings are too short for a transition or
            sequence, or the storage does not fit into the memory that is available.

    Example:
        >>> import numpy as np
        >>> replay = Replay(EnvSpec.box((1,), "float32", num_actions=2), 100, num_streams=1)
        >>> zeros = np.zeros(3)
        >>> replay.add(
        ...     Rows(
        ...         stream=zeros.astype(np.int32),
        ...         kind=zeros.astype(np.uint8),
        ...         frame=np.arange(3, dtype=np.float32)[:, None],
        ...         action=zeros.astype(np.int32),
        ...         reward=np.ones(3, np.float32),
        ...         terminated=zeros.astype(bool),
        ...         truncated=zeros.astype(bool),
        ...         policy_version=zeros.astype(np.int64),
        ...     )
        ... )
        >>> batch = replay.sample(2)
        >>> bool((batch.next_observation == batch.observation + 1).all())
        True
    """

    def __init__(
        self,
        spec: EnvSpec,
        capacity: int,
        num_streams: int,
        *,
        batch_size: int = 32,
        n_step: int | Schedule = 1,
        gamma: float | Schedule = 0.99,
        sampler: Sampler | None = None,
        seed: int = 0,
        device: str = "cpu",
        index: str = "host",
        memory_map: str | None = None,
        rank: int = 0,
        sequences: SequenceConfig | None = None,
    ) -> None:
        if num_streams < 1:
            raise ConfigError(f"num_streams is {num_streams}, but a replay needs at least 1 stream")
        self.batch_size = batch_size
        self._spec = spec
        self._rows_per_stream, self._num_streams = capacity // num_streams, num_streams
        self._schedules, self._sequences = (n_step, gamma), sequences
        for each in ends_of(gamma):
            _check_gamma(each)
        for each in ends_of(n_step):
            self._check_n_step(round(each))
        check_index(index, sequences)
        self._sampler = sampler if sampler is not None else UniformSampler()
        self._check_memory(capacity, device, index, memory_map)
        self.streams = Streams(spec, self._rows_per_stream, num_streams, device, memory_map)
        at_start = round(value_at(n_step, 0)), value_at(gamma, 0)
        self._index: DeviceIndex | None = None
        if sequences is None:
            transitions = Transitions(self.streams, spec.frame_stack, *at_start)
            self._windows: Windows = transitions
            if index == "device":
                self._index = DeviceIndex(transitions, self._sampler)
        else:
            self._windows = Sequences(self.streams, spec.frame_stack, *at_start, sequences)
        self.is_prioritised = isinstance(self._sampler, TrackingSampler)
        if self._index is None:
            self._sampler.attach(self._windows)
        tracker = self._sampler if isinstance(self._sampler, TrackingSampler) else None
        self._tracker: TrackingSampler | DeviceIndex | None = self._index or tracker
        self.needs_priorities = self.is_prioritised and self._index is None
        self.draws_independently = self._sampler.draws_independently or self._index is not None
        self._generator = torch.Generator().manual_seed(seed)
        self._rank = rank

    @staticmethod
    def bytes_needed(
        spec: EnvSpec, capacity: int, num_streams: int = 1, beside: BytesOfSlots | None = None
    ) -> int:
        """Return the bytes that a replay of `capacity` rows keeps, and what is kept `beside` it."""
        slots = (capacity // num_streams + 1) * num_streams
        stored = Streams.bytes_needed(spec, capacity, num_streams)
        return stored + (beside(slots) if beside is not None else 0)

    @staticmethod
    def largest_capacity(
        spec: EnvSpec, nbytes: int, num_streams: int = 1, beside: BytesOfSlots | None = None
    ) -> int:
        """Return the most rows that fit into so many bytes, a multiple of `num_streams`.

        Example:
            >>> spec = EnvSpec.box((1,), "float32", num_actions=2)
            >>> Replay.largest_capacity(spec, Replay.bytes_needed(spec, 60, 3) + 5, 3)
            60
        """
        low, high = 0, max(0, nbytes) // num_streams  # rows of each stream; a row has 10 bytes
        while low < high:
            middle = (low + high + 1) // 2
            needed = Replay.bytes_needed(spec, middle * num_streams, num_streams, beside)
            low, high = (middle, high) if needed <= nbytes else (low, middle - 1)
        return low * num_streams

    def add(self, rows: Rows) -> None:
        """Copy rows in: any mix of streams, in time order within each stream."""
        if self._tracker is None:
            self.env_steps += self.streams.append(rows)
            return
        # In pieces that cannot overwrite rows of their own, so that every change is reported.
        for start in range(0, len(rows), self._rows_per_stream):
            counts, oldest = self.streams.counts.copy(), self.streams.oldest.copy()
            piece = rows[start : start + self._rows_per_stream]
            self.env_steps += self.streams.append(piece)
            self._tracker.rows_changed(
                added=self._windows.became_samplable(counts),
                removed=self._windows.no_longer_samplable(oldest),
            )

    def draw(self, batches: int) -> list[AnyBatch]:
        """Sample all batches together, which costs less than one by one.

        With an index on the device they are drawn in the learner step.
        """
        if self._index is not None:
            return [Drawing(torch.full((self.batch_size, 2), -1), self._index)] * batches
        rows = self.sample(batches * self.batch_size)
        return rows.split(self.batch_size) if batches > 1 else [rows]

    def sample(self, size: int) -> Any:
        """Draw transitions, a `Batch`, or where rows are cut into sequences a `SequenceBatch`.

        The batch is newly allocated: it may be kept for any time. With `n_step` 1 a transition's
        observation and next observation overlap in memory: do not write into them.

        Raises:
            NotEnoughRows: No stored row can be sampled yet.
        """
        if self._index is not None:
            self._index.prepare()
            return self._index.draw(size)
        keys, weights = self._sampler.sample(self._windows, size, self._generator)
        return self._windows.batch(keys, weights)

    def can_draw(self) -> bool:
        """Tell whether one row can be sampled, which is enough: it draws with replacement."""
        return self._windows.any_samplable()

    def samplable_keys(self) -> Tensor:
        """List the keys of all rows that can be sampled now. Slow: for tests and inspection."""
        return torch.from_numpy(self._windows.samplable_keys())

    def learnt(self, keys: Tensor, priorities: Tensor) -> None:
        """Hand priorities to the sampler; those of rows that were overwritten are dropped."""
        if self._index is not None:
            self._index.set_priorities(keys, priorities)
        elif isinstance(self._sampler, TrackingSampler):
            values = priorities.detach().float().cpu().numpy()
            self._sampler.update_priorities(keys.cpu().numpy(), values)

    def metrics(self) -> dict[str, float]:
        """Return its size and the sampler's metrics."""
        return {"replay/size": float(len(self)), **self._chooser.metrics()}

    def anneal(self, learner_step: int) -> None:
        """Set `n_step` and `gamma` to what they are after so many learner steps.

        A longer window may take rows out.

        Example:
            >>> from lrl.schedules import Linear
            >>> spec = EnvSpec.box((1,), "float32", num_actions=2)
            >>> replay = Replay(spec, 100, num_streams=1, n_step=Linear(10.0, 3.0, 1000))
            >>> replay.anneal(500)
            >>> replay.n_step
            6
        """
        n_step, gamma = self._schedules
        self.n_step = round(value_at(n_step, learner_step))
        self.gamma = value_at(gamma, learner_step)

    @property
    def _chooser(self) -> Sampler | DeviceIndex:
        """Who chooses rows, and has a state."""
        return self._index or self._sampler

    @property
    def n_step(self) -> int:
        """Environment steps of a transition; may be changed during a run.

        With priorities a change goes through all rows: 0.3 s for a million.
        """
        return self._windows.n_step

    @n_step.setter
    def n_step(self, n_step: int) -> None:
        if n_step == self.n_step:
            return
        self._check_n_step(n_step)
        if self._tracker is None:
            self._windows.n_step = n_step
            return
        before = self._windows.samplable_keys()
        self._windows.n_step = n_step
        now = self._windows.samplable_keys()
        self._tracker.rows_changed(keys_without(now, before), removed=keys_without(before, now))

    @property
    def gamma(self) -> float:
        """Discount of one environment step; may be changed during a run."""
        return self._windows.gamma

    @gamma.setter
    def gamma(self, gamma: float) -> None:
        _check_gamma(gamma)
        self._windows.gamma = gamma

    @property
    def samples_per_batch(self) -> int:
        """What a batch counts for the rate limiter: each row of a sequence behind its burn-in."""
        return self.batch_size * (1 if self._sequences is None else self._sequences.length)

    @property
    def capacity(self) -> int:
        """Rows that fit: the number asked for, rounded down to equal rings."""
        return self._rows_per_stream * self._num_streams

    @property
    def fill(self) -> float:
        """Share of the capacity that holds rows of any kind."""
        return self.streams.num_rows / self.capacity

    def __len__(self) -> int:
        """Return the number of STEP rows stored now."""
        return self.streams.num_steps

    def settings(self) -> dict[str, Any]:
        """Return what must be the same where saved rows are restored."""
        sequences = {} if self._sequences is None else {"sequences": asdict(self._sequences)}
        sampler = {"sampler": self._sampler.settings(), **sequences}
        return {
            "env_spec": self._spec.as_dict(),
            "replay": {"capacity": self.capacity, **sampler},
            "number of environments": self._num_streams,
        }

    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return generator, counters and the sampler's state, as plain types, tensors and arrays.

        Args:
            with_rows: Whether what belongs to the rows is in it; they are in `streams.columns`.
        """
        sampler = dict(self._chooser.state(with_rows))
        rows = sampler.pop("rows", {})
        state = {
            "generator": self._generator.get_state(),
            "env_steps_inserted": self.env_steps,
            "sampler": sampler,
        }
        if with_rows:
            state |= {"counts": self.streams.counts, "n_step": self.n_step, "sampler_rows": rows}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`: the rows that belong to it, if any, are in `streams` again.

        Without rows it is of a checkpoint, which all ranks read: each draws in its own way.
        """
        own = state["generator"] if "counts" in state else _of_rank(self._rank, state["generator"])
        self._generator.set_state(own)
        self.env_steps = state["env_steps_inserted"]
        self._windows.n_step = state.get("n_step", self.n_step)
        rows = state.get("sampler_rows")  # None without rows, empty where none are kept
        self._chooser.restore({**state["sampler"], "rows": rows})
        if rows == {} and self._tracker is not None:
            keys = self._windows.samplable_keys()
            self._tracker.rows_changed(added=keys, removed=keys[:0])

    def _check_memory(self, capacity: int, device: str, index: str, memory_map: str | None) -> None:
        is_on_gpu = usable_device("replay.device", device).type == "cuda"
        available = torch.cuda.mem_get_info(device)[0] if is_on_gpu else available_bytes()
        beside = None
        if index == "device":
            beside = partial(DeviceIndex.bytes_needed, self._spec)
        elif not is_on_gpu:  # the sampler stays on the host
            beside = self._sampler.bytes_needed
        check_memory(self._spec, capacity, self._num_streams, beside, device, memory_map, available)

    def _check_n_step(self, n_step: int) -> None:
        if n_step < 1:
            raise ConfigError(f"replay.n_step is {n_step}, but a transition has at least 1 step")
        needed, also = self._spec.frame_stack + n_step + 1, ""
        if (cut := self._sequences) is not None:  # wherever the oldest row is, one begins in time
            needed = self._spec.frame_stack + cut.rows(n_step) + cut.period
            also = f", sequences of {cut.burn_in} + {cut.length}"
        if self._rows_per_stream < needed:
            raise ConfigError(
                f"replay.capacity leaves {self._rows_per_stream} rows for each of "
                f"{self._num_streams} streams, but frame_stack {self._spec.frame_stack}{also} and "
                f"n_step {n_step} need {needed}: set replay.capacity to at least "
                f"{needed * self._num_streams}"
            )


def _of_rank(rank: int, generator_state: Tensor) -> Tensor:
    """Return rank 0's generator state as it is, and other states for the other ranks."""
    if rank == 0:
        return generator_state
    generator = torch.Generator()
    generator.set_state(generator_state)
    seeds = torch.randint(2**62, (rank,), generator=generator)
    return torch.Generator().manual_seed(int(seeds[-1])).get_state()


def _check_gamma(gamma: float) -> None:
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"replay.gamma is {gamma}, but a discount lies between 0 and 1")


def check_memory(
    spec: EnvSpec,
    capacity: int,
    num_streams: int,
    beside: BytesOfSlots | None,
    device: str = "cpu",
    memory_map: str | None = None,
    available: int | None = None,
    reserved: int = 0,
    whose: str = "",
) -> None:
    """Check that a replay fits into the memory that is available, as far as that is known.

    Args:
        spec: The environment.
        capacity: Rows over all streams.
        num_streams: Streams that share them.
        beside: Of a sampler or an index that lies in the same memory.
        device: Device of the rows.
        memory_map: Folder of frames that are in a file.
        available: Bytes that are available.
        reserved: Bytes of them for actors.
        whose: What to say of the bytes that are available.

    Raises:
        ConfigError: It does not; the message says how many rows would.
    """
    if memory_map is not None:
        spec = replace(spec, observation={})  # frames cost nothing
    needed = Replay.bytes_needed(spec, capacity, num_streams, beside)
    if available is None or needed + reserved <= available:
        return
    fits = Replay.largest_capacity(spec, available - reserved, num_streams, beside)
    room = f"at most {fits} rows fit"
    if fits == 0:
        room = f"not even one row of each of {num_streams} environments (of all actors) fits"
    also = f" beside {format_bytes(reserved)} for the actors" if reserved else ""
    hint = ""
    if memory_map is None and device == "cpu":
        hint = "; with replay.memory_map, a folder, frames are kept in a file of it instead"
    raise ConfigError(
        f"replay.capacity {capacity} needs {format_bytes(needed)} on {device}{also}, but "
        f"{format_bytes(available)} are available{whose}: {room}{hint}"
    )
