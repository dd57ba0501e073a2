"""CartPole without velocities: an agent that remembers, beside one that does not.

    python examples/memory.py [--max-steps 2500] [--without-memory]

One position says nothing about where the pole is going, so an agent has to remember earlier ones. A
recurrent core (`LSTMCore`) does; it is learnt by unrolling it through sequences of the replay.
"""

import argparse
import functools

import lightning as L
import torch

import lrl
from lrl.learner import DoubleBootstrap
from lrl.networks import LSTMCore, MLPEncoder, ScalarHead

POSITIONS = [
    lrl.envs.WrapperConfig("lrl.envs.KeepEntries", {"entries": [0, 2]}),
    lrl.envs.WrapperConfig(
        "gymnasium.wrappers.RescaleObservation", {"min_obs": -10.0, "max_obs": 10.0}
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=2500, help="learner steps")
    parser.add_argument("--without-memory", action="store_true")
    args = parser.parse_args()

    L.seed_everything(0)
    remembers = not args.without_memory
    agent = lrl.DQN(
        encoder=functools.partial(MLPEncoder, hidden_sizes=(64,)),
        core=functools.partial(LSTMCore, hidden_size=64) if remembers else None,
        head=functools.partial(ScalarHead, hidden_size=128, dueling=True, value_rescaling=0.01),
        bootstrap=DoubleBootstrap,
        optimizer=functools.partial(torch.optim.Adam, lr=1e-3),
        target_update_period_learner_steps=25,
    )
    sequences = lrl.SequenceConfig(length=30, overlap=15, burn_in=10 if remembers else 0)
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("CartPole-v1", wrappers=POSITIONS),
        lrl.ActorConfig(num_actors=1, envs_per_actor=16),
        replay=lrl.ReplayConfig(
            capacity=50_000, batch_size=32, n_step=5, gamma=0.995, sequences=sequences
        ),
        rate=lrl.RateLimiterConfig(samples_per_insert=16.0),
    )
    callback = lrl.ActorLearnerCallback(eval_period_learner_steps=min(250, args.max_steps))
    trainer = L.Trainer(
        devices=1, max_steps=args.max_steps, callbacks=[callback, lrl.RLProgressBar()]
    )
    trainer.fit(agent, datamodule=experience)
    print(f"best evaluation return {callback.best_model_score:.1f}: {callback.best_model_path}")


if __name__ == "__main__":
    main()
