"""A script that trains with two actors until it is ended.

`python -m helpers.endless_run FOLDER [RANKS]`

It makes the files `setup` and `ready` in the folder once the run is set up and has made steps.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any


def main(folder: Path, ranks: int = 1) -> None:
    import lightning as L

    from helpers.training_runs import AfterEachStep, background, make_run, small_data
    from lrl import ActorLearnerCallback

    class Ready(AfterEachStep):
        def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            (folder / "setup").touch()

    def after_each_step(trainer: L.Trainer, batch: Any) -> None:
        if trainer.global_step == 5:
            (folder / "ready").touch()

    warnings.simplefilter("ignore")
    data = small_data(actors=background(2))
    callbacks = (Ready(after_each_step), ActorLearnerCallback(5, 100, 0))
    devices: dict[str, Any] = {"devices": ranks, "strategy": "ddp"} if ranks > 1 else {}
    make_run(folder, *callbacks, data=data, max_steps=10**9, **devices).fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
