"""A replay that is saved and restored samples what the saved one would have sampled next."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.replay_rows import episode, filled
from helpers.saved_replays import (
    SAMPLERS,
    Feed,
    contents,
    files,
    learn,
    load,
    make_buffer,
    name_of,
    save,
    take,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from lrl.checkpoints.replay_saver import ReplaySaver
from lrl.checkpoints.saved_replay import SavedReplayError, load_replay, read_manifest
from lrl.replay import (
    PrioritizedSampler,
    RateLimiter,
    RateLimiterConfig,
    TrackingSampler,
    UniformSampler,
)


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sampler=st.sampled_from(sorted(SAMPLERS)),
    frame_stack=st.integers(1, 3),
    num_streams=st.integers(1, 3),
    extra_rows=st.integers(0, 60),
    rows_between=st.lists(st.integers(0, 150), min_size=2, max_size=4),
    n_step=st.integers(1, 3),
    masks=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_restored_replay_goes_on_as_the_saved_one(
    sampler: str,
    frame_stack: int,
    num_streams: int,
    extra_rows: int,
    rows_between: list[int],
    n_step: int,
    masks: bool,
    seed: int,
) -> None:
    """Save at any moment, also with wrapped rings; then append, learn and anneal on both sides."""
    feed = Feed(seed, num_streams, frame_stack, masks)

    def make(seed: int):
        return make_buffer(
            sampler,
            frame_stack=frame_stack,
            capacity=(frame_stack + 6 + extra_rows) * num_streams,
            num_streams=num_streams,
            masks=masks,
            n_step=3,
            seed=seed,
        )

    one, other, earlier = make(1), make(2), make(3)
    expected: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        saver = ReplaySaver(folder, one, {})
        for step, count in enumerate(rows_between):
            one.add(feed.rows(count))
            learn(one, feed)
            one.n_step = n_step
            save(saver, step, {"along": step})
            expected.append(contents(one))
        last = len(expected) - 1
        assert load(folder, other, last) == {"along": last}
        assert load(folder, earlier, last - 1) == {"along": last - 1}  # as previous.ckpt wants
    assert contents(other) == expected[-1]
    assert contents(earlier) == expected[-2]
    for _ in range(3):
        rows, state = feed.rows(40), feed.rng.bit_generator.state
        sides = []
        for buffer in (one, other):
            buffer.add(rows)
            feed.rng.bit_generator.state = state
            drawn = learn(buffer, feed)
            buffer.n_step = int(feed.rng.integers(1, 4))
            sides.append((drawn, contents(buffer)))
        assert sides[0] == sides[1]


def test_an_empty_replay_is_restored(tmp_path):
    save(ReplaySaver(tmp_path, make_buffer(), {}), 1)
    restored = make_buffer()
    load(tmp_path, restored, 1)
    assert not restored.can_draw()
    assert contents(restored) == contents(make_buffer())


def test_a_sampler_that_saves_nothing_is_told_of_all_rows(tmp_path):
    class Told(UniformSampler, TrackingSampler):
        def attach(self, windows: object) -> None:
            self.added: list[Any] = []

        def rows_changed(self, added: np.ndarray, removed: np.ndarray) -> None:
            self.added += added.tolist()

    one, sampler = make_buffer(Told()), Told()
    one.add(Feed(0).rows(150))
    save(ReplaySaver(tmp_path, one, {}), 1)
    other = make_buffer(sampler)
    load(tmp_path, other, 1)
    assert sampler.added == one.samplable_keys().tolist() != []


def test_only_new_rows_are_written(tmp_path):
    buffer, feed = make_buffer(capacity=2000), Feed(0)
    saver = ReplaySaver(tmp_path, buffer, {})
    sizes = []
    for step, count in enumerate((300, 10, 0, 1)):
        buffer.add(feed.rows(count))
        save(saver, step)
        sizes.append(sum(size for name, size in files(tmp_path).items() if name.startswith("rows")))
    row_bytes, record_bytes = 8 + 1 + 4 + 4, 2 * 2 * 8
    assert sizes[1] - sizes[0] == 10 * row_bytes + record_bytes
    assert sizes[2] == sizes[1]
    assert sizes[3] - sizes[2] == row_bytes + record_bytes


def test_segments_that_no_save_needs_are_deleted(tmp_path):
    buffer, feed = make_buffer(capacity=400), Feed(0)
    saver = ReplaySaver(tmp_path, buffer, {})
    most = 0
    for step in range(60):
        buffer.add(feed.rows(37))
        save(saver, step)
        rows = [size for name, size in files(tmp_path).items() if name.startswith("rows")]
        most = max(most, sum(rows))
        assert len(rows) <= 8 + 3
    needed = [read_manifest(tmp_path / f"manifest-{step}.json") for step in (58, 59)]
    assert set(files(tmp_path)) == needed[0].file_names | needed[1].file_names
    assert most < 2 * buffer.nbytes
    restored = make_buffer(capacity=400)
    load(tmp_path, restored, 59)
    assert contents(restored) == contents(buffer)


def other_settings() -> dict[str, tuple[Any, str]]:
    return {
        "capacity": (make_buffer(capacity=80), "replay.capacity was 100 and is 80"),
        "streams": (make_buffer(num_streams=1), "number of environments was 2 and is 1"),
        "stack": (make_buffer(frame_stack=2), "env_spec.frame_stack was 1 and is 2"),
        "masks": (make_buffer(masks=True), "env_spec.action_masks was False and is True"),
        "sampler": (
            make_buffer("uniform"),
            "replay.sampler.class was PrioritizedSampler and is UniformSampler",
        ),
        "alpha": (
            make_buffer(PrioritizedSampler(0.7)),
            "replay.sampler.alpha was 0.6 and is 0.7",
        ),
    }


@pytest.mark.parametrize("name", sorted(other_settings()))
def test_a_replay_of_other_settings_is_refused_with_their_names(name, tmp_path):
    buffer = make_buffer()
    buffer.add(Feed(0).rows(50))
    save(ReplaySaver(tmp_path, buffer, {}), 1)
    other, sentence = other_settings()[name]
    with pytest.raises(SavedReplayError, match=f"saved with other settings: .*{sentence}"):
        load(tmp_path, other, 1)
    assert other.streams.num_rows == 0


def test_further_settings_are_compared_and_beta_may_change(tmp_path):
    buffer = make_buffer()
    buffer.add(Feed(0).rows(50))
    save(ReplaySaver(tmp_path, buffer, {"env": {"id": "Pong", "kwargs": {}}, "ranks": 2}), 1)
    with pytest.raises(SavedReplayError, match=r"env.id was Pong and is Catch; ranks was 2 and is"):
        load(tmp_path, make_buffer(), 1, env={"id": "Catch", "kwargs": {}}, ranks=1)
    other = make_buffer(PrioritizedSampler(0.6))
    load(tmp_path, other, 1, env={"id": "Pong", "kwargs": {}}, ranks=2)
    assert len(other) == len(buffer)


def test_a_replay_of_another_checkpoint_is_refused(tmp_path):
    buffer = make_buffer()
    save(ReplaySaver(tmp_path, buffer, {}), 1)
    with pytest.raises(SavedReplayError, match=r"manifest-1\.json belongs to another checkpoint"):
        load_replay(tmp_path, make_buffer(), {}, 1, name_of(2))
    with pytest.raises(SavedReplayError, match=r"manifest-2\.json is missing"):
        load(tmp_path, make_buffer(), 2)
    with pytest.raises(SavedReplayError, match=r"manifest-2\.json is missing"):
        load(tmp_path / "nowhere", make_buffer(), 2)


def test_the_rate_limiter_goes_on_but_not_with_counts_for_another_ratio():
    limiter = RateLimiter(RateLimiterConfig(4.0, warm_up_env_steps=10), batch_size=8)
    limiter.record_insert(110)
    for _ in range(50):
        limiter.record_sample(8)
    assert not limiter.can_sample()
    same = RateLimiter(RateLimiterConfig(4.0, warm_up_env_steps=10), batch_size=8)
    same.load_state_dict(limiter.state_dict())
    assert same.samples_per_insert == limiter.samples_per_insert == 4.0
    other = RateLimiter(RateLimiterConfig(8.0, warm_up_env_steps=10), batch_size=8)
    other.load_state_dict(limiter.state_dict())
    assert not other.can_sample()  # else 50 updates would follow at once
    other.record_insert(1)
    assert other.can_sample()


def test_state_of_an_older_save_is_not_the_present_one(tmp_path):
    """What is taken is of that moment, however much later it is written."""
    buffer, feed = filled(episode([1.0] * 20), capacity=40, sampler=PrioritizedSampler()), Feed(0)
    saver = ReplaySaver(tmp_path, buffer, {})
    take(saver, 1)
    expected = contents(buffer)
    learn(buffer, feed)
    saver.write()
    saver.discard()
    assert contents(buffer) != expected
    restored = filled([], capacity=40, sampler=PrioritizedSampler())
    load(tmp_path, restored, 1)
    assert contents(restored) == expected
