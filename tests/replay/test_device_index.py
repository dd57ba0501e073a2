"""The index on a device against the host's: the same keys, weights, batches and priorities."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from helpers.replay_rows import RandomStream, episode, make_spec, pack
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lrl.doctor.pretended_gpu import PretendedGpu
from lrl.parts.tape import Tape
from lrl.replay import DeviceIndex, NotEnoughRows, PrioritizedSampler, RankSampler, Replay
from lrl.replay.transitions import Transitions
from lrl.schedules import Constant, Linear
from lrl.types import ActionSpec, Batch, Column, ConfigError, EnvSpec, Rows

Normalisation = Literal["batch", "buffer"]
SPEC = EnvSpec.box((2,), "float32", 5)


class Telling(PrioritizedSampler):
    """Tells an index, too, what its replay says of rows."""

    index: DeviceIndex

    def rows_changed(self, added: np.ndarray, removed: np.ndarray) -> None:
        super().rows_changed(added, removed)
        self.index.rows_changed(added, removed)


class Pair:
    """A replay whose index is on the host, and another index of its rows; both draw the same."""

    def __init__(
        self, spec: EnvSpec, capacity: int, num_streams: int, sampler: Any, **settings: Any
    ) -> None:
        self.told = Telling(**sampler)
        self.replay = Replay(spec, capacity, num_streams, sampler=self.told, **settings)
        for column in self.replay.streams.columns.values():
            if column.is_floating_point():
                column.fill_(torch.nan)  # whoever reads an unwritten row gets NaN
        on_gpu = self.replay.streams.device.type == "cuda"
        self._generator = None if on_gpu else torch.Generator()
        windows: Any = self.replay._windows
        self.index = DeviceIndex(windows, PrioritizedSampler(**sampler), self._generator)
        self.told.index = self.index

    def draw(self, size: int) -> tuple[Batch, Batch]:
        """Draw the same from both."""
        assert self._generator is not None
        self._generator.set_state(self.replay._generator.get_state())
        return self.replay.sample(size), self.index.draw(size)

    def set_priorities(self, keys: Tensor, priorities: Tensor) -> None:
        self.replay.learnt(keys, priorities)
        self.index.set_priorities(keys, priorities)

    def assert_same_leaves(self) -> None:
        host, there = self.told.state(with_rows=True), self.index.state(with_rows=True)
        leaves, found = host["rows"]["leaves"], there["rows"]["leaves"]
        # numpy and torch have powers of their own, which may differ in the last digit.
        np.testing.assert_allclose(found, leaves, rtol=1e-14, atol=0)
        assert host["priority_max"] == there["priority_max"]
        assert host["batches"] == there["batches"]
        tree = self.index._tree
        np.testing.assert_allclose(tree._sums[:-1].sum().item(), self.told._tree.total, rtol=1e-12)
        if tree._minima is not None:
            np.testing.assert_allclose(tree.minimum.item(), self.told._tree.minimum, rtol=1e-14)


def assert_same(found: Batch, expected: Batch) -> None:
    columns, others = found.columns(), expected.columns()
    assert columns.keys() == others.keys()
    for name, column in columns.items():
        # Weights are made of leaves, whose last digits may differ, and have fewer of them.
        tolerance = 2e-7 if name == "weights" else 0
        torch.testing.assert_close(column.cpu(), others[name], rtol=tolerance, atol=0, msg=name)


def rich_spec(frame_stack: int) -> EnvSpec:
    observation = {
        "far": Column("uint8", (2, 3), frame_stack),
        "near": Column("float32", ()),
        "kind": Column("int8", (2,), categories=(100, 100)),
    }
    memory = {"h": Column("float32", (3,))}
    return EnvSpec(observation, ActionSpec((5, 2), masks=True), memory)


def rich(rows: Rows) -> Rows:
    """Give rows leaves, two branches, masks and a memory, all made of their names."""
    names = np.abs(rows.frame[:, 0]).astype(np.int64)
    return replace(
        rows,
        frame={
            "far": (names[:, None] + np.arange(6)).reshape(-1, 2, 3).astype(np.uint8),
            "near": names.astype(np.float32),
            "kind": (names[:, None] % (100, 7)).astype(np.int8),
        },
        action=np.stack((rows.action, names % 2), axis=1).astype(np.int32),
        action_mask=(names[:, None] + np.arange(7)) % 3 > 0,
        memory={"h": (names[:, None] * (1, 2, 3)).astype(np.float32)},
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    normalisation=st.sampled_from(["batch", "buffer"]),
    alpha=st.sampled_from([0.0, 0.5, 0.6, 1.0]),
    is_rich=st.booleans(),
    frame_stack=st.integers(1, 4),
    num_streams=st.integers(1, 4),
    extra_rows=st.integers(0, 70),
    chunk_rows=st.integers(1, 120),
    hazard=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_equals_the_index_of_the_host(
    normalisation: Normalisation,
    alpha: float,
    is_rich: bool,
    frame_stack: int,
    num_streams: int,
    extra_rows: int,
    chunk_rows: int,
    hazard: float,
    seed: int,
) -> None:
    """Append, overwrite, anneal, draw and set priorities, with streams of any odd length."""
    rng = np.random.default_rng(seed)
    rows_per_stream = frame_stack + 6 + extra_rows
    sampler = {"alpha": alpha, "beta": Linear(0.3, 0.9, 6), "weight_normalisation": normalisation}
    spec = rich_spec(frame_stack) if is_rich else make_spec(frame_stack)
    pair = Pair(spec, rows_per_stream * num_streams, num_streams, sampler, gamma=0.5)
    environments = [RandomStream(rng, frame_stack, hazard) for _ in range(num_streams)]
    past = torch.empty(0, 2, dtype=torch.int64)
    for _ in range(8):
        streams = rng.integers(num_streams, size=chunk_rows)
        rows = pack([(int(stream), environments[stream].next_row()) for stream in streams])
        pair.replay.add(rich(rows) if is_rich else rows)
        assert not len(pair.index._unknown_rows()["slots"])
        pair.replay.n_step = int(rng.integers(1, 6))
        pair.replay.gamma = float(rng.choice([0.0, 0.9, 1.0]))
        pair.assert_same_leaves()
        if not pair.replay.can_draw():
            with pytest.raises(NotEnoughRows):
                pair.index.draw(5)
            continue
        pair.index.prepare()
        expected, found = pair.draw(9)
        assert_same(found, expected)
        past = torch.cat((past, found.keys))
        chosen = past[torch.from_numpy(rng.integers(len(past), size=11))]  # some stale or twice
        pair.set_priorities(chosen, torch.from_numpy(rng.integers(0, 40, 11) / 8))
        pair.assert_same_leaves()


def sampled(priorities: list[float], sampler: Any, **settings: Any) -> Pair:
    """A terminated episode, whose row t has priority `priorities[t]`."""
    pair = Pair(SPEC, 400, 1, sampler, **settings)
    pair.replay.add(pack([(0, row) for row in episode([1.0, 2.0, 4.0])]))
    if priorities:
        keys = torch.tensor([(0, number) for number in range(len(priorities))])
        pair.index.set_priorities(keys, torch.tensor(priorities))
    return pair


@pytest.mark.parametrize("normalisation", ["batch", "buffer"])
def test_a_batch_by_hand(normalisation: Normalisation) -> None:
    """Leaves 1, 2 and 4; with two steps and gamma 0.5 the returns are 2, 4 and 4."""
    sampler = {"beta": Constant(0.5), "epsilon": 0.25, "weight_normalisation": normalisation}
    index = sampled([0.75, 3.75, 15.75], sampler, n_step=2, gamma=0.5).index
    assert index.state(with_rows=True)["rows"]["leaves"][:5].tolist() == [1, 2, 4, 0, 0]
    index.prepare()
    uniforms = torch.tensor([0.5, 0.25, 0.99]).double()  # of 7/3: 1.17, 2.92 and 6.98 of 7
    batch = index._batch(*index._choose(uniforms))
    assert batch.keys.tolist() == [[0, 1], [0, 1], [0, 2]]
    smallest = {"batch": 2, "buffer": 1}[normalisation]
    expected = [(smallest / leaf) ** 0.5 for leaf in (2, 2, 4)]
    assert batch.weights.tolist() == pytest.approx(expected)
    assert batch.reward.tolist() == [4, 4, 4]
    assert batch.discount.tolist() == [0, 0, 0]
    assert batch.observation[:, 0].tolist() == [1, 1, 2]
    batch = index._batch(*index._choose(torch.tensor([0.0]).double()))
    assert (batch.keys.tolist(), batch.reward.tolist()) == ([[0, 0]], [2])
    assert batch.discount.tolist() == [0.25]
    assert batch.next_observation.tolist() == [[2, -2]]


def test_of_a_row_that_is_there_twice_the_last_priority_counts() -> None:
    index = sampled([1.0, 1.0, 1.0], {"alpha": 1.0, "epsilon": 1.0}).index
    keys = torch.tensor([[0, 0], [0, 1], [0, 0], [0, 1], [0, 0], [0, 7]])
    index.set_priorities(keys, torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 90.0]))
    assert index._tree.leaves[:8].tolist() == [6, 7, 2, 0, 0, 0, 0, 0]
    assert index.metrics()["replay/priority_max"] == 90  # as on the host, also of what is gone


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_a_priority_that_cannot_be_set_is_left_out_and_told_of(wrong: float) -> None:
    index = sampled([1.0, 1.0, 1.0], {"alpha": 1.0, "epsilon": 1.0}).index
    index.metrics()
    index.set_priorities(torch.tensor([[0, 0], [0, 1]]), torch.tensor([wrong, 3.0]))
    assert index._tree.leaves[:3].tolist() == [2, 4, 2]
    assert index.state(with_rows=False)["priority_max"] == 3
    with pytest.raises(ValueError, match="priority was negative, NaN or infinite"):
        index.metrics()


@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), n_step=st.integers(1, 3))
def test_what_was_recorded_once_goes_on_between_appends(seed: int, n_step: int) -> None:
    """On a tape, draws and new priorities are those of an index that is called."""
    called, recorded = (random_pair(seed, n_step) for _ in range(2))
    torch.manual_seed(seed)
    expected = [list(learn(called[0].index)) for _ in repeated(*called)]
    torch.manual_seed(seed)
    pair, found, tape = recorded[0], list[list[Tensor]](), None
    for _ in repeated(*recorded):
        if tape is None:
            tape = Tape(functools.partial(learn, pair.index), [])
            found.append([output.clone() for output in tape.outputs])
        else:
            found.append(list(tape([])))
    assert len(found) == 50
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    theirs, own = called[0].index.state(with_rows=True), pair.index.state(with_rows=True)
    assert theirs["rows"].pop("leaves").tolist() == own["rows"].pop("leaves").tolist()
    assert theirs == own


def learn(index: DeviceIndex) -> list[Tensor]:
    """Draw and set priorities that follow from what was drawn, twice."""
    outputs: list[Tensor] = []
    for _ in range(2):
        batch = index.draw(8)
        index.set_priorities(batch.keys, batch.observation[:, 0].abs() % 7 + batch.reward.abs())
        outputs += batch.columns().values()
    return outputs


def random_pair(seed: int, n_step: int, device: str = "cpu") -> tuple[Pair, Any]:
    sampler = {"beta": Linear(0.3, 0.9, 40), "weight_normalisation": "buffer"}
    pair = Pair(SPEC, 120, 2, sampler, n_step=n_step, device=device)
    pair.index._generator = None
    rng = np.random.default_rng(seed)
    return pair, [RandomStream(rng, 1, 0.1) for _ in range(2)]


def repeated(pair: Pair, environments: list[RandomStream]) -> Iterator[None]:
    """Go on 50 times, before each with more rows and another gamma."""
    for step in range(50):
        count = 60 if step == 0 else step % 4
        pair.replay.add(
            pack([(s, environments[s].next_row()) for s in (0, 1) for _ in range(count)])
        )
        pair.replay.gamma = 0.5 + step / 100
        pair.index.prepare(2)
        yield


@pytest.fixture
def gpu() -> Iterator[PretendedGpu]:
    with PretendedGpu() as gpu:
        yield gpu


def noted(gpu: PretendedGpu, function: Callable[..., Any], *args: Any) -> dict[str, int]:
    gpu.notes.clear()
    function(*args)
    kinds = [note.kind for note in gpu.notes]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


DRAWING = {1: 48, 3: 66}  # operations, by n_step
SETTING = {"batch": 31, "buffer": 35}


@pytest.mark.parametrize("normalisation", ["batch", "buffer"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_nothing_is_asked_of_the_host(
    gpu: PretendedGpu, n_step: int, normalisation: Normalisation
) -> None:
    sampler = {"weight_normalisation": normalisation}
    spec = make_spec(frame_stack=4)
    index = on_device(spec, sampler, n_step)
    environment = RandomStream(np.random.default_rng(0), 4, 0.0)
    for _ in range(3):
        rows = pack([(0, environment.next_row()) for _ in range(40)])
        index.streams.append(rows)
        told = noted(gpu, *index.told())
        assert told.keys() == {"kernel", "to_device"}
        assert told["to_device"] == 1
    assert noted(gpu, index.index.prepare) == {"kernel": 1, "to_device": 1}  # powers of gamma
    assert noted(gpu, index.index.prepare) == {"kernel": 1}
    batches: list[Batch] = []
    drawn = noted(gpu, lambda: batches.append(index.index.draw(32)))
    keys, priorities = batches[0].keys, batches[0].reward.abs()
    updated = noted(gpu, index.index.set_priorities, keys, priorities)
    assert drawn == {"kernel": DRAWING[n_step]}
    assert updated == {"kernel": SETTING[normalisation]}
    windows = index.windows
    windows.gamma = 0.7
    assert noted(gpu, index.index.prepare) == {"kernel": 2, "to_device": 1}


class OnDevice:
    """An index with its streams, told of what is appended to them."""

    def __init__(self, windows: Transitions, sampler: Any) -> None:
        self.windows, self.streams = windows, windows.streams
        self.index = DeviceIndex(windows, PrioritizedSampler(**sampler))
        self._counts, self._oldest = self.streams.counts.copy(), self.streams.oldest.copy()

    def told(self) -> tuple[Callable[..., None], np.ndarray, np.ndarray]:
        added = self.windows.became_samplable(self._counts)
        removed = self.windows.no_longer_samplable(self._oldest)
        self._counts, self._oldest = self.streams.counts.copy(), self.streams.oldest.copy()
        return self.index.rows_changed, added, removed


def on_device(spec: EnvSpec, sampler: Any, n_step: int) -> OnDevice:
    replay = Replay(spec, 100, 1, n_step=n_step, device="cuda")
    windows: Any = replay._windows
    return OnDevice(windows, sampler)


def test_a_graph_learns_what_the_operations_learn(gpu: PretendedGpu) -> None:
    assert_a_graph_learns_the_same()


@pytest.mark.gpu
def test_a_graph_of_cuda_learns_what_the_operations_learn() -> None:
    assert_a_graph_learns_the_same()


def assert_a_graph_learns_the_same() -> None:
    eager, graphed = random_pair(0, 3, "cuda"), random_pair(0, 3, "cuda")
    torch.manual_seed(0)
    expected = [[x.cpu() for x in learn(eager[0].index)] for _ in repeated(*eager)]
    torch.manual_seed(0)
    graph, outputs, found = torch.cuda.CUDAGraph(), list[Tensor](), []
    for step, _ in enumerate(repeated(*graphed)):
        if step == 0:
            with torch.cuda.graph(graph):
                outputs = learn(graphed[0].index)
        graph.replay()
        found.append([output.cpu() for output in outputs])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    theirs, own = (each[0].index.state(with_rows=True) for each in (eager, graphed))
    assert theirs["rows"].pop("leaves").tolist() == own["rows"].pop("leaves").tolist()
    assert theirs == own


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_saved_index_goes_on_here_and_there(gpu: PretendedGpu, device: str) -> None:
    one, environments = random_pair(3, 2)
    one._generator = one.index._generator = torch.Generator()
    for _ in repeated(one, environments):
        expected, found = one.draw(8)
        one.replay.sample(1)  # the second of the batches that were prepared for
        assert_same(found, expected)
        one.set_priorities(found.keys, found.reward.abs())
    other, _ = random_pair(3, 2, device)
    for name, column in one.replay.streams.columns.items():
        other.replay.streams.columns[name].copy_(column)
    other.replay.streams.restore(one.replay.streams.counts)
    saved = one.told.state(with_rows=True)
    other.index.restore(saved)
    again = other.index.state(with_rows=True)
    assert again["rows"].pop("leaves").tolist() == saved["rows"].pop("leaves").tolist()
    assert again == saved
    back = PrioritizedSampler(weight_normalisation="buffer")
    back.attach(other.replay._windows)
    back.restore(other.index.state(with_rows=True))
    assert back._tree.leaves.tolist() == one.told._tree.leaves.tolist()
    other.replay.gamma = one.replay.gamma
    other.index.prepare()
    uniforms = torch.rand(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one.replay._generator.manual_seed(1)
    there = other.index._batch(*other.index._choose(uniforms.to(other.index.device)))
    assert_same(there, one.replay.sample(16))


def test_without_rows_only_counts_are_restored() -> None:
    pair = sampled([1.0, 7.0, 1.0], {"beta": Linear(0.0, 1.0, 10)})
    pair.index.prepare(5)
    state = pair.index.state(with_rows=False)
    assert state == {"batches": 5, "priority_max": 7.0}
    other = sampled([], {"beta": Linear(0.0, 1.0, 10)})
    before = other.index.state(with_rows=True)["rows"]["leaves"]
    other.index.restore(state)
    assert other.index.metrics()["replay/beta"] == 0.5
    assert other.index.state(with_rows=False) == state
    assert (other.index.state(with_rows=True)["rows"]["leaves"] == before).all()


def test_bytes_needed_are_those_of_its_tensors() -> None:
    pair = sampled([1.0], {"weight_normalisation": "buffer"})
    index = pair.index
    tensors = [index._flags, index._action, index._reward, index._number]
    tensors += [index._tree._blocks, index._tree._sums, index._tree._minima]
    assert index.bytes_needed(SPEC, 401) == sum(each.nbytes for each in tensors)


def test_another_n_step_is_prepared_for() -> None:
    pair = sampled([1.0], {}, n_step=1)
    pair.index.prepare()
    pair.replay.n_step = 3
    with pytest.raises(RuntimeError, match=r"n_step was changed: call DeviceIndex.prepare"):
        pair.index.draw(2)
    pair.index.prepare()
    assert pair.index.draw(2).discount.tolist() == [0, 0]


def test_what_it_cannot_do_is_refused() -> None:
    windows: Any = Replay(SPEC, 100, 1)._windows
    rank: Any = RankSampler()
    with pytest.raises(ConfigError, match="sampler is RankSampler: set it to PrioritizedSampler"):
        DeviceIndex(windows, rank)
    sampler = PrioritizedSampler()
    sampler.minimum_of_ranks = lambda number: number
    with pytest.raises(ConfigError, match="there are several"):
        DeviceIndex(windows, sampler)
