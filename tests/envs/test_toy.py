"""The toy environments: their best returns, and that nothing simpler reaches them."""

import numpy as np
import pytest

from lrl.envs import EnvConfig, make_envs
from lrl.envs.toy import Catch, Chain, Dials, Identity, Masked, Recall, Signpost


def play(env, policy, episodes=20):
    """Return the returns, lengths and last flags of a policy."""
    results = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        total, length, terminated, truncated = 0.0, 0, False, False
        while not (terminated or truncated):
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            assert observation in env.observation_space
            total += reward
            length += 1
        results.append((total, length, terminated, truncated))
    return results


def catching(image):
    """Move towards the ball, read from the image."""
    board = image.reshape(image.shape[-2:])
    ball, paddle = board[:-1].any(axis=0).argmax(), board[-1].argmax()
    return int(1 + np.sign(int(ball) - int(paddle)))


@pytest.mark.parametrize("truncate", [False, True])
def test_identity_pays_1_a_step_to_the_matching_action(truncate):
    env = Identity(truncate=truncate)
    best = play(env, lambda observation: int(observation.argmax()))
    assert best == [(10.0, 10, not truncate, truncate)] * 20
    assert env.optimal_return == 10.0
    assert np.mean([result[0] for result in play(env, lambda _: 0)]) < 4


def test_chain_pays_for_the_whole_way_only():
    env = Chain()
    assert env.optimal_return == pytest.approx(0.6)
    assert play(env, lambda _: 1, 1) == [(pytest.approx(0.6), 5, True, False)]
    assert play(env, lambda _: 0, 1) == [(pytest.approx(-5.0), 50, False, True)]


@pytest.mark.parametrize("length", [2, 3, 10])
def test_chain_of_any_length(length):
    env = Chain(length)
    ((total, steps, *_),) = play(env, lambda _: 1, 1)
    assert total == pytest.approx(env.optimal_return)
    assert steps == length - 1


def test_chain_reaching_the_end_with_the_last_move_is_no_truncation():
    assert play(Chain(6, max_moves=5), lambda _: 1, 1) == [(pytest.approx(0.6), 5, True, False)]


@pytest.mark.parametrize("truncate", [False, True])
def test_recall_pays_for_the_cue_that_only_the_first_observation_shows(truncate):
    env, cue, seen = Recall(cues=3, delay=4, truncate=truncate), [0], []

    def remembering(observation):
        seen.append(observation.tolist())
        if observation[:-1].any():
            cue[0] = int(observation.argmax())
        return cue[0]

    assert play(env, remembering) == [(1.0, 5, not truncate, truncate)] * 20
    assert env.optimal_return == 1.0
    assert seen[1:5] == [[0, 0, 0, 0]] * 3 + [[0, 0, 0, 1]]
    assert {tuple(first) for first in seen[::5]} == {(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)}
    assert np.mean([result[0] for result in play(env, lambda _: 0, 60)]) < 0.6


def test_catch_can_always_be_won_and_not_by_standing_still():
    env = Catch()
    assert play(env, catching) == [(1.0, 9, True, False)] * 20
    assert env.optimal_return == 1.0
    assert {result[0] for result in play(env, lambda _: 1)} == {1.0, -1.0}


def test_catch_draws_the_ball_and_the_paddle():
    env = Catch(rows=3, columns=3, cell_pixels=2)
    image, _ = env.reset(seed=0)
    assert image.shape == (1, 6, 6)
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image[0, 4:], [[0, 0, 255, 255, 0, 0]] * 2)
    assert image[0, :2].sum() == 4 * 255
    assert not image[0, 2:4].any()


def test_catch_without_a_channel_axis_stacks_like_atari():
    config = EnvConfig("lrl/Catch-v0", {"channel_axis": False}, frame_stack=4)
    envs = make_envs(config, 2, training=True)
    assert envs.spec.observation_shape == (4, 10, 5)
    assert envs.spec.observation[""].shape == (10, 5)
    observation = envs.reset([0, 1])
    total = np.zeros(2)
    step = None
    for _ in range(9):
        step = envs.step([catching(stack[-1]) for stack in observation])
        observation = step.observation
        total += step.reward
    assert step is not None
    assert step.terminated.all()
    assert total.tolist() == [1.0, 1.0]


def test_masked_is_solved_by_the_right_one_of_the_allowed_actions():
    env = Masked()
    assert env.optimal_return == -5.0
    right = play(env, lambda observation: int(observation.argmax()) % 4, 1)
    assert right == [(-5.0, 5, True, False)]
    left = play(env, lambda observation: (int(observation.argmax()) + 1) % 4, 1)
    assert left == [(-50.0, 50, False, True)]
    for action in (0, 2, 3):
        with pytest.raises(ValueError, match=f"action {action} is forbidden at place"):
            play(env, lambda _, action=action: action, 1)


@pytest.mark.parametrize(("length", "num_actions"), [(2, 3), (9, 5)])
def test_masked_of_any_size_says_what_is_allowed(length, num_actions):
    env = Masked(length, num_actions)
    _, info = env.reset(seed=0)
    terminated = False
    for place in range(length - 1):
        allowed = info["action_mask"]
        assert allowed.dtype == np.int8
        assert np.flatnonzero(allowed).tolist() == sorted(
            {place % num_actions, (place + 1) % num_actions}
        )
        _, _, terminated, _, info = env.step(place % num_actions)
    assert terminated
    assert not info["action_mask"].any()


@pytest.mark.parametrize("masks", [False, True])
def test_dials_have_to_be_right_at_once_at_every_lock(masks):
    env = Dials(masks=masks)
    assert env.optimal_return == -8.0
    right = play(env, lambda observation: np.array(Dials.setting(int(observation.argmax()))), 1)
    assert right == [(-8.0, 8, True, False)]

    def nearly(observation):
        first, second = Dials.setting(int(observation.argmax()))
        return np.array([first, (second + 1) % 5])

    assert play(env, nearly, 1) == [(-100.0, 100, False, True)]


def test_masked_dials_allow_two_settings_each():
    env = Dials(sizes=(2, 3, 4), masks=True)
    _, info = env.reset(seed=0)
    for lock in range(8):
        allowed = [np.flatnonzero(mask).tolist() for mask in info["action_mask"]]
        assert allowed == [
            sorted({(lock + dial) % size, (lock + dial + 1) % size})
            for dial, size in enumerate((2, 3, 4))
        ]
        forbidden = np.array(Dials.setting(lock, (2, 3, 4)))
        forbidden[1] = (forbidden[1] + 2) % 3
        with pytest.raises(ValueError, match=r"the setting \[.*\] is forbidden at lock"):
            env.step(forbidden)
        *_, info = env.step(np.array(Dials.setting(lock, (2, 3, 4))))


def walking(observation):
    """Walk to the post that the sign names, read from the board."""
    walker, *posts = (np.argwhere(layer)[0] for layer in observation["board"])
    down, right = posts[observation["sign"].argmax()] - walker
    return int(down > 0) if down else 2 + int(right > 0)


def test_signpost_pays_1_at_the_post_that_the_sign_names():
    env = Signpost()
    returns = [result[0] for result in play(env, walking, episodes=100)]
    assert env.optimal_return == 1.0
    # A way may lead over the other post.
    assert np.mean(returns) > 0.7
    assert {*returns} == {-1.0, 1.0}


def test_signpost_needs_both_leaves():
    """Who guesses what one of them says is right in half of the episodes."""
    rng = np.random.default_rng(0)

    def signless(observation):
        return walking({**observation, "sign": np.array([1, 0])})

    def blind(observation):
        return int(rng.integers(4))

    for policy in (signless, blind):
        assert abs(np.mean([r[0] for r in play(Signpost(), policy, episodes=400)])) < 0.2


def test_signpost_truncates_and_never_repays():
    results = play(Signpost(max_moves=3), lambda _: 0, episodes=50)
    assert all(truncated != terminated for _, _, terminated, truncated in results)
    assert all((total == 0.0) == truncated for total, _, _, truncated in results)
    assert {length for _, length, _, _ in results} <= {1, 2, 3}
