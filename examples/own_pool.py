"""Learn from rows of your own making: processes of yours and a plain `multiprocessing.Queue`.

    python examples/own_pool.py [--max-steps 3000]

The pool below is all that lrl asks for. Its processes act at random, since learning is off-policy;
`publish` is where they would get weights from.
"""

import argparse
import contextlib
import math
import multiprocessing
import queue
import sys

import gymnasium
import lightning as L
import numpy as np

import lrl
from lrl.learner import ActorPool, Delivery, Episode
from lrl.types import RowKind, Rows


def send(rows: multiprocessing.Queue, row: tuple, episode: Episode | None = None) -> None:
    """Wait for room in the queue, but not for a learner that was killed."""
    learner = multiprocessing.parent_process()
    while learner and learner.is_alive():
        with contextlib.suppress(queue.Full):
            return rows.put((row, episode), timeout=1)
    sys.exit("the learner is gone")


def act(rows: multiprocessing.Queue, stream: int) -> None:
    """Play for ever; a row holds an observation and what came of the action taken in it."""
    rows.cancel_join_thread()  # at the end, rows that nobody will read are not waited for
    env = gymnasium.make("CartPole-v1")
    rng, seed = np.random.default_rng(stream), stream
    while True:
        (observation, _), episode_return, length, over = env.reset(seed=seed), 0.0, 0, False
        seed = None  # other episodes begin elsewhere
        while not over:
            action = int(rng.integers(2))
            following, reward, terminated, truncated, _ = env.step(action)
            row = (stream, RowKind.STEP, observation, action, reward, terminated, truncated)
            send(rows, row)
            episode_return, length = episode_return + float(reward), length + 1
            observation, over = following, terminated or truncated
        # The final observation, from which a truncated episode bootstraps.
        row = (stream, RowKind.BOUNDARY, observation, 0, 0.0, False, False)
        send(rows, row, Episode(episode_return, length, math.nan))  # no network valued its start


class QueuePool(ActorPool):
    """Takes rows from a queue that processes of its own fill."""

    def __init__(self, num_processes: int) -> None:
        self.num_streams = num_processes
        self.processes = []

    def start(self, network, run_env_steps):
        context = multiprocessing.get_context("spawn")
        self.rows = context.Queue(maxsize=1000)
        for stream in range(self.num_streams):
            process = context.Process(target=act, args=(self.rows, stream), daemon=True)
            process.start()
            self.processes.append(process)

    def check(self):
        if not all(process.is_alive() for process in self.processes):
            raise RuntimeError("a process of the pool has died")

    def poll(self, timeout):
        try:
            row, episode = self.rows.get(timeout > 0, timeout)
        except queue.Empty:
            return
        stream, kind, observation, action, reward, terminated, truncated = row
        rows = Rows(
            np.array([stream], np.int32),
            np.array([kind], np.uint8),
            observation[None],
            np.array([action], np.int32),
            np.array([reward], np.float32),
            np.array([terminated]),
            np.array([truncated]),
            policy_version=np.zeros(1, np.int64),
        )
        yield Delivery([rows], [] if episode is None else [episode])

    def close(self, take):
        for process in self.processes:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=3000, help="learner steps")
    args = parser.parse_args()

    L.seed_everything(0)
    experience = lrl.ReplayDataModule(lrl.EnvConfig("CartPole-v1"), pool=QueuePool(1))
    callback = lrl.ActorLearnerCallback(eval_period_learner_steps=min(500, args.max_steps))
    trainer = L.Trainer(devices=1, max_steps=args.max_steps, callbacks=[callback])
    trainer.fit(lrl.DQN(), datamodule=experience)
    print(f"best return {callback.best_model_score:.1f}")


if __name__ == "__main__":
    main()
