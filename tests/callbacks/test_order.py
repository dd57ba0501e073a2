"""What happens in one learner step, in which order, without actors in the background and with."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import pytest
from helpers.training_runs import (
    AfterEachStep,
    Run,
    background,
    make_run,
    quiet,
    small_data,
)

from lrl import DQN, ActorConfig, ActorLearnerCallback, EvaluationConfig, ReplayDataset
from lrl.callbacks import LastCheckpoint, RunSummary, evaluation, metrics
from lrl.callbacks.checkpoints import FolderClaim
from lrl.callbacks.replay_checkpoint import ReplayCheckpoint
from lrl.callbacks.signals import SlurmRequeue
from lrl.evaluation import loader
from lrl.pools.processes import ProcessPool
from lrl.processes.interrupt import interrupt

pytestmark = quiet
SYNC, LOG, EVALUATE, SAVE, STEPS = 2, 3, 4, 6, 13


@dataclass
class Recording:
    """Events as `(learner step, name)`, and what was seen when evaluations ran."""

    syncs: bool
    events: list[tuple[int, str]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    modes: set[bool] = field(default_factory=set)

    def names(self, step: int) -> list[str]:
        return [name for at, name in self.events if at == step]

    def steps(self, name: str) -> list[int]:
        return [at for at, event in self.events if event == name]


def record(patch: pytest.MonkeyPatch, run: Run) -> Recording:
    recording = Recording(syncs=run.data.actors.num_actors > 0)

    def spy(owner: Any, attribute: str, name: str | None, offset: int = 0) -> None:
        original = getattr(owner, attribute)

        def spied(*args: Any, **kwargs: Any) -> Any:
            event = name or str(args[1]).rpartition("/")[2]
            recording.events.append((run.trainer.global_step + offset, event))
            return original(*args, **kwargs)

        patch.setattr(owner, attribute, spied)

    spy(ReplayDataset, "__next__", "drain", offset=1)
    spy(DQN, "optimizer_step", "optimise", offset=1)
    spy(ProcessPool, "publish", "sync")
    spy(metrics, "log_metrics", "log")
    spy(evaluation, "log_metrics", "log evaluation")
    spy(L.Trainer, "save_checkpoint", None)
    play = loader.run_episodes

    def evaluate(env: Any, q_function: Any, seeds: Any, **settings: Any) -> Any:
        dataset = run.data.dataset
        assert dataset is not None
        pool: Any = dataset.pool

        def counts() -> tuple[int, int]:
            actor = getattr(pool, "actor", None)  # of the synchronous mode
            return dataset.env_steps, actor.env_steps if actor else 0

        before = counts()
        episodes = play(env, q_function, seeds, **settings)
        recording.events.append((run.trainer.global_step, "evaluate"))
        recording.evaluations.append(
            {
                "training": run.module.training or run.module.online.training,
                "seeds": list(seeds),
                "epsilon": settings["epsilon"],
                "counted": counts() != before,
            }
        )
        return episodes

    patch.setattr(loader, "run_episodes", evaluate)
    step = DQN.training_step

    def training_step(self: DQN, *args: Any) -> Any:
        recording.modes.add(self.training and self.online.training)
        return step(self, *args)

    patch.setattr(DQN, "training_step", training_step)
    return recording


@pytest.fixture(scope="module", params=[0, 1], ids=["synchronous", "asynchronous"])
def recording(tmp_path_factory, request):
    run = make_run(
        tmp_path_factory.mktemp("order"),
        ActorLearnerCallback(SYNC, EVALUATE, SAVE),
        data=small_data(
            actors=background(1) if request.param else ActorConfig(0, 2),
            evaluation=EvaluationConfig(episodes=3, epsilon=0.25),
        ),
        max_steps=STEPS,
        log_every_n_steps=LOG,
    )
    with pytest.MonkeyPatch.context() as patch:
        recording = record(patch, run)
        run.fit()
    return recording


def test_order_within_a_learner_step(recording):
    """Step 12 has everything; best is there only where an evaluation was better than before."""
    sync = ["sync"] if recording.syncs else []
    assert recording.names(1) == ["drain", "optimise"]
    assert recording.names(3) == ["drain", "optimise", "log"]
    first = ["drain", "optimise", *sync, "evaluate", "log evaluation"]
    assert recording.names(4)[: len(first)] == first
    assert recording.names(6) == ["drain", "optimise", *sync, "log", "last.ckpt"]
    events = [name for name in recording.names(12) if name != "best.ckpt"]
    assert events == [
        "drain", "optimise", *sync, "log", "evaluate", "log evaluation", "last.ckpt"
    ]  # fmt: skip
    assert recording.names(13) == ["drain", "optimise", "last.ckpt"]


def test_best_is_saved_after_its_evaluation_and_before_last(recording):
    assert recording.names(4)[-2:] == ["log evaluation", "best.ckpt"]  # the first is the best
    for step in recording.steps("best.ckpt"):
        names = recording.names(step)
        assert names.index("best.ckpt") == names.index("log evaluation") + 1


def test_everything_keeps_its_period(recording):
    assert recording.steps("drain") == recording.steps("optimise") == list(range(1, STEPS + 1))
    assert recording.steps("sync") == ([0, 2, 4, 6, 8, 10, 12] if recording.syncs else [])
    assert recording.steps("log") == [3, 6, 9, 12]
    assert recording.steps("evaluate") == [4, 8, 12]
    assert recording.steps("log evaluation") == [4, 8, 12]
    assert recording.steps("last.ckpt") == [6, 12, 13]


def test_every_evaluation_plays_the_same_episodes_aside_of_training(recording):
    assert len(recording.evaluations) == 3
    for seen in recording.evaluations:
        assert seen["seeds"] == [0, 1, 2]
        assert seen["epsilon"] == 0.25
        assert not seen["training"]
        assert not seen["counted"]
    assert recording.modes == {True}


@pytest.mark.parametrize("ends", ["finished", "Ctrl-C"])
def test_order_at_the_end_of_a_run(tmp_path, monkeypatch, ends):
    """Signals disturb no save, and the folder and Ctrl-C are given back when all is written."""
    events: list[str] = []
    for owner, attribute, name in (
        (interrupt, "release_sigterm", "let go of SIGTERM"),
        (LastCheckpoint, "_save", "save last"),
        (RunSummary, "write", "write the summary"),
        (ReplayCheckpoint, "_finish", "wait for the replay"),
        (SlurmRequeue, "teardown", "let go of SLURM's signal"),
        (FolderClaim, "_drop", "give the folder back"),
        (interrupt, "uninstall", "give Ctrl-C back"),
    ):
        spy(monkeypatch, owner, attribute, name, events)

    def stop(trainer: L.Trainer, batch: object) -> None:
        if trainer.global_step == 3 and ends == "Ctrl-C":
            raise KeyboardInterrupt

    callback = ActorLearnerCallback(5, 0, 0, checkpoint_replay=True)
    run = make_run(tmp_path, AfterEachStep(stop), callback, max_steps=4)
    with pytest.raises(SystemExit) if ends == "Ctrl-C" else nullcontext():
        run.fit()
    saved = ["let go of SIGTERM", "save last", "write the summary", "wait for the replay"]
    end = ["let go of SLURM's signal", "give the folder back", "give Ctrl-C back"]
    if ends == "Ctrl-C":
        assert events == [*saved, *end, "let go of SIGTERM"]
    else:
        assert events == [*saved[:2], saved[3], *saved[2:], *end, "let go of SIGTERM"]


def spy(
    patch: pytest.MonkeyPatch, owner: Any, attribute: str, name: str, events: list[str]
) -> None:
    original = getattr(owner, attribute)

    def spied(*args: Any, **kwargs: Any) -> Any:
        events.append(name)
        return original(*args, **kwargs)

    patch.setattr(owner, attribute, spied)
