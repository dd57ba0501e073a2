"""What this machine is, as far as a run depends on it; nothing is measured here."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

from lrl.checkpoints.stamp import processor_name
from lrl.preflight.cores import available_cores
from lrl.preflight.machine import compiler_fault, compiler_name, descriptor_limit
from lrl.processes.memory import available_bytes

_PACKAGES = ("lrl", "torch", "lightning", "gymnasium", "ale-py")
_EXTRAS = {
    "video": "av pygame", "report": "jinja2 matplotlib", "box2d": "Box2D", "minatar": "minatar",
    "onnx": "onnx onnxruntime onnxscript", "hub": "huggingface_hub", "minari": "minari h5py",
    "mlflow": "mlflow alembic sqlalchemy", "wandb": "wandb", "ray": "ray",
    "tune": "optuna optuna_integration ray",
}  # fmt: skip
"""Modules that each extra brings, in the order of docs/install.md."""
_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")  # the last of ARM


@dataclass(frozen=True)
class Machine:
    """What this process finds.

    Attributes:
        processor: What it calls itself.
        cores: Those that this process may use.
        load: Processes that ran or waited to, over the last minute; None if unknown.
        memory: Bytes that can still be taken; None if unknown.
        shared: Size of /dev/shm in bytes; None where there is none.
        descriptors: Files that this process may have open; None if unknown or without limit.
        gpus: Their names, with their bytes of memory.
        has_driver: Whether NVIDIA's driver is here, whatever torch finds.
        bfloat16: Flags of the processor that say it multiplies in bfloat16.
        compiler: The C++ compiler.
        compiler_fault: What is wrong with it; None if nothing is.
        versions: Of the packages that matter.
        extras: Whether each extra of lrl is installed.
    """

    processor: str
    cores: int
    load: float | None
    memory: int | None
    shared: int | None
    descriptors: int | None
    gpus: tuple[tuple[str, int], ...]
    has_driver: bool
    bfloat16: tuple[str, ...]
    compiler: str
    compiler_fault: str | None
    versions: dict[str, str]
    extras: dict[str, bool]


def this_machine(root: Path = Path("/")) -> Machine:
    """Look at this machine.

    Args:
        root: Where /proc and /dev are found; tests pass a folder of their own.
    """
    return Machine(
        processor=processor_name() or platform.machine(),
        cores=available_cores(root),
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        memory=available_bytes(root),
        shared=_size_of(root / "dev/shm"),
        descriptors=descriptor_limit(),
        gpus=_gpus(),
        has_driver=(root / "proc/driver/nvidia/version").exists(),
        bfloat16=_bfloat16_flags(root),
        compiler=compiler_name(),
        compiler_fault=compiler_fault(),
        versions={"python": platform.python_version(), **{p: _version(p) for p in _PACKAGES}},
        extras={extra: all(map(find_spec, found.split())) for extra, found in _EXTRAS.items()},
    )


def _gpus() -> tuple[tuple[str, int], ...]:
    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple((gpu.name, gpu.total_memory) for gpu in found)


def _bfloat16_flags(root: Path) -> tuple[str, ...]:
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    line = next((x for x in lines if x.lower().startswith(("flags", "features"))), "")
    flags = line.partition(":")[2].split()
    return tuple(flag for flag in _BFLOAT16 if flag in flags)


def _size_of(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
