"""What the diagnosis finds in metrics that were written by hand, and where it finds nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from helpers.named_tests import ROOT

from lrl.diagnosis import diagnose
from lrl.diagnosis.history import Settings
from lrl.diagnosis.signs import SIGNS

SETTINGS = Settings(max_learner_steps=4000, gamma=0.99, samples_per_batch=32)
Rows = list[dict[str, Any]]


def healthy(until: int = 4000, first: int = 100) -> Rows:
    """Rows of a run whose return rises from 20 to 100 in 4,000 learner steps."""
    rows = []
    for step in range(first, until + 1, 100):
        share = step / 4000
        rows.append(
            {
                "step": step,
                "count/learner_steps": step,
                "count/env_steps": 8 * step,
                "train/q_mean": 50 * share,
                "train/reward_mean": 1.0,
                "train/reward_abs_max": 1.0,
                "train/distinct_rows": 0.999,
                "train/dead_units": 0.2,
                "train/target_updates": step // 25,
                "train/epsilon": max(0.05, 1 - 2 * share),
                "train/lr": 0.001,
                "rollout/return_mean": 20 + 80 * share,
                "rollout/length_mean": 20 + 80 * share,
                "rollout/start_value_mean": 50 * share,
                "rollout/episodes": step // 5,
                "replay/size": min(8 * step, 20_000),
                "speed/learner_wait_fraction": 0.1,
                "speed/actor_wait_fraction": 0.5,
                "sync/policy_lag_mean": 10.0,
            }
        )
        if step % 500 == 0:
            rows.append(
                {
                    "step": step,
                    "eval/return_mean": 10 + 90 * share,
                    "eval/length_mean": 10 + 90 * share,
                }
            )
    return rows


def having(rows: Rows, values: dict[str, Any]) -> Rows:
    """Return rows with other values, or functions of the learner step, where a metric is."""

    def other(name: str, row: dict[str, Any]) -> Any:
        value = values.get(name, row[name])
        return value(row["step"]) if callable(value) else value

    return [{name: other(name, row) for name in row} for row in rows]


def found(rows: Rows, settings: Settings = SETTINGS) -> list[str]:
    return [finding.name for finding in diagnose(rows, settings)]


FLAT = {
    "rollout/return_mean": 20.0, "eval/return_mean": 10.0, "rollout/start_value_mean": 15.0
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        (
            "no_reward",
            {
                "train/reward_abs_max": 0.0, "train/reward_mean": 0.0, "train/q_mean": 0.0,
                "rollout/start_value_mean": 0.0, "rollout/return_mean": 0.0,
                "eval/return_mean": 0.0,
            },
            "every reward in 32,000 env steps (800 episodes) was 0",
        ),
        # 150 x 1 / (1 - 0.99) = 15,000
        ("reward_scale", {"train/reward_mean": 150.0, "train/reward_abs_max": 150.0},
         "with rewards of 150 on average, values have to grow to about 1.5e+04"),
        ("reward_scale", {"train/reward_abs_max": 20_000.0}, "rewards of up to 2e+04"),
        # 1 / (1 - 0.99) = 100
        ("values_diverge", {"train/q_mean": -250.0},
         "values are about -250, but rewards of at most 1 per transition and a discount of 0.99"),
        ("target_still", {"train/target_updates": 0}, "not updated once in 3,900 learner steps"),
        ("replay_small", {"replay/size": lambda step: 150 - step % 7},
         "holds only 150 env steps (4.7 batches, or 1.6 episodes of 91)"),
        ("replay_old", {"sync/policy_lag_mean": 1500.0},
         "policies that are 1,500 learner steps old, after 4,000"),
        # 900 learner steps of 32 samples, and 9 env steps.
        ("replay_old", {"count/env_steps": lambda step: step / 100},
         "3,200 samples are drawn for each new env step"),
        ("dead_units", {"train/dead_units": 1.0}, "100% of the units of one layer"),
        # More than 190, twice the highest mean return of the last evaluations.
        ("overestimation", {"rollout/start_value_mean": 250.0, "train/reward_abs_max": 5.0},
         "the value at the start of episodes is 250, but episodes return 9"),
        ("exploration_stuck", {"train/epsilon": 1.0}, "epsilon is still 1.00 after 100%"),
        ("exploration_over", FLAT, "epsilon fell to 0.05 in the first 45% of the run"),
        ("learner_starved",
         {**FLAT, "speed/learner_wait_fraction": 0.95, "train/epsilon": 0.0},
         "the return has not risen. The run is environment-bound: the learner waited 95%"),
        ("actors_blocked", {**FLAT, "speed/actor_wait_fraction": 0.97, "train/epsilon": 0.0},
         "actors waited 97% of the time for the learner"),
    ],
)  # fmt: skip
def test_each_finding_is_named_with_its_numbers(name, values, words):
    (finding,) = diagnose(having(healthy(), values), SETTINGS)
    assert finding.name == name
    assert words in finding.sentence
    assert finding.setting


def test_rows_of_a_pool_that_takes_no_weights_are_of_no_old_policy():
    rows = having(healthy(), {"sync/policy_lag_mean": 1500.0})
    assert found(rows) == ["replay_old"]
    assert found(rows, replace(SETTINGS, has_own_pool=True, takes_weights=False)) == []


def test_priorities_that_collapsed():
    rows = [{**row, "replay/priority_max": 3.0} for row in healthy()]
    assert found(rows) == []
    (finding,) = diagnose(having(rows, {"train/distinct_rows": 0.2}), SETTINGS)
    assert finding.name == "priorities_collapsed"
    assert "20% of the rows of a batch are distinct, and with uniform sampling 100%" in (
        finding.sentence
    )
    # Of 40 rows 32 draws find 22 (40 x (1 - (39 / 40)^32)), 69 % of 32: 36 % is half of that.
    small = {"replay/size": 40, "count/env_steps": lambda step: step / 12}
    assert found(having(rows, {**small, "train/distinct_rows": 0.36})) == []


@pytest.mark.parametrize(
    ("values", "settings"),
    [
        ({}, {}),
        # Values that a rescaled head, given atoms or PQN's returns stand for are not rewards'.
        ({"train/q_mean": 250.0}, {"rescales": True}),
        ({"train/q_mean": 250.0}, {"gives_returns": True}),
        ({"train/reward_mean": 150.0, "train/reward_abs_max": 150.0}, {"rescales": True}),
        # Munchausen's bonus brings values that rewards alone do not.
        ({"train/q_mean": -250.0}, {"adds_bonus": True}),
        # An endless horizon bounds nothing.
        ({"train/q_mean": 250.0}, {"gamma": 1.0}),
        # Noisy networks have no epsilon, and the other findings are not of them.
        ({**FLAT, "train/epsilon": 0.0}, {}),
        # As Acrobot: negative rewards, and values above the returns of the first policies.
        (
            {
                "train/reward_mean": -1.0,
                "rollout/return_mean": lambda step: -500 + step / 10,
                "eval/return_mean": lambda step: -500 + step / 10,
                "train/q_mean": -40.0,
                "rollout/start_value_mean": -40.0,
            },
            {},
        ),
        # As MountainCar before its first end, while epsilon falls.
        (
            {
                "train/reward_mean": -1.0,
                "rollout/return_mean": -200.0,
                "eval/return_mean": -200.0,
                "rollout/start_value_mean": -60.0,
                "train/epsilon": lambda step: 1 - 0.9 * step / 4000,
            },
            {"max_learner_steps": 8000},
        ),
        # Waiting alone is what the verdict is for.
        ({"speed/learner_wait_fraction": 0.95}, {}),
        ({"speed/actor_wait_fraction": 0.97}, {}),
        # Offline no rows come in.
        ({"count/env_steps": 5000.0, "replay/size": 5000.0}, {}),
        # A short task that is cut off: its values go on behind the end of its episodes.
        (
            {
                "rollout/return_mean": lambda step: 10 + step / 200,
                "rollout/length_mean": 50.0,
                "eval/return_mean": lambda step: 10 + step / 200,
                "eval/length_mean": 50.0,
                "rollout/start_value_mean": 60.0,
            },
            {},
        ),
    ],
)
def test_nothing_is_found(values, settings):
    assert found(having(healthy(), values), replace(SETTINGS, **settings)) == []


ALL_WRONG = {
    "train/target_updates": 0, "train/epsilon": 1.0, "train/dead_units": 1.0,
    "train/q_mean": 1e6, "replay/size": 20, "train/reward_abs_max": 1e5,
}  # fmt: skip


def test_a_run_that_has_only_begun_has_no_diagnosis():
    rows = having(healthy(), ALL_WRONG)
    counts = [len(found(rows[:n])) for n in range(len(rows) + 1)]
    begun = [n for n, count in enumerate(counts) if count]
    assert rows[begun[0] - 1]["step"] == 1000  # a quarter of 4,000
    early, late = set(found(rows[: begun[0]])), set(found(rows))
    assert "exploration_stuck" in late - early
    short = replace(SETTINGS, max_learner_steps=500)
    assert found(having(healthy(500), ALL_WRONG), short) == []  # a trial


def test_what_a_run_began_with_is_not_known_of_one_that_goes_on():
    values = {**FLAT, "train/epsilon": lambda step: 1.0 if step < 1200 else 0.05}
    assert found(having(healthy(), values)) == ["exploration_over"]
    assert found(having(healthy(first=1000), values)) == []
    still = {"train/target_updates": 0}  # in this session
    assert found(having(healthy(first=1000), still)) == []
    assert found(having(healthy(), {"train/target_updates": lambda step: step < 2000})) == []


def test_rewards_that_are_0_stand_for_what_follows_from_them():
    zero = dict.fromkeys(
        ["train/reward_abs_max", "train/reward_mean", "rollout/return_mean", "eval/return_mean"],
        0.0,
    )  # fmt: skip
    assert found(having(healthy(), zero)) == ["no_reward"]
    # Whole returns that are learnt from have values of the network in them.
    pqn = replace(SETTINGS, gives_returns=True)
    values = {**zero, "train/reward_abs_max": 0.5, "rollout/start_value_mean": 0.5}
    assert found(having(healthy(), values), pqn) == ["no_reward"]
    # Wins and losses that cancel are rewards.
    assert "no_reward" not in found(having(healthy(), {**zero, "train/reward_abs_max": 1.0}))


def test_rows_are_taken_as_they_are_in_the_file():
    """Numbers are text there, and columns that a row has no value in are empty."""
    rows = having(healthy(), {"train/target_updates": 0})
    names = {name for row in rows for name in row}
    text = [{name: str(row.get(name, "")) for name in names} for row in rows]
    config = {"trainer": {"max_steps": 4000}, "data": {"replay": {"gamma": 0.99, "batch_size": 32}}}
    assert diagnose(text, config) == diagnose(rows, SETTINGS)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            """
            trainer: {max_steps: 12}
            model:
              head: {class_path: lrl.networks.ScalarHead, init_args: {value_rescaling: 0.01}}
              bootstrap: {class_path: lrl.learner.MunchausenBootstrap}
            data:
              actors: {num_actors: 2}
              replay:
                batch_size: 16
                n_step: {class_path: lrl.schedules.Linear, init_args: {start: 10.0, end: 3.0}}
                gamma: {class_path: lrl.schedules.Linear, init_args: {start: 0.97, end: 0.997}}
                sequences: {length: 20}
              rate: {max_learner_steps_per_second: 5.0}
            """,
            Settings(12, 0.997, 3, 320, adds_bonus=True, rescales=True, is_slowed=True),
        ),
        (
            """
            trainer: {max_steps: -1}
            model:
              class_path: my.Agent
              init_args:
                head: {class_path: lrl.networks.CategoricalHead}
                bootstrap: {class_path: lrl.learner.NoBootstrap}
            data:
              experience: {class_path: lrl.replay.Rollouts, init_args: {gamma: 0.9}}
              replay: {gamma: 0.995}
            """,
            Settings(None, 0.9, gives_returns=True, rescales=True, is_synchronous=True),
        ),
        (
            """
            data:
              actors: {num_actors: 2}
              pool: {class_path: my.Pool}
            """,
            Settings(has_own_pool=True, takes_weights=False),
        ),
    ],
)
def test_settings_are_read_from_a_configuration(config, expected):
    assert Settings.of_config(yaml.safe_load(config)) == expected


def test_the_page_lists_every_finding_in_its_order():
    text = (ROOT / "docs/diagnosis.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \|", text.partition("## Does it work?")[0], re.MULTILINE)
    finders: list[Callable] = [sign.find for sign in SIGNS]
    assert listed == [find.__name__ for find in finders]
