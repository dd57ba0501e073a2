from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.replay_rows import Row, episode, filled, make_spec, pack

from lrl.replay import NotEnoughRows, Replay, Streams
from lrl.schedules import Exponential, Linear, Schedule
from lrl.types import Batch, ConfigError, EnvSpec, RowKind

ATARI = EnvSpec.box((4, 84, 84), "uint8", num_actions=6, frame_stack=4, frame_skip=4)


def all_transitions(buffer: Replay) -> Batch:
    """Every samplable row once, oldest first."""
    keys = buffer.samplable_keys().numpy()
    return buffer._windows.batch(keys, np.ones(len(keys), np.float32))


def names(observations: torch.Tensor) -> list:
    return observations[..., 0].tolist()


def test_one_step_transitions_of_an_episode() -> None:
    batch = all_transitions(filled(episode([1.0, 2.0, 3.0]), gamma=0.9))
    assert names(batch.observation) == [0, 1, 2]
    assert batch.action.tolist() == [0, 1, 2]
    assert batch.reward.tolist() == [1, 2, 3]
    assert batch.discount.tolist() == pytest.approx([0.9, 0.9, 0.0])
    assert names(batch.next_observation)[:2] == [1, 2]
    assert batch.weights.tolist() == [1, 1, 1]
    assert batch.keys.tolist() == [[0, 0], [0, 1], [0, 2]]


def test_two_step_transitions_of_an_episode() -> None:
    batch = all_transitions(filled(episode([1.0, 2.0, 4.0, 8.0]), n_step=2, gamma=0.5))
    assert batch.reward.tolist() == [2, 4, 8, 8]
    assert batch.discount.tolist() == [0.25, 0.25, 0, 0]
    assert names(batch.next_observation)[:2] == [2, 3]


@pytest.mark.parametrize(
    ("n_step", "final", "discount", "reward"),
    [
        (1, [1, 2, 3], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0]),
        (2, [2, 3, 3], [0.25, 0.25, 0.5], [1.5, 1.5, 1.0]),
    ],
)
def test_truncation_bootstraps_from_the_true_final_observation(
    n_step: int, final: list[int], discount: list[float], reward: list[float]
) -> None:
    rows = episode([1.0, 1.0, 1.0], end="truncated") + episode([5.0] * 4, first=100)
    batch = all_transitions(filled(rows, n_step=n_step, gamma=0.5))
    assert names(batch.observation)[:3] == [0, 1, 2]
    assert names(batch.next_observation)[:3] == final  # 3 is the boundary row, not 100
    assert batch.discount.tolist()[:3] == discount
    assert batch.reward.tolist()[:3] == reward


def test_an_open_episode_waits_for_the_next_row() -> None:
    rows = episode([1.0, 2.0, 3.0], end="open")
    buffer = filled(rows[:1])
    with pytest.raises(NotEnoughRows):
        buffer.sample(1)
    buffer.add(pack([(0, rows[1])]))
    assert names(all_transitions(buffer).observation) == [0]
    buffer.add(pack([(0, rows[2])]))
    assert names(all_transitions(buffer).observation) == [0, 1]


def test_truncated_row_waits_for_its_boundary_row() -> None:
    rows = episode([1.0], end="truncated")
    buffer = filled(rows[:1])
    assert not buffer.can_draw()
    buffer.add(pack([(0, rows[1])]))
    assert buffer.can_draw()
    buffer.streams.clear()
    assert not buffer.can_draw()


def test_life_loss_ends_the_target_but_not_the_stream() -> None:
    rows = episode([1.0, 2.0, 4.0, 8.0], end="truncated")
    rows[1].terminated = True
    batch = all_transitions(filled(rows, n_step=3, gamma=0.5))
    assert batch.reward.tolist() == [2, 2, 8, 8]
    assert batch.discount.tolist() == [0, 0, 0.25, 0.5]


def test_nothing_is_joined_across_a_gap() -> None:
    rows = episode([1.0, 2.0], end="open", frame_stack=2)
    rows += [Row(RowKind.GAP, -1)]
    rows += episode([4.0, 8.0], frame_stack=2, first=100)
    batch = all_transitions(filled(rows, n_step=1, frame_stack=2))
    assert names(batch.observation) == [[0, 0], [100, 100], [100, 101]]


@pytest.mark.parametrize("length", range(1, 11))
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_n_step_returns_by_episode_length(length: int, end: str) -> None:
    rewards = [float(t + 1) for t in range(length)]
    rows = episode(rewards, end) + episode([100.0] * 5, end)
    batch = all_transitions(filled(rows, n_step=3, gamma=0.5))
    for t in range(length):
        window = rewards[t : t + 3]
        assert batch.reward[t] == sum(0.5**j * reward for j, reward in enumerate(window))
        terminated = end == "terminated" and t + 3 >= length
        assert batch.discount[t] == (0 if terminated else 0.5 ** len(window))


def test_stacks_are_rebuilt_across_an_episodes_edge() -> None:
    rows = episode([1.0] * 3, frame_stack=4) + episode([1.0] * 2, frame_stack=4, first=10)
    batch = all_transitions(filled(rows, frame_stack=4))
    assert names(batch.observation) == [
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 1, 2],
        [10, 10, 10, 10],
        [10, 10, 10, 11],
    ]


def test_ring_overwrites_the_oldest_and_length_saturates() -> None:
    buffer = filled(episode([1.0] * 1000, end="open"), capacity=37)
    assert buffer.capacity == len(buffer) == 37
    assert buffer.fill == 1.0
    assert buffer.env_steps == 1000
    assert names(all_transitions(buffer).observation) == list(range(963, 999))


def test_capacity_is_rounded_down_to_equal_rings() -> None:
    assert Replay(make_spec(), 100, 3).capacity == 99


def test_frames_take_little_memory() -> None:
    """100 k Atari steps in 0.75 GB and 1 M in 7.5 GB, in storage that was really allocated."""
    assert Replay.bytes_needed(ATARI, 100_000, 64) <= 0.75e9
    assert Replay.bytes_needed(ATARI, 1_000_000, 64) <= 7.5e9
    assert Replay(ATARI, 900, 9).nbytes == Replay.bytes_needed(ATARI, 900, 9)


def test_atari_batch_has_the_networks_shape_and_type() -> None:
    buffer = Replay(ATARI, 100, 1)
    rows = pack([(0, row) for row in episode([1.0] * 9, frame_stack=4)])
    frame = np.arange(len(rows), dtype=np.uint8)[:, None, None] + np.zeros((84, 84), np.uint8)
    buffer.add(replace(rows, frame=frame))
    batch = buffer.sample(16)
    assert batch.observation.shape == batch.next_observation.shape == (16, 4, 84, 84)
    assert batch.observation.dtype == torch.uint8
    inner = batch.discount > 0
    assert inner.any()
    assert torch.equal(batch.next_observation[inner, :3], batch.observation[inner, 1:])
    assert torch.equal(batch.observation[:, 3, 0, 0], batch.keys[:, 1].to(torch.uint8))
    assert (batch.action.dtype, batch.keys.dtype) == (torch.int64, torch.int64)
    assert (batch.reward.dtype, batch.discount.dtype) == (torch.float32, torch.float32)


def test_a_batch_outlives_later_batches_and_rows() -> None:
    buffer = filled(episode([1.0] * 30), capacity=40, n_step=1)
    first = buffer.sample(8)
    kept = [first.observation.clone(), first.next_observation.clone(), first.keys.clone()]
    buffer.add(pack([(0, row) for row in episode([1.0] * 60, first=500)]))
    buffer.sample(8)
    assert torch.equal(first.observation, kept[0])
    assert torch.equal(first.next_observation, kept[1])
    assert torch.equal(first.keys, kept[2])


def test_uniform_over_rows_of_unequal_streams() -> None:
    """Each of 60 samplable rows is drawn 1 of 60 times, though its streams differ in length."""
    buffer = filled(episode([1.0] * 10), episode([1.0] * 50), frame_stack=1, seed=3)
    keys, counts = torch.unique(
        torch.cat([buffer.sample(1000).keys for _ in range(60)]), dim=0, return_counts=True
    )
    assert len(keys) == 60
    chi_square = ((counts - 1000.0) ** 2 / 1000.0).sum().item()
    assert chi_square < 59 + 5 * (2 * 59) ** 0.5


def test_draw_ends_when_almost_no_row_is_samplable() -> None:
    waste = [Row(RowKind.BOUNDARY, -1)] * 5000
    rows = waste + episode([1.0, 2.0]) + waste
    buffer = filled(rows, capacity=20_000, seed=1)
    batch = buffer.sample(1000)
    assert 400 < (batch.keys[:, 1] == 5000).sum() < 600
    assert set(batch.keys[:, 1].tolist()) == {5000, 5001}


def test_same_seed_same_batches_and_resume_continues_them() -> None:
    rows = episode([1.0] * 50)
    one, two = filled(rows, seed=7), filled(rows, seed=7)
    assert torch.equal(one.sample(32).keys, two.sample(32).keys)
    assert not torch.equal(
        filled(rows, seed=8).sample(32).keys, filled(rows, seed=7).sample(32).keys
    )
    resumed = filled(rows, seed=0)
    resumed.restore(one.state(with_rows=False))
    assert torch.equal(one.sample(32).keys, resumed.sample(32).keys)


def test_state_is_plain_and_keeps_counters(tmp_path) -> None:
    buffer = filled(episode([1.0] * 5))
    torch.save(buffer.state(with_rows=False), tmp_path / "state.pt")
    empty = Replay(make_spec(), 100, 1)
    empty.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    assert empty.env_steps == 5
    assert len(empty) == 0
    assert not empty.can_draw()


def test_empty_buffer_says_so() -> None:
    buffer = Replay(make_spec(), 100, 2)
    assert not buffer.can_draw()
    assert len(buffer) == 0
    with pytest.raises(NotEnoughRows, match="0 rows are stored in 2 streams"):
        buffer.sample(4)


def test_appending_nothing_changes_nothing() -> None:
    buffer = Replay(make_spec(), 100, 2)
    buffer.add(pack([]))
    assert (len(buffer), buffer.env_steps) == (0, 0)


def test_read_only_rows_are_copied() -> None:
    rows = pack([(0, row) for row in episode([1.0] * 3)])
    rows.frame.setflags(write=False)
    buffer = Replay(make_spec(), 100, 1)
    buffer.add(rows)
    batch = buffer.sample(8)
    stored = torch.from_numpy(rows.frame.copy())[batch.keys[:, 1]]
    assert torch.equal(batch.observation, stored)


def test_rows_of_another_environment_are_refused() -> None:
    buffer = Replay(ATARI, 100, 1)
    with pytest.raises(ValueError, match=r"rows.frame is float32\[3, 2\], expected"):
        buffer.add(pack([(0, row) for row in episode([1.0] * 2)]))


@pytest.mark.parametrize("stream", [-1, 2])
def test_rows_of_an_unknown_stream_are_refused(stream: int) -> None:
    buffer = Replay(make_spec(), 100, 2)
    with pytest.raises(ValueError, match="streams 0 to 1"):
        buffer.add(pack([(stream, row) for row in episode([1.0])]))


@pytest.mark.parametrize(
    ("num_streams", "n_step", "gamma", "message"),
    [
        (1, 0, 0.9, r"replay.n_step is 0"),
        (1, 2, 1.01, r"replay.gamma is 1.01"),
        (0, 2, 0.9, r"num_streams is 0"),
        (20, 2, 0.9, r"replay.capacity .* at least 140"),
        (1, 98, 0.9, r"replay.capacity .* at least 103"),
        (1, Linear(1.0, 97.6, 10), 0.9, r"n_step 98 need 103"),
        (1, 1, Linear(0.9, 1.01, 10), r"replay.gamma is 1.01"),
    ],
)
def test_wrong_settings_are_named(
    num_streams: int, n_step: int | Schedule, gamma: float | Schedule, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Replay(make_spec(4), 100, num_streams, n_step=n_step, gamma=gamma)


def test_named_smallest_capacity_works() -> None:
    buffer = Replay(make_spec(4), 140, 20, n_step=2)
    with pytest.raises(ConfigError, match="at least 160"):
        buffer.n_step = 3
    assert buffer.n_step == 2


def test_gamma_and_n_can_change_during_a_run() -> None:
    buffer = filled(episode([1.0] * 4), n_step=1, gamma=0.5)
    buffer.n_step, buffer.gamma = 2, 1.0
    assert all_transitions(buffer).reward.tolist() == [2, 2, 2, 1]
    with pytest.raises(ConfigError, match=r"replay.gamma is -0.1"):
        buffer.gamma = -0.1


def test_constants_stay_constant() -> None:
    buffer = Replay(make_spec(), 100, 1, n_step=3, gamma=0.9)
    for step in (0, 10**9):
        buffer.anneal(step)
        assert (buffer.n_step, buffer.gamma) == (3, 0.9)


def test_n_and_gamma_follow_schedules_of_learner_steps() -> None:
    n_step = Exponential(10.0, 3.0, 10_000)
    gamma = Exponential(0.97, 0.997, 10_000, limit=1.0)
    buffer = Replay(make_spec(), 100, 1, n_step=n_step, gamma=gamma)
    seen = []
    for step in (0, 1000, 5000, 9000, 10**6):
        buffer.anneal(step)
        assert type(buffer.n_step) is int
        seen.append((buffer.n_step, buffer.gamma))
    assert [n for n, _ in seen] == [10, 9, 5, 3, 3]
    assert seen[2][1] == pytest.approx(1 - 0.03 * 0.1**0.5)


def test_storage_that_does_not_fit_is_refused_before_it_is_allocated(monkeypatch) -> None:
    monkeypatch.setattr("lrl.replay.replay.available_bytes", lambda: 70_000_000)
    with pytest.raises(ConfigError, match=r"needs 7065.00 GB .* at most \d+ rows") as error:
        Replay(ATARI, 1_000_000_000, 10)
    fits = int(str(error.value).split("at most ")[1].split()[0])
    assert Replay.bytes_needed(ATARI, fits, 10) <= 70_000_000
    assert Replay.bytes_needed(ATARI, fits + 20, 10) > 70_000_000
    assert Replay(ATARI, fits, 10).capacity == fits


def test_columns_are_the_storage() -> None:
    buffer = filled(episode([1.0, 2.0]))
    assert isinstance(buffer.streams, Streams)
    assert buffer.streams.columns["reward"][:2].tolist() == [1, 2]
    assert sum(column.nbytes for column in buffer.streams.columns.values()) == buffer.nbytes
