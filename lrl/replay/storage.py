"""Where frames are kept: in memory, on a device, or in a file that is mapped into memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lrl.processes.memory import format_bytes
from lrl.types import ConfigError


def allocate(
    shape: tuple[int, ...], dtype: np.dtype, device: torch.device, folder: str | None = None
) -> Tensor:
    """Allocate without writing: the system hands out pages as rows arrive.

    Args:
        shape: Shape of the tensor.
        dtype: Type of its numbers.
        device: Where it lives.
        folder: Where the file lies that is mapped instead; it has no name, and goes with the
            process, however that ends.

    Raises:
        ConfigError: There is no such folder, no space for the file, or it cannot be written.
    """
    if folder is not None:
        return torch.from_numpy(_mapped(shape, dtype, Path(folder)))
    if device.type == "cpu":
        return torch.from_numpy(np.empty(shape, dtype))  # numpy asks for huge pages, torch does not
    return torch.empty(shape, dtype=getattr(torch, dtype.name), device=device)


def _mapped(shape: tuple[int, ...], dtype: np.dtype, folder: Path) -> npt.NDArray[Any]:
    if not folder.is_dir():
        raise ConfigError(
            f"replay.memory_map is {folder}, but there is no such folder: make it, or set "
            "memory_map to null to keep frames in memory"
        )
    needed = prod(shape) * dtype.itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk would end the process (SIGBUS)
                os.posix_fallocate(file.fileno(), 0, needed)
            file.truncate(needed)
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        free = shutil.disk_usage(folder).free
        raise ConfigError(
            f"replay.memory_map needs {format_bytes(needed)} in {folder}, where "
            f"{format_bytes(free)} are free: lower replay.capacity, or choose another folder "
            f"({error.strerror})"
        ) from error
