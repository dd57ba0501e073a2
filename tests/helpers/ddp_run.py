"""A script that trains on two ranks: `python -m helpers.ddp_run FOLDER [CHECKPOINT]`.

Every rank writes what it sees to `rank_R.json` in the folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any


def main(folder: Path, ckpt_path: str | None) -> None:
    from helpers.training_runs import background, make_run, small_data
    from lrl import ActorLearnerCallback, EnvConfig, EvaluationConfig

    warnings.simplefilter("ignore")
    run = make_run(
        folder,
        ActorLearnerCallback(5, 20, 0),
        data=small_data(
            env=EnvConfig(id="CartPole-v1"),
            actors=background(1, 2),
            evaluation=EvaluationConfig(episodes=4, test_episodes=4),
        ),
        max_steps=80 if ckpt_path else 40,
        log_every_n_steps=20,
        strategy="ddp",
        devices=2,
    ).fit(ckpt_path)
    weights = b"".join(tensor.numpy().tobytes() for tensor in run.module.state_dict().values())
    dataset, slot = run.data.dataset, run.data._slot()
    assert dataset is not None
    source: Any = dataset.source
    report = {
        "weights": hashlib.sha256(weights).hexdigest(),
        "learner_steps": run.trainer.global_step,
        "env_steps": dataset.env_steps,
        "offset": source.manager.env_steps_offset,
        "environments": slot.environments.tolist(),
        "total_environments": slot.total_environments,
        "seeds": slot.env_seeds(),
        "draw": slot.generator().random(),
        "sample": dataset.replay.state_dict()["generator"].tolist(),
        "best": run.callback.best_model_score,
    }
    (folder / f"rank_{run.trainer.global_rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
