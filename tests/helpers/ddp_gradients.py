"""Ranks that learn from batches of their own: `python -m helpers.ddp_gradients FOLDER RANKS`.

The weights after every learner step go to `RANKS_R.pt` in the folder. A rank alone gets the batches
of two, joined.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

STEPS = 4


def main(folder: Path, ranks: int) -> None:
    import lightning as L
    import torch

    from helpers.tiny_networks import random_batch
    from helpers.trainers import Loader, Recorder
    from lrl import DQN
    from lrl.networks import MLPEncoder
    from lrl.ranks.meeting import leave_ranks_at_exit
    from lrl.types import Batch, EnvSpec

    def joined(one: Batch, other: Batch) -> Batch:
        columns: dict[str, Any] = {}
        for field in fields(Batch):
            pair = [getattr(one, field.name), getattr(other, field.name)]
            columns[field.name] = None if pair[0] is None else torch.cat(pair)
        return Batch(**columns)

    rank = int(os.environ.get("LOCAL_RANK", "0"))
    pairs = [
        [random_batch(seed=2 * step), random_batch(seed=2 * step + 1)] for step in range(STEPS)
    ]
    batches = [joined(*pair) if ranks == 1 else pair[rank] for pair in pairs]
    torch.manual_seed(0)
    agent = DQN(
        functools.partial(MLPEncoder, hidden_sizes=(8,)),
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        target_update_period_learner_steps=2,
        env_spec=EnvSpec.box((2,), "float32", num_actions=2),
    )
    recorder = Recorder()
    warnings.simplefilter("ignore")
    trainer = L.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        max_epochs=1,
        limit_train_batches=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[recorder],
    )
    trainer.fit(agent, train_dataloaders=Loader(batches))
    leave_ranks_at_exit()  # as lrl's datamodule does, which has no part in this
    torch.save(recorder.online, folder / f"{ranks}_{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
