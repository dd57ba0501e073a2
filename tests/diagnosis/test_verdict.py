"""Where a run's time went, and what it says of that."""

from __future__ import annotations

import json
import time

import pytest
from helpers.training_runs import AfterEachStep, background, make_run, quiet, small_data

from lrl import ActorLearnerCallback, RateLimiterConfig
from lrl.actors.handle import ActorStatistics
from lrl.diagnosis.verdict import time_shares, verdict

pytestmark = quiet


def actor(wait_seconds: float) -> ActorStatistics:
    return ActorStatistics(0, 100, 400, 3, 10.0, wait_seconds, 0)


@pytest.mark.parametrize(
    ("wait", "waits", "settings", "words"),
    [
        (0.6, [0.0], {}, "environment-bound: the learner waited 60% of the time; add actors"),
        (0.6, [], {"is_synchronous": True}, "environment-bound: acting took 60% of the time"),
        (0.6, [], {"has_own_pool": True}, "environment-bound: the learner waited 60% of"),
        (0.6, [0.0], {"is_slowed": True}, "held back by rate.max_learner_steps_per_second, 60%"),
        (
            0.0,
            [0.0],
            {},
            "learner-bound: updates took 75% of the time, and actors waited less than 1%",
        ),
        (0.1, [9.0, 7.0], {}, "learner-bound: updates took 75% of the time, and actors waited 80%"),
        (0.1, [], {"is_synchronous": True}, "learner-bound: updates took 75% of the time; make"),
        (0.1, [9.0, 0.0], {}, "balanced"),
        (0.1, [], {}, "balanced"),  # no actor has said anything
    ],
)
def test_what_held_a_run_back(wait, waits, settings, words):
    shares = time_shares(100.0, wait=100 * wait, sample=1.0, optimise=75.0, evaluate=2.0)
    settings = {"is_synchronous": False, **settings}
    said = verdict(shares, [actor(seconds) for seconds in waits], **settings)
    assert said.startswith(words)


def test_an_evaluation_that_took_long():
    shares = time_shares(10.0, wait=1.0, sample=1.0, optimise=2.0, evaluate=5.0)
    said = verdict(shares, [actor(9.0)], is_synchronous=False)
    assert said.startswith("evaluation-bound: it took 50% of the time; evaluate less often")


@pytest.mark.parametrize("optimise", [9.4, 8.0])
def test_a_learner_that_was_never_free_holds_a_run_back_though_actors_are_not_idle(optimise):
    shares = time_shares(10.0, wait=0.0, sample=0.1, optimise=optimise, evaluate=0.0)
    said = verdict(shares, [actor(4.0)], is_synchronous=False)
    shown = f"updates took {optimise / 10:.0%} of the time, and actors waited 40%;"
    assert said.startswith(f"learner-bound: {shown}")


def test_a_run_that_learnt_nothing():
    shares = time_shares(0.0, 0.0, 0.0, 0.0, 0.0)
    assert set(shares.values()) == {0.0}
    assert verdict(shares, [], is_synchronous=True) == "it ended before it learnt anything"


def test_a_run_counts_from_its_first_batch(tmp_path):
    """Filling the replay is not counted; what callbacks of the user take is `other`."""
    run = make_run(
        tmp_path,
        ActorLearnerCallback(5, 10, 0),
        AfterEachStep(lambda *_: time.sleep(0.02)),
        data=small_data(actors=background(1), rate=RateLimiterConfig(4.0, warm_up_env_steps=200)),
        max_steps=40,
    ).fit()
    summary = json.loads((run.folder / "summary.json").read_text())
    shares = summary["time_shares"]
    assert set(shares) == {"wait", "sample", "optimise", "evaluate", "other"}
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.01)
    assert min(shares[name] for name in ("sample", "optimise", "evaluate", "other")) > 0
    assert summary["verdict"] == run.callback.summary.verdict != ""
