"""A script that trains on two ranks: `python -m helpers.ddp_run ALGORITHM FOLDER [CHECKPOINT]`.

Every rank writes what it sees to `rank_R.json` in the folder.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any


def parts(algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what an algorithm asks of the agent and of its experience."""
    from lrl import ReplayConfig
    from lrl.actors.exploration import Greedy
    from lrl.networks import ImplicitQuantileHead
    from lrl.replay import PrioritizedSampler
    from lrl.schedules import Linear

    if algorithm in ("dqn", "background"):
        return {}, {}
    if algorithm == "several_updates":
        return {"updates_per_step": 5}, {}
    assert algorithm == "noisy_iqn"
    head = functools.partial(
        ImplicitQuantileHead, num_quantiles=4, hidden_size=8, dueling=True, noisy=True
    )
    replay = ReplayConfig(
        2000, batch_size=8, n_step=Linear(5.0, 1.0, 80), sampler=PrioritizedSampler
    )
    return {"head": head}, {"replay": replay, "exploration": Greedy()}


def main(algorithm: str, folder: Path, ckpt_path: str | None) -> None:
    import torch

    from helpers.training_runs import AfterEachStep, background, make_run, small_agent, small_data
    from lrl import ActorLearnerCallback, EnvConfig, EvaluationConfig, RLProgressBar
    from lrl.networks import NoisyLinear

    def note_end() -> None:
        is_member = torch.distributed.is_initialized()
        (folder / f"ended_{run.trainer.global_rank}").write_text("member" if is_member else "left")

    atexit.register(note_end)  # before the run, hence called after what the run registers
    agent, experience = parts(algorithm)
    module, noise = small_agent(**agent), []
    largest_weights: list[float] = []

    def note_weights(_: Any, batch: Any) -> None:
        parts = batch if isinstance(batch, tuple) else (batch,)
        largest_weights.extend(float(part.weights.max()) for part in parts)

    def note_noise(*_: Any) -> None:
        layers = [layer for layer in module.modules() if isinstance(layer, NoisyLinear)]
        noise.append([float(layer.input_noise.sum()) for layer in layers])

    warnings.simplefilter("ignore")
    run = make_run(
        folder,
        ActorLearnerCallback(
            5, 20, 0, evaluation="background" if algorithm == "background" else "inline"
        ),
        AfterEachStep(note_noise),
        AfterEachStep(note_weights),
        module=module,
        data=small_data(
            env=EnvConfig(id="CartPole-v1"),
            actors=background(1, 2),
            evaluation=EvaluationConfig(episodes=4, test_episodes=4),
            **experience,
        ),
        max_steps=80 if ckpt_path else 40,
        log_every_n_steps=20,
        strategy="ddp",
        devices=2,
    ).fit(ckpt_path)
    weights = b"".join(tensor.numpy().tobytes() for tensor in run.module.state_dict().values())
    dataset, slot = run.data.dataset, run.data.slot
    assert dataset is not None
    pool: Any = dataset.pool
    state = dataset.replay.state(with_rows=False)
    bar = RLProgressBar()
    bar._throughput = run.callback.throughput  # as of a run that shows it
    report = {
        "weights": hashlib.sha256(weights).hexdigest(),
        "learner_steps": run.trainer.global_step,
        "env_steps": dataset.env_steps,
        "episodes": dataset.episodes,
        "bar": bar.text(run.trainer),
        "offset": pool.manager.env_steps_offset,
        "environments": slot.environments.tolist(),
        "total_environments": slot.total_environments,
        "seeds": slot.env_seeds(),
        "draw": slot.generator().random(),
        "sample": state["generator"].tolist(),
        "noise": noise,
        "largest_weights": largest_weights,
        "torch_draw": torch.rand(()).item(),
        "n_step": dataset.replay.n_step,
        "batches": [dataset.batches, state["sampler"].get("batches")],
        "best": run.callback.best_model_score,
    }
    (folder / f"rank_{run.trainer.global_rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
