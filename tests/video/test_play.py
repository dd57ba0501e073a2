"""`lrl play`: from a checkpoint to a film."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.checkpoints import trained
from helpers.command_line import quiet_commands
from helpers.filmed_envs import DIARY
from helpers.training_runs import make_run, small_agent, small_data
from PIL import Image

from lrl import ReplayConfig, SequenceConfig
from lrl.__main__ import main
from lrl.actors.actor import FunctionPolicy
from lrl.actors.slot import TRAINING_SEED_FLOOR
from lrl.envs import AtariConfig, EnvConfig
from lrl.evaluation.episodes import TEST_SEED, EvaluationConfig, run_episodes
from lrl.learner.agent import load_agent
from lrl.networks import (
    CategoricalHead,
    ImplicitQuantileHead,
    LSTMCore,
    QuantileHead,
    ScalarHead,
)
from lrl.types import ConfigError
from lrl.video import film
from lrl.video.play import _default_path, play

pytestmark = quiet_commands


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("diary")
    return trained(folder, DIARY, evaluation=EvaluationConfig(2, 4, 0.25))


def frames_of(path: Path) -> list[np.ndarray]:
    with Image.open(path) as image:
        frames = []
        for index in range(getattr(image, "n_frames", 1)):
            image.seek(index)
            frames.append(np.asarray(image.convert("RGB")))
    return frames


def test_it_plays_with_a_memory_as_evaluation_does(tmp_path):
    """Over two episodes, the second of which begins with nothing remembered."""
    data = small_data(DIARY, replay=ReplayConfig(2000, 8, sequences=SequenceConfig(4, 2, 3)))
    run = make_run(tmp_path, module=small_agent(core=LSTMCore), data=data, max_steps=5).fit()
    checkpoint = run.checkpoint("last")
    played = play(str(checkpoint), str(tmp_path / "out.gif"), episodes=2, first_seed=5, epsilon=0.0)
    agent = load_agent(checkpoint)
    expected = run_episodes(agent.env, agent.policy(), [5, 6], epsilon=0.0, max_frames=108_000)
    assert played.returns.tolist() == expected.returns.tolist()
    assert (tmp_path / "out.gif").exists()


def test_it_plays_the_episodes_of_evaluation(checkpoint, tmp_path, capsys):
    video = tmp_path / "out.gif"
    played = play(str(checkpoint), str(video), episodes=3, first_seed=5, fps=10.0)
    agent = load_agent(checkpoint)
    policy = agent.policy()
    expected = run_episodes(agent.env, policy, [5, 6, 7], epsilon=0.25, max_frames=108_000)
    assert played.returns.tolist() == expected.returns.tolist()
    assert played.lengths.tolist() == expected.lengths.tolist() == [12] * 3
    assert not played.timed_out.any()
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f"film: {video}"
    assert lines == [
        f"seed {seed}: return {value:g}, 12 steps, terminated"
        for seed, value in zip((5, 6, 7), expected.returns, strict=True)
    ]
    # The game is in the upper left corner, and its pictures say time and return.
    frames = frames_of(video)
    ends = [frame[20, 20].tolist() for frame in frames[12::13]]
    assert [len(frames), len(ends)] == [39, 3]
    assert ends == [[12, 100 + value, 0] for value in expected.returns]


def test_epsilon_and_the_cap_may_be_changed(checkpoint, tmp_path):
    played = play(str(checkpoint), str(tmp_path / "out.gif"), episodes=2, epsilon=1.0, max_steps=7)
    assert played.lengths.tolist() == [7, 7]
    assert played.timed_out.all()
    agent = load_agent(checkpoint)
    expected = run_episodes(
        agent.env,
        FunctionPolicy(lambda observation: np.zeros((len(observation), 3), np.float32)),
        [TEST_SEED, TEST_SEED + 1],
        epsilon=1.0,
        max_frames=7,
    )
    assert played.returns.tolist() == expected.returns.tolist()


def test_the_last_seed_before_those_of_training_may_be_played(checkpoint, tmp_path):
    played = play(str(checkpoint), str(tmp_path / "a.gif"), first_seed=TRAINING_SEED_FLOOR - 1)
    assert played.lengths.tolist() == [12]


@pytest.mark.parametrize(
    ("env", "steps"),
    [
        (EnvConfig(DIARY, max_episode_steps=5), 5),
        pytest.param(
            EnvConfig("ALE/Pong-v5", atari=AtariConfig(max_frames_per_episode=40)), 10,
            marks=[pytest.mark.atari, pytest.mark.slow],
        ),
    ],
)  # fmt: skip
def test_a_limit_of_the_environment_is_a_timeout_as_in_evaluation(tmp_path, env, steps: int):
    agent = load_agent(trained(tmp_path, env=env))
    played = play(str(agent.path), str(tmp_path / "out.gif"), epsilon=0.0)
    policy = agent.policy()
    expected = run_episodes(agent.env, policy, [TEST_SEED], epsilon=0.0, max_frames=108_000)
    assert played.lengths.tolist() == expected.lengths.tolist() == [steps]
    assert played.timed_out.tolist() == expected.timed_out.tolist() == [env.atari is not None]


def test_the_film_lies_in_the_folder_of_the_run(checkpoint):
    pytest.importorskip("av")
    play(str(checkpoint), first_seed=3)
    video = checkpoint.parent.parent / "videos" / "last-3.mp4"
    assert video.stat().st_size > 1000
    with pytest.raises(ConfigError, match=r"last-3\.mp4 exists"):
        play(str(checkpoint), first_seed=3)
    play(str(checkpoint), first_seed=3, overwrite=True)


def test_the_film_of_a_checkpoint_of_no_run_lies_here(tmp_path):
    cached = tmp_path / "hub" / "snapshots" / "0a1b" / "agent.ckpt"  # as hub:owner/name is cached
    assert _default_path(cached, 3) == Path("videos/agent-3.mp4")


@pytest.mark.parametrize("head", [ScalarHead, CategoricalHead, QuantileHead, ImplicitQuantileHead])
def test_every_head_can_be_filmed(tmp_path, head: Any):
    run = make_run(tmp_path, module=small_agent(head=head), data=small_data(DIARY), max_steps=3)
    path = run.fit().checkpoint("last")
    still = tmp_path / "still.png"
    played = play(str(path), str(still), max_steps=4)
    agent = load_agent(path)
    policy = agent.policy()
    expected = run_episodes(agent.env, policy, [TEST_SEED], epsilon=0.0, max_frames=4)
    assert played.returns.tolist() == expected.returns.tolist()
    (frame,) = frames_of(still)
    assert frame[20, 20, 0] == 3  # the last step before the end


def test_ctrl_c_keeps_what_was_filmed(checkpoint, tmp_path, monkeypatch, capsys):
    class Interrupted:
        steps = 0

        def check(self) -> None:
            self.steps += 1
            if self.steps > 20:
                raise KeyboardInterrupt

    monkeypatch.setattr(film.film_episode, "__kwdefaults__", {"check": Interrupted().check})
    with pytest.raises(KeyboardInterrupt):
        play(str(checkpoint), str(tmp_path / "out.gif"), episodes=4, fps=10.0)
    assert capsys.readouterr().out.splitlines()[-1] == f"film: {tmp_path / 'out.gif'}"
    assert len(frames_of(tmp_path / "out.gif")) == 13 + 8
    assert len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def nothing_is_played(monkeypatch):
    monkeypatch.setattr("lrl.video.play.film_episode", lambda *args, **kwargs: pytest.fail("plays"))


@pytest.mark.usefixtures("nothing_is_played")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"first_seed": -1}, "first_seed must be at least 0, got -1"),
        (
            {"first_seed": TRAINING_SEED_FLOOR - 1, "episodes": 2},
            "first_seed is 16777215 and episodes 2, but seeds from 16777216 on are for training",
        ),
        ({"max_steps": 0}, "max_steps must be at least 1, or null, got 0"),
        ({"fps": 0.0}, r"fps must be between 0\.1 and 1000, or null, got 0\.0"),
        ({"epsilon": 1.5}, r"evaluation\.epsilon must be between 0 and 1, got 1\.5"),
        ({"device": "moon"}, "device 'moon' cannot be used here"),
        ({"video": "film.avi"}, r"film\.avi must end in"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_played(checkpoint, settings, message: str):
    with pytest.raises(ConfigError, match=message):
        play(str(checkpoint), **settings)


@pytest.mark.usefixtures("nothing_is_played")
def test_a_missing_extra_is_named_before_anything_is_played(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigError, match=r"pip install 'lrl\[video\]'"):
        play(str(checkpoint), str(tmp_path / "out.mp4"))
    assert list(tmp_path.iterdir()) == []


def test_an_environment_without_pictures_is_named(tmp_path):
    path = trained(tmp_path)
    with pytest.raises(ConfigError, match="'lrl/Identity-v0' cannot be filmed"):
        play(str(path), str(tmp_path / "out.gif"))
    assert not (tmp_path / "out.gif").exists()


def command(monkeypatch, capsys, *arguments: str) -> tuple[object, str, str]:
    monkeypatch.setattr(sys, "argv", ["lrl", "play", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    out, err = capsys.readouterr()
    return exit_info.value.code, out, err


def test_the_command(checkpoint, tmp_path, monkeypatch, capsys):
    runs = checkpoint.parents[3]
    video = tmp_path / "out.gif"
    arguments = ("--ckpt_path", "last", "--runs", str(runs), "--name", "run", "--fps", "10")
    arguments = (*arguments, "--episodes", "2", "--video", str(video))
    code, out, err = command(monkeypatch, capsys, *arguments)
    assert code == 0, err
    assert [line.partition(":")[0] for line in out.splitlines()] == [
        f"seed {TEST_SEED}", f"seed {TEST_SEED + 1}", "film"
    ]  # fmt: skip
    assert len(frames_of(video)) == 26
    code, out, err = command(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "lrl: error: video" in err
    assert "exists" in err
    code, out, _ = command(monkeypatch, capsys, "--help")
    assert code == 0
    assert "Environment steps shown in a second" in out


@pytest.mark.slow
@pytest.mark.atari
@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
def test_pong_makes_an_mp4_that_plays(tmp_path):
    av = pytest.importorskip("av")
    path = trained(tmp_path, env=EnvConfig("ALE/Pong-v5"))
    video = tmp_path / "pong.mp4"
    played = play(str(path), str(video), max_steps=100)
    with av.open(str(video)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        seconds = container.duration / av.time_base
    assert played.lengths.tolist() == [100]
    assert len(frames) == 100 + round(1.5 * 15)
    assert frames[0].shape == (444, 656, 3)
    assert seconds == pytest.approx(len(frames) / 15, abs=0.05)
