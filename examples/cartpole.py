"""Solve CartPole with two background actors and an ordinary Lightning Trainer.

    python examples/cartpole.py [--max-steps 10000]
"""

import argparse
from functools import partial

import lightning as L

import lrl
from lrl.learner import DoubleBootstrap
from lrl.networks import MLPEncoder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=10_000, help="learner steps")
    args = parser.parse_args()

    L.seed_everything(0)
    agent = lrl.DQN(
        encoder=partial(MLPEncoder, hidden_sizes=(256, 256)),
        bootstrap=DoubleBootstrap,
        target_update_period_learner_steps=100,
    )
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("CartPole-v1"),
        lrl.ActorConfig(num_actors=2, envs_per_actor=8),
        replay=lrl.ReplayConfig(capacity=50_000, batch_size=64, n_step=3),
    )
    callback = lrl.ActorLearnerCallback(
        sync_period_learner_steps=20, eval_interval_learner_steps=min(500, args.max_steps)
    )
    trainer = L.Trainer(max_steps=args.max_steps, callbacks=[callback, lrl.RLProgressBar()])
    trainer.fit(agent, datamodule=experience)
    print(f"best return {callback.best_model_score:.1f} in {callback.best_model_path}")


if __name__ == "__main__":  # actors import this file: without the guard they would train too
    main()
