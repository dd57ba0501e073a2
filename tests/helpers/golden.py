"""Makes the golden checkpoint of a release: `PYTHONPATH=.:tests python -m helpers.golden`.

Run it once for each release, and never change or delete the files of earlier ones in tests/data:
later versions must load them for ever, or refuse them with a sentence.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

import torch

from helpers.training_runs import make_run, small_data
from lrl import DQN, ActorLearnerCallback, EnvConfig, __version__
from lrl.networks import MLPEncoder

DATA = Path(__file__).parents[1] / "data"


def golden_agent() -> DQN:
    """The agent of all golden checkpoints."""
    return DQN(
        encoder=functools.partial(MLPEncoder, hidden_sizes=(8,)),
        optimizer=functools.partial(torch.optim.Adam, lr=1e-3),
        target_update_period_learner_steps=10,
    )


def main() -> None:
    """Train for a moment and keep the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        data = small_data(env=EnvConfig("CartPole-v1"))
        callback = ActorLearnerCallback(5, 10, 10)
        run = make_run(Path(folder), callback, module=golden_agent(), data=data).fit()
        shutil.copy(run.checkpoint("last"), DATA / f"lrl-{__version__}.ckpt")


if __name__ == "__main__":
    main()
