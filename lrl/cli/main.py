"""The command line: `lrl fit|validate|test --config x.yaml`, a LightningCLI."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from shlex import quote
from typing import Any, TypeGuard

import lightning as L
import yaml
from jsonargparse import ArgumentError, Namespace, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from lrl.actors.exploration import EpsilonGreedy
from lrl.actors.manager import ActorError
from lrl.callbacks import ActorLearnerCallback, RLProgressBar
from lrl.callbacks.guard import NonFiniteLossError
from lrl.checkpoints.files import SaveError
from lrl.checkpoints.runs import new_version, resolve_checkpoint, runs_folder, versions
from lrl.checkpoints.stamp import flatten
from lrl.cli.commands import configure_logging, report_mistake
from lrl.cli.exit_status import Outcome, callback_of
from lrl.cli.failure import report_failure
from lrl.cli.messages import check_sections, check_settings, check_variables, has_variables
from lrl.cli.recipes import with_paths
from lrl.cli.yaml_files import check_yaml
from lrl.deploy.hub import fetched
from lrl.evaluation.evaluator import EvaluatorError
from lrl.inference.manager import InferenceError
from lrl.learner import DQN, ReplayDataModule
from lrl.loggers.records import log_configuration, name_run
from lrl.parts import safety
from lrl.parts.quiet import quieten_command_line
from lrl.parts.renamed import translated
from lrl.preflight.callbacks import WritesFiles
from lrl.preflight.ranks import default_devices
from lrl.preflight.trainer import check_ranks, check_trainer, check_trainer_settings, refusals_named
from lrl.processes.ending import StoppedError, ending
from lrl.ranks.meeting import is_lost_connection
from lrl.ranks.watch import rank_watch
from lrl.report.scores import describe
from lrl.types import ConfigError

_SAVED = "# lightning.pytorch=="  # how files begin that Lightning saved


class SaveConfig(SaveConfigCallback, WritesFiles):
    """Save the full configuration beside the checkpoints, and give it flattened to loggers."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Save the configuration of training; an evaluation leaves no files."""
        if stage == "fit":
            folder = Path(trainer.log_dir or trainer.default_root_dir)  # all ranks must ask
            super().setup(trainer, pl_module, stage)
            self.written = [folder / self.config_filename]

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Log the configuration as `section.key` hyperparameters."""
        log_configuration(trainer, flatten(self.config.as_dict()))


def written_out(part: Any) -> Any:
    """Return a part that is a dataclass, with the parts in it, as YAML would name it.

    Example:
        >>> from lrl.schedules import Constant
        >>> written_out(Constant(0.1))
        {'class_path': 'lrl.schedules.Constant', 'init_args': {'value': 0.1}}
    """
    if not is_dataclass(part):
        return part
    kind = type(part)
    init_args = {setting.name: written_out(getattr(part, setting.name)) for setting in fields(part)}
    return {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": init_args}


def names_model(arguments: Sequence[str]) -> bool:
    """Return whether a command line, a file of it or a variable names the model's class.

    Without one the settings of `model` are DQN's, and `--help` lists them.
    """
    given: list[tuple[str, str]] = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        option, is_whole, value = word.partition("=")
        if not is_whole and len(word) > 2 and word.startswith("-c"):  # both in one word
            option, is_whole, value = "-c", "=", word[2:]
        given.append((option, value if is_whole else following))
    for name, value in os.environ.items():
        if name.startswith("LRL_"):
            given.append((f"--{name.partition('__')[2].lower().replace('__', '.')}", value))
    return any(_names_model(option, value) for option, value in given)


def _names_model(option: str, value: str) -> bool:
    if option not in ("--config", "-c", "--model"):
        return option == "--model.class_path"
    settings: Any = value
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        text = Path(value).read_text(encoding="utf-8") if Path(value).is_file() else value
        settings = yaml.safe_load(text)
    if option != "--model":
        settings = settings.get("model") if isinstance(settings, dict) else None
    elif isinstance(settings, str):
        return True  # the class itself
    return isinstance(settings, dict) and "class_path" in settings


class SettingsParser(LightningArgumentParser):
    """Reads what earlier versions saved (their `config.yaml`), with today's names of settings."""

    def parse_string(self, content: str, *args: Any, **kwargs: Any) -> Namespace:
        """Parse a configuration; what a user wrote is to have today's names, each once."""
        if not kwargs.get("path"):
            check_yaml(content, "--config")
            check_sections(self, content, "--config")
        if content.startswith(_SAVED):
            settings = translated(yaml.safe_load(content))
            content = yaml.safe_dump(settings, sort_keys=False)
        return super().parse_string(content, *args, **kwargs)

    def parse_path(self, path: Any, *args: Any, **kwargs: Any) -> Namespace:
        """Parse a file, of which mistakes are told with its path, or what comes out of a pipe."""
        try:
            content = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"--config {path} is no text in UTF-8 ({error.reason} in byte {error.start}): save "
                "it as UTF-8; a checkpoint is given as --ckpt_path"
            ) from error
        check_yaml(content, f"--config {path}")
        check_sections(self, content, str(path))
        if not Path(path).is_file():  # a pipe can be read only once
            return self.parse_string(content, *args, **kwargs)
        return super().parse_path(path, *args, **kwargs)


class LrlCLI(LightningCLI):
    """LightningCLI for `DQN` and `ReplayDataModule`, with lrl's callbacks always present."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(
            DQN,
            ReplayDataModule,
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={
                "max_epochs": -1,
                "devices": default_devices(),
                "enable_model_summary": False,
                "callbacks": [outcome],
            },
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_class=SettingsParser,
            load_from_checkpoint_support=False,
            parser_kwargs={
                "prog": "lrl",
                "description": "Train and evaluate value-based agents.",
                "env_prefix": "LRL",
                "default_env": has_variables(),
            },
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the asked-for subcommand alone: each parser takes a second to build."""
        skipped = {
            "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule", "weights_only"},
            "validate": {"model", "dataloaders", "datamodule", "weights_only"},
            "test": {"model", "dataloaders", "datamodule", "weights_only"},
        }
        asked = next((word for word in sys.argv[1:] if word in skipped), None)
        return {asked: skipped[asked]} if asked else skipped

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Let mistakes be raised: `run` answers with one line instead of pages of usage."""
        return super().init_parser(**{**kwargs, "exit_on_error": False})

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add trainer, model and data; the environment's specification is not configured."""
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        defaults = {k: v for k, v in self.trainer_defaults.items() if k != "callbacks"}
        parser.set_defaults({f"trainer.{key}": value for key, value in defaults.items()})
        # The same as in DQN, in a form that config.yaml can hold.
        adam = {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-3}}
        if names_model(sys.argv[1:]):
            parser.add_subclass_arguments(DQN, "model", skip={"env_spec"}, required=False)
            default = {"class_path": "lrl.DQN", "init_args": {"optimizer": adam}}
            parser.set_defaults({"model": default})
        else:
            parser.add_class_arguments(DQN, "model", skip={"env_spec"}, sub_configs=True)
            parser.set_defaults({"model.optimizer": adam})
        parser.add_lightning_class_args(ReplayDataModule, "data")
        parser.set_defaults({"data.exploration": written_out(EpsilonGreedy())})

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the run's name and folder and lrl's callbacks."""
        parser.add_argument("--name", type=str, default="dqn", help="Name of the run.")
        parser.add_argument(
            "--runs", type=str, default="runs", help="Folder of all runs: RUNS/NAME/version_K."
        )
        parser.add_lightning_class_args(ActorLearnerCallback, "actor_learner")
        parser.add_lightning_class_args(RLProgressBar, "progress")
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        self.outcome.known = [action.dest for action in parser._actions]

    def _parse_ckpt_path(self) -> None:
        """Leave the configuration alone: explicit settings win over a checkpoint's."""

    def before_instantiate_classes(self) -> None:
        """Find the checkpoint to start from, before anything is built."""
        config = self.config[self.config["subcommand"]]
        # Lightning has added the arguments of the Trainer's own method, such as ckpt_path.
        parser = self._parser(self.config["subcommand"])
        self.outcome.known = [action.dest for action in parser._actions]
        check_variables(self.config["subcommand"], self.outcome.known)
        check_settings(parser, config)
        safety.check_values(config.as_dict())
        if config["data"]["exploration"] is None:  # as in files of before, which left it out
            parser = self._parser(self.config["subcommand"])
            config["data"]["exploration"] = parser.parse_object(
                {"data": {"exploration": written_out(EpsilonGreedy())}}
            )["data"]["exploration"]
        model = config["model"]
        is_fit = self.outcome.learns = self.config["subcommand"] == "fit"
        agent = model.get("init_args", model)
        check_trainer_settings(config["trainer"], agent, is_fit=is_fit)
        # A job that was stopped before its first save is started again with `--ckpt_path last`.
        starts_again = os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")
        given = config["ckpt_path"]
        self._checkpoint = resolve_checkpoint(
            given and str(fetched(given)), runs_folder(config["runs"]), config["name"],
            may_be_missing=starts_again and is_fit,
        )  # fmt: skip
        config["ckpt_path"] = None  # what is saved describes the run, not where it came from
        if config["trainer"]["enable_progress_bar"] is False:
            self._parser(self.config["subcommand"]).callback_keys.remove("progress")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """Give `fit` a version of its own to log to; it stays out of the saved configuration.

        Otherwise whoever evaluates or goes on from that file would write over the run's history.
        """
        self.config_init[str(self.subcommand)]["ckpt_path"] = self._checkpoint
        built = self._get(self.config_init, "trainer")
        _check_single(built["callbacks"])
        given = built["logger"]
        is_fit = self.subcommand == "fit"
        settings = self._get(self.config, "trainer")
        if is_fit and not settings["fast_dev_run"]:
            kwargs |= self._place(given, settings["default_root_dir"])
        elif given is None and not settings["fast_dev_run"]:
            kwargs["logger"] = False
        with refusals_named(settings):
            trainer = super().instantiate_trainer(**kwargs)
        check_trainer(trainer)  # here, since a rank is too late for it
        check_ranks(trainer)
        if is_fit and not settings["fast_dev_run"]:
            claim = callback_of(trainer).claim  # loggers and files of settings come next
            claim.take(trainer)
            claim.check_unused(trainer, self._checkpoint)
        if is_fit and given is not None:
            for logger in trainer.loggers:
                first = trainer.loggers[0]  # has the run's folder, except in a trial run
                if trainer.is_global_zero and _has_folder(first):
                    name_run(logger, "/".join(Path(first.log_dir).parts[-2:]))
                _open(logger)
        return trainer

    def _place(self, given: Any, root: str | None) -> dict[str, Any]:
        """Return arguments of the Trainer by which a run has a folder, whatever loggers it has."""
        if given is None or given is True:
            if root is not None:
                raise ConfigError(
                    f"trainer.default_root_dir is {root}, but a run's folder is RUNS/NAME: set "
                    "--runs (or trainer.logger to false, for that folder itself)"
                )
            return {"logger": self._new_loggers()}
        if not given:
            return {"default_root_dir": root or str(self._new_folder())}
        loggers = _without_folder(given)
        return {"logger": [*self._new_loggers()[1:], *loggers]} if loggers else {}

    def _new_loggers(self) -> list[Logger]:
        folder = self._new_folder()
        place = str(folder.parents[1]), folder.parent.name, folder.name
        return [TensorBoardLogger(*place), CSVLogger(*place)]

    def _new_folder(self) -> Path:
        runs, name = runs_folder(self._get(self.config, "runs")), self._get(self.config, "name")
        leaves = Path(name).is_absolute() or ".." in Path(name).parts
        if leaves or name in (".", "") or name != os.path.expandvars(name):
            raise ConfigError(f"--name is {name!r}, but must be the name of a folder in {runs}")
        if getattr(rank_zero_only, "rank", 0) == 0:
            with ending.held():
                version = new_version(runs, name)
                self.outcome.folder = Path(runs, name, version)
            ending.check()
        else:  # Lightning asks rank 0 for the folder
            existing = versions(runs, name)
            version = existing[-1].name if existing else "version_0"
        return Path(runs, name, version)

    def after_fit(self) -> None:
        """Say what was reached and what to do next."""
        callback = callback_of(self.trainer)
        folder = self.trainer.log_dir  # all ranks must ask
        if not self.trainer.is_global_zero:
            return
        if getattr(self.trainer, "fast_dev_run", 0):
            print("\ncheckpoint: none, since trainer.fast_dev_run only tries whether it runs")
            return
        best = callback.best_model_path
        path = best or callback.last.last_model_path or self._checkpoint
        if not path:
            print("\ncheckpoint: none, since no learner step was made: raise trainer.max_steps,")
            print("max_epochs, max_time or limit_train_batches, whichever is 0")
            return
        score = f"{callback.best_model_score:.1f}" if best else "not evaluated"
        what = "return" if callback.best.monitor == "eval/return_mean" else callback.best.monitor
        print(f"\nbest evaluation {what}: {score}\ncheckpoint: {path}")
        if not self.outcome.learned:
            steps = self.trainer.max_steps
            is_at_end = 0 <= steps <= self.trainer.global_step
            limit = f"max_steps {steps}" if is_at_end else "max_epochs, max_time or another limit"
            print(f"nothing to train: trainer.{limit} was reached already")
            return
        config = quote(f"{folder}/config.yaml")
        print(f"next:\n  lrl test --config {config} --ckpt_path {quote(str(path))}")
        for logger in self.trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                print(f"  tensorboard --logdir {quote(logger.log_dir)}")

    def after_validate(self) -> None:
        """Print the evaluation."""
        self._print_evaluation("limit_val_batches")

    def after_test(self) -> None:
        """Print the evaluation."""
        self._print_evaluation("limit_test_batches")

    def _print_evaluation(self, limit: str) -> None:
        if self.trainer.is_global_zero:
            if not hasattr(self.model, "evaluated"):
                raise ConfigError(f"trainer.{limit} is 0, so that nothing is played: leave it out")
            checkpoint = self._checkpoint or "none, untrained weights"
            print(describe(checkpoint, self.datamodule.stamp(), self.model.evaluated))


def _check_single(callbacks: Any) -> None:
    """Refuse a second `ActorLearnerCallback`: everything would be done twice."""
    given = callbacks if isinstance(callbacks, list) else [callbacks]
    if any(isinstance(callback, ActorLearnerCallback) for callback in given):
        raise ConfigError(
            "trainer.callbacks holds an ActorLearnerCallback, but every run has one already: give "
            "its settings in the section actor_learner"
        )


def _open(logger: Logger) -> None:
    """Let a logger reach its server now, since Lightning would end in a traceback later.

    Raises:
        ConfigError: It cannot begin a run; once it has, its failures end nothing.
    """
    try:
        _ = getattr(logger, "experiment", None)
    except Exception as error:
        name = type(logger).__name__
        raise ConfigError(f"trainer.logger: {name} cannot begin a run: {error}") from error


def _without_folder(given: Any) -> list[Logger]:
    """Return loggers that were asked for, if the Trainer would find no folder for the run in them.

    It looks at the first alone. That of another kind than these knows a server, or a folder of
    many runs, in which each would write over the checkpoints of the one before.
    """
    loggers = given if isinstance(given, list) else [given] if isinstance(given, Logger) else []
    return [] if loggers and _has_folder(loggers[0]) else loggers


def _has_folder(logger: Logger) -> TypeGuard[TensorBoardLogger | CSVLogger]:
    return isinstance(logger, (TensorBoardLogger, CSVLogger))


def run() -> int:
    """Run the command line; return the exit code: 2 bad settings, 130 Ctrl-C, 143 SIGTERM, ..."""
    configure_logging()
    quieten_command_line()
    # The sentences about settings are in the sources, which take as long to read as all the rest.
    explains = any(word == "-h" or "help" in word or "comments" in word for word in sys.argv[1:])
    set_parsing_settings(docstring_parse_attribute_docstrings=explains, **safety.parser_settings())
    outcome = Outcome()
    try:
        sys.argv[1:] = with_paths(sys.argv[1:])  # in place: ranks are started with the same
        for name in [f"LRL_{command.upper()}__CONFIG" for command in ("fit", "validate", "test")]:
            if name in os.environ:
                _, os.environ[name] = with_paths(["--config", os.environ[name]])
        with ending.raising(), outcome.tidied():
            LrlCLI(outcome)
    except (ActorError, InferenceError, EvaluatorError, NonFiniteLossError, SaveError) as error:
        return report_failure(error, outcome.log_dir)
    except (ArgumentError, ValueError, MisconfigurationException, OSError) as error:
        is_mistake = isinstance(error, ConfigError) or not outcome.began
        is_before_training = outcome.log_dir is not None and not outcome.trains
        is_mistake |= isinstance(error, OSError) and is_before_training  # a full disk
        is_mistake |= isinstance(error, MisconfigurationException) and not outcome.learned
        if not is_mistake:
            return outcome.report(error)
        return report_mistake(error, outcome.known)
    except RuntimeError as error:
        if not is_lost_connection(error):
            return outcome.report(error)
        cause = rank_watch.name() or error
        print(f"lrl: error: {outcome.on_lost_rank()} ({cause})", file=sys.stderr)
        return 1
    except (SystemExit, KeyboardInterrupt, StoppedError) as error:
        outcome.exception = outcome.exception or error
    except Exception as error:
        return outcome.report(error)
    return outcome.exit_code()
