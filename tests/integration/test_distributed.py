"""Two ranks on the CPU: each has its own actors and replay, and only gradients are shared."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import BASE
from helpers.training_runs import environment_for_subprocess, process_group
from helpers.waiting import wait_for

pytestmark = [pytest.mark.ddp, pytest.mark.slow]


def run_module(*command: str, cwd: Path | None = None) -> tuple[int, str]:
    """Run a Python module until all its processes are gone; return exit code and output."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment_for_subprocess(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output = process.communicate(timeout=150)[0]
    wait_for(lambda: not process_group(process.pid), "all processes gone", seconds=5)
    return process.returncode, output


def fit(algorithm: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run the script and return what each rank reported."""
    code, output = run_module("helpers.ddp_run", algorithm, str(folder), *arguments)
    assert code == 0, output
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module", params=["dqn", "noisy_iqn", "several_updates"])
def algorithm(request):
    return request.param


@pytest.fixture(scope="module")
def folder(algorithm, tmp_path_factory):
    return tmp_path_factory.mktemp("ddp")


@pytest.fixture(scope="module")
def ranks(algorithm, folder):
    return fit(algorithm, folder)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "run/version_0/metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_both_ranks_end_with_the_same_weights(ranks):
    assert ranks[0]["weights"] == ranks[1]["weights"]
    assert [rank["learner_steps"] for rank in ranks] == [40, 40]
    assert ranks[0]["best"] == ranks[1]["best"]


def test_ranks_let_go_of_each_other_before_they_end(folder, ranks):
    assert [(folder / f"ended_{rank}").read_text() for rank in range(2)] == ["left", "left"]


def test_ranks_explore_and_sample_differently(ranks):
    assert [rank["environments"] for rank in ranks] == [[0, 1], [2, 3]]
    assert [rank["total_environments"] for rank in ranks] == [4, 4]
    assert len({seed for rank in ranks for seed in rank["seeds"]}) == 4
    assert ranks[0]["draw"] != ranks[1]["draw"]
    assert ranks[0]["sample"] != ranks[1]["sample"]
    assert ranks[0]["torch_draw"] != ranks[1]["torch_draw"]  # the next quantile levels


def test_ranks_have_different_noise_in_every_layer_and_step(algorithm, ranks):
    layers = 2 * 4 if algorithm == "noisy_iqn" else 0  # of both networks
    for one, other in zip(ranks[0]["noise"], ranks[1]["noise"], strict=True):
        assert len({*one, *other}) == 2 * layers
    assert len(ranks[0]["noise"]) == (8 if algorithm == "several_updates" else 40)


def test_n_step_is_annealed_and_every_batch_is_counted(algorithm, ranks):
    assert [rank["n_step"] for rank in ranks] == [3 if algorithm == "noisy_iqn" else 1] * 2
    sampler_batches = 40 if algorithm == "noisy_iqn" else None  # by which beta is annealed
    assert [rank["batches"] for rank in ranks] == [[40, sampler_batches]] * 2


def test_importance_weights_are_divided_by_the_largest_of_all_ranks(algorithm, ranks):
    pairs = list(zip(*(rank["largest_weights"] for rank in ranks), strict=True))
    assert len(pairs) == 40
    assert all(max(pair) == pytest.approx(1.0) for pair in pairs)
    assert any(min(pair) < 0.99 for pair in pairs) == (algorithm == "noisy_iqn")


def test_counts_are_sums_over_ranks_and_written_once(folder, ranks):
    training = [row for row in rows(folder) if row["train/loss"]]
    evaluations = [row for row in rows(folder) if row["eval/return_mean"]]
    assert [int(row["step"]) for row in training] == [20, 40]
    assert [int(row["step"]) for row in evaluations] == [20, 40]
    # 8 samples for 4 per environment step: 2 steps on each rank for each learner step.
    assert float(training[-1]["count/env_steps"]) >= 2 * (20 + 40 * 2)
    assert float(training[-1]["count/env_steps"]) <= sum(rank["env_steps"] for rank in ranks)
    assert all(float(row["eval/episodes"]) == 4 for row in evaluations)


def test_bar_rows_and_summary_count_all_ranks(folder, ranks):
    summary = json.loads((folder / "run/version_0/summary.json").read_text())
    (*_, row) = (row for row in rows(folder) if row["train/loss"])
    assert summary["ranks"] == 2
    assert summary["env_steps"] == sum(rank["env_steps"] for rank in ranks)
    assert summary["episodes"] == sum(rank["episodes"] for rank in ranks)
    assert summary["frames"] == summary["stamp"]["training"]["frames"] == summary["env_steps"]
    assert summary["stamp"]["training"]["env_steps"] == summary["env_steps"]
    rate = summary["env_steps_per_second"] * summary["seconds"]
    assert rate == pytest.approx(summary["env_steps"])
    assert f"{float(row['count/env_steps']):,.0f} env steps" in ranks[0]["bar"]


def test_a_resumed_run_continues_on_both_ranks(algorithm, folder, ranks, tmp_path):
    path = folder / "run/version_0/checkpoints/last.ckpt"
    resumed = fit(algorithm, tmp_path, str(path))
    assert resumed[0]["weights"] == resumed[1]["weights"]
    assert [rank["learner_steps"] for rank in resumed] == [80, 80]
    loops = torch.load(path, weights_only=True)["loops"]
    (saved,) = loops["fit_loop"]["state_dict"]["combined_loader"]
    # The checkpoint holds the counters of rank 0, which stand for those of both.
    assert [rank["offset"] for rank in resumed] == [2 * saved["replay"]["env_steps_inserted"]] * 2
    assert resumed[0]["sample"] != resumed[1]["sample"]
    assert len({seed for rank in [*ranks, *resumed] for seed in rank["seeds"]}) == 8
    # Rank 0 goes on with the saved generator, and the others with ones of their own.
    assert len({rank["torch_draw"] for rank in [*ranks, resumed[1]]}) == 3
    assert resumed[0]["torch_draw"] != resumed[1]["torch_draw"]
    sampler_batches = 80 if algorithm == "noisy_iqn" else None
    assert [rank["batches"] for rank in resumed] == [[40, sampler_batches]] * 2
    assert [rank["n_step"] for rank in resumed] == [1, 1]


def test_the_first_rank_evaluates_in_the_background_for_all(tmp_path):
    ranks = fit("background", tmp_path)
    evaluations = {int(r["step"]): r for r in rows(tmp_path) if r["eval/return_mean"]}
    assert 40 in evaluations  # that of step 20 may still have run
    assert all(float(row["eval/episodes"]) == 4 for row in evaluations.values())
    best = max(float(row["eval/return_mean"]) for row in evaluations.values())
    assert [rank["best"] for rank in ranks] == [best, best]


def test_two_ranks_learn_what_one_learns_from_their_joined_batches(tmp_path):
    for count in (1, 2):
        subprocess.run(
            [sys.executable, "-m", "helpers.ddp_gradients", str(tmp_path), str(count)],
            env=environment_for_subprocess(),
            check=True,
            timeout=120,
        )
    alone, first, second = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("1_0", "2_0", "2_1")
    )
    assert len(alone) == 5  # before the first learner step, and after each of four
    assert not torch.equal(alone[0][0], alone[-1][0])
    for weights in zip(alone, first, second, strict=True):
        for one, of_first, of_second in zip(*weights, strict=True):
            assert torch.equal(of_first, of_second)
            torch.testing.assert_close(of_first, one, rtol=1e-5, atol=1e-6)


def test_ranks_may_be_spawned_by_a_script(tmp_path):
    code, output = run_module("helpers.ddp_spawn_run", str(tmp_path))
    assert code == 0, output
    best = tmp_path / "run/version_0/checkpoints/best.ckpt"
    assert (tmp_path / "best.txt").read_text() == str(best)
    assert best.exists()
    last = torch.load(best.with_name("last.ckpt"), weights_only=True)
    assert last["global_step"] == 40
    assert [int(row["step"]) for row in rows(tmp_path) if row["eval/return_mean"]] == [20, 40]


def test_what_a_spawned_rank_fails_with_is_what_the_script_ends_with(tmp_path):
    code, output = run_module("helpers.ddp_spawn_run", str(tmp_path), "fails")
    assert code == 1
    assert "ArithmeticError: the rank's own words" in output
    assert "ConfigError" not in output


def test_torchrun_starts_the_ranks(tmp_path):
    """One machine stands for several: the same command, with `--nnodes` and `--rdzv-endpoint`."""
    (tmp_path / "base.yaml").write_text(BASE)
    overlay = Path(__file__).parents[2] / "configs/system/ddp.yaml"
    command = [
        "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "lrl", "fit", "--config", "base.yaml", "--config", str(overlay),
        "--data.evaluation.episodes", "4", "--actor_learner.save_period_learner_steps", "20",
    ]  # fmt: skip
    code, output = run_module(*command, cwd=tmp_path)
    assert code == 0, output
    (folder,) = (tmp_path / "runs/small").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["learner_steps"] == 40
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 40
    with (folder / "metrics.csv").open() as file:
        counts = [float(r["count/env_steps"]) for r in csv.DictReader(file) if r["train/loss"]]
    assert counts[-1] >= 2 * (50 + 40 * 2)  # of both ranks
