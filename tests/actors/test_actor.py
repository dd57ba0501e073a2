"""The actor against scripted environments: what it sends must say exactly what happened."""

import numpy as np
import numpy.typing as npt
import pytest
from helpers.scripted_envs import START, Episode, ListSink, ScriptedEnvs, Transition
from hypothesis import given
from hypothesis import strategies as st

from lrl.actors.actor import Actor, BehaviourPolicy, Decision, FunctionPolicy
from lrl.actors.exploration import EpsilonGreedy, Exploration
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_envs
from lrl.envs.toy import Masked
from lrl.schedules import Constant
from lrl.types import Memory, RowKind

STEP, BOUNDARY, PREFIX, GAP = RowKind.STEP, RowKind.BOUNDARY, RowKind.PREFIX, RowKind.GAP


class CountingPolicy(BehaviourPolicy):
    """Likes actions 0, 1, 2, ... in turn; its version counts up by 10."""

    def __init__(self, num_actions: int = 5) -> None:
        self.observations: list[npt.NDArray] = []
        self.num_actions = num_actions

    def __call__(self, observation: npt.NDArray, memory: Memory | None = None) -> Decision:
        call = len(self.observations)
        self.observations.append(observation.copy())
        q = np.zeros((len(observation), self.num_actions), np.float32)
        for env in range(len(observation)):
            q[env, (call + env) % self.num_actions] = 1.0
        return Decision(q, 10 * call)


class RecordingExploration(Exploration):
    """Always takes action 0, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int], int]] = []
        self.masks: list[npt.NDArray[np.bool_] | None] = []

    def select(self, q, moment):
        env_steps, environments, total_environments, _, mask = moment
        self.asked.append((env_steps, environments.tolist(), total_environments))
        self.masks.append(mask)
        return np.zeros(len(q), np.int32)


GREEDY = EpsilonGreedy(Constant(0.0))


def run(envs: ScriptedEnvs, steps: int, **settings) -> tuple[Actor, ListSink]:
    sink = ListSink()
    settings = {
        "exploration": GREEDY,
        "slot": ActorSlot(0, envs_per_actor=envs.num_envs),
    } | settings
    actor = Actor(envs, settings.pop("policy", CountingPolicy()), sink=sink, **settings)
    for _ in range(steps):
        actor.step()
    return actor, sink


def test_rows_over_the_end_of_an_episode():
    envs = ScriptedEnvs([[Episode((2.5, -3.0)), Episode((0.5,), end="truncated")]])
    actor, sink = run(envs, steps=6, reward_clip=1.0)

    assert sink.column("kind") == [STEP, STEP, BOUNDARY, STEP, BOUNDARY, STEP]
    assert sink.column("frame") == [
        [0, START], [0, START + 1], [0, START + 2],  # the final observation is sent
        [1, START], [1, START + 1],
        [2, START],
    ]  # fmt: skip
    assert sink.column("reward") == [1.0, -1.0, 0.0, 0.5, 0.0, 1.0]
    assert sink.column("terminated") == [False, True, False, False, False, False]
    assert sink.column("truncated") == [False, False, False, True, False, False]
    assert sink.column("policy_version") == [0, 10, 20, 30, 40, 50]
    steps = [0, 1, 3, 5]
    assert [sink.column("action")[index] for index in steps] == [0, 1, 3, 0]
    assert sink.episodes == [(-0.5, 2), (0.5, 1)]  # raw returns
    assert actor.env_steps == 4
    assert actor.policy_version == 50


def test_an_episodes_start_value_is_the_best_at_its_first_observation():
    """Of allowed actions; what was hoped for in the steps after it does not count."""

    def values_of(observation: npt.NDArray) -> npt.NDArray[np.float32]:
        episode, time = observation.T
        values = 10 * episode + (time - START)
        return np.stack([values - 3, values, values - 4, values - 1, values - 2], axis=1)

    scripts = [[Episode((1.0, 1.0)), Episode((1.0,), end="truncated")], [Episode((1.0, 1.0, 1.0))]]
    _, sink = run(ScriptedEnvs(scripts), steps=8, policy=FunctionPolicy(values_of))
    assert sink.episodes == [(2.0, 2), (3.0, 3), (1.0, 1), (2.0, 2), (3.0, 3)]
    assert sink.start_values == [0.0, 10_000.0, 10.0, 20.0, 10_010.0]


def test_a_start_value_is_of_an_allowed_action():
    envs = make_envs(EnvConfig("lrl/Masked-v0", action_masks=True), 1, training=True)
    envs.reset([0])
    mask = envs.action_mask
    assert mask is not None
    assert not mask.all()
    values = np.where(mask, 1.0, 9.0).astype(np.float32)
    sink = ListSink()
    actor = Actor(envs, FunctionPolicy(lambda observation: values), GREEDY, sink, ActorSlot(0))
    while not sink.start_values:
        mask = envs.action_mask
        assert mask is not None
        values = np.where(mask, 1.0, 9.0).astype(np.float32)
        actor.step()
    assert sink.start_values == [1.0]


def test_types_of_the_columns():
    _, sink = run(ScriptedEnvs([[Episode((1.0,))]], frame_stack=2), steps=2)
    dtypes = {
        "stream": np.int32, "kind": np.uint8, "frame": np.float32, "action": np.int32,
        "reward": np.float32, "terminated": np.bool_, "truncated": np.bool_,
        "policy_version": np.int64,
    }  # fmt: skip
    assert sink.column("kind") == [PREFIX, STEP, BOUNDARY, PREFIX]
    for row in sink.streams[0]:
        seen = {} if row.kind == PREFIX else {"value": np.float32}  # by the policy
        found = {name: column.dtype.type for name, column in row.columns().items()}
        assert found == dtypes | seen


def test_rows_hold_the_value_of_the_best_allowed_action():
    envs = make_envs(EnvConfig("lrl/Masked-v0", action_masks=True), 1, training=True)
    sink, asked = ListSink(), []

    def values(observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        assert envs.action_mask is not None
        asked.append(float(len(asked)))
        return np.where(envs.action_mask, asked[-1], 1e6).astype(np.float32)

    actor = Actor(envs, FunctionPolicy(values), GREEDY, sink, ActorSlot(0))
    while BOUNDARY not in sink.column("kind"):
        actor.step()
    assert [row.columns()["value"].item() for row in sink.streams[0]] == asked


def test_first_stacks_come_oldest_frame_first():
    envs = ScriptedEnvs([[Episode((1.0, 2.0))]], frame_stack=3)
    _, sink = run(envs, steps=4)
    assert list(zip(sink.column("kind"), sink.column("frame"), strict=True)) == [
        (PREFIX, [0, START - 2]),
        (PREFIX, [0, START - 1]),
        (STEP, [0, START]),
        (STEP, [0, START + 1]),
        (BOUNDARY, [0, START + 2]),
        (PREFIX, [1, START - 2]),
        (PREFIX, [1, START - 1]),
        (STEP, [1, START]),
    ]


def test_unacted_rows_hold_nothing_but_frames():
    envs = ScriptedEnvs([[Episode((5.0,))]], frame_stack=3)
    _, sink = run(envs, steps=4)
    for row in sink.streams[0]:
        if row.kind[0] == PREFIX:
            assert (row.action[0], row.reward[0], row.terminated[0], row.truncated[0]) == (
                0, 0.0, False, False,
            )  # fmt: skip
        if row.kind[0] == BOUNDARY:
            assert (row.reward[0], row.terminated[0], row.truncated[0]) == (0.0, False, False)


def test_a_lost_life_ends_the_target_but_neither_stream_nor_episode():
    envs = ScriptedEnvs([[Episode((1.0, 1.0, 1.0), lives_lost_at=(0,))]])
    actor, sink = run(envs, steps=4)
    assert sink.column("kind") == [STEP, STEP, STEP, BOUNDARY]
    assert sink.column("terminated") == [True, False, True, False]
    assert sink.episodes == [(3.0, 3)]
    assert actor.env_steps == 3


def test_step_reports_env_steps_without_boundaries():
    envs = ScriptedEnvs([[Episode((1.0,))], [Episode((1.0, 1.0))]])
    actor, _ = run(envs, steps=0)
    assert [actor.step() for _ in range(6)] == [2, 1, 1, 1, 2, 0]
    assert actor.env_steps == 7


def test_environments_write_streams_of_their_own():
    scripts = [[Episode((1.0,))], [Episode((2.0, 2.0))]]
    slot = ActorSlot(0, actor=3, num_actors=4, envs_per_actor=2)
    _, sink = run(ScriptedEnvs(scripts), steps=3, slot=slot)
    assert set(sink.streams) == {6, 7}
    assert sink.column("kind", 6) == [STEP, BOUNDARY, STEP]
    assert sink.column("kind", 7) == [STEP, STEP, BOUNDARY]
    assert [frame[0] for frame in sink.column("frame", 7)] == [1000, 1000, 1000]
    assert sink.column("action", 7)[:2] == [1, 2]
    assert sink.episodes == [(1.0, 1), (4.0, 2), (1.0, 1)]


def test_prefixes_only_where_an_episode_begins():
    scripts = [[Episode((1.0,))], [Episode((1.0,) * 5)]]
    _, sink = run(ScriptedEnvs(scripts, frame_stack=2), steps=4)
    assert sink.column("kind", 0) == [PREFIX, STEP, BOUNDARY, PREFIX, STEP, BOUNDARY, PREFIX]
    assert sink.column("kind", 1) == [PREFIX, STEP, STEP, STEP, STEP]


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_restarted_actor_begins_every_stream_with_a_gap(frame_stack: int):
    scripts = [[Episode((1.0, 1.0))]] * 2
    slot = ActorSlot(0, envs_per_actor=2).restarted()
    _, sink = run(ScriptedEnvs(scripts, frame_stack), steps=1, slot=slot)
    for stream in (0, 1):
        kinds = sink.column("kind", stream)
        assert kinds == [GAP, *[PREFIX] * (frame_stack - 1), STEP]
    assert sink.streams[0][0].frame.shape == (1, 2)


def test_environments_are_seeded_once_with_the_slot():
    slot = ActorSlot(4, actor=1, num_actors=2, envs_per_actor=3)
    envs = ScriptedEnvs([[Episode((1.0,))]] * 3)
    actor, _ = run(envs, steps=0, slot=slot)
    actor.begin()
    actor.step()
    assert envs.seeds == slot.env_seeds()
    assert [len(history) for history in envs.history] == [1, 1, 1]


def test_the_policy_sees_what_the_environments_show():
    envs = ScriptedEnvs([[Episode((1.0, 1.0))]], frame_stack=2)
    policy = CountingPolicy()
    run(envs, steps=2, policy=policy)
    seen = [observation[0].tolist() for observation in policy.observations]
    assert seen == [transition.observation for transition in envs.history[0]]


def test_exploration_counts_the_steps_of_the_whole_run():
    envs = ScriptedEnvs([[Episode((1.0,) * 2)]] * 2)
    slot = ActorSlot(0, rank=1, world_size=2, actor=0, num_actors=3, envs_per_actor=2)
    exploration = RecordingExploration()
    run(envs, steps=4, slot=slot, exploration=exploration, env_steps_offset=1000)
    # 6 actors of 2 environments; the third vector step is a boundary and makes none.
    assert exploration.asked == [(1000 + 6 * own, [6, 7], 12) for own in (0, 2, 4, 4)]
    assert exploration.masks == [None] * 4


def test_rows_hold_the_masks_of_their_observations():
    """Also those of final observations, where the environment forbids everything."""
    config = EnvConfig("lrl/Masked-v0", {"length": 3, "max_moves": 5}, action_masks=True)
    envs = make_envs(config, 2, training=True)
    sink = ListSink()
    exploration = EpsilonGreedy(Constant(0.5))
    slot = ActorSlot(0, envs_per_actor=2)
    actor = Actor(envs, CountingPolicy(num_actions=4), exploration, sink, slot)
    for _ in range(100):
        actor.step()
    for stream in (0, 1):
        kinds, frames = sink.column("kind", stream), sink.column("frame", stream)
        masks, actions = sink.column("action_mask", stream), sink.column("action", stream)
        assert {STEP, BOUNDARY} == set(kinds)
        for kind, frame, mask, action in zip(kinds, frames, masks, actions, strict=True):
            allowed = Masked.mask(int(np.argmax(frame)), length=3).astype(bool)
            assert mask == (allowed.tolist() if allowed.any() else [True] * 4)
            assert kind == BOUNDARY or mask[action]


def test_rows_before_an_episode_and_at_gaps_need_no_mask():
    config = EnvConfig("lrl/Masked-v0", frame_stack=2, action_masks=True)
    slot = ActorSlot(0, envs_per_actor=1).restarted()
    sink = ListSink()
    actor = Actor(make_envs(config, 1, training=True), CountingPolicy(4), GREEDY, sink, slot)
    actor.step()
    assert sink.column("kind") == [GAP, PREFIX, STEP]
    assert [row.action_mask is None for row in sink.streams[0]] == [True, True, False]


def test_epsilon_reaches_the_actions():
    envs = ScriptedEnvs([[Episode((1.0,) * 500)]] * 2)
    run(envs, steps=500, exploration=EpsilonGreedy(Constant(1.0)))
    actions = [transition.action for transition in envs.history[0]]
    assert {actions.count(action) > 50 for action in range(5)} == {True}
    greedy = [step % 5 for step in range(500)]
    assert 50 < sum(a == g for a, g in zip(actions, greedy, strict=True)) < 150


def test_no_clipping_unless_it_is_asked_for():
    envs = ScriptedEnvs([[Episode((200.0, -7.5))]])
    assert run(envs, steps=2)[1].column("reward") == [200.0, -7.5]
    assert run(envs, steps=2, reward_clip=3.0)[1].column("reward") == [3.0, -3.0]


# --- Any script can be read back from the rows alone ----------------------------------------

episodes = st.builds(
    Episode,
    st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=5).map(tuple),
    st.sampled_from(["terminated", "truncated"]),
    st.sets(st.integers(0, 4), max_size=2).map(tuple),
)


def read_back(sink: ListSink, stream: int, frame_stack: int) -> list[Transition]:
    """Rebuild the transitions of a stream by looking at every row and its neighbours."""
    kinds, frames = sink.column("kind", stream), sink.column("frame", stream)

    def observation(row: int) -> list:
        return frames[row - frame_stack + 1 : row + 1] if frame_stack > 1 else frames[row]

    action, reward = sink.column("action", stream), sink.column("reward", stream)
    terminated, truncated = sink.column("terminated", stream), sink.column("truncated", stream)
    return [
        Transition(
            observation(row),
            action[row],
            reward[row],
            terminated[row],
            truncated[row],
            observation(row + 1),
        )
        for row in range(len(kinds) - 1)
        if kinds[row] == STEP
    ]


@given(
    st.lists(st.lists(episodes, min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 30),
)
def test_rows_tell_every_transition(scripts: list[list[Episode]], frame_stack: int, steps: int):
    envs = ScriptedEnvs(scripts, frame_stack)
    actor, sink = run(envs, steps)
    for stream, history in enumerate(envs.history):
        transitions = read_back(sink, stream, frame_stack)
        # The last step's next observation is in the row to come.
        assert transitions == history[: len(transitions)]
        assert len(history) - len(transitions) <= 1
        assert sink.column("kind", stream).count(STEP) == len(history)
    assert actor.env_steps == sum(len(history) for history in envs.history)
    assert sink.episodes == envs.finished


class WideActions(Exploration):
    """Gives int64, as `argmax` does."""

    def select(self, q, moment):
        return q.argmax(axis=1)


def test_actions_of_another_integer_type_are_sent_as_int32():
    envs = ScriptedEnvs([[Episode((1.0,))]])
    _, sink = run(envs, steps=1, exploration=WideActions())
    assert sink.streams[0][0].action.dtype == np.int32
