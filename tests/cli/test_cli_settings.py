"""What the command line says of settings, right or wrong, before anything starts."""

from __future__ import annotations

import functools
import subprocess
import sys
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

pytestmark = quiet_commands


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def command(project, monkeypatch, capsys):
    return functools.partial(project.call, monkeypatch, capsys)


MISTAKES = {
    "unknown key": (["--data.replay.capcity", "5"], "data.replay.capcity"),
    "wrong type": (["--data.replay.capacity", "many"], 'key "data.replay.capacity"'),
    "out of range": (["--data.replay.capacity", "-1"], "replay.capacity must be at least 1"),
    "not a choice": (["--data.actors.on_failure", "hope"], 'key "data.actors.on_failure"'),
    "unknown class": (["--model.encoder", "lrl.networks.Nothing"], 'key "model.encoder"'),
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
    "wrong interval": (
        ["--actor_learner.sync_period_learner_steps", "0"],
        "sync_period_learner_steps must be at least 1",
    ),
    "contradiction": (
        ["--data.actors.num_actors", "0", "--data.rate.samples_per_insert", "null"],
        "rate.samples_per_insert is null (free running) but actors.num_actors is 0",
    ),
    "wrong inference": (
        ["--data.inference.delay_seconds", "-1"],
        "lrl: error: inference.delay_seconds must be at least 0, got -1.0",
    ),
    "inference without servers": (
        ["--data.inference.batch_size", "4"],
        "lrl: error: inference.batch_size is 4, but inference.num_servers is 0",
    ),
    "warm-up": (
        ["--data.rate.min_size_env_steps", "3000"],
        "rate.min_size_env_steps is 3000, but the replay keeps only 2000 rows",
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
    "threads": (["--data.learner_threads", "100000"], "must be at least 1 and at most 1024"),
    "seed": (["--seed_everything", "-5"], "-5 is not in bounds"),
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
    arguments = ("--name", "fast", "--trainer.fast_dev_run", "true", *logger)
    code, out, _ = command("fit", "--config", "base.yaml", *arguments)
    assert code == 0
    assert "checkpoint: none, since trainer.fast_dev_run" in out
    assert not list(project.folder.rglob("*.ckpt"))
    assert "None" not in out
    assert "next:" not in out
    assert not list(project.folder.glob("runs/fast/*"))
