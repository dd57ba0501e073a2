"""Search with Optuna, end hopeless trials early, then score what was found where nobody searched.

    python -m pip install '.[tune]'  # in a clone
    python examples/tune_optuna.py [--trials 20] [--max-steps 3000]

No seed does two things. Trials train with seeds from 1000 on and are compared by the evaluations
during training. The settings they lead to are trained anew, with seed 0, and scored by
`trainer.test`: its episodes have seeds that neither training nor its evaluations use.
"""

import argparse
from functools import partial

import lightning as L
import optuna
import torch
from lightning.pytorch.loggers import CSVLogger
from optuna_integration import PyTorchLightningPruningCallback

import lrl

METRIC = "eval/return_mean"


def train(
    settings: dict[str, float], seed: int, max_steps: int, callbacks: list[L.Callback]
) -> tuple[L.Trainer, lrl.ReplayDataModule]:
    """Train with these settings; actors end with the run, also where a callback ends it."""
    L.seed_everything(seed, verbose=False)
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("CartPole-v1"),
        lrl.ActorConfig(num_actors=1),
        replay=lrl.ReplayConfig(n_step=int(settings["n_step"])),
        seed=seed,
    )
    own = lrl.ActorLearnerCallback(eval_period_learner_steps=max(1, max_steps // 6))
    trainer = L.Trainer(
        devices=1, max_steps=max_steps, logger=CSVLogger("runs", "tune_optuna"),
        callbacks=[own, *callbacks], enable_progress_bar=False,
    )  # fmt: skip
    agent = lrl.DQN(optimizer=partial(torch.optim.Adam, lr=settings["lr"]))
    trainer.fit(agent, datamodule=experience)
    return trainer, experience


def objective(trial: optuna.Trial, max_steps: int) -> float:
    """Return the last evaluation of a run; the callback reports each, and may end the trial."""
    settings = {
        "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        "n_step": trial.suggest_int("n_step", 1, 10),
    }
    pruning = PyTorchLightningPruningCallback(trial, monitor=METRIC)
    trainer, _ = train(settings, 1000 + trial.number, max_steps, [pruning])
    return float(trainer.callback_metrics[METRIC])


def search(trials: int, max_steps: int, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    """Run trials, the first one with lrl's defaults, so that the search cannot end below them."""
    sampler = optuna.samplers.TPESampler(seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    study.enqueue_trial({"lr": 1e-3, "n_step": 5})
    study.optimize(partial(objective, max_steps=max_steps), n_trials=trials)
    return study


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--max-steps", type=int, default=3000, help="learner steps of each run")
    args = parser.parse_args()

    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1)
    study = search(args.trials, args.max_steps, pruner)
    trainer, experience = train(study.best_params, 0, args.max_steps, [])
    (score,) = trainer.test(datamodule=experience, ckpt_path="best", verbose=False)
    pruned = study.get_trials(states=[optuna.trial.TrialState.PRUNED])
    print(f"{len(study.trials)} trials, {len(pruned)} pruned; best {study.best_params}")
    print(f"mean return of test episodes, trained anew: {score[METRIC]:.1f}")


if __name__ == "__main__":  # actors import this file
    main()
