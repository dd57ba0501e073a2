"""How soon each library solves CartPole by its own recipe: `python -m benchmark.peers.solve`.

Each side trains with its own published hyperparameters, in a process of its own and by turns, and
is timed from the start of the process to the end of training, start-up and evaluations included
(of lrl to the end of the process). What evaluated best in training (of CleanRL and Tianshou, whose
recipes keep none: what it learnt last) is then scored over 100 episodes, greedily; below 475 it
counts as not solved, after its full budget.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmark.arguments import output
from benchmark.peers.installed import check_installed

_BAR, _EPISODES, _FIRST_SEED = 475.0, 100, 2**20  # the first seed of `lrl test`
_FIELDS = ("side", "recipe", "seed", "seconds", "score")
Policy = Callable[[Any], int]


class Steps:
    """A window that is over after a number of environment steps, and measures nothing."""

    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps

    def is_over(self, env_steps: int, updates: int) -> bool:
        """Return whether so many were made."""
        return env_steps >= self.env_steps


def cleanrl(seed: int) -> Policy:
    """Train by the defaults of CleanRL's dqn.py: 500,000 environment steps."""
    from benchmark.peers.cleanrl_recipe import train
    from benchmark.peers.workloads import TASKS

    window: Any = Steps(500_000)
    network = train(
        TASKS["cartpole"], window, lambda step: max(1 - 0.95 * step / 250_000, 0.05), seed
    )
    return lambda observation: int(network(torch.as_tensor(observation)).argmax())


def sb3(seed: int) -> Policy:
    """Train by rl-baselines3-zoo's hyperparameters for CartPole-v1: 50,000 environment steps.

    As there, 5 episodes are played after every 25,000 steps, and the best model is kept.
    """
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.monitor import Monitor

    model = DQN(
        "MlpPolicy", gym.make("CartPole-v1"), learning_rate=2.3e-3, batch_size=64,
        buffer_size=100_000, learning_starts=1000, gamma=0.99, target_update_interval=10,
        train_freq=256, gradient_steps=128, exploration_fraction=0.16, exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]}, device="cpu", seed=seed,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        evaluation = EvalCallback(
            Monitor(gym.make("CartPole-v1")), n_eval_episodes=5, eval_freq=25_000,
            best_model_save_path=folder, deterministic=True, verbose=0,
        )  # fmt: skip
        model.learn(total_timesteps=50_000, callback=evaluation)
        model = DQN.load(Path(folder, "best_model"), device="cpu")
    return lambda observation: int(model.predict(observation, deterministic=True)[0])


def tianshou(seed: int) -> Policy:
    """Train by the DQN of Tianshou's README, with CartPole-v1 in the place of v0.

    At most 10 epochs of 10,000 environment steps; it ends when 100 test episodes reach the bar.
    """
    from tianshou.data import Batch, Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.policy import DQNPolicy
    from tianshou.trainer import OffpolicyTrainer
    from tianshou.utils.net.common import Net

    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    train_envs, test_envs = (
        DummyVectorEnv([lambda: gym.make("CartPole-v1")] * count) for count in (10, 100)
    )
    train_envs.seed(seed)
    test_envs.seed(seed + 10)
    network = Net(4, 2, hidden_sizes=[128, 128, 128])
    policy = DQNPolicy(
        network, torch.optim.Adam(network.parameters(), lr=1e-3), discount_factor=0.9,
        estimation_step=3, target_update_freq=320,
    )  # fmt: skip
    replay = VectorReplayBuffer(20_000, 10)
    OffpolicyTrainer(
        policy, Collector(policy, train_envs, replay, exploration_noise=True),
        Collector(policy, test_envs), max_epoch=10, step_per_epoch=10_000, step_per_collect=10,
        episode_per_test=100, batch_size=64, update_per_step=0.1,
        train_fn=lambda epoch, step: policy.set_eps(0.1),
        test_fn=lambda epoch, step: policy.set_eps(0.05),
        stop_fn=lambda mean: mean >= _BAR, show_progress=False, verbose=False,
    ).run()  # fmt: skip
    policy.eval()
    policy.set_eps(0.0)
    return lambda observation: int(policy(Batch(obs=observation[None], info={})).act[0])


PEERS: dict[str, Callable[[int], Policy]] = {"cleanrl": cleanrl, "sb3": sb3, "tianshou": tianshou}


def score(policy: Policy) -> float:
    """Return the mean return of a policy over test episodes that training has not seen."""
    env, returns = gym.make("CartPole-v1"), []
    with torch.no_grad():
        for episode in range(_EPISODES):
            observation, _ = env.reset(seed=_FIRST_SEED + episode)
            done, total = False, 0.0
            while not done:
                observation, reward, terminated, truncated, _ = env.step(policy(observation))
                done, total = terminated or truncated, total + float(reward)
            returns.append(total)
    return float(np.mean(returns))


def recipe(side: str) -> str:
    """Return what a side trains by, in 8 digits."""
    if side == "lrl":
        return _our_task().digest
    return f"{zlib.crc32(inspect.getsource(PEERS[side]).encode()):08x}"


def _our_task() -> Any:
    from benchmark.scores.tasks import TASKS  # peers' processes need not import it

    return next(task for task in TASKS if task.name == "cartpole")


def measure(side: str, seed: int) -> tuple[float, float]:
    """Train a side in a process of its own; return its seconds and its score."""
    if side == "lrl":
        from benchmark.scores import runs

        row: dict[str, Any] = runs.run(_our_task(), seed)
        return float(row["seconds"]), float(row["score"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "found")
        command = [
            sys.executable,
            "-m",
            "benchmark.peers.solve",
            "--alone",
            side,
            str(seed),
            str(path),
        ]
        began = time.time()
        ended = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if not path.exists():
            raise RuntimeError(f"{side} gave no figure:\n{ended.stdout[-4000:]}")
        trained_at, mean_return = map(float, path.read_text().split())
        return trained_at - began, mean_return


def _alone(side: str, seed: int, path: Path) -> None:
    warnings.simplefilter("ignore")
    policy = PEERS[side](seed)
    trained_at = time.time()
    path.write_text(f"{trained_at} {score(policy)}")


def table(rows: Sequence[dict[str, str]]) -> str:
    """Return the finished runs as a Markdown table."""
    lines = [
        "| side | scores by seed | solved | seconds of a run, median | lowest to highest |",
        "| --- | --- | --- | --- | --- |",
    ]
    for side in dict.fromkeys(row["side"] for row in rows):
        runs = [row for row in rows if (row["side"], row["recipe"]) == (side, recipe(side))]
        runs.sort(key=lambda row: int(row["seed"]))
        found, seconds = ([float(row[name]) for row in runs] for name in ("score", "seconds"))
        lines.append(
            f"| {side} | {', '.join(f'{one:.1f}' for one in found)} "
            f"| {sum(one >= _BAR for one in found)} of {len(found)} | {median(seconds):.0f} "
            f"| {min(seconds):.0f} to {max(seconds):.0f} |"
        )
    return "\n".join(lines)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the file does not hold yet, then print its table."""
    parser = argparse.ArgumentParser(prog="benchmark.peers.solve", description=__doc__)
    parser.add_argument("--sides", nargs="+", choices=("lrl", *PEERS), default=["lrl", *PEERS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--csv", type=output, default=Path("docs/solved.csv"), help="file of runs")
    parser.add_argument("--alone", nargs=3, metavar=("SIDE", "SEED", "PATH"), help="one peer's run")
    options = parser.parse_args(arguments)
    if options.alone:
        side, seed, path = options.alone
        _alone(side, int(seed), Path(path))
        return
    done = {(row["side"], row["recipe"], int(row["seed"])) for row in _rows(options.csv)}
    wanted = [(side, recipe(side), seed) for seed in options.seeds for side in options.sides]
    missing = [run for run in wanted if run not in done]
    check_installed(parser, [side for side, _, _ in missing])
    for side, made_with, seed in missing:
        seconds, mean_return = measure(side, seed)
        is_new = not options.csv.exists()
        with options.csv.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if is_new:
                writer.writerow(_FIELDS)
            writer.writerow([side, made_with, seed, round(seconds, 1), round(mean_return, 1)])
        print(f"{side}, seed {seed}: {mean_return:.1f} in {seconds:.0f} s", flush=True)
    print(table(_rows(options.csv)))


if __name__ == "__main__":
    main()
