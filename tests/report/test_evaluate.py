"""`evaluate`: what it measures, what it refuses before it plays, what it leaves behind."""

from __future__ import annotations

import csv
import functools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import edited, plain, trained, with_nan
from helpers.training_runs import make_run, quiet, small_data

from lrl.actors.slot import TRAINING_SEED_FLOOR
from lrl.checkpoints.stamp import STAMP_KEY, make_stamp
from lrl.envs import EnvConfig, make_spec
from lrl.envs.protocols import PROTOCOLS
from lrl.evaluation.episodes import TEST_SEED, Episodes, EvaluationConfig
from lrl.learner.dqn import DQN
from lrl.networks import MLPEncoder
from lrl.report import evaluate as module
from lrl.report.evaluate import evaluate
from lrl.types import ConfigError

pytestmark = quiet


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("identity"))


@pytest.fixture
def game(tmp_path: Path) -> Path:
    """An agent that was trained for no step."""
    protocol = PROTOCOLS["dqn_2015"]
    env = EnvConfig("ALE/Freeway-v5", reward_clip=protocol.reward_clip, atari=protocol.atari)
    agent = DQN(functools.partial(MLPEncoder, hidden_sizes=(1,)), env_spec=make_spec(env))
    training = {"seed": 0, "learner_steps": 0, "env_steps": 0, "frames": 0}
    content = {
        "hyper_parameters": dict(agent.hparams),
        "state_dict": agent.state_dict(),
        STAMP_KEY: make_stamp(env, EvaluationConfig(), **training),
    }
    torch.save(content, tmp_path / "game.ckpt")
    return tmp_path / "game.ckpt"


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [("CartPole-v1", {"epsilon": 0.5}), ("lrl/Ledger-v0", {"max_frames_per_episode": 12})],
)
def test_it_is_the_evaluation_of_lrl_test(tmp_path: Path, env_id: str, settings: dict[str, Any]):
    evaluation = EvaluationConfig(episodes=2, test_episodes=40, **settings)
    run = make_run(tmp_path, data=small_data(env_id, evaluation=evaluation), max_steps=10).fit()
    path = run.checkpoint("last")
    (tested,) = run.trainer.test(run.module, datamodule=run.data, ckpt_path=path, verbose=False)
    (score,) = evaluate([str(path)], episodes=40)
    assert score.episodes.metrics() == tested
    (batch,) = run.data.test_dataloader()  # plays the same episodes again
    assert plain(score.episodes) == [
        batch[name].long().tolist() if name == "length" else batch[name].tolist()
        for name in ("return", "length", "timed_out")
    ]
    assert len(set(score.episodes.returns.tolist())) > 5  # otherwise this would say little
    assert score.stamp["evaluation"]["epsilon"] == (evaluation.epsilon or 0.0)


def test_an_episode_depends_on_its_seed_alone(checkpoint: Path):
    (whole,) = evaluate([str(checkpoint)], episodes=6)
    (again,) = evaluate([str(checkpoint)], episodes=6)
    (tail,) = evaluate([str(checkpoint)], episodes=2, first_seed=TEST_SEED + 4)
    assert plain(again.episodes) == plain(whole.episodes)
    assert plain(tail.episodes) == [values[4:] for values in plain(whole.episodes)]
    assert tail.as_dict()["last_seed"] == TEST_SEED + 5


def test_epsilon_and_cap_can_be_set_and_are_what_the_score_says(checkpoint: Path):
    (score,) = evaluate([str(checkpoint)], episodes=200, epsilon=1.0, max_frames_per_episode=8)
    assert score.stamp["evaluation"] == {
        "epsilon": 1.0, "max_frames_per_episode": 8, "episodes": 200, "first_seed": TEST_SEED,
    }  # fmt: skip
    assert score.episodes.timed_out.all()  # an episode has 10 steps
    assert score.episodes.lengths.tolist() == [8] * 200
    assert abs(score.return_mean - 8 / 4) < 0.4  # 4 actions; the standard error is below 0.09


def cap_of(frames: int):
    def change(content: dict[str, Any]) -> None:
        content[STAMP_KEY]["evaluation"]["max_frames_per_episode"] = frames

    return change


def longer(content: dict[str, Any]) -> None:
    content[STAMP_KEY]["environment"]["kwargs"] = {"length": 20}


def wider(content: dict[str, Any]) -> None:
    content[STAMP_KEY]["environment"]["kwargs"] = {"num_contexts": 5}


def gone(content: dict[str, Any]) -> None:
    content[STAMP_KEY]["environment"]["id"] = "Gone-v0"


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no episodes": ({"episodes": 0}, "episodes must be at least 1, got 0"),
    "validation's seeds": (
        {"first_seed": TEST_SEED - 1},
        f"first_seed is {TEST_SEED - 1} and episodes 100, but only the seeds from {TEST_SEED} to",
    ),
    "training's seeds": (
        {"first_seed": TRAINING_SEED_FLOOR - 5, "episodes": 6},
        f"to {TRAINING_SEED_FLOOR - 1} may be used",
    ),
    "epsilon": ({"epsilon": 1.5}, "epsilon must be between 0 and 1, got 1.5"),
    "cap": ({"max_frames_per_episode": 0}, "max_frames_per_episode must be at least 1, got 0"),
    "device": ({"device": "abacus"}, "device 'abacus' cannot be used here"),
    "no name": ({"out": ""}, "out is '', a folder: name the files in it"),
}


@pytest.fixture
def unplayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No episode may begin."""
    monkeypatch.setattr(module, "run_episodes", lambda *a, **k: pytest.fail("episodes were played"))


@pytest.mark.usefixtures("unplayed")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_argument_is_named_before_anything_is_played(checkpoint: Path, name: str):
    arguments, message = MISTAKES[name]
    with pytest.raises(ConfigError) as caught:
        evaluate([str(checkpoint)], **arguments)
    assert message in str(caught.value)


@pytest.mark.usefixtures("unplayed")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_nan, "NaN"),
        (lambda content: content.pop(STAMP_KEY), "has no protocol stamp"),
        (gone, r"checkpoint .*bad\.ckpt: env.id is 'Gone-v0', which cannot be made"),
        (wider, r"bad\.ckpt: lrl/Identity-v0 has .*num_actions 5 instead of \d here: use the"),
    ],
)
def test_the_last_of_many_checkpoints_is_checked_before_the_first_is_played(
    checkpoint: Path, change, message: str
):
    bad = edited(checkpoint, "bad", change)
    with pytest.raises(ConfigError, match=message):
        evaluate([str(checkpoint), str(bad)], mix_protocols=True)


@pytest.mark.usefixtures("unplayed")
def test_no_checkpoint_and_one_given_twice_are_refused(checkpoint: Path):
    with pytest.raises(ConfigError, match="at least one checkpoint"):
        evaluate([])
    with pytest.raises(ConfigError, match="is given twice"):
        evaluate([str(checkpoint), os.path.relpath(checkpoint)])
    with pytest.raises(ConfigError, match=r"nowhere\.ckpt: there is no such file"):
        evaluate([str(checkpoint), "nowhere.ckpt"])


def test_protocols_are_not_mixed_unless_told(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
):
    paths = [str(checkpoint), str(edited(checkpoint, "longer", longer))]
    with monkeypatch.context() as patch:
        patch.setattr(module, "run_episodes", lambda *a, **k: pytest.fail("episodes were played"))
        with pytest.raises(ConfigError, match=r"longer\.ckpt has env\.kwargs .*: --mix_protocols"):
            evaluate(paths, episodes=3)
    scores = evaluate(paths, episodes=3, mix_protocols=True, out=str(tmp_path / "mixed"))
    assert [score.episodes.lengths.tolist() for score in scores] == [[10] * 3, [20] * 3]
    assert "protocols differ" in capsys.readouterr().out
    written = json.loads((tmp_path / "mixed.json").read_text())["disagreements"]
    assert written == {paths[1]: {"env.kwargs": [{}, {"length": 20}]}}


def test_what_the_arguments_make_equal_does_not_differ(checkpoint: Path):
    paths = [str(checkpoint), str(edited(checkpoint, "capped", cap_of(4)))]
    with pytest.raises(ConfigError, match="max_frames_per_episode 4 instead of 108000"):
        evaluate(paths, episodes=2)
    scores = evaluate(paths, episodes=2, max_frames_per_episode=5)
    assert [score.episodes.lengths.tolist() for score in scores] == [[5, 5], [5, 5]]


def test_a_table_is_printed_and_files_are_written(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    copy = edited(checkpoint, "copy", lambda content: None)
    out = tmp_path / "folder" / "scores"
    scores = evaluate([str(checkpoint), str(copy)], episodes=5, out=str(out))
    header, first, second, _, both, written = capsys.readouterr().out.splitlines()
    mean, std = scores[0].return_mean, scores[0].episodes.returns.std()
    assert header.split()[:4] == ["mean", "±", "std", "median"]
    assert first.split()[:3] == [f"{mean:.3f}", "±", f"{std:.3f}"]
    assert first.split()[-3:] == ["0", "-", str(checkpoint)]
    assert first.replace(str(checkpoint), "") == second.replace(str(copy), "")
    assert both.split()[:3] == [f"{mean:.3f}", "±", "0.000"]
    assert both.endswith("lrl/Identity-v0, 2 checkpoints (no interval: training seeds repeat)")
    assert "[" not in both
    assert written == f"written: {out}.csv, {out}.json"
    with Path(f"{out}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["checkpoint"] for row in rows] == [str(checkpoint)] * 5 + [str(copy)] * 5
    assert [float(row["return"]) for row in rows[:5]] == scores[0].episodes.returns.tolist()
    assert json.loads(Path(f"{out}.json").read_text())["scores"][1]["statistics"]["mean"] == mean


@pytest.mark.usefixtures("unplayed")
def test_files_that_are_there_stop_it_before_anything_is_played(checkpoint: Path, tmp_path: Path):
    (tmp_path / "there.json").touch()
    with pytest.raises(ConfigError, match=r"there\.json already there"):
        evaluate([str(checkpoint)], out=str(tmp_path / "there"))


def reseeded(content: dict[str, Any]) -> None:
    content[STAMP_KEY]["training"]["seed"] += 1


def test_runs_of_other_training_seeds_have_an_interval(checkpoint: Path, capsys):
    evaluate([str(checkpoint), str(edited(checkpoint, "reseeded", reseeded))], episodes=2)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("lrl/Identity-v0, 2 checkpoints")
    assert "[" in last


@pytest.mark.atari
@pytest.mark.usefixtures("unplayed")
def test_a_cap_above_the_games_own_is_refused(game: Path):
    message = f"is 50000, but the game of checkpoint {game} ends after env.atari.max_frames.* 18000"
    with pytest.raises(ConfigError, match=message):
        evaluate([str(game)], max_frames_per_episode=50_000)


@pytest.mark.atari
@pytest.mark.parametrize(
    ("settings", "protocol"),
    [
        ({}, "custom"),  # trained with an epsilon of 0.001
        ({"epsilon": 0.05}, "dqn_2015"),
        ({"epsilon": 0.05, "max_frames_per_episode": 18_000}, "dqn_2015"),
        ({"epsilon": 0.05, "max_frames_per_episode": 17_999}, "custom"),
    ],
)
def test_the_protocol_is_that_of_the_score(
    game: Path, settings: dict[str, Any], protocol: str, monkeypatch: pytest.MonkeyPatch
):
    none = Episodes(np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.bool_))
    monkeypatch.setattr(module, "run_episodes", lambda *a, **k: none)
    (score,) = evaluate([str(game)], episodes=1, **settings)
    assert score.stamp["protocol"] == protocol


@pytest.mark.atari
def test_a_score_of_another_environment_than_that_of_training_has_no_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    protocol = PROTOCOLS["ale_v5"]
    atari = replace(protocol.atari, repeat_action_probability=0.0)
    env = EnvConfig("ALE/Freeway-v5", reward_clip=protocol.reward_clip, atari=atari)
    found = {"atari": {"repeat_action_probability": protocol.atari.repeat_action_probability}}
    agent = DQN(functools.partial(MLPEncoder, hidden_sizes=(1,)), env_spec=make_spec(env))
    training = {"seed": 0, "learner_steps": 0, "env_steps": 0, "frames": 0}
    content = {
        "hyper_parameters": dict(agent.hparams),
        "state_dict": agent.state_dict(),
        STAMP_KEY: make_stamp(env, EvaluationConfig(env=found), **training),
    }
    torch.save(content, tmp_path / "game.ckpt")
    none = Episodes(np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.bool_))
    monkeypatch.setattr(module, "run_episodes", lambda *a, **k: none)
    epsilon = protocol.evaluation_epsilon
    (score,) = evaluate([str(tmp_path / "game.ckpt")], episodes=1, epsilon=epsilon)
    assert content[STAMP_KEY]["protocol"] == score.stamp["protocol"] == "custom"


@pytest.mark.atari
@pytest.mark.slow
def test_a_game_is_normalised_by_the_table_if_it_was_played_to_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = str(trained(tmp_path, env=EnvConfig("ALE/Freeway-v5")))
    (score,) = evaluate([path], episodes=2)
    assert not score.episodes.timed_out.any()
    assert score.human_normalised == pytest.approx(score.return_mean / 29.6)
    assert f"{score.return_mean / 29.6:.0%}" in capsys.readouterr().out

    (cut_off,) = evaluate([path], episodes=2, max_frames_per_episode=400)
    assert cut_off.episodes.lengths.tolist() == [100, 100]
    assert cut_off.episodes.timed_out.all()
    assert cut_off.human_normalised is None
    assert " -  " in capsys.readouterr().out.splitlines()[-1]
