"""Actors on a real Ray: nodes that come, go and fall silent, and whole runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import Project
from helpers.training_runs import environment_for_subprocess
from helpers.waiting import wait_for

from benchmark.chaos.cluster import Watched, silence, three_nodes, wake
from lrl.inference.config import InferenceConfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
ON_RAY = ("--data.actors.num_actors", "0", "--data.cluster.num_actors", "2")


@pytest.fixture(scope="module")
def nodes():
    with three_nodes() as nodes:
        yield nodes


def test_nodes_and_actors_come_and_go_and_every_row_is_there_once(nodes):
    with Watched(nodes.address, silence_seconds=10.0) as run:
        run.until(run.all_act, 120.0)
        first, second = (remote.welcome for remote in run.actors)
        assert first is not None
        assert second is not None
        assert first.node != second.node

        os.kill(first.pid, signal.SIGKILL)
        run.until_replaced(1, 60.0)

        gone = run.elsewhere().node
        nodes.remove_node(next(n for n in nodes.list_all_nodes() if n.node_id == gone))
        run.until(lambda: run.restarts == 2, 60.0)
        nodes.add_node(num_cpus=1)
        run.until(run.all_act, 60.0)

        silent = run.elsewhere()
        stopped = silence(nodes, silent)
        nodes.add_node(num_cpus=1)
        run.until_replaced(3, 90.0)
        assert silent.node not in {r.welcome.node for r in run.actors if r.welcome is not None}
        wake(stopped)

    run.ledger.raise_faults()
    counts = run.pool.counts()
    assert run.ledger.counts["instances"] == 5 * 4  # 2 actors and 3 in place of one
    assert run.ledger.counts["steps"] == sum(s.env_steps for s in counts.actors) > 500
    assert counts.rows_dropped == 0
    assert 0 < run.pool.metrics()["count/calls_lost"] <= 3 * 2


def test_a_server_is_killed_and_its_actors_lose_nothing(nodes):
    nodes.add_node(num_cpus=1)
    with Watched(nodes.address, InferenceConfig(groups_per_actor=2)) as run:
        run.until(run.all_act, 120.0)
        servers = run.pool.fleet.servers
        assert servers is not None
        assert servers.all[0].welcome is not None
        os.kill(servers.all[0].welcome.pid, signal.SIGKILL)
        run.until(lambda: servers.restarts == 1, 60.0)
        before = run.ledger.counts["steps"]
        run.until(lambda: run.ledger.counts["steps"] > before + 500, 60.0)
    run.ledger.raise_faults()
    assert run.ledger.counts["instances"] == 2 * 4
    assert run.pool.metrics()["count/calls_lost"] == 0


def of_ray(folder: Path) -> list[str]:
    """Return the processes that have this folder for temporary files, and what lies there."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return [line for line in lines.splitlines() if str(folder) in line] + list(
        map(str, folder.iterdir())
    )


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    short = Path(f"/tmp/lrl{os.getpid()}")  # names of sockets have 107 characters at most
    short.mkdir()
    monkeypatch.setenv("TMPDIR", str(short))
    yield Project(tmp_path), short
    for path in short.iterdir():
        path.rmdir()
    short.rmdir()


def test_a_run_brings_its_own_ray_and_leaves_nothing(project):
    project, folder = project
    run = project.start("fit", "--config", "base.yaml", *ON_RAY, "--data.actors.num_actors", "1")
    _, errors = run.communicate(timeout=100)
    assert run.returncode == 0, errors
    assert "2 actors on the Ray cluster of this machine, and 1 actor in processes here," in errors
    wait_for(lambda: not of_ray(folder), "nothing left of Ray", seconds=10.0)
    assert not (project.folder / ".ray").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_run_with_its_own_ray_ends_as_any_other(project, number, code):
    project, folder = project
    endless = ("--trainer.max_steps", "1000000", "--actor_learner.eval_period_learner_steps", "0")
    run = project.start("fit", "--config", "base.yaml", *ON_RAY, *endless)
    try:
        metrics = project.runs / "version_0" / "metrics.csv"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 2, "steps", 90.0)
        run.send_signal(number)
        _, errors = run.communicate(timeout=200)
    finally:
        run.kill()
    assert run.returncode == code, errors
    wait_for(lambda: not of_ray(folder), "nothing left of Ray", seconds=20.0)


def test_importing_lrl_does_not_import_ray():
    code = "import sys, lrl, lrl.learner, lrl.cli.main; sys.exit('ray' in sys.modules)"
    environment = environment_for_subprocess()
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
