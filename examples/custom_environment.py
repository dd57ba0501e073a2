"""Train on your own Gymnasium environment, then act with the checkpoint alone.

    python examples/custom_environment.py [--max-steps 1500]

Registering at import time is what lets every actor process find the environment. Without
registering, `lrl.EnvConfig(factory=Corridor, max_episode_steps=50)` would do as well.
"""

import argparse

import gymnasium
import lightning as L
import numpy as np
import torch

import lrl


class Corridor(gymnasium.Env):
    """Walk right along a corridor; every step costs, the end pays."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.position = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = 0
        return self._observation(), {}

    def step(self, action):
        self.position = max(0, self.position + (1 if action == 1 else -1))
        at_end = self.position == self.length
        return self._observation(), 1.0 if at_end else -0.05, at_end, False, {}

    def _observation(self):
        return np.array([self.position / self.length], np.float32)


gymnasium.register("Corridor-v0", f"{__name__}:Corridor", max_episode_steps=50)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=1500, help="learner steps")
    args = parser.parse_args()

    L.seed_everything(0)
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("Corridor-v0", kwargs={"length": 8}),
        lrl.ActorConfig(num_actors=1, envs_per_actor=4),
        rate=lrl.RateLimiterConfig(samples_per_insert=8, warm_up_env_steps=200),
    )
    callback = lrl.ActorLearnerCallback(
        sync_period_learner_steps=10, eval_period_learner_steps=min(500, args.max_steps)
    )
    trainer = L.Trainer(
        devices=1, max_steps=args.max_steps, callbacks=[callback, lrl.RLProgressBar()]
    )
    trainer.fit(lrl.DQN(target_update_period_learner_steps=50), datamodule=experience)

    policy = lrl.DQN.load_from_checkpoint(callback.best_model_path)
    actions = policy.act(torch.tensor([[0.0], [0.5]]))
    print(f"best return {callback.best_model_score:.2f}; actions {actions.tolist()} (1 is right)")


if __name__ == "__main__":
    main()
