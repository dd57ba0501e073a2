"""A kind of environment of your own: many games in one array, stepped by a few numpy calls.

    python examples/own_env_kind.py [--max-steps 600]

`env.factory` names the kind, whose settings are `env.kwargs`. In YAML it would be
`data.env: {factory: own_env_kind.Corridors, kwargs: {length: 8}}`, with this file's folder on
PYTHONPATH. A kind also says how it is evaluated and filmed: see `lrl.envs.EnvKind`.
"""

import argparse

import lightning as L
import numpy as np
from gymnasium.spaces import Box, Discrete

import lrl
from lrl.envs import EnvKind, EnvStep, StreamEnvs
from lrl.envs.gym import spec_from_spaces


class CorridorEnvs(StreamEnvs):
    """Walk right along corridors; every step costs, the end pays."""

    def __init__(self, num_envs: int, length: int) -> None:
        spec = spec_from_spaces(Box(0, 1, (1,), np.float32), Discrete(2), "Corridors")
        super().__init__(spec, num_envs)
        self.length = length
        self.place = np.zeros(num_envs, np.int64)

    def _reset_envs(self, seeds):
        self.place = np.zeros(self.num_envs, np.int64)
        return self._observation()

    def _step_envs(self, actions, ended):
        moved = np.maximum(self.place + np.where(actions == 1, 1, -1), 0)
        self.place = np.where(ended, 0, moved)  # the next episode begins instead
        at_end = self.place == self.length
        never = np.zeros(self.num_envs, np.bool_)
        return EnvStep(self._observation(), np.where(at_end, 1.0, -0.05), at_end, never, never)

    def _observation(self):
        return (self.place / self.length).astype(np.float32)[:, None]


class Corridors(EnvKind):
    """Corridors of `env.kwargs["length"]` places."""

    def make(self, num_envs, *, training, num_threads):
        return CorridorEnvs(num_envs, **self.env.kwargs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=600, help="learner steps")
    args = parser.parse_args()

    L.seed_everything(0)
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig(factory=Corridors, kwargs={"length": 8}),
        lrl.ActorConfig(num_actors=1, envs_per_actor=4),
        rate=lrl.RateLimiterConfig(samples_per_insert=8, warm_up_env_steps=200),
        evaluation=lrl.EvaluationConfig(max_frames_per_episode=100),
    )
    callback = lrl.ActorLearnerCallback(
        sync_period_learner_steps=10, eval_period_learner_steps=min(300, args.max_steps)
    )
    trainer = L.Trainer(
        devices=1, max_steps=args.max_steps, callbacks=[callback, lrl.RLProgressBar()]
    )
    trainer.fit(lrl.DQN(target_update_period_learner_steps=50), datamodule=experience)
    print(f"best return {callback.best_model_score:.2f}; 0.65 is the shortest way")


if __name__ == "__main__":
    main()
