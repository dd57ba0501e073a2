"""For tests: an environment whose experience can be checked row by row, and what tests leave.

Your own tests can use them too: train on `lrl/Ledger-v0` and hand what arrives to a `Ledger`;
take the fixture `janitor` from `lrl.testing.fixtures`. Nothing here imports torch or Lightning.
"""

from lrl.testing.ledger import Ledger
from lrl.testing.ledger_env import LedgerEnv
from lrl.testing.leftovers import Inventory, left_since, take_inventory

__all__ = ["Inventory", "Ledger", "LedgerEnv", "left_since", "take_inventory"]
