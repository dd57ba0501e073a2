"""Whether this machine can carry a run: asked before anything large is allocated."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import lightning as L
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only

from lrl.actors.config import ActorConfig
from lrl.inference.config import InferenceConfig
from lrl.inference.requests import RequestLayout
from lrl.preflight.cores import available_cores
from lrl.processes.memory import available_bytes, format_bytes
from lrl.replay import DeviceIndex, ReplayConfig, Sampler
from lrl.replay.device_index import proportional
from lrl.replay.replay import check_memory
from lrl.transport import ChunkLayout
from lrl.types import ConfigError, EnvSpec

_log = logging.getLogger(__name__)

_COMPILERS = {"darwin": "clang++", "win32": "cl"}  # those that torch looks for

DESCRIPTORS_PER_ACTOR = 8
"""Open files in the learner for each actor: a ring, pipes, a sentinel. A test counts them."""
DESCRIPTORS_PER_GROUP = 2
"""The same for each of an actor's groups, with inference servers: a doorbell."""
DESCRIPTORS_PER_SERVER = 12
_OTHER_DESCRIPTORS = 64  # loggers, checkpoints, a fork server, libraries that are yet to be loaded


def check_machine(
    spec: EnvSpec,
    actors: ActorConfig,
    streams: int,
    inference: InferenceConfig | None,
    replay: ReplayConfig | None,
    sampler: Sampler,
    ranks: int = 1,
) -> None:
    """Check that memory and open files suffice, and warn of too few cores.

    Args:
        spec: The environment.
        actors: Their rings are counted.
        streams: Environments whose rows the replay holds.
        inference: Slots of requests are counted.
        replay: What of it lies in the memory of the host; None if the experience is another.
        sampler: What it keeps per row.
        ranks: Learner processes on this machine, each with actors and a replay of its own.

    Raises:
        ConfigError: There is too little of something; the message says what would do.
    """
    _check_memory(spec, actors, streams, inference, replay, sampler, ranks)
    _check_descriptors(actors, inference)
    _warn_of_cores(actors, ranks)


def shared_bytes(spec: EnvSpec, actors: ActorConfig, inference: InferenceConfig | None) -> int:
    """Return the shared memory that actors and inference servers of a rank need."""
    ring = ChunkLayout(spec, actors.chunk_rows, actors.chunks_per_actor).nbytes
    rings = actors.num_actors * ring
    if inference is None:
        return rings
    rows = inference.envs_per_group(actors)
    return rings + RequestLayout(spec, inference.groups(actors), rows).nbytes


def _check_memory(
    spec: EnvSpec,
    actors: ActorConfig,
    streams: int,
    inference: InferenceConfig | None,
    replay: ReplayConfig | None,
    sampler: Sampler,
    ranks: int,
) -> None:
    available = available_bytes()
    if available is None:
        return
    share = available // ranks
    shared = shared_bytes(spec, actors, inference)
    if shared > share:
        raise ConfigError(
            f"the rings of actors.num_actors {actors.num_actors} need {format_bytes(shared)} of "
            f"shared memory, but {format_bytes(share)} are available: lower it, or "
            f"actors.chunk_rows {actors.chunk_rows} or chunks_per_actor {actors.chunks_per_actor}"
        )
    if replay is not None:
        whose = f" for each of {ranks} ranks" if ranks > 1 else ""
        file, rows, where = replay.memory_map, replay.capacity, "cpu"
        beside = sampler.bytes_needed
        if replay.index == "device":
            beside = functools.partial(DeviceIndex.bytes_needed, spec)
        if replay.device != "cpu":  # what lies there is counted when it is allocated
            where = "cpu beside the frames' GPU"
            beside = sampler.bytes_needed if replay.index == "host" else None
            action = dataclasses.replace(spec.action, masks=False)
            spec = dataclasses.replace(spec, observation={}, memory={}, values=False, action=action)
        check_memory(spec, rows, streams, beside, where, file, share, shared, whose)


def descriptors_needed(actors: ActorConfig, inference: InferenceConfig | None) -> int:
    """Return the files that a learner with these processes has open, above those it has now."""
    needed = actors.num_actors * DESCRIPTORS_PER_ACTOR + _OTHER_DESCRIPTORS
    if inference is not None:
        needed += inference.groups(actors) * DESCRIPTORS_PER_GROUP
        needed += inference.num_servers * DESCRIPTORS_PER_SERVER
    return needed


def _check_descriptors(actors: ActorConfig, inference: InferenceConfig | None) -> None:
    limit = descriptor_limit()
    if limit is None or actors.num_actors == 0:
        return
    needed = sum(1 for _ in Path("/dev/fd").iterdir()) + descriptors_needed(actors, inference)
    if needed > limit:
        raise ConfigError(
            f"actors.num_actors {actors.num_actors} needs up to {needed} open files, but this "
            f"process may have {limit}: run `ulimit -n {needed}` before, or lower it"
        )


def descriptor_limit() -> int | None:
    """Return how many files this process may have open; None if nothing says or limits it."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_known = soft != resource.RLIM_INFINITY and Path("/dev/fd").is_dir()
    return soft if is_known else None


def _warn_of_cores(actors: ActorConfig, ranks: int) -> None:
    cores, busy = available_cores(), actors.num_actors * ranks
    if busy > cores:
        rank_zero_only(_log.warning)(
            "%d actors on %d cores take turns: each acts slower, and the learner waits for its "
            "share; actors.num_actors %d with more actors.envs_per_actor does the same work",
            busy, cores, max(1, cores // ranks - 1),
        )  # fmt: skip


def check_replay_index(replay: ReplayConfig, sampler: Sampler | None, trainer: L.Trainer) -> None:
    """Check that rows can be chosen in the learner step, if they are to be.

    Args:
        replay: Says where.
        sampler: What it draws with.
        trainer: The Trainer.

    Raises:
        ConfigError: They cannot.
    """
    if replay.index == "host":
        return
    if sampler is not None:
        proportional(sampler)
    learner, there = trainer.strategy.root_device, torch.device(replay.device)
    if there.type != learner.type or there.index not in (None, learner.index):
        raise ConfigError(
            f"replay.index is device, but replay.device is {replay.device} and the learner on "
            f"{learner}: set replay.device to {learner.type}, or index to host"
        )
    if trainer.world_size > 1:
        raise ConfigError(
            f"replay.index is device, which knows one learner rank, but there are "
            f"{trainer.world_size}: set index to host"
        )
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    is_strict = torch.are_deterministic_algorithms_enabled() and not only_warns
    if is_strict and learner.type == "cuda":
        raise ConfigError(
            "replay.index is device, which adds up priorities in an order that torch does not call "
            "deterministic on a GPU, but trainer.deterministic is true: set index to host"
        )


def check_replay_device(name: str, learner: torch.device) -> None:
    """Check that batches are made where the learner is, or on the host.

    Args:
        name: `replay.device`.
        learner: Where the learner's networks are.

    Raises:
        ConfigError: It is no device, or of another kind than the learner's.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"replay.device is {name}: {error}; set it to cpu or cuda") from error
    if device.type not in ("cpu", learner.type):
        raise ConfigError(
            f"replay.device is {name}, but the learner is on {learner}, which would wait for every "
            "batch to come back: set it to cpu, or trainer.accelerator to gpu where there is one"
        )


def check_compiler(device: torch.device) -> None:
    """Check that a loss can be compiled on a device.

    Raises:
        ConfigError: There is no compiler for a learner on a CPU.
    """
    if device.type == "cpu" and (fault := compiler_fault()):
        raise ConfigError(
            f"model.updater is compiled, but {fault}: install one, name another in the "
            "environment variable CXX, or set it to eager"
        )


def compiler_name() -> str:
    """Return the C++ compiler that torch would take."""
    return os.environ.get("CXX") or _COMPILERS.get(sys.platform, "g++")


def compiler_fault() -> str | None:
    """Say what is wrong with the C++ compiler; None if nothing is."""
    compiler = compiler_name()
    if not shutil.which(compiler):
        return f"there is no C++ compiler {compiler}"
    if sys.platform == "win32":  # whose compiler knows no --version
        return None
    try:
        subprocess.run([compiler, "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"the C++ compiler {compiler} does not work (`{compiler} --version` fails)"
    return None
