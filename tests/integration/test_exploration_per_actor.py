"""Each actor with an exploration of its own, in all modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.explorations import Always
from helpers.training_runs import (
    AfterEachStep,
    background,
    make_run,
    once_all_act,
    quiet,
    small_data,
    spy_on_rows,
)

from lrl import ActorConfig, ActorLearnerCallback, ConfigError, InferenceConfig
from lrl.actors.exploration import PerActor
from lrl.types import RowKind, Rows

pytestmark = quiet

SYNCHRONOUS = ActorConfig(num_actors=0, envs_per_actor=4)
MODES = {
    "synchronous": (SYNCHRONOUS, None, [3], 0.3),
    "asynchronous": (background(2, 4), None, [1, 2], 0.15),
    "groups": (background(2, 4), InferenceConfig(groups_per_actor=2), [1, 2], 0.15),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_row_has_the_action_of_its_actors_exploration(tmp_path: Path, monkeypatch, mode: str):
    actors, inference, actions, epsilon = MODES[mode]
    taken: dict[int, set[int]] = {}

    def spied(rows: Rows) -> None:
        for stream, kind, action in zip(rows.stream, rows.kind, rows.action, strict=True):
            if kind == RowKind.STEP:
                taken.setdefault(int(stream), set()).add(int(action))

    spy_on_rows(monkeypatch, spied)
    exploration = PerActor([Always(action) for action in actions])
    data = small_data(actors=actors, inference=inference, exploration=exploration)
    callbacks = AfterEachStep(once_all_act), ActorLearnerCallback(5, 0, 0)
    run = make_run(tmp_path, *callbacks, data=data).fit()
    streams = range(4 * len(actions))
    assert taken == {stream: {actions[stream // 4]} for stream in streams}
    shown = {float(row["train/epsilon"]) for row in run.metrics() if "train/epsilon" in row}
    assert list(shown) == [pytest.approx(epsilon)]


@pytest.mark.parametrize("actors", [SYNCHRONOUS, background(3)])
def test_another_number_of_actors_is_refused_at_setup(tmp_path: Path, actors: ActorConfig):
    data = small_data(actors=actors, exploration=PerActor([Always(1), Always(2)]))
    count = max(1, actors.num_actors)
    with pytest.raises(ConfigError, match=f"has 2 explorations for {count} actors"):
        make_run(tmp_path, data=data).fit()
