"""Pure tensor mathematics: no state, no environment, torch only."""

from lrl.functional.returns import n_step_return

__all__ = ["n_step_return"]
