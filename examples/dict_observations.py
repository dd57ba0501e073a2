"""Observations with leaves: a camera's image, a speed and a mode, in nested spaces.

    python examples/dict_observations.py [--max-steps 300]

Nothing has to be set for them: `lrl.DQN()` gives each leaf an encoder that suits it, and a run says
at its start which. Here one is chosen, and one leaf is not looked at, since it only shows noise.
`configs/signpost.yaml` does the same in YAML.
"""

import argparse
import functools

import gymnasium
import lightning as L
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

import lrl
from lrl.networks import EmbeddingEncoder, MultiEncoder


class Crossing(gymnasium.Env):
    """Brake (0), go on (1) or overtake (2): what is right depends on the light and on the mode."""

    def __init__(self, length: int = 20) -> None:
        car = Dict(mode=Discrete(3, start=1), speed=Box(0.0, 1.0, (2,), np.float32))
        self.observation_space = Tuple((Box(0, 255, (1, 8, 8), np.uint8), car))
        self.action_space = Discrete(3)
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._next(), {}

    def step(self, action):
        reward = float(action == self.right)
        self.time += 1
        return self._next(), reward, self.time == self.length, False, {}

    def _next(self):
        light, mode = self.np_random.integers(3, size=2)
        self.right = (light + mode) % 3
        image = np.zeros((1, 8, 8), np.uint8)
        image[0, 2 * light : 2 * light + 2] = 255
        car = {"mode": mode + 1, "speed": self.np_random.random(2, np.float32)}
        return image, car


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=300, help="learner steps")
    args = parser.parse_args()

    L.seed_everything(0)
    encoder = functools.partial(
        MultiEncoder,
        # A leaf's name is its path; "0", the image, has what suits images.
        encoders={"1.mode": functools.partial(EmbeddingEncoder, size=8)},
        ignored=["1.speed"],
        hidden_size=64,
    )
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig(factory=Crossing),
        lrl.ActorConfig(num_actors=1, envs_per_actor=4),
        replay=lrl.ReplayConfig(batch_size=64, n_step=1, gamma=0.0),
        rate=lrl.RateLimiterConfig(samples_per_insert=16, warm_up_env_steps=500),
    )
    callback = lrl.ActorLearnerCallback(
        sync_period_learner_steps=10, eval_period_learner_steps=min(100, args.max_steps)
    )
    trainer = L.Trainer(
        devices=1, max_steps=args.max_steps, callbacks=[callback, lrl.RLProgressBar()]
    )
    trainer.fit(lrl.DQN(encoder), datamodule=experience)
    print(f"best return {callback.best_model_score:.1f} of 20")


if __name__ == "__main__":
    main()
