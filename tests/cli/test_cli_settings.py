"""What the command line says of settings, right or wrong, before anything starts."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.command_line import Project, quiet_commands
from helpers.training_runs import (
    actor_processes,
    environment_for_subprocess,
)

import lrl
from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.manager import ActorManager
from lrl.parts.renamed import RENAMED

pytestmark = quiet_commands

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def command(project, monkeypatch, capsys):
    return functools.partial(project.call, monkeypatch, capsys)


MISTAKES = {
    "unknown key": (["--data.replay.capcity", "5"], "data.replay.capcity"),
    "wrong type": (["--data.replay.capacity", "many"], "capacity is many, but must be a whole"),
    "out of range": (["--data.replay.capacity", "-1"], "replay.capacity must be at least 1"),
    "not a choice": (
        ["--data.actors.on_failure", "hope"],
        "on_failure is hope, but must be 'restart' or 'fail'",
    ),
    "unknown class": (
        ["--model.encoder", "lrl.networks.Nothing"],
        "model.encoder: module 'lrl.networks' has no",
    ),
    "wrong network": (
        ["--model.encoder.init_args.hidden_sizes", "[0]"],
        "encoder.hidden_sizes must hold at least one positive size",
    ),
    "wrong exploration": (
        [
            "--data.exploration=lrl.actors.exploration.EpsilonSpread",
            "--data.exploration.maximum=3",
        ],
        "exploration.maximum must be between 0 and 1, got 3",
    ),
    "explorations of actors": (
        [
            "--data.exploration",
            "{class_path: PerActor, init_args: {explorations: [{class_path: Greedy}]}}",
        ],
        "exploration.explorations has 1 explorations for 2 actors",
    ),
    "unknown setting of evaluation": (
        ["--data.evaluation.env.max_episod_steps", "500"],
        "data.evaluation.env.max_episod_steps is no setting: did you mean 'max_episode_steps'?",
    ),
    "wrong setting of evaluation": (
        ["--data.evaluation.env.max_episode_steps", "many"],
        "data.evaluation.env.max_episode_steps is 'many', but must be a whole number or null",
    ),
    "nested setting of evaluation": (
        ["--data.evaluation.env.atari.noop_max", "0"],
        "data.evaluation.env.atari.noop_max is '0', but must be a whole number",
    ),
    "other actions in evaluation": (
        ["--data.evaluation.env.kwargs", "{num_contexts: 7}"],
        "environment with observation_shape (7,) instead of (4,), num_actions 7 instead of 4 in",
    ),
    "unknown factory": (
        ["--data.env.id", "maze", "--data.env.factory", "nowhere.make"],
        "env.factory 'nowhere.make' cannot be imported: ModuleNotFoundError",
    ),
    "a factory under another's name": (
        ["--data.env.factory", "nowhere.make"],
        "env.id is 'lrl/Identity-v0', but must be a name of your own",
    ),
    "wrong period": (
        ["--actor_learner.sync_period_learner_steps", "0"],
        "sync_period_learner_steps must be at least 1",
    ),
    "a folder that nothing is written to": (
        ["--trainer.default_root_dir", "elsewhere"],
        "trainer.default_root_dir is elsewhere, but a run's folder is RUNS/NAME: set --runs",
    ),
    "a name that is no folder's": (["--name", "."], "--name is '.', but must be the name of a"),
    "a name that loggers read": (["--name", "$HOME"], "--name is '$HOME', but must be the name"),
    "contradiction": (
        ["--data.actors.num_actors", "0", "--data.rate.samples_per_insert", "null"],
        "rate.samples_per_insert is null (free running) but actors.num_actors is 0",
    ),
    "wrong inference": (
        ["--data.inference.max_batch_delay_seconds", "-1"],
        "lrl: error: inference.max_batch_delay_seconds must be at least 0, got -1.0",
    ),
    "inference without servers": (
        ["--data.inference.num_servers", "0"],
        "inference.num_servers must be at least 1, got 0: where actors compute their own",
    ),
    "warm-up": (
        ["--data.rate.warm_up_env_steps", "3000"],
        "rate.warm_up_env_steps is 3000, but the replay keeps only 2000 rows",
    ),
    "unknown environment": (["--data.env.id", "Nowhere-v0"], "env.id is 'Nowhere-v0'"),
    "no such configuration": (["--config", "nowhere.yaml"], "nowhere.yaml"),
    "no such checkpoint": (["--ckpt_path", "nowhere.ckpt"], "--ckpt_path nowhere.ckpt"),
    "no best": (["--name", "other", "--ckpt_path", "best"], "--ckpt_path best: no run in"),
    "no last": (["--name", "other", "--ckpt_path", "last"], "--ckpt_path last: no run in"),
    "fork": (
        ["--trainer.strategy", "ddp_fork", "--trainer.devices", "2", "--trainer.accelerator=cpu"],
        "trainer.strategy starts ranks by fork",
    ),
    "spawn": (
        ["--trainer.strategy", "ddp_spawn", "--trainer.devices", "2", "--trainer.accelerator=cpu"],
        "trainer.strategy spawns ranks, which is for scripts",
    ),
    "FSDP": (["--trainer.strategy", "fsdp"], "trainer.strategy is fsdp, which lrl is not made for"),
    "clipping": (["--trainer.gradient_clip_val", "-1"], "trainer.gradient_clip_val is -1, but"),
    "devices": (["--trainer.devices=two", "--trainer.accelerator=cpu"], "trainer.devices is two"),
    "precision": (["--trainer.precision", "64"], "trainer.precision is 64, but weights"),
    "threads": (["--data.learner_threads", "100000"], "learner_threads must be at most 1024, got"),
    "seed": (["--seed_everything", "-5"], "seed_everything is -5, but must be from 0 to"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_costs_one_line_and_starts_nothing(command, project, monkeypatch, mistake):
    arguments, message = MISTAKES[mistake]
    monkeypatch.setattr(ActorManager, "start", lambda self: pytest.fail("actors were started"))
    code, _, err = command("fit", "--config", "base.yaml", *arguments)
    assert code == 2
    (line,) = (line for line in err.splitlines() if line.startswith("lrl: error: "))
    assert message in line
    assert "Traceback" not in err
    assert "usage" not in err
    assert actor_processes() == []
    assert list(project.runs.glob("*")) == []  # no folder of a run that never was


@pytest.mark.parametrize("subcommand", ["validate", "test"])
@pytest.mark.parametrize("which", ["best", "last", "nowhere.ckpt"])
def test_a_checkpoint_that_is_not_there_is_not_evaluated(command, subcommand, which):
    where = ("--config", "base.yaml", "--name", "other")
    code, out, err = command(subcommand, *where, "--ckpt_path", which)
    assert (code, out) == (2, "")
    assert [line for line in err.splitlines() if which in line] == [err.strip()]


def test_a_mistake_in_a_file_is_named_too(command, project):
    (project.folder / "wrong.yaml").write_text("data: {replay: {capcity: 5}}\n")
    code, _, err = command("fit", "--config", "base.yaml", "--config", "wrong.yaml")
    assert code == 2
    assert "capcity" in err
    assert "Traceback" not in err


def test_a_configuration_may_be_given_as_text(command, monkeypatch):
    """The checkpoint that is not there is looked for once all settings have been read."""
    text, mistake = "{ckpt_path: nowhere.ckpt}", "--ckpt_path nowhere.ckpt: there is no such"
    code, _, err = command("fit", "--config", "base.yaml", "--config", text)
    assert code == 2
    assert mistake in err
    code, _, err = command("fit", "--config", "base.yaml", "--config", "{data: {rate: 3}}")
    assert code == 2
    assert "data.rate is 3 in --config, but must hold settings, such as data.rate." in err
    monkeypatch.setenv("LRL_FIT__CONFIG", text)
    code, _, err = command("fit", "--config", "base.yaml")
    assert code == 2
    assert mistake in err


def test_a_configuration_may_come_out_of_a_pipe(command, project):
    pipe = project.folder / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("{ckpt_path: nowhere.ckpt}",))
    writer.start()
    code, _, err = command("fit", "--config", "base.yaml", "--config", "pipe")
    writer.join()
    assert code == 2
    assert "--ckpt_path nowhere.ckpt: there is no such" in err


def test_a_variable_may_name_a_recipe(command, monkeypatch):
    monkeypatch.setenv("LRL_FIT__CONFIG", "recipe:mountaincar")
    code, printed, err = command("fit", "--print_config")
    assert code in (None, 0), err
    assert yaml.safe_load(printed)["data"]["env"]["id"] == "MountainCar-v0"


@pytest.mark.parametrize(("old", "new"), [pair for pair in RENAMED.items() if "." in pair[0]])
def test_an_old_key_is_answered_with_the_new_which_exists(command, project, old, new):
    sections, name = old.split(".")[:-1], old.split(".")[-1]
    nested: Any = {name: 1}
    for section in reversed(sections):
        nested = {section: nested}
    (project.folder / "old.yaml").write_text(yaml.safe_dump(nested))
    for given in (["--config", "old.yaml"], [f"--{old}", "1"]):
        code, out, err = command("fit", "--config", "base.yaml", *given)
        assert (code, out, err) == (2, "", f"lrl: error: {old} is called {new} now\n")
    value = "compiled" if new == "model.updater" else "1"
    assert command("fit", f"--{new}", value, "--print_config")[0] in (None, 0)


MY_DQN = """
from pathlib import Path

import lrl


class MyDQN(lrl.DQN):
    def __init__(self, scale: float = 1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def compute_loss(self, batch, next_values):
        Path(f"scaled_by_{self.scale}").touch()
        losses = super().compute_loss(batch, next_values)
        return losses._replace(loss=self.scale * losses.loss)
"""


@pytest.mark.parametrize(
    "spelling",
    ["--model.class_path=", "--model=", "file", "-c", "saved", "file of the model", "variable"],
)
def test_a_model_of_ones_own_is_named_by_its_class(command, project, spelling, monkeypatch):
    (project.folder / "my_module.py").write_text(MY_DQN)
    model = {"class_path": "my_module.MyDQN", "init_args": {"scale": 2.5}}
    (project.folder / "mine.yaml").write_text(yaml.safe_dump({"model": model}))
    (project.folder / "model.yaml").write_text(yaml.safe_dump(model))
    if spelling in ("file", "saved"):
        given = ["--config", "mine.yaml"]
    elif spelling == "-c":
        given = ["-cmine.yaml"]
    elif spelling == "file of the model":
        given = ["--model", "model.yaml"]
    elif spelling == "variable":
        monkeypatch.setenv("LRL_FIT__MODEL", "my_module.MyDQN")
        given = ["--model.init_args.scale", "2.5"]
    else:
        given = [f"{spelling}my_module.MyDQN", "--model.init_args.scale", "2.5"]
    given += ["--model.target_update_tau", "0.5"]  # the flat spelling holds, too
    code, printed, err = command("fit", "--config", "base.yaml", *given, "--print_config")
    assert code in (None, 0), err
    if spelling == "saved":
        (project.folder / "printed.yaml").write_text(printed)
        _, printed, _ = command("fit", "--config", "printed.yaml", "--print_config")
    model = yaml.safe_load(printed)["model"]
    assert model["class_path"] == "my_module.MyDQN"
    settings = model["init_args"]
    assert (settings["scale"], settings["target_update_tau"]) == (2.5, 0.5)
    assert settings["encoder"]["init_args"]["hidden_sizes"] == [16]  # of base.yaml
    assert settings["optimizer"]["class_path"] == "torch.optim.SGD"


def test_a_file_of_the_model_need_not_name_a_class(command, project):
    (project.folder / "model.yaml").write_text("target_update_tau: 0.25")
    given = ["--config", "base.yaml", "--model", "model.yaml", "--print_config"]
    code, printed, err = command("fit", *given)
    assert code in (None, 0), err
    model = yaml.safe_load(printed)["model"]
    assert (model["target_update_tau"], "class_path" in model) == (0.25, False)


def test_a_model_of_ones_own_is_trained(tmp_path, monkeypatch, capsys):
    project = Project(tmp_path)
    (project.folder / "my_module.py").write_text(MY_DQN)
    given = ["--model.class_path", "my_module.MyDQN", "--model.scale", "2", "--name", "mine"]
    short = ["--data.actors.num_actors=0", "--trainer.max_steps=2"]
    code, _, err = project.call(monkeypatch, capsys, "fit", "--config", "base.yaml", *given, *short)
    assert code in (None, 0), err
    assert (tmp_path / "scaled_by_2.0").exists()
    assert "my_module.MyDQN" in (project.folder / "runs/mine/version_0/config.yaml").read_text()


def test_a_variable_of_the_environment_is_a_setting_that_files_and_arguments_override(
    command, monkeypatch
):
    monkeypatch.setenv("LRL_FIT__DATA__REPLAY__N_STEP", "7")
    monkeypatch.setenv("LRL_FIT__DATA__REPLAY__CAPACITY", "7")  # base.yaml has another
    monkeypatch.setenv("LRL_FIT__TRAINER__MAX_EPOCHS", "7")
    monkeypatch.setenv("LRL_FIT__CKPT_PATH", "7.ckpt")
    given = ["--config", "base.yaml", "--trainer.max_epochs", "3"]
    code, printed, err = command("fit", *given, "--print_config")
    assert code in (None, 0), err
    config = yaml.safe_load(printed)
    assert (config["data"]["replay"]["n_step"], config["data"]["replay"]["capacity"]) == (7, 2000)
    assert config["trainer"]["max_epochs"] == 3
    assert config["ckpt_path"] == "7.ckpt"
    code, _, err = command("fit", *given)
    assert (code, err.count("\n")) == (2, 1)
    assert "7.ckpt" in err  # there is no such file; the variable is a setting
    monkeypatch.delenv("LRL_FIT__CKPT_PATH")
    monkeypatch.setenv("LRL_FIT__DATA__REPLAY__N_STEP", "many")
    code, _, err = command("fit", *given)
    assert (code, err.count("\n")) == (2, 1)
    assert "data.replay.n_step is many, but must be a whole number" in err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LRL_FIT__DATA__REPLAY__NSTEP", "did you mean LRL_FIT__DATA__REPLAY__N_STEP?"),
        ("LRL_FIT__DATA__INFERENCE__NUM_SERVERS", "LRL_FIT__DATA__INFERENCE takes all of its"),
        ("LRL_FIT__MODEL__CLASS_PATH", "LRL_FIT__MODEL takes all of its settings at once"),
    ],
)
def test_a_variable_that_would_do_nothing_is_refused(command, monkeypatch, name, text):
    monkeypatch.setenv(name, "7")
    code, _, err = command("fit", "--config", "base.yaml")
    assert (code, err.count("\n")) == (2, 1)
    assert f"the variable {name} is no setting of lrl fit" in err
    assert text in err


@pytest.mark.parametrize(
    ("logger", "is_named"), [("TensorBoardLogger", True), ("CSVLogger", False)]
)
def test_tensorboard_is_named_where_it_has_something_to_show(
    tmp_path, monkeypatch, capsys, logger, is_named
):
    project = Project(tmp_path)
    place = {"save_dir": "a place"}
    chosen = {"class_path": f"lightning.pytorch.loggers.{logger}", "init_args": place}
    (project.folder / "logger.yaml").write_text(yaml.safe_dump({"trainer": {"logger": chosen}}))
    given = ["--config", "logger.yaml", "--data.actors.num_actors=0", "--trainer.max_steps=2"]
    code, out, err = project.call(monkeypatch, capsys, "fit", "--config", "base.yaml", *given)
    assert code in (None, 0), err
    assert "next:\n  lrl test --config 'a place/" in out
    assert ("tensorboard --logdir 'a place/" in out) == is_named


def test_a_second_callback_is_refused(command, project):
    callbacks = {"trainer": {"callbacks": [{"class_path": "lrl.ActorLearnerCallback"}]}}
    (project.folder / "second.yaml").write_text(yaml.safe_dump(callbacks))
    code, _, err = command("fit", "--config", "base.yaml", "--config", "second.yaml")
    assert code == 2
    assert "trainer.callbacks holds an ActorLearnerCallback, but every run has one already" in err


def test_what_an_earlier_version_saved_is_read(command, project):
    saved = (DATA / "lrl-0.1.0.yaml").read_text()
    (project.folder / "saved.yaml").write_text(saved)
    code, printed, err = command("fit", "--config", "saved.yaml", "--print_config")
    assert code in (None, 0), err
    old, now = yaml.safe_load(saved), yaml.safe_load(printed)
    assert now["data"]["inference"] is None
    steps = "interval_learner_steps", "period_learner_steps"
    for what in ("eval", "save", "video"):
        callbacks = old["actor_learner"], now["actor_learner"]
        before, after = (c[f"{what}_{n}"] for c, n in zip(callbacks, steps, strict=True))
        assert before == after
    assert now["data"]["rate"]["warm_up_env_steps"] == old["data"]["rate"]["min_size_env_steps"]
    assert old["model"].pop("compile_loss") is False
    assert now["model"].pop("updater") == "eager"
    assert now["model"].items() >= old["model"].items()


def test_the_version_is_told_without_importing_lightning():
    script = (
        "import sys; sys.argv = ['lrl', '--version']; from lrl.__main__ import main; main(); "
        "print(sorted({'lightning', 'torch', 'gymnasium'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=environment_for_subprocess(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines() == [f"lrl {lrl.__version__}", "[]"]


def test_help_of_fit_explains_settings_with_their_units(command):
    code, out, _ = command("fit", "--help")
    assert code == 0
    text = " ".join(out.split())
    for sentence in (
        "Rows kept per rank, over all streams; the oldest are overwritten.",
        "Learner steps between evaluations; 0 turns them off.",
        "An actor that makes no progress for so long is killed",
        "Environment steps inserted before learning starts",
        "Learner steps between updates of the target network.",
        "Folder of all runs: RUNS/NAME/version_K.",
    ):
        assert sentence in text


def test_a_printed_configuration_is_one_that_can_be_used(command, project):
    _, printed, _ = command("fit", "--config", "base.yaml", "--print_config")
    (project.folder / "printed.yaml").write_text(printed)
    _, again, _ = command("fit", "--config", "printed.yaml", "--print_config")
    assert yaml.safe_load(again) == yaml.safe_load(printed)
    config = yaml.safe_load(printed)
    assert config["data"]["actors"]["on_failure"] == "restart"  # a default
    assert config["data"]["env"]["id"] == "lrl/Identity-v0"


def test_the_defaults_can_be_printed_and_used(command, project):
    code, printed, err = command("fit", "--print_config")
    assert (code, "Unable to serialize" in printed + err) == (0, False)
    (project.folder / "defaults.yaml").write_text(printed)
    _, again, _ = command("fit", "--config", "defaults.yaml", "--print_config")
    assert yaml.safe_load(again) == yaml.safe_load(printed)
    assert yaml.safe_load(printed)["model"]["optimizer"]["class_path"] == "torch.optim.Adam"


def test_the_default_exploration_is_written_out(command):
    _, printed, _ = command("fit", "--print_config")
    exploration = yaml.safe_load(printed)["data"]["exploration"]
    schedule: Any = EpsilonGreedy().schedule
    assert exploration == {
        "class_path": "lrl.actors.exploration.EpsilonGreedy",
        "init_args": {
            "schedule": {"class_path": "lrl.schedules.Linear", "init_args": vars(schedule)}
        },
    }
    _, printed, _ = command("fit", "--print_config", "--data.exploration.schedule.duration", "7")
    changed = yaml.safe_load(printed)["data"]["exploration"]["init_args"]["schedule"]["init_args"]
    assert changed == {**vars(schedule), "duration": 7}
    _, printed, err = command("fit", "--print_config", "--data.exploration", "Greedy")
    other = yaml.safe_load(printed)["data"]["exploration"]
    assert other == {"class_path": "lrl.actors.exploration.Greedy", "init_args": {}}
    assert err == ""


@pytest.mark.parametrize("nothing", ["max_steps", "limit_train_batches"])
def test_a_run_that_makes_no_step_says_so_and_names_no_checkpoint(command, project, nothing):
    code, out, _ = command(
        "fit", "--config", "base.yaml", "--name", nothing, f"--trainer.{nothing}", "0"
    )
    assert code == 0
    assert "checkpoint: none, since no learner step was made: raise trainer.max_steps" in out
    assert "None" not in out
    assert list(project.folder.glob(f"runs/{nothing}/*")) == []


@pytest.mark.parametrize(
    "logger", [(), ("--trainer.logger=lightning.pytorch.loggers.logger.DummyLogger",)]
)
def test_a_run_without_loggers_names_no_folder_and_makes_none(command, project, logger):
    (project.folder / "summary.json").write_text("of another run")
    arguments = ("--name", "fast", "--trainer.fast_dev_run", "true", *logger)
    saves = ("--actor_learner.checkpoint_replay", "true")
    code, out, _ = command("fit", "--config", "base.yaml", *arguments, *saves)
    assert code == 0
    assert "checkpoint: none, since trainer.fast_dev_run" in out
    assert not list(project.folder.rglob("*.ckpt"))
    assert "None" not in out
    assert "next:" not in out
    assert not list(project.folder.glob("runs/fast/*"))
    assert not (project.folder / "checkpoints").exists()
    assert (project.folder / "summary.json").read_text() == "of another run"


def test_a_folder_is_claimed_before_loggers_and_settings_are_written_there(
    tmp_path, monkeypatch, capsys
):
    project = Project(tmp_path)
    place = f"--trainer.default_root_dir={tmp_path / 'mine'}"
    arguments = ("fit", "--config", "base.yaml", "--trainer.logger=false", place)
    code, _, err = project.call(monkeypatch, capsys, *arguments)
    assert code in (0, None), err
    before = (tmp_path / "mine" / "config.yaml").read_bytes()
    descriptor = os.open(tmp_path / "mine", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    code, _, err = project.call(monkeypatch, capsys, *arguments, "--data.replay.gamma=0.5")
    os.close(descriptor)
    assert code == 2
    assert "another run trains in" in err
    code, _, err = project.call(monkeypatch, capsys, *arguments, "--data.replay.gamma=0.5")
    assert code == 2
    assert "last.ckpt of an earlier run, which this one would replace" in err
    assert (tmp_path / "mine" / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("name", ["../other", "/tmp/other", "a/../../b"])
def test_a_name_does_not_leave_the_folder_of_all_runs(command, name):
    code, _, err = command("fit", "--config", "base.yaml", "--name", name)
    assert code == 2
    assert f"--name is {name!r}, but must be the name of a folder in runs" in err
