"""Solve CartPole with two background actors and an ordinary Lightning Trainer.

python examples/cartpole.py [--max-steps 3500]
"""

import argparse
from functools import partial

import lightning as L
import torch

import lrl
from lrl.actors.exploration import EpsilonGreedy
from lrl.learner import DoubleBootstrap
from lrl.networks import MLPEncoder, ScalarHead
from lrl.schedules import Linear


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=3500, help="learner steps")
    args = parser.parse_args()

    L.seed_everything(0)
    agent = lrl.DQN(
        encoder=partial(MLPEncoder, hidden_sizes=(120, 84)),
        head=partial(ScalarHead, loss="mse"),
        bootstrap=DoubleBootstrap,
        optimizer=partial(torch.optim.Adam, lr=1e-3, fused=True),
        target_update_period_learner_steps=25,
    )
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("CartPole-v1"),
        lrl.ActorConfig(num_actors=2, envs_per_actor=16),
        exploration=EpsilonGreedy(Linear(1.0, 0.02, duration=50_000)),
        replay=lrl.ReplayConfig(capacity=50_000, batch_size=512, n_step=5, gamma=0.995),
    )
    callback = lrl.ActorLearnerCallback(
        sync_period_learner_steps=10, eval_interval_learner_steps=min(250, args.max_steps)
    )
    trainer = L.Trainer(
        devices=1, max_steps=args.max_steps, callbacks=[callback, lrl.RLProgressBar()]
    )
    trainer.fit(agent, datamodule=experience)
    print(f"best return {callback.best_model_score:.1f} in {callback.best_model_path}")


if __name__ == "__main__":  # actors import this file: without the guard they would train too
    main()
