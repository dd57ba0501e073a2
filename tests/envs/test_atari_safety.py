"""What would hang or confuse ale-py: wrong actions, wrong games, forks, threads left behind."""

import gc
import multiprocessing
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
import pytest
from helpers.envs_rollout import make_atari as make

from lrl.envs import AtariConfig, EnvConfig, make_envs, make_spec
from lrl.envs.atari import game_of
from lrl.types import ConfigError

pytestmark = pytest.mark.atari


@pytest.fixture(scope="module")
def pong():
    """Two games that have been reset: a seeded reset loads the game again, 0.2 s each."""
    envs = make(num_envs=2)
    envs.reset([0, 1])
    yield envs
    envs.close()


@pytest.mark.parametrize("action", [-1, 6, 99])
def test_an_action_that_would_hang_the_emulator_is_refused_and_play_goes_on(pong, action):
    with pytest.raises(ValueError, match=rf"Environment 1: action {action} is not .* 0 \.\.\. 5"):
        pong.step([0, action])
    assert np.isfinite(pong.step([0, 5]).reward).all()


def test_observations_are_never_overwritten_later(pong):
    kept = [pong.step([2, 3]).observation]
    copies = [kept[0].copy()]
    for _ in range(30):
        kept.append(pong.step([2, 3]).observation)
        copies.append(kept[-1].copy())
    np.testing.assert_array_equal(kept, copies)


@pytest.mark.parametrize(
    ("env_id", "nearest"),
    [
        ("ALE/Pnog-v5", "ALE/Pong-v5"),
        ("ALE/Pong-v4", "ALE/Pong-v5"),
        ("ALE/pong-v5", "Pong-v5"),
        ("ALE/Joust-v5", "ALE/"),  # for two players: loading it ends the process
    ],
)
def test_an_unknown_game_is_refused_with_the_nearest_ones(env_id, nearest):
    with pytest.raises(ConfigError, match=rf"env\.id is '{env_id}'.*Nearest: .*{nearest}"):
        make_spec(EnvConfig(env_id))


@pytest.mark.parametrize(
    ("env_id", "game"),
    [
        ("ALE/MontezumaRevenge-v5", "montezuma_revenge"),
        ("ALE/Qbert-v5", "qbert"),
        ("ALE/TicTacToe3D-v5", "tic_tac_toe_3d"),
        ("ale_py:ALE/MsPacman-v5", "ms_pacman"),
    ],
)
def test_ids_become_the_backends_names(env_id, game):
    assert game_of(env_id) == game
    assert EnvConfig(env_id).kind == "atari"


def test_the_games_are_those_that_ale_py_registers():
    gymnasium.register_envs(ale_py)
    specs = [spec for env_id, spec in gymnasium.registry.items() if env_id.startswith("ALE/")]
    assert len(specs) > 100
    for spec in specs:
        assert game_of(spec.id) == spec.kwargs["game"]


@pytest.mark.parametrize(
    ("game", "options", "sentence"),
    [
        ("Freeway", {"fire_reset": True}, "fire_reset is True, but ALE/Freeway-v5 has no FIRE"),
        ("Pong", {"image_height": 211}, "image_height is 211, .* at most 210: .* 210x160 pixels"),
        ("Pong", {"image_width": 161}, "image_width is 161, .* at most 160: .* 210x160 pixels"),
        ("Klax", {"image_height": 251}, "image_height is 251, .* at most 250: .* 250x160 pixels"),
    ],
)
def test_what_a_game_cannot_do_is_refused(game, options, sentence):
    config = EnvConfig(f"ALE/{game}-v5", atari=AtariConfig(**options))
    with pytest.raises(ConfigError, match=rf"env\.atari\.{sentence}"):
        make_spec(config)


@pytest.mark.parametrize(
    ("game", "options"),
    [("Freeway", {"fire_reset": True, "full_action_space": True}), ("Klax", {"image_height": 250})],
)
def test_what_another_game_can_do_is_taken(game, options):
    spec = make_spec(EnvConfig(f"ALE/{game}-v5", atari=AtariConfig(**options)))
    assert spec.observation_shape[1] == options.get("image_height", 84)


def step_in_child(envs, sender):
    try:
        envs.step([0, 0])
    except RuntimeError as error:
        sender.send(str(error))
    envs.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # forking is the point here
def test_a_forked_child_gets_an_error_and_does_not_hang(pong):
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=step_in_child, args=(pong, sender))
    process.start()
    assert receiver.poll(20), "the child hangs"
    assert "cannot be used in its forked child" in receiver.recv()
    process.join(100)
    assert process.exitcode == 0
    pong.step([0, 0])  # the parent goes on


def native_threads():
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_close_ends_the_backends_threads():
    gc.collect()  # backends that other tests left open, whose threads would end meanwhile
    before = native_threads()
    config = EnvConfig("ALE/Pong-v5")
    envs = make_envs(config, 3, training=True, num_threads=2)
    envs.reset([0, 1, 2])
    assert native_threads() == before + 2
    envs.close()
    envs.close()
    assert native_threads() == before
    with pytest.raises(RuntimeError, match="closed"):
        envs.step([0, 0, 0])
