"""The comparison of how long libraries take to solve CartPole."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark.peers import solve


def test_runs_that_a_file_holds_are_left_out(tmp_path, monkeypatch, capsys):
    asked = []

    def measure(side: str, seed: int) -> tuple[float, float]:
        asked.append((side, seed))
        return 10.0 * seed + len(side), 500.0 if seed != 2 else 474.9

    monkeypatch.setattr(solve, "measure", measure)
    monkeypatch.setattr(solve, "check_installed", lambda parser, sides: None)
    path = tmp_path / "solved.csv"
    for seeds in (["0", "1"], ["0", "1", "2"]):
        solve.main(["--sides", "lrl", "sb3", "--seeds", *seeds, "--csv", str(path)])
    assert asked == [(side, seed) for seed in (0, 1, 2) for side in ("lrl", "sb3")]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "| lrl | 500.0, 500.0, 474.9 | 2 of 3 | 13 | 3 to 23 |",
        "| sb3 | 500.0, 500.0, 474.9 | 2 of 3 | 13 | 3 to 23 |",
    ]


def test_rows_of_another_recipe_are_not_its_runs(tmp_path, capsys):
    path = tmp_path / "solved.csv"
    now = solve.recipe("sb3")
    path.write_text(
        "side,recipe,seed,seconds,score\n"
        f"sb3,{now},1,30.0,500.0\nsb3,0123abcd,0,1.0,500.0\nsb3,{now},0,40.0,100.0\n"
    )
    solve.main(["--sides", "sb3", "--seeds", "0", "1", "--csv", str(path)])
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "| sb3 | 100.0, 500.0 | 1 of 2 | 35 | 30 to 40 |"
    )


def test_a_policy_is_scored_over_test_episodes():
    def balance(observation: np.ndarray) -> int:
        return int(observation[2] + 0.5 * observation[3] > 0)

    assert solve.score(balance) == 500.0
    assert 5 < solve.score(lambda observation: 0) < 15


def test_what_a_peer_said_is_shown_if_it_fails(monkeypatch):
    monkeypatch.setattr(solve.sys, "executable", "echo")
    with pytest.raises(
        RuntimeError, match=r"gave no figure:\n-m benchmark.peers.solve --alone sb3 0"
    ):
        solve.measure("sb3", 0)
