"""Pure tensor mathematics: no state, no environment, torch only."""

from lrl.functional.returns import lambda_return, n_step_return, return_with_powers

__all__ = ["lambda_return", "n_step_return", "return_with_powers"]
