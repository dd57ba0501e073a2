"""A script that trains on two ranks and saves their replays: `FOLDER STEPS [CHECKPOINT]`.

Every rank writes what it sees after its first step and at the end to `rank_R.json` in the folder.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any


def main(folder: Path, steps: int, ckpt_path: str | None) -> None:
    import lightning as L

    from helpers.training_runs import AfterEachStep, background, make_run, small_data
    from lrl import ActorLearnerCallback, EnvConfig, RateLimiterConfig
    from lrl.learner.datamodule import dataset_of

    seen: list[Any] = []

    def look(trainer: L.Trainer, batch: Any) -> None:
        dataset = dataset_of(trainer)
        seen.append([dataset.env_steps, dataset.limiter.state_dict()["sampled"]])

    warnings.simplefilter("ignore")
    run = make_run(
        folder,
        AfterEachStep(look),
        ActorLearnerCallback(5, 0, 10, checkpoint_replay=True),
        data=small_data(
            env=EnvConfig(id="CartPole-v1"),
            actors=background(1, 2),
            rate=RateLimiterConfig(samples_per_insert=4.0, warm_up_env_steps=200),
        ),
        max_steps=steps,
        strategy="ddp",
        devices=2,
    ).fit(ckpt_path)
    dataset = run.data.dataset
    assert dataset is not None
    report = {"first": seen[0], "last": seen[-1], "offset": dataset.env_steps_offset}
    (folder / f"rank_{run.trainer.global_rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
