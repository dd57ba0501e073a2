"""Learn without a replay: every transition once, in the order in which it came.

    python examples/own_experience.py [--max-steps 3000]

The class below is all that lrl asks for in the place of its replay.
"""

import argparse
from collections import deque

import lightning as L
import numpy as np
import torch

import lrl
from lrl.replay import Experience
from lrl.types import Batch, RowKind


class Once(Experience):
    """One-step transitions, forgotten once they were learnt from."""

    def __init__(self, spec, num_streams, batch_size=64, gamma=0.99):
        self.batch_size = batch_size
        self.gamma = gamma
        self.acted: list = [None] * num_streams  # each stream's newest row, if it has an action
        self.transitions = deque(maxlen=100 * batch_size)

    def add(self, rows):
        for index in range(len(rows)):
            stream, kind = rows.stream[index], rows.kind[index]
            frame = torch.from_numpy(np.array(rows.frame[index]))
            if self.acted[stream] is not None and kind in (RowKind.STEP, RowKind.BOUNDARY):
                observation, action, reward, terminated = self.acted[stream]
                discount = 0.0 if terminated else self.gamma
                self.transitions.append((observation, action, reward, discount, frame))
            self.acted[stream] = None
            if kind == RowKind.STEP:
                figures = rows.action[index], rows.reward[index], rows.terminated[index]
                self.acted[stream] = (frame, *(number.item() for number in figures))
                self.env_steps += 1

    def can_draw(self):
        return len(self.transitions) >= self.batch_size

    def draw(self, batches):
        return [
            self._batch() for _ in range(min(batches, len(self.transitions) // self.batch_size))
        ]

    def _batch(self):
        taken = [self.transitions.popleft() for _ in range(self.batch_size)]
        observation, action, reward, discount, following = zip(*taken, strict=True)
        return Batch(
            torch.stack(observation),
            torch.tensor(action),
            torch.tensor(reward),
            torch.tensor(discount),
            torch.stack(following),
            weights=torch.ones(self.batch_size),
            keys=torch.zeros(self.batch_size, 2, dtype=torch.int64),
        )

    def state(self, with_rows):
        return {"env_steps": self.env_steps}

    def restore(self, state):
        self.env_steps = state["env_steps"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=3000, help="learner steps")
    args = parser.parse_args()

    L.seed_everything(0)
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("CartPole-v1"),
        lrl.ActorConfig(num_actors=0, envs_per_actor=16),
        rate=lrl.RateLimiterConfig(samples_per_insert=1.0, warm_up_env_steps=64),
        experience=Once,
    )
    callback = lrl.ActorLearnerCallback(eval_period_learner_steps=min(500, args.max_steps))
    trainer = L.Trainer(devices=1, max_steps=args.max_steps, callbacks=[callback])
    trainer.fit(lrl.DQN(), datamodule=experience)
    print(f"best return {callback.best_model_score:.1f}")


if __name__ == "__main__":
    main()
