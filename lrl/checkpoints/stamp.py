"""The protocol stamp: what a score belongs to, in every checkpoint, summary and score file."""

from __future__ import annotations

import copy
import functools
import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from lrl.envs import EnvConfig, EnvKind, kind_of
from lrl.envs.config import SECTIONS, without_unused
from lrl.evaluation.episodes import VALIDATION_SEED, EvaluationConfig
from lrl.parts import safety
from lrl.types import ConfigError

STAMP_KEY = "lrl"
"""Where a checkpoint holds its stamp."""

_FORMAT = 1
"""The format of checkpoints: raised when older ones can no longer be read, or need a migration."""
_PACKAGES = ("lrl", "torch", "lightning", "gymnasium", "ale-py", "numpy")


def make_stamp(env: EnvConfig, evaluation: EvaluationConfig, **training: int) -> dict[str, Any]:
    """Return the stamp as plain data, which checkpoints and JSON can hold.

    `training` has the seed and the counters: `seed`, `learner_steps`, `env_steps`, `frames`.
    """
    gaps: list[str] = []
    played = _settings_of(evaluation.env_for(env), gaps)
    trained = _settings_of(env, [])
    names = trained | played  # only one of them may have a factory
    other = {name: trained.get(name) for name in names if trained.get(name) != played.get(name)}
    return {
        "format": _FORMAT,
        "protocol": evaluation.protocol_for(env),
        "environment": played,
        "gaps": gaps,  # settings of a script that are no plain data, of which only the text is kept
        "evaluation": {
            "epsilon": evaluation.epsilon_for(env),
            "max_frames_per_episode": evaluation.max_frames_for(env),
            "episodes": evaluation.episodes,
            "first_seed": VALIDATION_SEED,
        },
        "training": {**training, **({"environment": other} if other else {})},
        **machine(),
    }


def trained_in(stamp: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the environment that an agent was trained in."""
    return without_unused({**stamp["environment"], **stamp["training"].get("environment", {})})


def machine() -> dict[str, Any]:
    """Return the versions and the hardware that this process computes with."""
    gpus = []
    if torch.cuda.is_initialized():  # asking would open one, and keep what it takes
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "hardware": {
            "machine": platform.machine(),
            "processor": processor_name(),
            "cores": os.cpu_count() or 1,
            "gpus": gpus,
            "torch_threads": torch.get_num_threads(),
        },
    }


def check_format(stamp: Mapping[str, Any]) -> None:
    """Raise `ConfigError` unless this version of lrl reads checkpoints with such a stamp."""
    if stamp["format"] != _FORMAT:
        raise ConfigError(
            f"the checkpoint was written by lrl {stamp['versions']['lrl']}: use that version; its "
            f"format is {stamp['format']}, and this one reads format {_FORMAT}"
        )


def env_of(stamp: Mapping[str, Any]) -> EnvConfig:
    """Return the settings of the environment in which a stamp's score was measured.

    What they name is imported when the environment is made, so it must be of one of
    `lrl.parts.safety.ENVIRONMENTS`, or imported already.

    Raises:
        ConfigError: Another version of lrl wrote them, a stamp cannot hold them, or they name a
            module that is not imported.
    """
    check_format(stamp)
    if stamp["gaps"]:
        raise ConfigError(
            f"the environment cannot be rebuilt: {', '.join(stamp['gaps'])} held objects in "
            "training, and checkpoints hold plain data only; pass names or numbers instead"
        )
    settings = without_unused(stamp["environment"])
    unknown = flatten(settings).keys() - flatten(asdict(EnvConfig(settings["id"]))).keys()
    if unknown:
        raise ConfigError(
            f"the checkpoint was written by lrl {stamp['versions']['lrl']}: use that version; "
            f"settings {sorted(unknown)} are not known here"
        )
    paths = [settings["id"].rpartition(":")[0], *(w["path"] for w in settings["wrappers"])]
    for module in paths:
        root = module.partition(".")[0]
        if root not in ("", *safety.ENVIRONMENTS) and not _is_imported(module):
            raise ConfigError(
                f"the checkpoint's environment needs {module}: import it before (on the command "
                f"line: --modules {_module_of(module)})"
            )
    if "factory" in settings:
        _check_factory(settings["factory"])
    return EnvConfig(**settings)


def kind_in(stamp: Mapping[str, Any]) -> EnvKind:
    """Return the kind of the environment in which a stamp's score was measured.

    Where that environment cannot be rebuilt (see `env_of`) its id alone says the kind.
    """
    try:
        return kind_of(env_of(stamp))
    except ConfigError:
        return kind_of(EnvConfig(_id(stamp)))


def differences(stamp: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings with which two scores were measured differently; empty if they compare.

    The game may differ, and so may what acts in training only (clipped rewards, lost lives),
    counters, versions and hardware.
    """
    kinds = EnvConfig(_id(stamp)).kind, EnvConfig(_id(other)).kind
    if kinds[0] != kinds[1]:
        return {"environment": kinds}
    one, two = _measured(stamp), _measured(other)
    names = sorted(one.keys() | two.keys())
    return {
        name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)
    }


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings, as those of a stamp, by dotted names; what is no number is one text.

    So are keyword arguments and settings of training alone, whose names vary: the names are the
    same of any two stamps of one kind of environment.

    Example:
        >>> flatten({"protocol": "ale_v5", "training": {"seed": 0, "gpus": []}})
        {'protocol': 'ale_v5', 'training.seed': 0, 'training.gpus': '[]'}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        names_vary = name == "kwargs" or prefix + name == "training.environment"
        if isinstance(value, Mapping) and not names_vary:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            is_plain = value is None or isinstance(value, (bool, int, float, str))
            flat[prefix + name] = value if is_plain else json.dumps(value, default=str)
    return flat


def other_protocol(checkpoint: Mapping[str, Any], datamodule: Any) -> str:
    """Say how a checkpoint's stamp differs from the run that loads it; empty if they compare.

    A checkpoint, or a datamodule, without a stamp compares with everything.
    """
    if STAMP_KEY not in checkpoint or not hasattr(datamodule, "stamp"):
        return ""
    own, loaded = datamodule.stamp(), checkpoint[STAMP_KEY]
    if not isinstance(loaded, Mapping) or loaded.get("format") != _FORMAT:
        return "a stamp of another version of lrl"
    found = differences(loaded, own)
    games = _id(loaded), _id(own)
    if games[0] != games[1]:
        found["env.id"] = games
    return ", ".join(f"{name} {now} instead of {then}" for name, (then, now) in found.items())


def _id(stamp: Mapping[str, Any]) -> str:
    return stamp["environment"]["id"]


def _measured(stamp: Mapping[str, Any]) -> dict[str, Any]:
    environment, kind = copy.deepcopy(without_unused(stamp["environment"])), kind_in(stamp)
    # The limit of frames that counts is that of the evaluation: it is the lower one.
    for name in ("id", *kind.training_only, kind.frames_limit_setting):
        *path, last = name.split(".")
        holder = functools.reduce(lambda part, key: part.get(key) or {}, path, environment)
        holder.pop(last, None)
    for section in SECTIONS.keys() & environment.keys():
        nested = environment.pop(section)
        environment |= {f"{section}.{name}": value for name, value in nested.items()}
    return {
        **{f"env.{name}": value for name, value in environment.items()},
        "evaluation.epsilon": stamp["evaluation"]["epsilon"],
        "evaluation.max_frames_per_episode": stamp["evaluation"]["max_frames_per_episode"],
    }


def _check_factory(path: str) -> None:
    """Check that a checkpoint may have a factory called: of loaded modules it could name any."""
    module, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if isinstance(found, type) and issubclass(found, (gymnasium.Env, EnvKind)):
        return
    if safety.is_trusted(module):
        return
    if module == "__main__":
        raise ConfigError(
            f"the checkpoint's environment is made by {path}, of the script that trained it: put "
            f"it into a module of its own, or call lrl.parts.safety.trust({module!r}) there"
        )
    raise ConfigError(
        f"the checkpoint's environment is made by {path}, which may be any function: if you trust "
        f"it, name its module (on the command line: --modules {module}; in a script: "
        f"lrl.parts.safety.trust({module!r}))"
    )


def _settings_of(env: EnvConfig, gaps: list[str]) -> dict[str, Any]:
    """Return an environment's settings as plain data."""
    return without_unused(_plain(asdict(env), "env", gaps))


def _module_of(path: str) -> str:
    """Return the module of a class's path, or the module itself: those begin with small letters."""
    module, _, name = path.rpartition(".")
    return module if module and name[:1].isupper() else path


def _is_imported(path: str) -> bool:
    """Return whether a module, or the one that a class's path begins with, is imported."""
    return not path or path in sys.modules or path.rpartition(".")[0] in sys.modules


def _plain(value: Any, name: str, gaps: list[str]) -> Any:
    """Return plain data as it is, and of anything else its text, with its name in `gaps`."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _plain(item, f"{name}.{key}", gaps) for key, item in value.items()}
    if type(value) in (list, tuple):
        items = [_plain(item, f"{name}[{index}]", gaps) for index, item in enumerate(value)]
        return type(value)(items)
    if type(value) not in (bool, int, float, str, type(None)):
        gaps.append(name)
        value = _text_of(value)
    return value


def _text_of(value: Any) -> str:
    """Return what an object is called, the same in every process: no address is in it."""
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


@functools.cache
def processor_name() -> str:
    """Return what the processor calls itself; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ", 1)[-1] for line in lines if line.startswith("model name")), "")


@functools.cache
def _versions() -> dict[str, str]:
    return {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
