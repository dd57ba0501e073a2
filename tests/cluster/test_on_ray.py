"""Actors on a real Ray: nodes that come, go and fall silent, and whole runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import Project
from helpers.training_runs import environment_for_subprocess, wait_for

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.slot import ActorSlot
from lrl.cluster.config import ClusterConfig
from lrl.envs import EnvConfig, make_spec
from lrl.inference.config import InferenceConfig
from lrl.learner.cluster_pool import ClusterPool
from lrl.networks import MLPEncoder, NetworkRecipe, ScalarHead
from lrl.parts.recipe import Recipe
from lrl.testing import Ledger, LedgerEnv

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
LEDGER = EnvConfig("lrl/Ledger-v0")
SLOT = ActorSlot(7, num_actors=2, envs_per_actor=4)
ON_RAY = ("--data.actors.num_actors", "0", "--data.cluster.num_actors", "2")


@pytest.fixture(scope="module")
def cluster():
    """A head without CPUs and two nodes with one each."""
    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_worker_niceness": "0",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


class Watched:
    """A pool on a cluster, whose rows are all looked at."""

    def __init__(self, address: str, inference: InferenceConfig | None = None) -> None:
        spec = make_spec(LEDGER)
        recipe = NetworkRecipe(spec, Recipe.of(MLPEncoder), Recipe.of(ScalarHead))
        config = ClusterConfig(address=address, silence_seconds=4.0)
        actors = ActorConfig(num_actors=0, envs_per_actor=4)
        self.pool = ClusterPool(
            config, actors, LEDGER, spec, EpsilonGreedy(), SLOT, recipe, ["lrl", "torch"],
            inference,
        )  # fmt: skip
        self.ledger = Ledger(LedgerEnv(), slot=SLOT)
        self.pool.start(recipe.build(), 0)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close(self.take)

    @property
    def states(self):
        return [remote.state for remote in self.pool.fleet.actors.all]

    def place(self, index: int) -> Any:
        return self.pool.fleet.actors.all[index].welcome

    def elsewhere(self) -> int:
        """Return an actor on another node than this process, which cannot do without its own."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        return next(index for index in (0, 1) if self.place(index).node != own)

    def take(self, delivery: Any) -> None:
        for rows in delivery.rows:
            self.ledger.take(rows)

    def until(self, condition: Any, seconds: float) -> float:
        """Take rows until a condition holds; return the seconds that it took."""
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < seconds, self.states
            self.pool.check()
            for delivery in self.pool.poll(0.1):
                self.take(delivery)
        return time.monotonic() - started

    def all_act(self) -> bool:
        return all(remote.acted_at is not None for remote in self.pool.fleet.actors.all)


def test_nodes_and_actors_come_and_go_and_every_row_is_there_once(cluster):
    with Watched(cluster.address) as run:
        run.until(run.all_act, 60.0)
        assert run.place(0).node != run.place(1).node

        os.kill(run.place(0).pid, signal.SIGKILL)
        run.until(lambda: run.pool.fleet.actors.restarts == 1, 10.0)
        assert run.until(run.all_act, 30.0) < 20.0  # an idle machine takes 2

        gone = run.place(run.elsewhere()).node
        cluster.remove_node(next(n for n in cluster.list_all_nodes() if n.node_id == gone))
        run.until(lambda: run.pool.fleet.actors.restarts == 2, 20.0)
        cluster.add_node(num_cpus=1)
        run.until(run.all_act, 30.0)

        silent = run.place(run.elsewhere())
        stopped = [silent.pid, *processes_of(cluster, silent.node)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        cluster.add_node(num_cpus=1)
        run.until(lambda: run.pool.fleet.actors.restarts == 3, 15.0)
        run.until(run.all_act, 30.0)
        assert silent.node not in {run.place(0).node, run.place(1).node}
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    run.ledger.raise_faults()
    counts = run.pool.counts()
    assert run.ledger.counts["instances"] == 5 * 4  # 2 actors and 3 in place of one
    assert run.ledger.counts["steps"] == sum(s.env_steps for s in counts.actors) > 500
    assert counts.rows_dropped == 0
    assert 0 < run.pool.metrics()["count/calls_lost"] <= 3 * 2


def test_a_server_is_killed_and_its_actors_lose_nothing(cluster):
    cluster.add_node(num_cpus=1)
    with Watched(cluster.address, InferenceConfig(groups_per_actor=2)) as run:
        run.until(run.all_act, 60.0)
        (server,) = run.pool.fleet.servers.all
        os.kill(server.welcome.pid, signal.SIGKILL)
        run.until(lambda: run.pool.fleet.servers.restarts == 1, 10.0)
        before = run.ledger.counts["steps"]
        run.until(lambda: run.ledger.counts["steps"] > before + 500, 30.0)
    run.ledger.raise_faults()
    assert run.ledger.counts["instances"] == 2 * 4
    assert run.pool.metrics()["count/calls_lost"] == 0


def processes_of(cluster: Any, node_id: str) -> list[int]:
    """Return the processes of Ray itself on a node."""
    (node,) = (node for node in cluster.list_all_nodes() if node.node_id == node_id)
    return [info.process.pid for infos in node.all_processes.values() for info in infos]


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
        _, errors = run.communicate(timeout=30)
    finally:
        run.kill()
    assert run.returncode == code, errors
    wait_for(lambda: not of_ray(folder), "nothing left of Ray", seconds=20.0)


def test_importing_lrl_does_not_import_ray():
    code = "import sys, lrl, lrl.learner, lrl.cli.main; sys.exit('ray' in sys.modules)"
    environment = environment_for_subprocess()
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
