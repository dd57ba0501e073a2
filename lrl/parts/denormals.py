"""Numbers below 1e-38, with which processors calculate many times slower."""

from __future__ import annotations

import numpy as np
import torch


def flush_denormals() -> bool:
    """Let this thread, and those it starts from now on, take numbers below 1.2e-38 as 0.

    Adam's momentum of weights whose gradient stays 0, such as a dead unit's, shrinks into them and
    never gets to 0. No weight can tell the difference. `torch.set_flush_denormal(False)` undoes it
    for this thread.

    Reference: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, section
    10.2.3.3.

    Returns:
        Whether they were numbers until now, and are no longer.
    """
    if not torch.tensor(1e-40) * 1.0:
        return False
    for kind in (np.float16, np.float32, np.float64):
        np.finfo(kind)  # found out now, else NumPy 1 warns that the smallest number is 0
    return torch.set_flush_denormal(True)
