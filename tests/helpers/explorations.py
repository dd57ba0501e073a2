"""An exploration whose actions say whose it is; actors import this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lrl.actors.exploration import Exploration, Moment


@dataclass(frozen=True)
class Always(Exploration):
    """Take one action, whatever the values; its epsilon is a tenth of the action."""

    action: int

    def select(self, q: Any, moment: Moment) -> Any:
        return np.full(len(q), self.action, np.int32)

    def epsilons(self, env_steps: int, environments: Any, total_environments: int) -> Any:
        return np.full(len(environments), self.action / 10)
