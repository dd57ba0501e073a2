"""`evaluate` while training goes on, and what is left when it is stopped."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers.checkpoints import edited, plain, trained
from helpers.training_runs import quiet

from lrl.checkpoints.stamp import STAMP_KEY
from lrl.evaluation.episodes import Episodes
from lrl.report import evaluate as module
from lrl.report.evaluate import evaluate

pytestmark = quiet


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("identity"))


def test_a_file_that_training_replaces_meanwhile_is_scored_as_it_was(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
):
    copy = edited(checkpoint, "replaced", lambda content: None)
    run_episodes = module.run_episodes

    def improve(content: dict[str, Any]) -> None:
        content[STAMP_KEY]["training"]["learner_steps"] += 1000
        for weight in content["state_dict"].values():
            weight.neg_()

    def while_training_goes_on(*arguments: Any, **settings: Any) -> Episodes:
        edited(checkpoint, "replaced", improve)
        return run_episodes(*arguments, **settings)

    (before,) = evaluate([str(copy)], episodes=3)
    monkeypatch.setattr(module, "run_episodes", while_training_goes_on)
    _, score = evaluate([str(checkpoint), str(copy)], episodes=3)
    assert score.stamp == before.stamp
    assert plain(score.episodes) == plain(before.episodes)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MemoryError])
def test_what_stops_it_costs_no_finished_score(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
):
    paths = [str(checkpoint), str(edited(checkpoint, "copy", lambda content: None))]
    out, run_episodes = tmp_path / "a", module.run_episodes

    def stop(*arguments: Any, **settings: Any) -> Episodes:
        if Path(f"{out}.json").exists():
            raise failure
        return run_episodes(*arguments, **settings)

    monkeypatch.setattr(module, "run_episodes", stop)
    with pytest.raises(failure):
        evaluate(paths, episodes=2, out=str(out))
    (score,) = json.loads(Path(f"{out}.json").read_text())["scores"]
    assert score["checkpoint"] == paths[0]
    assert len(Path(f"{out}.csv").read_text().splitlines()) == 3
    monkeypatch.setattr(module, "run_episodes", lambda *a, **k: stop())
    with pytest.raises(failure):
        evaluate(paths, episodes=2, out=str(out), overwrite=True)
    assert json.loads(Path(f"{out}.json").read_text())["scores"] == [score]  # nothing newer


def test_ctrl_c_waits_until_the_files_are_whole(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    paths = [str(checkpoint), str(edited(checkpoint, "copy", lambda content: None))]
    write_scores = module.write_scores

    def interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        write_scores(*arguments)

    monkeypatch.setattr(module, "write_scores", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(paths, episodes=2, out=str(tmp_path / "a"))
    assert len(json.loads((tmp_path / "a.json").read_text())["scores"]) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
