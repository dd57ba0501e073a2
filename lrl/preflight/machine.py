"""Whether this machine can carry a run: asked before anything large is allocated."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

from lightning.fabric.utilities.rank_zero import rank_zero_only

from lrl.actors.config import ActorConfig
from lrl.inference.config import InferenceConfig
from lrl.inference.requests import RequestLayout
from lrl.processes.memory import available_bytes, format_bytes
from lrl.replay import ReplayBuffer, ReplayConfig, Sampler
from lrl.transport import ChunkLayout
from lrl.types import ConfigError, EnvSpec

_log = logging.getLogger(__name__)

DESCRIPTORS_PER_ACTOR = 8
"""Open files in the learner for each actor: a ring, pipes, a sentinel. A test counts them."""
DESCRIPTORS_PER_GROUP = 2
"""The same for each of an actor's groups, with inference servers: a doorbell."""
DESCRIPTORS_PER_SERVER = 12
_OTHER_DESCRIPTORS = 64  # loggers, checkpoints, a fork server, libraries that are yet to be loaded


def check_machine(
    spec: EnvSpec,
    actors: ActorConfig,
    inference: InferenceConfig,
    replay: ReplayConfig,
    sampler: Sampler,
    ranks: int = 1,
) -> None:
    """Check memory and open files, and warn of too few cores.

    Args:
        spec: The environment.
        actors: Their rings are counted.
        inference: Slots of requests are counted.
        replay: Counted where it lies in the memory of the host.
        sampler: What it keeps per row.
        ranks: Learner processes on this machine, each with actors and a replay of its own.

    Raises:
        ConfigError: There is too little of something; the message says what would do.
    """
    _check_memory(spec, actors, inference, replay, sampler, ranks)
    _check_descriptors(actors, inference)
    _warn_of_cores(actors, ranks)


def shared_bytes(spec: EnvSpec, actors: ActorConfig, inference: InferenceConfig) -> int:
    """Return the shared memory that actors and inference servers of a rank need."""
    ring = ChunkLayout(spec, actors.chunk_rows, actors.chunks_per_actor).nbytes
    slots = actors.num_actors * actors.groups if inference.num_servers else 0
    requests = RequestLayout(spec, slots, actors.envs_per_group).nbytes if slots else 0
    return actors.num_actors * ring + requests


def _check_memory(
    spec: EnvSpec,
    actors: ActorConfig,
    inference: InferenceConfig,
    replay: ReplayConfig,
    sampler: Sampler,
    ranks: int,
) -> None:
    available = available_bytes()
    if available is None:
        return
    share = available // ranks
    streams = max(1, actors.num_actors) * actors.envs_per_actor
    shared = shared_bytes(spec, actors, inference)
    if shared > share:
        raise ConfigError(
            f"the rings of actors.num_actors {actors.num_actors} need {format_bytes(shared)} of "
            f"shared memory, but {format_bytes(share)} are available: lower it, or "
            f"actors.chunk_rows {actors.chunk_rows} or chunks_per_actor {actors.chunks_per_actor}"
        )
    if replay.device != "cpu":
        return
    if replay.memory_map is not None:  # frames lie in a file
        spec = dataclasses.replace(spec, observation={})
    stored = ReplayBuffer.bytes_needed(spec, replay.capacity, streams, sampler)
    if stored + shared > share:
        fits = ReplayBuffer.largest_capacity(spec, share - shared, streams, sampler)
        others = f" beside {format_bytes(shared)} for the actors" if shared else ""
        each = f" for each of {ranks} ranks" if ranks > 1 else ""
        raise ConfigError(
            f"replay.capacity {replay.capacity} needs {format_bytes(stored)}{others}, but "
            f"{format_bytes(share)} are available{each}: at most {fits} rows fit"
        )


def descriptors_needed(actors: ActorConfig, inference: InferenceConfig) -> int:
    """Return the files that a learner with these processes has open, above those it has now."""
    groups = actors.num_actors * actors.groups if inference.num_servers else 0
    return (
        actors.num_actors * DESCRIPTORS_PER_ACTOR
        + groups * DESCRIPTORS_PER_GROUP
        + inference.num_servers * DESCRIPTORS_PER_SERVER
        + _OTHER_DESCRIPTORS
    )


def _check_descriptors(actors: ActorConfig, inference: InferenceConfig) -> None:
    limit = _descriptor_limit()
    if limit is None or actors.num_actors == 0:
        return
    needed = sum(1 for _ in Path("/dev/fd").iterdir()) + descriptors_needed(actors, inference)
    if needed > limit:
        raise ConfigError(
            f"actors.num_actors {actors.num_actors} needs up to {needed} open files, but this "
            f"process may have {limit}: run `ulimit -n {needed}` before, or lower it"
        )


def _descriptor_limit() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_known = soft != resource.RLIM_INFINITY and Path("/dev/fd").is_dir()
    return soft if is_known else None


def _warn_of_cores(actors: ActorConfig, ranks: int) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = actors.num_actors * ranks
    if cores and busy > cores:
        rank_zero_only(_log.warning)(
            "%d actors on %d cores take turns: each acts slower, and the learner waits for its "
            "share; actors.num_actors %d with more actors.envs_per_actor does the same work",
            busy, cores, max(1, cores // ranks - 1),
        )  # fmt: skip
