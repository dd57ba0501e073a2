"""`lrl.load_policy`: the agent of a checkpoint, as users of other libraries know it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.branched_envs import BranchedDiary
from helpers.checkpoints import untrained
from helpers.dict_envs import NestedLedger, Signals
from helpers.training_runs import quiet

import lrl
from lrl.deploy.policy import TrainedPolicy
from lrl.envs import EnvConfig
from lrl.evaluation.episodes import run_episodes
from lrl.networks import LSTMCore, MultiEncoder
from lrl.parts import safety
from lrl.types import ConfigError

pytestmark = quiet

safety.trust("helpers.dict_envs")


def policy_of(folder: Path, env: EnvConfig | str, **settings: Any) -> TrainedPolicy:
    seed = settings.pop("seed", 0)
    env = EnvConfig(env) if isinstance(env, str) else env
    return lrl.load_policy(untrained(folder, env, **settings), seed=seed)


def played(policy: TrainedPolicy, seed: int, limit: int = 300) -> float:
    """Play an episode as a script does; return its return."""
    env = policy.make_env()
    observation, info = env.reset(seed=seed)
    state, start, total = None, True, 0.0
    for _ in range(limit):
        assert observation in env.observation_space
        mask = info.get("action_mask")
        action, state = policy.predict(observation, state, start, action_masks=mask)
        assert action in env.action_space
        observation, reward, terminated, truncated, info = env.step(action)
        total, start = total + reward, False
        if terminated or truncated:
            break
    env.close()
    return total


ENVIRONMENTS = {
    "vector": (EnvConfig("lrl/Identity-v0"), {}),
    "stack": (EnvConfig("lrl/Catch-v0", frame_stack=3), {}),
    "leaves": (EnvConfig("lrl/Signpost-v0"), {"encoder": MultiEncoder}),
    "masks": (EnvConfig("lrl/Masked-v0", action_masks=True), {}),
    "branches": (EnvConfig("lrl/Dials-v0"), {}),
    "memory": (EnvConfig("lrl/Recall-v0"), {"core": LSTMCore}),
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_script_plays_the_episodes_of_evaluation(tmp_path, name: str):
    env, settings = ENVIRONMENTS[name]
    policy = policy_of(tmp_path, env, **settings)
    agent = policy.agent
    expected = run_episodes(env, agent.policy(), [3, 4], epsilon=0.0, max_frames=300)
    assert [played(policy, seed) for seed in (3, 4)] == expected.returns.tolist()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_batch_gets_what_each_of_it_gets(tmp_path, name: str):
    env_config, settings = ENVIRONMENTS[name]
    policy = policy_of(tmp_path, env_config, **settings)
    env = policy.make_env()
    pairs = [env.reset(seed=seed) for seed in range(5)]
    masks: list[Any] = [info.get("action_mask") for _, info in pairs]
    rows = [row for row, _ in pairs]
    batch = {n: np.stack([r[n] for r in rows]) for n in rows[0]} if isinstance(
        rows[0], dict) else np.stack(rows)  # fmt: skip
    mask = None if masks[0] is None else np.stack(masks)
    actions, state = policy.predict(batch, action_masks=mask)
    ones = [policy.predict(r, action_masks=m)[0] for r, m in zip(rows, masks, strict=True)]
    assert actions.dtype == np.int64
    np.testing.assert_array_equal(actions, ones)
    assert (state is None) == (name != "memory")


def test_actions_are_drawn_with_the_epsilon_of_the_evaluation(tmp_path):
    batch = np.eye(4, dtype=np.float32)[np.arange(4000) % 4]
    policy = policy_of(tmp_path, "lrl/Identity-v0", epsilon=0.5)
    best, drawn = (policy.predict(batch, deterministic=each)[0] for each in (True, False))
    assert policy.epsilon == 0.5
    assert np.mean(drawn != best) == pytest.approx(0.5 * 3 / 4, abs=0.03)
    again = lrl.load_policy(policy.agent.path, seed=0)
    np.testing.assert_array_equal(again.predict(batch, deterministic=False)[0], drawn)
    never = lrl.load_policy(policy.agent.path, epsilon=0.0)
    np.testing.assert_array_equal(never.predict(batch, deterministic=False)[0], best)


def test_forbidden_actions_are_neither_chosen_nor_drawn(tmp_path):
    env = EnvConfig("lrl/Masked-v0", action_masks=True)
    policy = policy_of(tmp_path, env, epsilon=1.0)
    batch = np.zeros((200, *policy.spec.observation_shape), np.float32)
    mask = np.arange(4) == np.arange(200)[:, None] % 4
    for deterministic in (True, False):
        actions, _ = policy.predict(batch, deterministic=deterministic, action_masks=mask)
        np.testing.assert_array_equal(actions, np.arange(200) % 4)


def test_the_state_is_forgotten_where_an_episode_starts(tmp_path):
    policy = policy_of(tmp_path, "lrl/Recall-v0", core=LSTMCore)
    batch = np.ones((2, *policy.spec.observation_shape), np.float32)
    _, first = policy.predict(batch)
    _, second = policy.predict(batch, first, [False, True])
    assert first is not None
    assert second is not None
    for name in ("hidden", "cell"):
        np.testing.assert_allclose(second[name][1], first[name][1], rtol=1e-5)
        assert not np.allclose(second[name][0], first[name][0])


def test_nested_observations_may_come_as_they_are_or_by_leaves(tmp_path):
    env = EnvConfig(factory="helpers.dict_envs.NestedLedger")
    policy = policy_of(tmp_path, env, encoder=MultiEncoder)
    raw: Any = NestedLedger().reset(seed=0)[0]
    raw["moods"] = (raw["moods"][0] - 5, raw["moods"][1])  # numbered from 0
    raw["moods"][1]["digits"] = raw["moods"][1]["digits"] - np.array([[1, 0], [-3, 2]])
    leaves, _ = policy.make_env().reset(seed=0)
    assert policy.predict(raw)[0] == policy.predict(leaves)[0]


def test_observations_may_be_read_only_reversed_or_lists(tmp_path):
    policy = policy_of(tmp_path, "lrl/Identity-v0")
    rows = np.eye(4, dtype=np.float32)
    rows.setflags(write=False)
    expected, _ = policy.predict(rows)
    np.testing.assert_array_equal(policy.predict(rows[::-1])[0], expected[::-1])
    np.testing.assert_array_equal(policy.predict(rows.tolist())[0], expected)
    np.testing.assert_array_equal(policy.predict(torch.eye(4))[0], expected)


PLAIN = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"observation": np.zeros(5, np.float32)},
            r"has the shape \(5,\), but .* takes \(4,\), or",
        ),
        ({"observation": np.float32(0)}, r"has the shape \(\), but this agent takes \(4,\)"),
        ({"observation": np.zeros((2, 3, 4), np.float32)}, r"has the shape \(2, 3, 4\)"),
        ({"observation": np.zeros((0, 4), np.float32)}, "the batch of observations is empty"),
        ({"observation": np.zeros(4, np.uint8)}, "has the type uint8, but this agent takes floats"),
        ({"observation": np.full(4, np.nan)}, "holds NaN or infinity"),
        ({"observation": np.full(4, 1e300)}, "or more than float32 can"),
        (
            {"observation": {"a": PLAIN}},
            "the observation is a dict, but this agent takes one array",
        ),
        ({"observation": "left"}, r"has the shape \(\)"),
        ({"state": {"hidden": PLAIN}}, "this agent remembers nothing: give None"),
        ({"action_masks": np.ones(3, bool)}, r"bool of the shape \(3,\).* the shape \(4,\)"),
        ({"action_masks": np.zeros(4, bool)}, "allow no action at all"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path, arguments: dict[str, Any], message: str):
    policy = policy_of(tmp_path, "lrl/Identity-v0")
    with pytest.raises(ValueError, match=message):
        policy.predict(**{"observation": PLAIN, **arguments})


def test_frames_must_be_bytes_and_stacked(tmp_path):
    policy = policy_of(tmp_path, EnvConfig("lrl/Catch-v0", frame_stack=3))
    shape = policy.spec.observation_shape
    with pytest.raises(ValueError, match=r"type float64, but this agent takes uint8 \(from 0 to"):
        policy.predict(np.zeros(shape))
    with pytest.raises(ValueError, match=r"a stack of 3 frames, newest last: policy\.make_env\(\)"):
        policy.predict(np.zeros((1, *shape[1:]), np.uint8))


def test_leaves_that_are_wrong_are_named(tmp_path):
    env = EnvConfig(factory="helpers.dict_envs.Signals")
    policy = policy_of(tmp_path, env, encoder=MultiEncoder)
    good, _ = Signals().reset(seed=0)
    with pytest.raises(
        ValueError, match=r"has the leaves \['image'\], but .* \['image', 'speed'\]"
    ):
        policy.predict({"image": good["image"]})
    with pytest.raises(ValueError, match="the observation 'speed' has the type bool"):
        policy.predict({**good, "speed": np.ones(2, bool)})
    with pytest.raises(ValueError, match="differ in their number: 'image' is one, 'speed' has 1"):
        policy.predict({**good, "speed": good["speed"][np.newaxis]})


def test_masks_are_asked_for_where_the_environment_has_them(tmp_path):
    policy = policy_of(tmp_path, EnvConfig("lrl/Masked-v0", action_masks=True))
    with pytest.raises(ValueError, match="says which actions are allowed: give action_masks"):
        policy.predict(np.zeros(policy.spec.observation_shape, np.float32))


def test_a_state_or_a_start_of_another_size_is_refused(tmp_path):
    policy = policy_of(tmp_path, "lrl/Recall-v0", core=LSTMCore)
    batch = np.ones((2, *policy.spec.observation_shape), np.float32)
    _, state = policy.predict(batch)
    with pytest.raises(ValueError, match="must be what the last call of predict returned"):
        policy.predict(batch[:1], state)
    with pytest.raises(ValueError, match="state is tuple, but must be"):
        policy.predict(batch, (1, 2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"episode_start is .* one flag, or 2"):
        policy.predict(batch, state, [True] * 3)


def test_an_environment_draws_and_ends_as_gymnasium_says(tmp_path):
    env = EnvConfig("lrl/Identity-v0")
    policy = policy_of(tmp_path, env)
    made = policy.make_env()
    with pytest.raises(RuntimeError, match="call reset first"):
        made.step(0)
    made.reset(seed=1)
    first, _ = made.reset()
    made.reset(seed=1)
    np.testing.assert_array_equal(made.reset()[0], first)
    with pytest.raises(ValueError, match=r"options is \{'low': 0\.1\}, but the episode begins"):
        made.reset(options={"low": 0.1})
    with pytest.raises(ConfigError, match="cannot be filmed"):
        policy.make_env("rgb_array")
    with pytest.raises(ValueError, match="must be None or 'rgb_array'"):
        policy.make_env("human")


def test_pictures_are_drawn_if_asked_for(tmp_path):
    env = EnvConfig(factory=BranchedDiary)
    made = policy_of(tmp_path, env).make_env("rgb_array")
    made.reset(seed=0)
    made.step(np.array([1, 2]))
    assert made.render().shape[2:] == (3,)
    made.close()


def test_another_environment_than_that_of_training_is_named(tmp_path):
    path = untrained(tmp_path, EnvConfig("lrl/Identity-v0"))
    content = torch.load(path, weights_only=True)
    content["lrl"]["environment"]["kwargs"]["num_contexts"] = 6
    torch.save(content, path)
    with pytest.raises(ConfigError, match=r"observation_shape \(6,\) instead of \(4,\)"):
        lrl.load_policy(path).make_env()


def test_the_example_plays(tmp_path, monkeypatch, capsys):
    path = untrained(tmp_path, EnvConfig("lrl/Recall-v0"), core=LSTMCore)
    monkeypatch.setattr(sys, "argv", ["play_on.py", str(path), "--episodes", "2"])
    runpy.run_path(str(Path(__file__).parents[2] / "examples/play_on.py"), run_name="__main__")
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "episode 0", "episode 1"
    ]  # fmt: skip


def test_a_file_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.ckpt: there is no such file"):
        lrl.load_policy(tmp_path / "nowhere.ckpt")
