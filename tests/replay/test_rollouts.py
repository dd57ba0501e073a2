"""Without a replay: lambda-returns of rollouts, each learnt from as often as was asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.replay import Rollouts
from lrl.types import Batch, ConfigError, EnvSpec, RowKind, Rows

STEP, BOUNDARY, PREFIX, GAP = RowKind
PLAIN = EnvSpec.box((1,), "float32", num_actions=2)
STACKED = EnvSpec.box((2, 1), "float32", num_actions=2, frame_stack=2)
GAMMA, LAMBDA = 0.5, 0.5


def rows(
    kinds: Sequence[int],
    rewards: list[float] | None = None,
    values: list[float] | None = None,
    terminated: list[int] | None = None,
    truncated: list[int] | None = None,
    streams: list[int] | None = None,
    masks: list[list[int]] | None = None,
    first_frame: int = 0,
) -> Rows:
    """Rows whose frames and actions follow from their place: frames count, actions alternate."""
    count = len(kinds)

    def column(numbers: list[Any] | None, dtype: type, default: float = 0.0) -> Any:
        return np.array([default] * count if numbers is None else numbers, dtype)

    frames = np.arange(first_frame, first_frame + count)
    return Rows(
        stream=column(streams, np.int32),
        kind=np.array(kinds, np.uint8),
        frame=frames.astype(np.float32)[:, None],
        action=(frames % 2).astype(np.int32),
        reward=column(rewards, np.float32),
        terminated=column(terminated, np.bool_),
        truncated=column(truncated, np.bool_),
        policy_version=np.zeros(count, np.int64),
        action_mask=None if masks is None else np.array(masks, np.bool_),
        value=column(values, np.float32),
    )


def rollouts(spec: EnvSpec = PLAIN, num_streams: int = 1, **arguments: Any) -> Rollouts:
    settings = {"num_minibatches": 1, "epochs": 1, "gamma": GAMMA, "lambda_": LAMBDA}
    return Rollouts(spec, num_streams, **{**settings, **arguments})


def learnt(experience: Rollouts) -> dict[int, tuple[int, float]]:
    """Draw all that there is; return action and return by the newest frame."""
    found: dict[int, tuple[int, float]] = {}
    while experience.can_draw():
        for batch in experience.draw(1):
            frames = batch.observation.flatten(1)[:, -1].int().tolist()
            figures = zip(batch.action.tolist(), batch.reward.tolist(), strict=True)
            found |= dict(zip(frames, figures, strict=True))
            assert batch.discount.tolist() == [0.0] * len(frames)
            assert batch.next_observation is None
    return dict(sorted(found.items()))


def test_returns_by_hand():
    """The last row waits: its value is the first bootstrap, and its step is the next rollout's.

    From behind they are 3 + 8/2, then 2 + (4/2 + 7/2)/2, then 1 + (2/2 + 4.75/2)/2.
    """
    experience = rollouts(num_steps=3)
    experience.add(rows([STEP] * 3, [1, 2, 3], [9, 2, 4]))
    assert not experience.can_draw()
    experience.add(rows([STEP], [5], [8], first_frame=3))
    assert learnt(experience) == {0: (0, 2.6875), 1: (1, 4.75), 2: (0, 7.0)}
    assert not experience.can_draw()
    experience.add(rows([STEP] * 3, [0, 0, 0], [2, 0, 0], first_frame=4))
    assert learnt(experience) == {3: (1, 5 + (2 / 2 + 0) / 2), 4: (0, 0.0), 5: (1, 0.0)}
    assert experience.env_steps == 7


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        # Terminated: 2. Truncated: 2 + 4/2 of the BOUNDARY row. Then 1 + (2/2 + that/2)/2.
        ({"terminated": [0, 1, 0, 0, 0]}, {0: 2.0, 1: 2.0, 3: 3.5}),
        ({"truncated": [0, 1, 0, 0, 0]}, {0: 2.5, 1: 4.0, 3: 3.5}),
    ],
)
def test_a_return_ends_with_its_episode(ends: dict[str, list[int]], expected: dict[int, float]):
    experience = rollouts(num_steps=3)
    kinds = [STEP, STEP, BOUNDARY, STEP, STEP]
    made = rows(kinds, [1, 2, 0, 3, 9], [9, 2, 4, 6, 1], **ends)  # pyright: ignore[reportArgumentType]
    experience.add(made)
    found = learnt(experience)
    assert {frame: value for frame, (_, value) in found.items()} == expected


def test_a_lost_life_ends_a_return_and_no_episode():
    experience = rollouts(num_steps=3)
    experience.add(rows([STEP] * 4, [1, 2, 3, 9], [9, 2, 4, 6], terminated=[0, 1, 0, 0]))
    assert [value for _, value in learnt(experience).values()] == [2.0, 2.0, 6.0]


def test_nothing_is_joined_across_a_gap():
    """The step before it has no successor; with two frames, the step after it has no stack."""
    experience = rollouts(STACKED, num_steps=2)
    kinds = [PREFIX, STEP, STEP, GAP, STEP, STEP, STEP]
    experience.add(rows(kinds, [0, 1, 2, 0, 3, 4, 5], [0, 9, 2, 0, 4, 6, 8]))
    found = learnt(experience)
    assert found == {1: (1, 1 + 2 / 2), 5: (1, 4 + 8 / 2)}


def test_stacks_and_masks_go_with_their_steps():
    spec = EnvSpec.box((2, 1), "float32", 2, frame_stack=2, action_masks=True)
    experience = rollouts(spec, num_steps=3)
    masks = [[1, 1], [1, 0], [0, 1], [1, 1], [1, 1]]
    experience.add(rows([PREFIX, STEP, STEP, STEP, STEP], masks=masks))
    (batch,) = experience.draw(1)
    order = batch.observation[:, 1, 0].argsort()
    assert batch.observation[order, :, 0].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert batch.action_mask is not None
    assert batch.action_mask[order].int().tolist() == [[1, 0], [0, 1], [1, 1]]
    assert batch.weights.tolist() == [1.0] * 3
    assert batch.keys[order].tolist() == [[0, 1], [0, 2], [0, 3]]


def test_each_epoch_is_the_rollout_in_another_order():
    experience = rollouts(num_streams=2, num_steps=8, num_minibatches=4, epochs=3)
    experience.add(rows([STEP] * 18, streams=[0, 1] * 9))
    assert experience.batch_size == 4
    keys = [[tuple(key) for key in batch.keys.tolist()] for batch in experience.draw(99)]
    assert len(keys) == 12
    epochs = [[key for batch in keys[start : start + 4] for key in batch] for start in (0, 4, 8)]
    assert all(Counter(epoch) == Counter(epochs[0]) for epoch in epochs)
    assert len(set(epochs[0])) == 16
    assert epochs[0] != epochs[1] != epochs[2]


@st.composite
def stories(draw: st.DrawFn) -> tuple[EnvSpec, int, Rows]:
    """Random streams side by side: episodes of all lengths, both ends, lives lost, and gaps."""
    spec, num_streams = draw(st.sampled_from([PLAIN, STACKED])), draw(st.integers(1, 3))
    length = draw(st.integers(0, 60))
    random = draw(st.randoms(use_true_random=False))
    columns: list[list[tuple[int, int, int]]] = []
    for _ in range(num_streams):
        kinds: list[tuple[int, int, int]] = []
        while len(kinds) < length:
            kinds += [(PREFIX, 0, 0)] * (spec.frame_stack - 1)
            steps = [(STEP, int(random.random() < 0.1), 0) for _ in range(random.randrange(6))]
            end = random.random() < 0.5
            kinds += [*steps, (STEP, end, not end), (BOUNDARY, 0, 0)]
            if random.random() < 0.3:
                del kinds[random.randrange(1, 4) * -1 :]
                kinds += [(GAP, 0, 0)]
        columns.append(kinds[:length])
    mixed = [row for rows in zip(*columns, strict=True) for row in rows]
    numbers = [float(random.randrange(-3, 4)) for _ in range(2 * len(mixed))]
    made = rows(
        [kind for kind, _, _ in mixed],
        numbers[::2],
        numbers[1::2],
        [terminated for _, terminated, _ in mixed],
        [truncated for _, _, truncated in mixed],
        list(range(num_streams)) * length,
    )
    return spec, num_streams, made


class Naive:
    """Returns by their definition, of the rows that have come so far."""

    def __init__(self, spec: EnvSpec, all_rows: Rows, count: int) -> None:
        self.before = spec.frame_stack - 1
        self.streams: dict[int, list[Any]] = {}
        for index in range(count):
            names = "kind", "reward", "value", "terminated"
            row = {name: getattr(all_rows, name)[index].item() for name in names}
            self.streams.setdefault(int(all_rows.stream[index]), []).append(row)

    def is_learnable(self, stream: int, number: int) -> bool:
        known = self.streams[stream]
        if number >= len(known) or known[number]["kind"] != STEP or number < self.before:
            return False
        if any(row["kind"] == GAP for row in known[number - self.before : number + 1]):
            return False
        is_followed = number + 1 < len(known) and known[number + 1]["kind"] in (STEP, BOUNDARY)
        return known[number]["terminated"] or is_followed

    def value(self, stream: int, number: int) -> float:
        row = self.streams[stream][number]
        if row["terminated"]:
            return row["reward"]
        later = value = self.streams[stream][number + 1]["value"]
        if self.is_learnable(stream, number + 1):
            later = self.value(stream, number + 1)
        return row["reward"] + GAMMA * ((1 - LAMBDA) * value + LAMBDA * later)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(stories(), st.integers(1, 20), st.integers(1, 4))
def test_rollouts_hold_what_the_definition_says(story, piece, num_steps):
    spec, num_streams, all_rows = story
    experience = rollouts(spec, num_streams, num_steps=num_steps, epochs=2)
    seen: set[tuple[int, ...]] = set()
    for start in range(0, len(all_rows), piece):
        part = all_rows[start : start + piece]
        experience.add(part)
        naive = Naive(spec, all_rows, start + len(part))
        while experience.can_draw():
            rollout = {tuple(key) for key in experience._keys.tolist()}
            assert not seen & rollout
            seen |= rollout
            batches = experience.draw(2)
            keys = [[tuple(key) for key in batch.keys.tolist()] for batch in batches]
            for batch, drawn in zip(batches, keys, strict=True):
                assert len(set(drawn)) == num_steps * num_streams
                assert rollout.issuperset(drawn)
                expected = [naive.value(*key) for key in drawn]
                assert batch.reward.tolist() == pytest.approx(expected, abs=1e-5)
    # All that can be learnt from was in one of them, or is to be in the next one.
    if experience.rows_left_out:  # pieces were as long as the ring
        assert piece > 6
        return
    naive, first = Naive(spec, all_rows, len(all_rows)), experience._first
    past = [(stream, n) for stream in naive.streams for n in range(first[stream])]
    assert seen == {key for key in past if naive.is_learnable(*key)}


def test_a_rollout_goes_on_where_it_was():
    """Rows come back into the streams by themselves; here another one's are taken."""
    arguments: dict[str, Any] = {
        "num_streams": 2,
        "num_steps": 6,
        "num_minibatches": 3,
        "epochs": 2,
    }
    straight, first = rollouts(**arguments), rollouts(**arguments)
    again = rollouts(**arguments)
    past = rows([STEP] * 15, list(range(15)), list(range(15)), streams=[0, 1] * 7 + [0])
    future = rows([STEP] * 15, list(range(15)), list(range(15)), streams=[1, 0] * 7 + [1])
    straight.add(past)
    first.add(past)
    assert len(straight.draw(2)) == len(first.draw(2)) == 2
    again.streams = first.streams
    again._transitions = first._transitions
    again.restore(first.state(with_rows=True))

    def rest(experience: Rollouts) -> list[Batch]:
        drawn = experience.draw(99)
        experience.add(future)
        return drawn + experience.draw(99)

    pairs = list(zip(rest(straight), rest(again), strict=True))
    assert len(pairs) == 4 + 6
    for left, right in pairs:
        assert torch.equal(left.keys, right.keys)
        assert torch.equal(left.reward, right.reward)
    assert straight.env_steps == again.env_steps == 30


def test_without_rows_steps_and_order_go_on():
    first, again = rollouts(num_steps=4), rollouts(num_steps=4)
    first.add(rows([STEP] * 5))
    again.restore(first.state(with_rows=False))
    assert not again.can_draw()
    assert again.env_steps == 5
    orders = []
    for experience, needed in ((first, 4), (again, 5)):
        learnt(experience)
        experience.add(rows([STEP] * needed))
        offset = experience.draw(1)[0].keys[:, 1]
        orders.append((offset - offset.min()).tolist())
    assert orders[0] == orders[1]


def test_actors_in_the_background_fill_the_next_rollout_then_wait():
    experience = rollouts(num_streams=2, num_steps=8, num_minibatches=4)
    turns = 0
    while not experience.can_draw() or experience.has_room():
        experience.add(rows([STEP] * 2, streams=[0, 1]))
        turns += 1
    assert 16 <= turns < 24
    assert len(experience.draw(4)) == 4
    assert experience.can_draw()  # at once
    assert experience.has_room()
    assert experience.metrics() == {"count/rows_left_out": 0.0}


def test_what_is_overwritten_is_left_out():
    """One stream brings more than its ring holds, while its rollout is learnt from."""
    experience = rollouts(STACKED, num_streams=2, num_steps=8, num_minibatches=4, epochs=2)
    experience.add(rows([STEP] * 20, streams=[0, 1] * 10))
    assert len(experience.draw(1)) == 1
    experience.add(rows([STEP] * 33))
    assert experience.metrics()["count/rows_left_out"] > 0
    left = [tuple(key) for batch in experience.draw(99) for key in batch.keys.tolist()]
    assert left
    assert {stream for stream, _ in left} <= {0, 1}
    assert all(number >= 3 for stream, number in left if stream == 0)


def test_values_are_asked_for():
    given = rows([STEP])
    without = Rows(**{**vars(given), "value": None})
    with pytest.raises(ValueError, match=r"rows\.value is missing, expected float32\[1\]"):
        rollouts().add(without)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_steps": 0},
        {"num_minibatches": 0},
        {"num_minibatches": 3},
        {"epochs": 0},
        {"gamma": 1.5},
        {"lambda_": -0.1},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match=rf"experience\.{next(iter(wrong))}"):
        rollouts(num_streams=2, **{"num_steps": 4, **wrong})


@pytest.mark.parametrize("huge", [{"num_steps": 10**12}, {"epochs": 10**12}])
def test_what_does_not_fit_into_memory_is_refused(huge: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"num_steps \d+ x 4 environments.* epochs, need .* GB"):
        rollouts(num_streams=4, **huge)
