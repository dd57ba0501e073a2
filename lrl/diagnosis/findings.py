"""What there is to say of a run's metrics, while it goes on or when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lrl.diagnosis.history import History, Settings
from lrl.diagnosis.signs import SIGNS, Finding

LEAST_LEARNER_STEPS = 500
"""Learner steps of a session before which it is a trial, of which nothing is said."""


def diagnose(
    rows: Iterable[Mapping[str, Any]], config: Mapping[str, Any] | Settings
) -> list[Finding]:
    """Return why a run does not learn, as far as its metrics tell; nothing of a run that does.

    Args:
        rows: Its metrics by the names of docs/metrics.md, in the order in which they were logged:
            rows of `metrics.csv`, as `csv.DictReader` reads them, or numbers.
        config: Its `config.yaml`, read; or its settings.

    Example:
        >>> steps = (500, 1000, 1500, 2000)
        >>> rows = [{"count/learner_steps": n, "train/target_updates": 0} for n in steps]
        >>> [finding.setting for finding in diagnose(rows, {"trainer": {"max_steps": 4000}})]
        ['model.target_update_period_learner_steps']
    """
    run = History(config if isinstance(config, Settings) else Settings.of_config(config))
    for row in rows:
        run.add(row)
    return findings_of(run)


def findings_of(run: History) -> list[Finding]:
    """Return what keeps a run from learning, by its history; see `diagnose`."""
    if run.session_learner_steps < LEAST_LEARNER_STEPS:
        return []
    looked = (sign.find(run) for sign in SIGNS if run.progress >= sign.from_share)
    found = [finding for finding in looked if finding is not None]
    if any(finding.name == "no_reward" for finding in found):
        return [finding for finding in found if finding.name not in _OF_NO_REWARD]
    return found


_OF_NO_REWARD = ("exploration_over", "learner_starved", "actors_blocked")
"""What follows from rewards that are all 0."""
