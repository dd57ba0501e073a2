"""What a run needs of the machine is known, and said, before anything is allocated."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import re
import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training_runs import environment_for_subprocess

from lrl import ActorConfig, ReplayConfig
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.manager import ActorManager
from lrl.actors.policy import LocalPolicyFactory
from lrl.actors.slot import ActorSlot
from lrl.envs import EnvConfig, make_spec
from lrl.inference.config import InferenceConfig
from lrl.networks import MLPEncoder, NetworkRecipe, ScalarHead
from lrl.parts.recipe import Recipe
from lrl.preflight import machine
from lrl.preflight.machine import DESCRIPTORS_PER_ACTOR, check_machine, shared_bytes
from lrl.processes.memory import available_bytes
from lrl.replay import (
    DeviceIndex,
    PrioritizedSampler,
    RankSampler,
    Replay,
    Sampler,
    UniformSampler,
    replay,
)
from lrl.transport import ChunkQueue, WeightStore
from lrl.types import ConfigError, EnvSpec

ATARI = EnvSpec.box((4, 84, 84), "uint8", num_actions=6, frame_stack=4)
VECTOR = EnvSpec.box((4,), "float32", num_actions=2)
UNIFORM = UniformSampler()


def check(
    num_actors: int = 1,
    capacity: int = 1000,
    sampler: Sampler = UNIFORM,
    spec: EnvSpec = VECTOR,
    ranks: int = 1,
    inference: InferenceConfig | None = None,
) -> None:
    actors = ActorConfig(num_actors=num_actors, envs_per_actor=4)
    streams = max(1, actors.num_actors) * actors.envs_per_actor
    check_machine(
        spec, actors, streams, inference, ReplayConfig(capacity, batch_size=32), sampler, ranks
    )


@pytest.mark.parametrize(
    "sampler",
    [
        UniformSampler,
        PrioritizedSampler,
        lambda: PrioritizedSampler(weight_normalisation="buffer"),
        RankSampler,
    ],
)
@pytest.mark.parametrize("spec", [ATARI, VECTOR])
def test_the_memory_that_is_said_is_the_memory_that_is_taken(sampler, spec):
    capacity, streams = (3000, 8) if spec is ATARI else (200_000, 8)
    said = Replay.bytes_needed(spec, capacity, streams, sampler().bytes_needed)
    tracemalloc.start()
    buffer = Replay(spec, capacity, streams, sampler=sampler())
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if isinstance(buffer._sampler, RankSampler):
        taken += 8 * buffer.streams.num_slots  # the ranking, once there are rows
    assert said == pytest.approx(taken, rel=0.02)


def test_a_replay_that_does_not_fit_is_told_the_largest_that_does(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 100_000_000)
    with pytest.raises(ConfigError, match=r"replay\.capacity 1000000 needs .* are available") as e:
        check(2, 1_000_000, PrioritizedSampler(), ATARI)
    fits = int(re.findall(r"at most (\d+)", str(e.value))[0])
    check(2, fits, PrioritizedSampler(), ATARI)
    with pytest.raises(ConfigError):
        check(2, fits + 16, PrioritizedSampler(), ATARI)
    actors = ActorConfig(num_actors=2, envs_per_actor=4)
    shared = shared_bytes(ATARI, actors, None)
    stored = Replay.bytes_needed(ATARI, fits, 8, PrioritizedSampler().bytes_needed)
    assert 0.999e8 < shared + stored <= 1e8


def test_an_index_on_the_device_counts_where_frames_are(monkeypatch):
    """Both who asks first and who allocates name the same largest capacity."""
    device = functools.partial(
        ReplayConfig, batch_size=32, sampler=PrioritizedSampler, index="device"
    )
    actors, available = ActorConfig(num_actors=0, envs_per_actor=4), 10_000_000
    monkeypatch.setattr(machine, "available_bytes", lambda: available)
    monkeypatch.setattr(replay, "available_bytes", lambda: available)
    fits = []
    for check in (
        lambda: check_machine(VECTOR, actors, 4, None, device(10**9), PrioritizedSampler()),
        lambda: Replay(VECTOR, 10**9, 4, sampler=PrioritizedSampler(), index="device"),
    ):
        with pytest.raises(ConfigError, match="rows fit") as caught:
            check()
        fits.append(int(re.findall(r"at most (\d+)", str(caught.value))[0]))
    beside = functools.partial(DeviceIndex.bytes_needed, VECTOR)
    assert fits[0] == fits[1] == Replay.largest_capacity(VECTOR, available, 4, beside) > 100_000
    Replay(VECTOR, fits[0], 4, sampler=PrioritizedSampler(), index="device")
    check_machine(VECTOR, actors, 4, None, device(fits[0]), PrioritizedSampler())
    there = device(2 * fits[0], device="cuda")  # of which the host has what the streams have
    check_machine(VECTOR, actors, 4, None, there, PrioritizedSampler())


def test_frames_in_a_file_or_on_a_gpu_are_not_counted(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 10_000_000)
    actors = ActorConfig(num_actors=0, envs_per_actor=4)
    elsewhere: Any = ({"memory_map": "folder"}, 1_000_000), ({"device": "cuda"}, 1_000_000)
    for settings, fits in (({}, 1400), *elsewhere):
        replay = ReplayConfig(fits, batch_size=32, **settings)
        check_machine(ATARI, actors, 4, None, replay, UNIFORM)
        too_large = dataclasses.replace(replay, capacity=2 * fits)
        with pytest.raises(ConfigError, match="rows fit"):
            check_machine(ATARI, actors, 4, None, too_large, UNIFORM)


def test_ranks_share_the_memory(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 10_000_000)
    check(1, 200_000)
    with pytest.raises(ConfigError, match=r"5\.00 MB are available for each of 2 ranks"):
        check(1, 200_000, ranks=2)


def test_rings_that_do_not_fit_are_told_apart(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 10_000_000)
    with pytest.raises(
        ConfigError, match=r"the rings of actors\.num_actors 64 need 1\d\d\.\d\d MB"
    ):
        check(64, 1000, spec=ATARI)


def test_requests_of_central_inference_are_counted():
    actors = ActorConfig(num_actors=4, envs_per_actor=8)
    rings = shared_bytes(ATARI, actors, None)
    with_requests = shared_bytes(ATARI, actors, InferenceConfig(num_servers=1))
    assert with_requests - rings >= 4 * 8 * 4 * 84 * 84


def test_a_system_that_does_not_say_is_believed(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: None)
    check(1, 10**12)


def test_too_few_files_are_told_with_the_number_that_is_needed(monkeypatch):
    monkeypatch.setattr(machine, "descriptor_limit", lambda: 256)
    check(8)
    with pytest.raises(ConfigError, match=r"num_actors 32 needs up to (\d+) open files") as caught:
        check(32)
    needed = int(re.findall(r"ulimit -n (\d+)", str(caught.value))[0])
    assert needed > 32 * DESCRIPTORS_PER_ACTOR
    monkeypatch.setattr(machine, "descriptor_limit", lambda: needed)
    check(32)


def test_synchronous_runs_need_no_files(monkeypatch):
    monkeypatch.setattr(machine, "descriptor_limit", lambda: 10)
    check(0)


@pytest.mark.usefixtures("janitor")
def test_an_actor_takes_the_files_that_are_said():
    spec = make_spec(EnvConfig("lrl/Identity-v0"))
    network = NetworkRecipe(spec, Recipe.of(MLPEncoder), Recipe.of(ScalarHead))
    store = WeightStore(sum(t.numel() for t in network.build().state_dict().values()))
    factory = LocalPolicyFactory(network, store)
    counts = {}
    for num_actors in (1, 3):
        manager = ActorManager(
            ActorConfig(num_actors=num_actors, envs_per_actor=1),
            EnvConfig("lrl/Identity-v0"),
            spec,
            EpsilonGreedy(),
            lambda actor: factory,
            ChunkQueue(),
            ActorSlot(0, num_actors=num_actors, envs_per_actor=1),
        )
        manager.start()
        counts[num_actors] = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        manager.stop()
        manager.queue.close()
    store.close()
    each = (counts[3] - counts[1]) / 2
    assert DESCRIPTORS_PER_ACTOR - 2 <= each <= DESCRIPTORS_PER_ACTOR


@pytest.mark.parametrize(("num_actors", "said"), [(64, True), (2, False)])
def test_more_actors_than_cores_are_worth_a_warning(monkeypatch, caplog, num_actors, said):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(machine, "descriptor_limit", lambda: None)
    with caplog.at_level(logging.WARNING):
        check(num_actors)
    assert ("64 actors on 2 cores take turns" in caplog.text) == said


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max data size             {data}            unlimited            bytes
Max address space         {space}            unlimited            bytes
"""


@pytest.mark.parametrize(
    ("data", "space", "available"),
    [("unlimited", "unlimited", None), ("unlimited", 5_000_000, 904_000), (100, 9, 0)],
)
def test_the_limits_of_the_process_count(tmp_path, data, space, available):
    write(
        tmp_path,
        {
            "proc/self/limits": LIMITS.format(data=data, space=space),
            "proc/self/status": "Name: x\nVmSize:\t    4000 kB\nVmData:\t 1000 kB\n",
        },
    )
    assert available_bytes(tmp_path) == available


@pytest.mark.slow
def test_ulimit_v_is_noticed_before_anything_is_allocated():
    code = textwrap.dedent(
        """
        import resource, sys
        from lrl.replay import Replay
        from lrl.types import ConfigError, EnvSpec
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limit = used + 500_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        spec = EnvSpec.box((4, 84, 84), "uint8", num_actions=6, frame_stack=4)
        try:
            Replay(spec, 1_000_000, 8)
        except ConfigError as error:
            print(error)
            fits = int(str(error).split("at most ")[1].split()[0])
        Replay(spec, int(fits * 0.98) // 8 * 8, 8)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment_for_subprocess(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "replay.capacity 1000000 needs 7.07 GB on cpu" in result.stdout


@pytest.mark.slow
def test_a_run_with_too_few_files_ends_before_it_begins(tmp_path):
    """32 actors under `ulimit -n 256`."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
        "sys.argv = ['lrl', 'fit', '--data.actors.num_actors', '32', '--runs', sys.argv[1]]; "
        "from lrl.__main__ import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment_for_subprocess(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "needs up to" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_small_dev_shm_does_not_matter(tmp_path):
    """As in a container: 8 MiB, and actors that share more than that."""
    lrl = (
        f"{sys.executable} -m lrl fit --data.actors.num_actors 2 --data.actors.envs_per_actor 2 "
        "--data.actors.chunk_rows 100000 --data.rate.warm_up_env_steps 100 --trainer.max_steps 4 "
        "--data.evaluation.episodes 1 --trainer.enable_progress_bar false"
    )
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && {lrl} && ls /dev/shm | wc -l"],
        cwd=tmp_path,
        env=environment_for_subprocess(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].strip() == "0"


def test_numpy_counts_what_it_allocates():
    """The measure above is worth nothing otherwise."""
    tracemalloc.start()
    array = np.empty(10**6)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert array.nbytes <= taken <= 1.01 * array.nbytes
