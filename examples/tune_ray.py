"""Search with Ray Tune and ASHA, which ends the worse runs early; actors count as part of a trial.

    python -m pip install '.[tune]'  # in a clone
    python examples/tune_ray.py [--trials 8] [--max-steps 3000]

A trial takes a core for its learner and one for each of its actors, so that Ray starts no more of
them than fit. As in tune_optuna.py no seed does two things: trials train with seeds from 1000 on,
and what was found is trained anew with seed 0 and scored on the episodes of `trainer.test`.
"""

import argparse
from functools import partial
from pathlib import Path

import lightning as L
import ray
import torch
from lightning.pytorch.loggers import CSVLogger
from ray import tune
from ray.tune.integration.pytorch_lightning import TuneReportCheckpointCallback
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

import lrl

METRIC = "eval/return_mean"
ACTORS = 1


def train(
    settings: dict[str, float], max_steps: int, callbacks: list[L.Callback]
) -> tuple[L.Trainer, lrl.ReplayDataModule]:
    """Train with these settings in the current folder, a trial's own where Ray runs it."""
    seed = int(settings["seed"])
    L.seed_everything(seed, verbose=False)
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("CartPole-v1"),
        lrl.ActorConfig(num_actors=ACTORS),
        replay=lrl.ReplayConfig(n_step=int(settings["n_step"])),
        seed=seed,
    )
    own = lrl.ActorLearnerCallback(eval_period_learner_steps=max(1, max_steps // 6))
    trainer = L.Trainer(
        devices=1, max_steps=max_steps, logger=CSVLogger("runs", "tune_ray"),
        callbacks=[own, *callbacks], enable_progress_bar=False,
    )  # fmt: skip
    agent = lrl.DQN(optimizer=partial(torch.optim.Adam, lr=settings["lr"]))
    trainer.fit(agent, datamodule=experience)
    return trainer, experience


def trial(settings: dict[str, float], max_steps: int) -> None:
    """Train in a process of Ray's, which reports each evaluation and may be told to stop there."""
    report = TuneReportCheckpointCallback({METRIC: METRIC}, save_checkpoints=False)
    train(settings, max_steps, [report])


def search(trials: int, max_steps: int, scheduler: TrialScheduler) -> tune.ResultGrid:
    """Run trials as cores allow."""
    needs = tune.PlacementGroupFactory([{"CPU": 1 + ACTORS}])
    space = {
        "lr": tune.loguniform(1e-4, 1e-2),
        "n_step": tune.randint(1, 11),
        "seed": tune.randint(1000, 2000),
    }
    tuner = tune.Tuner(
        tune.with_resources(partial(trial, max_steps=max_steps), needs),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric=METRIC, mode="max", scheduler=scheduler, num_samples=trials
        ),
        run_config=tune.RunConfig("tune_ray", str(Path("runs").resolve())),
    )
    return tuner.fit()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--max-steps", type=int, default=3000, help="learner steps of each run")
    args = parser.parse_args()

    ray.init(include_dashboard=False)
    results = search(args.trials, args.max_steps, ASHAScheduler(max_t=6, grace_period=2))
    ray.shutdown()
    best = results.get_best_result().config
    assert best is not None
    trainer, experience = train({**best, "seed": 0}, args.max_steps, [])
    (score,) = trainer.test(datamodule=experience, ckpt_path="best", verbose=False)
    print(f"{len(results)} trials; best {best}")
    print(f"mean return of test episodes, trained anew: {score[METRIC]:.1f}")


if __name__ == "__main__":  # actors import this file
    main()
