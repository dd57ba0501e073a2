"""One side of a comparison, in its own process: `python -m benchmark.peers.side SIDE TASK PATH`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import warnings
from pathlib import Path

import torch

from benchmark.arguments import duration
from benchmark.peers.window import Window, WindowOver
from benchmark.peers.workloads import TASKS

PEERS = {
    "cleanrl": "benchmark.peers.cleanrl_recipe",
    "sb3": "benchmark.peers.sb3",
    "tianshou": "benchmark.peers.tianshou_dqn",
}
"""Modules that have a `train`."""


def main() -> None:
    """Train until the window is over."""
    parser = argparse.ArgumentParser(prog="benchmark.peers.side", description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("path", type=Path, help="takes the pace as JSON")
    parser.add_argument("--seconds", type=duration, default=30.0, help="length of the window")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0 leaves its default")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    task = TASKS[options.task]
    peer = importlib.import_module(PEERS[options.peer])
    with contextlib.suppress(WindowOver):
        peer.train(task, Window(options.path, task.first_env_step, options.seconds))


if __name__ == "__main__":
    main()
