"""`lrl doctor`: what this machine is and what suits it, or what an agent makes a GPU wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from lrl.doctor import speeds as measuring
from lrl.doctor.advice import advice, warnings
from lrl.doctor.gpu_ready import look_at
from lrl.doctor.speeds import Speeds
from lrl.doctor.this_machine import Machine, this_machine
from lrl.processes.memory import format_bytes
from lrl.types import ConfigError

_ENV, _LEARNER_STEPS = "CartPole-v1", 16


def doctor(
    gpu_ready: str | None = None,
    env: str = _ENV,
    learner_steps: int = _LEARNER_STEPS,
    measure: bool = True,
) -> None:
    """Tell what this machine is and which overlays and settings suit it; or look at an agent.

    Some seconds of measurement are part of it. With --gpu_ready it tells instead what the learner
    steps of an agent would wait for on a GPU; none is needed. A class of yours then learns for some
    steps on a GPU that is pretended on the CPU, which notes what the host reads from it, and
    refuses tensors that were left on the host. How long anything takes it cannot know.

    Args:
        gpu_ready: A class to look at, such as my_module.MyAgent; its settings are its defaults.
        env: An environment that the class can learn in.
        learner_steps: How many training steps the class makes.
        measure: Whether this machine's speed is measured (3 seconds).

    Raises:
        ConfigError: An argument does nothing, or the class is not ready.
    """
    if gpu_ready is not None:
        if not measure:
            raise ConfigError("--measure is of this machine: leave it out with --gpu_ready")
        look_at(gpu_ready, env, learner_steps)
        return
    for name, value, default in (
        ("env", env, _ENV),
        ("learner_steps", learner_steps, _LEARNER_STEPS),
    ):
        if value != default:
            raise ConfigError(f"--{name} is {value}, which does nothing without --gpu_ready")
    _tell_of_this_machine(measure)


def _tell_of_this_machine(measured: bool) -> None:
    machine, speeds = this_machine(), None
    _print("this machine", [f"{name:<12} {value}" for name, value in _facts(machine)])
    if measured:
        began = time.perf_counter()
        speeds = measuring.measure(machine.cores, bool(machine.bfloat16))
        seconds = time.perf_counter() - began
        _print(f"measured in {seconds:.0f} s", list(_figures(speeds, machine.cores)))
    _print("recommended", list(advice(machine, speeds)))
    _print("warnings", list(warnings(machine)) or ["none"])


def _facts(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "processor", f"{machine.processor}, {machine.cores} cores for this process"
    flags = " ".join(machine.bfloat16)
    yield "bfloat16", f"yes ({flags})" if flags else "no flag of the processor names it"
    yield "memory", f"{_size(machine.memory)} available"
    yield "/dev/shm", _size(machine.shared)
    yield (
        "open files",
        "unknown, or no limit" if machine.descriptors is None else str(machine.descriptors),
    )
    gpus = [f"{name} ({format_bytes(size)})" for name, size in machine.gpus]
    yield "GPUs", ", ".join(gpus) or "none that torch finds"
    yield "compiler", machine.compiler_fault or machine.compiler
    yield "versions", ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    here = [extra for extra, there in machine.extras.items() if there]
    absent = [extra for extra, there in machine.extras.items() if not there]
    how = f"; not installed: {', '.join(absent)} (as in pip install 'lrl[{','.join(absent[:2])}]')"
    yield "extras", (", ".join(here) or "none") + (how if absent else "")


def _figures(speeds: Speeds, cores: int) -> Iterator[str]:
    yield f"an update of CartPole's network, 512 rows, one thread: {speeds.mlp:.2f} ms"
    yield f"CartPole, one environment in this process: {speeds.env_steps:,.0f} steps a second"
    halved = speeds.nature_bfloat16
    more = "" if halved is None else f"; in bfloat16 {halved:.1f} ms"
    yield f"an update of Nature's network, 32 rows, {cores} threads: {speeds.nature:.1f} ms{more}"


def _size(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)


def _print(title: str, lines: list[str]) -> None:
    print(f"{title}:", *(f"  {line}" for line in lines), sep="\n", flush=True)
