"""What suits a machine: overlays and settings to copy, and what may go wrong."""

from __future__ import annotations

from collections.abc import Iterator

from lrl.actors.config import ActorConfig
from lrl.doctor.speeds import Speeds
from lrl.doctor.this_machine import Machine
from lrl.preflight.machine import descriptors_needed
from lrl.processes.memory import format_bytes

_GPU_OVERLAYS = {
    64: "recipe:system/gpu_64_cores",
    16: "recipe:system/gpu_16_cores",
    8: "recipe:system/gpu_8_cores",
    0: "recipe:system/gpu",
}
"""By the cores that they need."""
_FRAME_BYTES = 84 * 84
_SMALL_SHARED = 2**28
_FEW_DESCRIPTORS = 1024
_UPDATES = 62_500
"""Those of a million frames with recipe:pong."""


def advice(machine: Machine, speeds: Speeds | None) -> Iterator[str]:
    """Yield what is recommended, each with words to copy."""
    if machine.gpus:
        yield from _for_gpus(machine)
    else:
        yield _for_cores(machine.cores)
        yield (
            "small networks with Adam: --config recipe:system/captured (not for recurrent networks)"
        )
    yield "cheap environments such as CartPole: lrl fit --config recipe:cartpole_sync"
    if speeds is not None and not machine.gpus:
        yield from _for_speeds(speeds)
    where = "GPU's memory" if machine.gpus else "memory"
    room = machine.gpus[0][1] if machine.gpus else machine.memory
    if room is not None and room < 2 * 1_000_000 * _FRAME_BYTES:
        fitting = room // (2 * _FRAME_BYTES)
        rows = fitting // 50_000 * 50_000 or fitting // 1000 * 1000
        yield (
            f"a million frames of Atari take 7.1 GB; for half of the {where}: "
            f"--data.replay.capacity {rows}"
        )


def _for_gpus(machine: Machine) -> Iterator[str]:
    yield (
        f"a GPU and {machine.cores} cores: {_on_gpu(machine.cores)} "
        "--config recipe:system/captured (without the last for r2d2)"
    )
    if len(machine.gpus) > 1:  # each learner has actors of its own
        yield f"two GPUs: {_on_gpu(machine.cores // 2)} --config recipe:system/ddp"


def _on_gpu(cores: int) -> str:
    overlay = next(overlay for needed, overlay in _GPU_OVERLAYS.items() if cores >= needed)
    return f"lrl fit --config recipe:pong --config {overlay}"


def _for_cores(cores: int) -> str:
    if cores == 1:
        return (
            "1 core: acting and learning take turns: "
            "lrl fit --config recipe:pong --config recipe:system/synchronous"
        )
    if cores == 2:
        return (
            "2 cores: recipes as they are: lrl fit --config recipe:pong_laptop; where an update "
            "takes longer than acting for it: --config recipe:system/synchronous"
        )
    if cores <= 4:
        return (
            f"{cores} cores: an actor on each but the learner's: "
            f"lrl fit --config recipe:pong --data.actors.num_actors {cores - 1}"
        )
    more = (
        f", or --data.actors.num_actors {cores - 1} if actors are waited for" if cores > 5 else ""
    )
    return f"{cores} cores: lrl fit --config recipe:pong --config recipe:system/four_actors{more}"


def _for_speeds(speeds: Speeds) -> Iterator[str]:
    if speeds.nature_bfloat16 and speeds.nature > 1.2 * speeds.nature_bfloat16:
        yield (
            f"convolutional networks are {speeds.nature / speeds.nature_bfloat16:.1f} times as "
            "fast in bfloat16: --trainer.precision bf16-mixed"
        )
    minutes = _UPDATES * speeds.nature / 6e4  # the recipe is in float32
    words = (
        f"learning from a million frames of Pong takes about {minutes:.0f} minutes with recipe:pong"
    )
    if minutes > 30:
        words += "; on a machine like this: lrl fit --config recipe:pong_laptop"
    yield words


def warnings(machine: Machine) -> Iterator[str]:
    """Yield what may go wrong, or make figures wrong, and what helps."""
    if machine.load is not None and machine.load > 0.5 * machine.cores:
        yield (
            f"other processes are busy ({machine.load:.1f} on {machine.cores} cores over the last "
            "minute), so that speeds are lower than they would be"
        )
    if machine.has_driver and not machine.gpus:
        yield (
            f"there is an NVIDIA driver, but torch {machine.versions['torch']} finds no GPU: "
            "install torch with CUDA, or look at CUDA_VISIBLE_DEVICES"
        )
    if machine.shared is not None and machine.shared < _SMALL_SHARED:
        yield (
            f"/dev/shm has {format_bytes(machine.shared)}: enough for lrl, which puts nothing "
            "there, but not for Ray (data.cluster); docker run --shm-size 2g makes it larger"
        )
    actors = ActorConfig(num_actors=max(1, machine.cores - 1))
    needed = max(_FEW_DESCRIPTORS, descriptors_needed(actors, None))
    if machine.descriptors is not None and machine.descriptors < needed:
        yield (
            f"a process may have {machine.descriptors} open files, few for data.actors.num_actors "
            f"{actors.num_actors}: run `ulimit -n {needed}` before"
        )
    if machine.compiler_fault:
        yield (
            f"{machine.compiler_fault}: model.updater compiled needs one on a CPU; eager and "
            "captured do not"
        )
    if machine.memory is not None and machine.memory < 2**31:
        yield (
            f"only {format_bytes(machine.memory)} of memory are free, and a process of Python "
            "with torch takes some 300 MB: few actors, a small data.replay.capacity"
        )
