"""For tests, your own too: an environment whose experience can be checked row by row.

Train on `lrl/Ledger-v0` and hand what arrives to a `Ledger`. Nothing here imports torch or
Lightning.
"""

from lrl.testing.ledger import Ledger
from lrl.testing.ledger_env import LedgerEnv

__all__ = ["Ledger", "LedgerEnv"]
