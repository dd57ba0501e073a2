"""Score files and aggregates, from scores made by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrl.checkpoints.stamp import make_stamp
from lrl.envs import AtariConfig, EnvConfig
from lrl.evaluation.episodes import TEST_SEED, Episodes, EvaluationConfig
from lrl.report.scores import Score, aggregate, disagreements, score_files, write_scores
from lrl.report.statistics import summarise
from lrl.types import ConfigError


def score(
    checkpoint: str,
    env: EnvConfig,
    returns: list[float],
    timeouts: int = 0,
    seed: int = 7,
    cap: int = 108_000,
) -> Score:
    training = {"seed": seed, "learner_steps": 10, "env_steps": 20, "frames": 80}
    episodes = Episodes(
        np.array(returns),
        np.arange(len(returns)) + 5,
        np.arange(len(returns)) < timeouts,
    )
    stamp = make_stamp(env, EvaluationConfig(max_frames_per_episode=cap), **training)
    stamp["evaluation"]["first_seed"] = TEST_SEED
    return Score(checkpoint, stamp, episodes, 1.5)


CARTPOLE = score("a.ckpt", EnvConfig(), [100.0, 400.0, 300.0, 500.0], timeouts=1)
PONG = [score(f"pong{n}", EnvConfig("ALE/Pong-v5"), [n, n + 2.0], seed=n) for n in (10, 12, 17)]
BREAKOUT = [score(f"b{n}", EnvConfig("ALE/Breakout-v5"), [n, n + 2.0], seed=n) for n in (10, 100)]


def test_a_score_by_hand():
    written = CARTPOLE.as_dict()
    assert written["statistics"] == {
        **asdict(summarise([[100.0, 400.0, 300.0, 500.0]])),
        "human_normalised": None,
        "length_mean": 6.5,
        "timeouts": 1,
    }
    assert written["statistics"]["mean"] == 325.0
    assert written["statistics"]["iqm"] == 350.0
    assert (written["episodes"], written["seconds"]) == (4, 1.5)
    assert (written["first_seed"], written["last_seed"]) == (TEST_SEED, TEST_SEED + 3)


@pytest.mark.parametrize(
    ("timeouts", "cap", "known"),
    [(1, 18_000, True), (1, 17_999, False), (0, 300, True)],
    ids=["a protocol's cap", "cut off early", "over early"],
)
@pytest.mark.parametrize("by_the_game", [False, True])
def test_games_cut_off_earlier_than_any_protocol_does_are_not_compared(
    timeouts, cap, known, by_the_game
):
    atari = AtariConfig(max_frames_per_episode=cap) if by_the_game else AtariConfig()
    env = EnvConfig("ALE/Pong-v5", atari=atari)
    pong = score("p", env, [-1.0, -1.0], timeouts, cap=108_000 if by_the_game else cap)
    assert (pong.human_normalised is not None) == known


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("ALE/Pong-v5", (10.0 + 20.7) / 35.3),
        ("ale_py:ALE/Pong-v5", (10.0 + 20.7) / 35.3),
        ("ALE/Adventure-v5", None),
        ("CartPole-v1", None),
    ],
)
def test_games_with_known_scores_are_normalised(env_id: str, expected: float | None):
    result = score("a", EnvConfig(env_id), [9.0, 11.0]).human_normalised
    assert result == (None if expected is None else pytest.approx(expected))


def test_runs_of_one_environment_are_aggregated_by_their_means():
    result = aggregate([*PONG, CARTPOLE])
    assert list(result) == ["ALE/Pong-v5", "CartPole-v1"]  # there is no human at CartPole
    assert result["ALE/Pong-v5"] == summarise([[11.0, 13.0, 18.0]])
    assert result["CartPole-v1"].count == 1


def test_games_are_aggregated_by_human_normalised_scores_in_groups():
    result = aggregate([*PONG, *BREAKOUT])
    pong = [(mean + 20.7) / 35.3 for mean in (11.0, 13.0, 18.0)]
    breakout = [(mean - 1.7) / 28.8 for mean in (11.0, 101.0)]
    assert result["human-normalised"].count == 5
    expected = {
        key: pytest.approx(value) for key, value in asdict(summarise([pong, breakout])).items()
    }
    assert asdict(result["human-normalised"]) == expected


def test_checkpoints_that_share_a_training_seed_are_no_independent_runs():
    """Two of one run, or of two algorithms: their spread is not that of training runs."""
    twin = score("best.ckpt", EnvConfig("ALE/Pong-v5"), [3.0], seed=12)
    result = aggregate([*PONG, twin, *BREAKOUT])
    for name in ("ALE/Pong-v5", "human-normalised"):
        assert (result[name].iqm_low, result[name].iqm_high) == (None, None)
    assert result["ALE/Pong-v5"].mean == (11.0 + 13.0 + 18.0 + 3.0) / 4
    assert result["ALE/Breakout-v5"] == summarise([[11.0, 101.0]])
    assert aggregate([*PONG, *BREAKOUT])["human-normalised"].iqm_low is not None  # seed 10 twice


def test_those_unlike_the_first_are_named():
    other = score("c", EnvConfig("ALE/Pong-v5", atari=AtariConfig(frame_stack=2)), [1.0])
    stamps = {each.checkpoint: each.stamp for each in (*PONG, other, *BREAKOUT)}
    assert disagreements(stamps) == {"c": {"env.atari.frame_stack": (4, 2)}}


@pytest.mark.parametrize("old_first", [True, False])
def test_stamps_of_another_version_leave_cells_empty(tmp_path: Path, old_first: bool):
    hardware = {**CARTPOLE.stamp["hardware"]}
    del hardware["processor"]
    old = replace(PONG[0], stamp={**PONG[0].stamp, "hardware": hardware})
    files = score_files(str(tmp_path / "both"), overwrite=False)
    write_scores(files, [old, CARTPOLE] if old_first else [CARTPOLE, old], "cpu")
    with files[0].open(newline="") as file:
        found = {row["checkpoint"]: row["hardware.processor"] for row in csv.DictReader(file)}
    assert found == {"a.ckpt": CARTPOLE.stamp["hardware"]["processor"], "pong10": ""}


def test_the_files_hold_every_episode_and_all_that_belongs_to_it(tmp_path: Path):
    files = score_files(str(tmp_path / "new/folder/v1.5"), overwrite=False)
    assert [path.name for path in files] == ["v1.5.csv", "v1.5.json"]
    write_scores(files, [CARTPOLE, PONG[0]], "cpu")
    assert {path.name for path in files[0].parent.iterdir()} == {"v1.5.csv", "v1.5.json"}
    with files[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[1].items() >= {
        "checkpoint": "a.ckpt", "environment.id": "CartPole-v1", "protocol": "gymnasium",
        "evaluation.epsilon": "0.0", "evaluation.max_frames_per_episode": "108000",
        "training.seed": "7", "training.learner_steps": "10", "training.frames": "80",
        "seed": str(TEST_SEED + 1), "return": "400.0", "length": "6", "timed_out": "0",
    }.items()  # fmt: skip
    assert rows[1].keys() >= {
        *(f"environment.atari.{field.name}" for field in fields(AtariConfig)),
        "environment.reward_clip", "environment.wrappers", "versions.lrl", "versions.ale-py",
        "hardware.processor",
    }  # fmt: skip
    assert [(row["seed"], row["return"], row["timed_out"]) for row in rows] == [
        (str(TEST_SEED + index), str(value), str(int(timed_out)))
        for each in (CARTPOLE, PONG[0])
        for index, (value, timed_out) in enumerate(
            zip(each.episodes.returns, each.episodes.timed_out, strict=True)
        )
    ]
    report: dict[str, Any] = json.loads(files[1].read_text())
    assert report["format"] == 1
    assert [each["checkpoint"] for each in report["scores"]] == ["a.ckpt", "pong10"]
    for each, origin in zip(report["scores"], (CARTPOLE, PONG[0]), strict=True):
        assert each["stamp"] == origin.stamp
        assert each["statistics"]["mean"] == origin.return_mean
    assert report["aggregate"]["ALE/Pong-v5"]["mean"] == 11.0
    assert report["aggregate"]["ALE/Pong-v5"]["iqm_low"] is None
    assert report["disagreements"]["pong10"] == {"environment": ["gymnasium", "atari"]}
    assert report["evaluated_with"]["device"] == "cpu"
    assert report["evaluated_with"]["versions"] == CARTPOLE.stamp["versions"]


@pytest.mark.parametrize("name", ["there.csv", "there.json"])
def test_a_file_that_exists_is_not_replaced_unasked(tmp_path: Path, name: str):
    (tmp_path / name).write_text("precious")
    for out in ("there", "there.csv", "there.json"):
        with pytest.raises(ConfigError, match=rf"{name} already there.*--overwrite true"):
            score_files(str(tmp_path / out), overwrite=False)
    files = score_files(str(tmp_path / "there"), overwrite=True)
    assert (tmp_path / name).read_text() == "precious"  # until there is something new
    write_scores(files, [CARTPOLE], "cpu")
    assert "precious" not in (tmp_path / name).read_text()


def test_a_folder_needs_a_name_in_it(tmp_path: Path):
    with pytest.raises(ConfigError, match="a folder: name the files in it"):
        score_files(str(tmp_path), overwrite=False)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="whose folder cannot be made"):
        score_files(str(tmp_path / "file/scores"), overwrite=False)
    with pytest.raises(ConfigError, match="'/proc/scores', whose folder cannot be written"):
        score_files("/proc/scores", overwrite=False)


def test_a_full_disk_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = score_files(str(tmp_path / "a"), overwrite=False)
    write_scores(files, [CARTPOLE], "cpu")
    before = [path.read_bytes() for path in files]

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match=r"cannot be written: .*No space left on device"):
        write_scores(files, PONG, "cpu")
    assert [path.read_bytes() for path in files] == before
    assert sorted(tmp_path.iterdir()) == sorted(files)
