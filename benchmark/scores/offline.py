"""Offline CartPole: how well an agent plays that learnt from the replay of a short run alone.

    python -m benchmark.scores.offline [--folder offline] [--seeds 0 1 2] [--alpha 0.5]

A run of 1,000 learner steps saves its replay, which becomes a Minari dataset: episodes of all
policies from a random one to that of the end. From it alone agents are trained, with the
conservative term if alpha is given; best checkpoints play 100 test episodes. Needs the extra
`minari`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

DATASET = "cartpole/benchmark-v0"
OFFLINE = [
    "fit", "--config", "recipe:cartpole", "--config", "recipe:system/offline",
    f"--data.pool.init_args.dataset={DATASET}", "--data.replay.capacity=60000",
]  # fmt: skip
QUIET = ["--trainer.enable_progress_bar=false", "--data.learner_threads=1"]


def run(folder: Path, *arguments: str) -> None:
    """Run a command of lrl with the datasets of this benchmark."""
    environment = {**os.environ, "MINARI_DATASETS_PATH": str(folder.resolve() / "datasets")}
    subprocess.run([sys.executable, "-m", "lrl", *arguments], check=True, env=environment)


def behaviour(folder: Path) -> tuple[int, float]:
    """Return the episodes of the dataset and their mean return."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder.resolve() / "datasets")
    import minari

    returns = [episode.rewards.sum() for episode in minari.load_dataset(DATASET)]
    return len(returns), fmean(returns)


def main() -> None:
    """Train the behaviour, write its dataset, learn from it, and print all mean returns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("offline"), help="new or empty")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max-steps", type=int, default=1500, help="learner steps offline")
    parser.add_argument("--alpha", type=float, help="weight of the conservative term")
    args = parser.parse_args()
    if args.folder.is_dir() and any(args.folder.iterdir()):
        parser.error(f"--folder {args.folder} holds files already: name a new or an empty one")
    runs = f"--runs={args.folder / 'runs'}"
    run(args.folder, "fit", "--config", "recipe:cartpole", "--config", "recipe:system/synchronous",
        runs, "--name=behaviour", "--trainer.max_steps=1000", *QUIET,
        "--actor_learner.checkpoint_replay=true")  # fmt: skip
    run(args.folder, "dataset", "--ckpt_path=last", runs, "--name=behaviour",
        f"--dataset_id={DATASET}")  # fmt: skip
    episodes, mean = behaviour(args.folder)
    print(f"behaviour: mean return {mean:.1f} over {episodes} episodes", flush=True)
    conservative = [] if args.alpha is None else [
        "--model.class_path=lrl.offline.ConservativeDQN", f"--model.alpha={args.alpha}"
    ]  # fmt: skip
    scores = []
    for seed in args.seeds:
        name = f"offline-{seed}"
        run(args.folder, *OFFLINE, *conservative, *QUIET, runs, f"--name={name}",
            f"--seed_everything={seed}", f"--trainer.max_steps={args.max_steps}")  # fmt: skip
        out = args.folder / name
        run(args.folder, "evaluate", "--ckpt_path=best", runs, f"--name={name}", f"--out={out}")
        report = json.loads(out.with_suffix(".json").read_text())
        scores.append(report["scores"][0]["statistics"]["mean"])
    print(f"offline: {', '.join(f'{score:.1f}' for score in scores)}", flush=True)


if __name__ == "__main__":
    main()
