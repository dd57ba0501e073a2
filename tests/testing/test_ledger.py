"""The ledger finds every fault, and none where there is none."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lrl.actors.actor import Actor, FunctionPolicy
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_envs
from lrl.replay import Replay
from lrl.schedules import Constant
from lrl.testing import Ledger, LedgerEnv
from lrl.types import Batch, EnvSpec, RowKind, Rows

SLOT = ActorSlot(7, num_actors=2, envs_per_actor=2)
CLEAN = {"corrupt": 0, "duplicated": 0, "missing": 0}


def joined(parts: list[Rows]) -> Rows:
    columns = [part.columns() for part in parts]
    names = [name for name in columns[0] if all(name in c for c in columns)]
    return Rows.of({name: np.concatenate([c[name] for c in columns]) for name in names})


def picked(rows: Rows, index: np.ndarray) -> Rows:
    return Rows(**{n: v[index].copy() for n, v in vars(rows).items() if v is not None})


def made_by(slot: ActorSlot, frame_stack: int = 1, steps: int = 60) -> Rows:
    """What an actor sends: `steps` steps of each of its two environments."""
    parts: list[Rows] = []

    class Sink:
        def put(self, rows: Rows) -> None:
            parts.append(copy.deepcopy(rows))

        def put_episode(self, episode_return: float, length: int, start_value: float) -> None:
            pass

    envs = make_envs(
        EnvConfig("lrl/Ledger-v0", frame_stack=frame_stack), slot.envs_per_actor, training=True
    )
    actor = Actor(
        envs,
        FunctionPolicy(lambda observation: np.zeros((len(observation), 3), np.float32)),
        EpsilonGreedy(Constant(1.0)),
        Sink(),
        slot,
    )
    for _ in range(steps):
        actor.step()
    return joined(parts)


ROWS = {frame_stack: made_by(SLOT, frame_stack) for frame_stack in (1, 3)}


def found(ledger: Ledger) -> dict[str, int]:
    return {fault: ledger.counts[fault] for fault in CLEAN}


@pytest.fixture(params=[1, 3])
def frame_stack(request) -> int:
    return request.param


def test_rows_of_two_actors_and_a_restart_are_clean_in_chunks_of_any_size(frame_stack):
    rows = joined(
        [
            made_by(SLOT, frame_stack),
            made_by(replace(SLOT, actor=1), frame_stack),
            made_by(SLOT.restarted(), frame_stack),
        ]
    )
    counts = []
    for size in (1, 37, len(rows)):
        ledger = Ledger(LedgerEnv(), frame_stack, slot=SLOT)
        for start in range(0, len(rows), size):
            ledger.take(rows[start : start + size])
        ledger.raise_faults()
        assert found(ledger) == CLEAN
        counts.append((ledger.counts["rows"], ledger.counts["steps"], ledger.counts["instances"]))
    steps = int((rows.kind == RowKind.STEP).sum())
    assert counts == [(len(rows), steps, 6)] * 3


@given(st.integers(0, 79), st.integers(0, 19), st.integers(1, 255))
def test_a_changed_byte_of_a_frame_is_corrupt(index, byte, change):
    rows = copy.deepcopy(ROWS[3])
    rows.frame.reshape(len(rows), -1)[index, byte] ^= change
    ledger = Ledger(LedgerEnv(), 3)
    ledger.take(rows)
    assert ledger.counts["corrupt"] == 1


@pytest.mark.parametrize("column", ["reward", "terminated", "truncated", "kind", "action"])
def test_a_changed_column_is_found(frame_stack, column):
    rows = ROWS[frame_stack]
    for index in np.flatnonzero(rows.kind == RowKind.STEP)[10:30]:
        wrong = copy.deepcopy(rows)
        values = getattr(wrong, column)
        others = {"reward": 99, "kind": RowKind.BOUNDARY, "action": 15}
        values[index] = others.get(column, not values[index])
        ledger = Ledger(LedgerEnv(), frame_stack)
        ledger.take(wrong)
        assert ledger.faults


@given(st.integers(0, 100), st.integers(1, 5))
def test_rows_left_out_are_missing_and_rows_sent_twice_are_duplicated(start, count):
    rows = ROWS[1]
    stream = np.flatnonzero(rows.stream == 0)
    start = min(start, len(stream) - count - 2)
    some = stream[start : start + count]
    kept = np.setdiff1d(np.arange(len(rows)), some)
    ledger = Ledger(LedgerEnv())
    ledger.take(picked(rows, kept))
    assert found(ledger) == {**CLEAN, "missing": 1}
    again = np.insert(np.arange(len(rows)), some[-1] + 1, some)
    ledger = Ledger(LedgerEnv())
    ledger.take(picked(rows, again))
    assert found(ledger) == {**CLEAN, "duplicated": 1}


def test_an_incarnation_that_comes_again_is_found(frame_stack):
    rows = made_by(SLOT.restarted(), frame_stack)  # begins with a gap
    ledger = Ledger(LedgerEnv(), frame_stack)
    ledger.take(rows)
    ledger.take(rows)
    assert ledger.counts["missing"] == 2  # one for each stream


def test_a_stream_holds_the_environment_of_its_slot():
    rows = ROWS[1]
    swapped = replace(rows, stream=(1 - rows.stream).astype(np.int32))
    ledger = Ledger(LedgerEnv())
    ledger.take(swapped)
    ledger.raise_faults()
    ledger = Ledger(LedgerEnv(), slot=SLOT)
    ledger.take(swapped)
    with pytest.raises(AssertionError, match="missing: stream 0, instance"):
        ledger.raise_faults()


def test_clipped_rewards_are_expected_clipped():
    rows = replace(ROWS[1], reward=ROWS[1].reward.clip(-1, 1))
    clipped, raw = Ledger(LedgerEnv(), reward_clip=1.0), Ledger(LedgerEnv())
    clipped.take(rows)
    raw.take(rows)
    assert found(clipped) == CLEAN
    assert raw.counts["corrupt"] > 50


# --- in a replay ----------------------------------------------------------------------------


def replay_of(rows: Rows, frame_stack: int, n_step: int = 1, capacity: int = 1000) -> Replay:
    spec = EnvSpec.box((frame_stack, 5, 4) if frame_stack > 1 else (5, 4), "uint8", 3, frame_stack)
    replay = Replay(spec, capacity, num_streams=4, n_step=n_step, gamma=0.9)
    replay.add(rows)
    return replay


def test_what_a_replay_stores_is_verified_once(frame_stack):
    replay = replay_of(ROWS[frame_stack], frame_stack)
    ledger = Ledger(LedgerEnv(), frame_stack, slot=SLOT)
    ledger.take_new(replay.streams)
    replay.add(made_by(replace(SLOT, actor=1), frame_stack))
    ledger.take_new(replay.streams)
    ledger.take_new(replay.streams)
    ledger.raise_faults()
    assert ledger.counts["rows"] == replay.streams.counts.sum()
    assert ledger.counts["overlooked"] == 0


def test_rows_that_were_overwritten_before_a_look_are_counted():
    replay = replay_of(ROWS[1], 1, capacity=80)
    ledger = Ledger(LedgerEnv())
    ledger.take_new(replay.streams)
    ledger.raise_faults()
    assert ledger.counts["overlooked"] == len(ROWS[1]) - 40
    assert ledger.counts["rows"] == 40


@pytest.mark.parametrize("every", [10, 13, 17])
def test_a_look_that_begins_among_prefix_rows_finds_no_fault(every: int):
    rows = made_by(replace(SLOT, envs_per_actor=1), 4, steps=300)
    replay, ledger = replay_of(rows[:0], 4, capacity=32), Ledger(LedgerEnv(), 4)
    for start in range(0, len(rows), every):
        replay.add(picked(rows, np.arange(start, min(start + every, len(rows)))))
        ledger.take_new(replay.streams)
    ledger.raise_faults()
    assert ledger.counts["overlooked"] > 0


def test_a_kind_that_does_not_exist_is_a_fault():
    rows = copy.deepcopy(ROWS[1])
    rows.kind[5] = 9
    ledger = Ledger(LedgerEnv())
    ledger.take(rows)
    assert any(fault.endswith(" 9") for fault in ledger.faults)


@pytest.mark.parametrize("n_step", [1, 2, 5, 8])
def test_transitions_of_a_replay_are_valid(frame_stack, n_step):
    replay = replay_of(ROWS[frame_stack], frame_stack, n_step)
    batch = replay.sample(2000)
    assert (batch.discount == 0).any()
    ledger = Ledger(LedgerEnv(), frame_stack)
    ledger.take_batch(batch, n_step, 0.9)
    ledger.raise_faults()
    assert ledger.counts["transitions"] == 2000


def moved(part: torch.Tensor) -> torch.Tensor:
    return torch.roll(part, 1, 0)


@pytest.mark.parametrize(
    "fault",
    ["reward", "discount", "action", "next_observation", "observation", "n_step", "stack"],
)
def test_a_wrong_transition_is_found(frame_stack, fault):
    replay = replay_of(ROWS[frame_stack], frame_stack, 3)
    batch = replay.sample(200)
    ledger, n_step = Ledger(LedgerEnv(), frame_stack), 3
    if fault == "n_step":
        n_step = 4
    elif fault == "stack":
        observation = batch.observation.clone()
        observation.view(200, -1)[:, 3] += 1  # the oldest frame's instance
        batch = replace(batch, observation=observation)
    elif fault == "reward":
        batch = replace(batch, reward=batch.reward + 0.5)
    elif fault == "discount":
        batch = replace(batch, discount=batch.discount * 0.9)
    else:
        batch = replace(batch, **{fault: moved(getattr(batch, fault))})
    ledger.take_batch(batch, n_step, 0.9)
    assert ledger.counts["corrupt"] > 50


def test_a_window_longer_than_what_frames_remember_is_refused():
    empty = torch.zeros(0)
    batch = Batch(empty, empty, empty, empty, empty, empty, empty)
    with pytest.raises(ValueError, match="n_step is 9; frames remember 8 actions"):
        Ledger(LedgerEnv()).take_batch(batch, 9, 0.9)
