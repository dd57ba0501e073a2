"""Learning offline: experience to and from Minari datasets, and a loss for it."""

from lrl.offline.conservative import ConservativeDQN
from lrl.offline.pool import MinariPool

__all__ = ["ConservativeDQN", "MinariPool"]
