"""What a Dict around an observation costs: `python -m benchmark.parts.leaves`, on idle cores.

An observation with one leaf holds what the plain one does, so that all that differs is the way
through lrl. The replay is measured with Atari's frames; then whole runs of `lrl fit` with
`configs/cartpole_sync.yaml` take turns. Ratios of runs are of seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

import gymnasium as gym

from benchmark.arguments import count
from benchmark.parts.replay import ATARI, compare_specs
from benchmark.turns import by_turns
from lrl.bench.measure import compared, table

_LEAF = "state"
_RECIPE = "configs/cartpole_sync.yaml"
_ENCODER = {"class_path": "lrl.networks.MLPEncoder", "init_args": {"hidden_sizes": [120, 84]}}
_PARTS: dict[str, tuple[str, ...]] = {
    "AsItIs": (),
    "OneLeaf": (
        "--model.encoder=lrl.networks.MultiEncoder",
        f"--model.encoder.init_args.encoders={json.dumps({_LEAF: _ENCODER})}",
        "--model.encoder.init_args.hidden_size=null",
    ),
}


class AsItIs(gym.ObservationWrapper[Any, Any, Any]):
    """The plain observation, after a call that costs as much as that of `OneLeaf`."""

    def observation(self, observation: Any) -> Any:
        """Return it."""
        return observation


class OneLeaf(gym.ObservationWrapper[Any, Any, Any]):
    """The observation as the only leaf of a Dict."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Dict({_LEAF: env.observation_space})

    def observation(self, observation: Any) -> Any:
        """Return it in a Dict."""
        return {_LEAF: observation}


def _seconds(wrapper: str) -> float:
    path = f"benchmark.parts.leaves.{wrapper}"
    with tempfile.TemporaryDirectory() as runs:
        command = [
            sys.executable, "-m", "lrl", "fit", "--config", _RECIPE, "--runs", runs,
            f"--data.env.wrappers=[{{path: {path}}}]", "--trainer.enable_progress_bar=false",
            *_PARTS[wrapper],
        ]  # fmt: skip
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - started


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="benchmark.parts.leaves", description=__doc__)
    parser.add_argument("--rounds", type=count, default=5, help="runs of each side")
    parser.add_argument("--rows", type=count, default=50_000, help="capacity of the replays")
    options = parser.parse_args(arguments)
    one_leaf = replace(ATARI, observation={_LEAF: ATARI.observation[""]})
    found = compare_specs({"plain": ATARI, "one leaf": one_leaf}, options.rows)
    print(table(found), flush=True)
    sides = {name: lambda name=name: _seconds(name) for name in _PARTS}
    print(table(compared("CartPole, whole run", "s", by_turns(sides, options.rounds), "AsItIs")))


if __name__ == "__main__":
    main()
