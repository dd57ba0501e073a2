"""Two ranks whose disk is full for a while: `python -m helpers.ddp_full_disk FOLDER UNTIL`.

`last.ckpt` cannot be written until learner step UNTIL. Each rank writes what became of it.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from helpers.training_runs import make_run, small_data
from lrl import ActorLearnerCallback, EvaluationConfig
from lrl.checkpoints import files
from lrl.checkpoints.files import SaveError


def main(folder: Path, until: int) -> None:
    """Train."""
    warnings.simplefilter("ignore")
    replace_file = files.replace_file
    run = make_run(
        folder,
        ActorLearnerCallback(5, 0, 2),
        data=small_data(evaluation=EvaluationConfig(episodes=2, test_episodes=2)),
        max_steps=8,
        strategy="ddp",
        devices=2,
    )

    def refuse_if_full(path: Path, *arguments: Any) -> None:
        if run.trainer.global_step < until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, *arguments)

    files.replace_file = refuse_if_full
    error = ""
    try:
        run.fit()
    except SaveError as caught:
        error = str(caught)
    report = {"learner_steps": run.trainer.global_step, "error": error}
    (folder / f"rank_{run.trainer.global_rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
