"""A script whose two ranks Lightning spawns: `python -m helpers.ddp_spawn_run FOLDER [fails]`.

At its end it writes to `best.txt` which checkpoint it knows as the best.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from helpers.training_runs import background, make_run, small_agent, small_data
from lrl import DQN, ActorLearnerCallback, EnvConfig


class Failing(DQN):
    """Fails at its first batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        raise ArithmeticError("the rank's own words")


def main(folder: Path, fails: bool) -> None:
    warnings.simplefilter("ignore")
    run = make_run(
        folder,
        ActorLearnerCallback(5, 20, 20),
        module=Failing() if fails else small_agent(),
        data=small_data(env=EnvConfig(id="CartPole-v1"), actors=background(1, 2)),
        max_steps=40,
        log_every_n_steps=20,
        strategy="ddp_spawn",
        devices=2,
    ).fit()
    (folder / "best.txt").write_text(run.callback.best_model_path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "fails" in sys.argv)
