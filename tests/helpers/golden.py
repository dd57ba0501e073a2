"""Makes the golden files of a release: `PYTHONPATH=.:tests python -m helpers.golden`.

Run it once for each release, and never change or delete the files in tests/data: later versions
must load them for ever, or refuse them with a sentence. (`lrl-0.1.0.yaml` is of a run of 0.1.0.)
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

import torch

from helpers.saved_replays import Feed, learn, make_buffer, save
from helpers.training_runs import make_run, small_data
from lrl import DQN, ActorLearnerCallback, EnvConfig, __version__
from lrl.checkpoints.replay_saver import ReplaySaver
from lrl.networks import MLPEncoder
from lrl.replay import Replay

DATA = Path(__file__).parents[1] / "data"


def golden_agent() -> DQN:
    """The agent of all golden checkpoints."""
    return DQN(
        encoder=functools.partial(MLPEncoder, hidden_sizes=(8,)),
        optimizer=functools.partial(torch.optim.Adam, lr=1e-3),
        target_update_period_learner_steps=10,
    )


def golden_replay() -> Replay:
    """The replay of all golden saves, with wrapped rings and priorities."""
    buffer, feed = make_buffer("rank", masks=True), Feed(0, masks=True)
    buffer.add(feed.rows(150))
    learn(buffer, feed)
    return buffer


def main() -> None:
    """Train for a moment and keep the last checkpoint; save a replay."""
    if (kept := DATA / f"lrl-{__version__}.ckpt").exists():
        raise SystemExit(f"{kept} is there: its release has been made")
    with tempfile.TemporaryDirectory() as folder:
        data = small_data(env=EnvConfig("CartPole-v1"))
        callback = ActorLearnerCallback(5, 10, 10)
        run = make_run(Path(folder), callback, module=golden_agent(), data=data).fit()
        shutil.copy(run.checkpoint("last"), kept)
    saver = ReplaySaver(DATA / f"lrl-{__version__}-replay", golden_replay(), {"ranks": 1})
    save(saver, 20, {"episodes": 3})


if __name__ == "__main__":
    main()
