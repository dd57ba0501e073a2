"""An environment of its own for evaluation: what it changes, what it may not, where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import Project
from helpers.factories import MaskedCorridor, make_corridor
from helpers.filmed_envs import DIARY
from helpers.training_runs import background, make_run, quiet, small_data

from lrl import ActorLearnerCallback, ConfigError, EnvConfig, EvaluationConfig
from lrl.checkpoints.stamp import STAMP_KEY, differences, env_of, flatten, make_stamp, trained_in
from lrl.deploy.policy import load_policy
from lrl.envs import PROTOCOLS, AtariConfig, WrapperConfig
from lrl.learner.agent import load_agent
from lrl.parts import safety
from lrl.report.evaluate import evaluate
from lrl.video.play import play

pytestmark = quiet

PONG = EnvConfig("ALE/Pong-v5", reward_clip=1.0, atari=AtariConfig(noop_max=0))
IDENTITY = EnvConfig("lrl/Identity-v0", {"length": 5, "num_contexts": 3})
FACTORY = "helpers.factories.make_corridor"


def env_for(env: EnvConfig, changes: dict[str, Any]) -> EnvConfig:
    return EvaluationConfig(env=changes).env_for(env)


# --- What differs ---------------------------------------------------------------------------

CHANGES: dict[str, tuple[EnvConfig, dict[str, Any], EnvConfig]] = {
    "nothing": (IDENTITY, {}, IDENTITY),
    "the same": (IDENTITY, {"id": "lrl/Identity-v0", "kwargs": {"length": 5}}, IDENTITY),
    "a limit": (EnvConfig(), {"max_episode_steps": 9}, EnvConfig(max_episode_steps=9)),
    "no limit": (EnvConfig(max_episode_steps=9), {"max_episode_steps": None}, EnvConfig()),
    "an argument": (
        IDENTITY,
        {"kwargs": {"length": 7}},
        EnvConfig("lrl/Identity-v0", {"length": 7, "num_contexts": 3}),
    ),
    "another environment": (
        IDENTITY,
        {"id": "lrl/Chain-v0", "kwargs": {"length": 3}},
        EnvConfig("lrl/Chain-v0", {"length": 3}),
    ),
    "wrappers": (
        EnvConfig(wrappers=[WrapperConfig("a.B"), WrapperConfig("a.C")]),
        {"wrappers": [{"path": "a.C", "kwargs": {"d": 1}}]},
        EnvConfig(wrappers=[WrapperConfig("a.C", {"d": 1})]),
    ),
    "options of Atari": (
        PONG,
        {"atari": {"repeat_action_probability": 0.25}},
        EnvConfig(
            PONG.id, reward_clip=1.0, atari=AtariConfig(noop_max=0, repeat_action_probability=0.25)
        ),
    ),
    "another factory": (
        EnvConfig("lrl/Chain-v0", {"length": 3}),
        {"factory": make_corridor, "kwargs": {"limit": 2}},
        EnvConfig(factory=FACTORY, kwargs={"limit": 2}),
    ),
    "an id instead of a factory": (
        EnvConfig("corridor", {"length": 3}, factory=FACTORY),
        {"id": "CartPole-v1"},
        EnvConfig("CartPole-v1"),
    ),
    "an argument of a factory": (
        EnvConfig("corridor", {"length": 3}, factory=FACTORY),
        {"factory": FACTORY, "kwargs": {"limit": 2}},
        EnvConfig("corridor", {"length": 3, "limit": 2}, factory=FACTORY),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_settings_that_differ_are_put_over_those_of_training(name: str):
    env, changes, expected = CHANGES[name]
    assert env_for(env, changes) == expected
    assert env_for(expected, changes) == expected


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        (EnvConfig(), {"frame_stak": 2}, "frame_stak is no setting: did you mean 'frame_stack'?"),
        (EnvConfig(), {"frame_stack": 0}, "frame_stack is 0, but must be at least 1"),
        (EnvConfig(), {"frame_stack": 2.5}, "frame_stack is 2.5, but must be a whole number"),
        (EnvConfig(), {"id": 3}, "id is 3, but must be text"),
        (EnvConfig(), {"kwargs": 3}, "kwargs is 3, but must be a mapping"),
        (EnvConfig(), {"wrappers": [{}]}, "wrappers[0] is {}, but must have a path"),
        (EnvConfig(), {"atari": {"noop_max": 0}}, "atari.noop_max is 0, but must be 30 for Cart"),
        (PONG, {"atari": {"hue": 0}}, "atari.hue is no setting: there are frame_skip"),
        (PONG, {"atari": {"noop_max": "0"}}, "atari.noop_max is '0', but must be a whole number"),
        (PONG, {"max_episode_steps": 5}, "max_episode_steps is 5, but must be None for ALE/Pong"),
        (
            PONG,
            {"reward_clip": None},
            "reward_clip is None, but would do nothing: it acts",
        ),
        (
            PONG,
            {"atari": {"terminal_on_life_loss": True}},
            "atari.terminal_on_life_loss is True, but would do nothing",
        ),
    ],
)
def test_a_wrong_setting_is_named_as_one_of_evaluation(env, changes, message: str):
    with pytest.raises(ConfigError) as caught:
        env_for(env, changes)
    assert str(caught.value).startswith("data.evaluation.env.")
    assert message in str(caught.value)


def test_what_is_no_mapping_is_refused():
    with pytest.raises(ConfigError, match=r"data\.evaluation\.env is 5, but must be a mapping"):
        EvaluationConfig(env=5)  # type: ignore[arg-type]


def test_epsilon_and_the_limit_of_frames_are_those_of_the_environment_of_evaluation():
    game = EvaluationConfig(env={"id": "ALE/Pong-v5", "atari": {"max_frames_per_episode": 400}})
    assert (game.epsilon_for(EnvConfig()), game.max_frames_for(EnvConfig())) == (0.001, 400)
    longer = EvaluationConfig(env={"atari": {"max_frames_per_episode": 18_000}})
    short = EnvConfig("ALE/Pong-v5", atari=AtariConfig(max_frames_per_episode=400))
    assert longer.max_frames_for(short) == 18_000


def test_a_protocol_has_its_name_only_if_training_is_of_it_too():
    known = PROTOCOLS["ale_v5"]
    env = EnvConfig("ALE/Pong-v5", reward_clip=1.0, atari=known.atari)
    assert EvaluationConfig().protocol_for(env) == "ale_v5"
    assert EvaluationConfig(env={"atari": {"noop_max": 0}}).protocol_for(env) == "ale_v5"
    assert EvaluationConfig(env={"atari": {"noop_max": 9}}).protocol_for(env) == "custom"
    assert EvaluationConfig(env={"atari": vars(known.atari)}).protocol_for(PONG) == "custom"
    assert EvaluationConfig(env={"frame_stack": 2}).protocol_for(IDENTITY) == "gymnasium"


# --- Stamps ---------------------------------------------------------------------------------


def stamp_of(env: EnvConfig, **changes: Any) -> dict[str, Any]:
    return make_stamp(env, EvaluationConfig(env=changes), seed=3)


def test_a_stamp_describes_what_the_score_was_measured_in():
    stamp = stamp_of(IDENTITY, kwargs={"length": 7}, frame_stack=2)
    played = EnvConfig("lrl/Identity-v0", {"length": 7, "num_contexts": 3}, frame_stack=2)
    assert env_of(stamp) == played
    differing = {"kwargs": {"length": 5, "num_contexts": 3}, "frame_stack": 1}
    assert stamp["training"] == {"seed": 3, "environment": differing}
    assert trained_in(stamp) == stamp_of(IDENTITY)["environment"]
    assert differences(stamp, stamp_of(played)) == {}
    assert differences(stamp, stamp_of(IDENTITY)).keys() == {"env.kwargs", "env.frame_stack"}
    assert '"frame_stack": 1' in flatten(stamp)["training.environment"]


def test_the_factory_of_the_evaluation_alone_is_none_of_training():
    stamp = stamp_of(EnvConfig("lrl/Chain-v0"), factory="lrl.envs.toy.Chain")
    assert stamp["environment"]["factory"] == "lrl.envs.toy.Chain"
    assert trained_in(stamp) == stamp_of(EnvConfig("lrl/Chain-v0"))["environment"]


def test_a_stamp_without_one_is_as_it_was():
    stamp = stamp_of(IDENTITY, kwargs={"length": 5})
    assert stamp["training"] == {"seed": 3}
    assert "factory" not in stamp["environment"]


def test_the_path_of_a_factory_is_in_the_stamp_and_comes_back_if_it_is_trusted(monkeypatch):
    stamp = stamp_of(EnvConfig(factory=make_corridor, kwargs={"length": 3}))
    assert stamp["environment"]["factory"] == stamp["environment"]["id"] == FACTORY
    with pytest.raises(ConfigError, match=r"any function: .*--modules helpers\.factories; in a"):
        env_of(stamp)
    monkeypatch.setattr(safety, "_trusted", set())
    safety.trust("helpers.factories")
    assert env_of(stamp) == EnvConfig(factory=FACTORY, kwargs={"length": 3})
    stamp["environment"]["factory"] = "helpers.factories.Corridor"
    safety._trusted.clear()
    assert env_of(stamp).factory == "helpers.factories.Corridor"  # a class is what it is


def test_a_function_of_a_script_is_named_as_such():
    stamp = stamp_of(IDENTITY)
    stamp["environment"]["factory"] = "__main__.make_env"
    with pytest.raises(ConfigError, match="of the script that trained it: put it into a module"):
        env_of(stamp)


@pytest.mark.parametrize(
    "path", ["os.system", "subprocess.run", "gymnasium.make", "lrl.cli.main.run"]
)
def test_a_checkpoint_cannot_have_any_function_called(path: str):
    stamp = stamp_of(IDENTITY)
    stamp["environment"]["factory"] = path
    with pytest.raises(ConfigError, match=f"made by {path}, which may be any function"):
        env_of(stamp)


# --- Runs -----------------------------------------------------------------------------------

SHORT = EnvConfig("lrl/Identity-v0", {"length": 5})


def longer(**settings: Any) -> EvaluationConfig:
    return EvaluationConfig(episodes=2, test_episodes=2, env={"kwargs": {"length": 9}}, **settings)


@pytest.mark.parametrize("mode", ["inline", "background"])
def test_every_episode_of_evaluation_is_of_its_environment(tmp_path: Path, mode):
    callback = ActorLearnerCallback(5, 10, 10, evaluation=mode)
    data = small_data(evaluation=longer(), env=SHORT)
    run = make_run(tmp_path, callback, data=data).fit()
    rows = run.metrics()
    assert {float(row["eval/length_mean"]) for row in rows if "eval/length_mean" in row} == {9}
    assert {float(row["rollout/length_mean"]) for row in rows if "rollout/length_mean" in row} == {
        5
    }
    agent = load_agent(run.checkpoint("best"))
    assert agent.env == EnvConfig("lrl/Identity-v0", {"length": 9})
    assert trained_in(agent.stamp)["kwargs"] == {"length": 5}
    (score,) = evaluate([str(agent.path)], episodes=3)
    assert score.episodes.lengths.tolist() == [9, 9, 9]
    (tested,) = run.trainer.validate(run.module, datamodule=data, verbose=False)
    assert tested["eval/length_mean"] == 9


@pytest.mark.filterwarnings("ignore:.* gives info.'action_mask'., which is not used")
def test_what_is_no_space_may_differ(tmp_path: Path):
    data = small_data(
        env=EnvConfig(factory=MaskedCorridor, action_masks=True, max_episode_steps=9),
        evaluation=EvaluationConfig(2, 2, env={"action_masks": False}),
    )
    run = make_run(tmp_path, data=data).fit()
    checkpoint = str(run.checkpoint("last"))
    (score,) = evaluate([checkpoint], episodes=2)
    assert score.stamp["environment"]["action_masks"] is False
    policy = load_policy(checkpoint)
    policy.predict(policy.make_env().reset(seed=0)[0])  # which gives no mask
    assert trained_in(score.stamp)["action_masks"] is True


def test_a_film_shows_it_too(tmp_path: Path, monkeypatch):
    ids: list[dict[str, Any]] = []
    from lrl.video import tensorboard as video

    original = video.make_rendered
    monkeypatch.setattr(video, "make_rendered", lambda e: ids.append(e.kwargs) or original(e))
    callback = ActorLearnerCallback(5, 10, 10, video_period_learner_steps=20)
    data = small_data(env=EnvConfig(DIARY, {"length": 12}), evaluation=longer())
    run = make_run(tmp_path, callback, data=data).fit()
    assert ids == [{"length": 9}] * 2  # at setup, and the film
    played = play(str(run.checkpoint("last")), str(tmp_path / "out.gif"))
    assert played.lengths.tolist() == [9]


def test_a_run_goes_on_from_its_checkpoint_though_it_is_evaluated_elsewhere(tmp_path: Path):
    elsewhere = EvaluationConfig(2, 2, env={"factory": "lrl.envs.toy.Chain"})
    data: dict[str, Any] = {"env": EnvConfig("lrl/Chain-v0"), "evaluation": elsewhere}
    first = make_run(tmp_path, data=small_data(**data), max_steps=10).fit()
    stamp = torch.load(first.checkpoint("last"), weights_only=True)[STAMP_KEY]
    assert stamp["environment"]["id"] != trained_in(stamp)["id"] == "lrl/Chain-v0"
    second = make_run(tmp_path, data=small_data(**data)).fit(first.checkpoint("last"))
    assert second.trainer.global_step == 20


@pytest.mark.usefixtures("janitor")
def test_actors_and_the_evaluator_build_what_a_factory_makes(tmp_path: Path, monkeypatch):
    env = EnvConfig(factory=make_corridor, kwargs={"length": 3}, max_episode_steps=6)
    evaluation = EvaluationConfig(2, 2, env={"max_episode_steps": 20})
    callback = ActorLearnerCallback(5, 10, 10, evaluation="background")
    data = small_data(env=env, actors=background(1), evaluation=evaluation)
    run = make_run(tmp_path, callback, data=data).fit()
    lengths = [float(row["eval/length_mean"]) for row in run.metrics() if "eval/length_mean" in row]
    assert lengths
    assert set(lengths) <= {3.0, 20.0}  # right all the way, or never there
    monkeypatch.setattr(safety, "_trusted", {"helpers.factories"})
    assert load_agent(run.checkpoint("last")).env.id == FACTORY


@pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning")
def test_the_command_line_takes_both(tmp_path: Path, monkeypatch, capsys):
    project = Project(tmp_path)
    monkeypatch.setattr(safety, "_trusted", set())
    settings = (
        "--data.env", f"{{factory: {FACTORY}, kwargs: {{length: 3}}, max_episode_steps: 6}}",
        "--data.evaluation.env.max_episode_steps", "20", "--data.evaluation.epsilon", "1",
        "--data.actors.num_actors", "0", "--trainer.enable_progress_bar", "false",
    )  # fmt: skip
    base = project.folder / "base.yaml"
    base.write_text(base.read_text().replace("env: {id: lrl/Identity-v0, kwargs: {length: 5}}", ""))
    code, _, err = project.call(monkeypatch, capsys, "fit", "--config", "base.yaml", *settings)
    assert code in (None, 0), err
    config = str(project.runs / "version_0" / "config.yaml")
    where = ("--config", config, "--ckpt_path", "last")
    code, tested, err = project.call(monkeypatch, capsys, "test", *where)
    assert code in (None, 0), err
    length = float(tested.partition("length ")[2].partition("\n")[0])
    assert length > 6  # as training's episodes never are
    named = ("--name", "small", "--ckpt_path", "last", "--episodes", "6")
    code, _, err = project.call(monkeypatch, capsys, "evaluate", *named)
    assert (code, "--modules helpers.factories" in err) == (2, True)
    code, scored, err = project.call(
        monkeypatch, capsys, "evaluate", *named, "--modules", "helpers.factories"
    )
    assert code in (None, 0), err
    assert f" {length:.1f} " in scored
