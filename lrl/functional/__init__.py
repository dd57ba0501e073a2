"""Pure tensor mathematics: no state, no environment, torch only."""

from lrl.functional.returns import lambda_return, n_step_return

__all__ = ["lambda_return", "n_step_return"]
