"""Where runs and their checkpoints lie: RUNS/NAME/version_K/checkpoints."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only

from lrl.checkpoints.files import CheckpointError, read_checkpoint
from lrl.checkpoints.saved_replay import (
    SavedReplayError,
    manifest_name,
    read_manifest,
    replay_beside,
)
from lrl.checkpoints.stamp import STAMP_KEY
from lrl.types import ConfigError

_log = logging.getLogger(__name__)

_NAMES = {"best": ("best",), "last": ("last", "previous")}
"""Files of a run that an asked-for checkpoint is looked for in, in this order."""
_WRITTEN_BY_LIGHTNING = {"state_dict", "global_step", "pytorch-lightning_version"}


def runs_folder(given: str) -> Path:
    """Return the folder of all runs, with `~` and `$VARIABLES` replaced, as loggers do."""
    return Path(os.path.expandvars(given)).expanduser()


def is_trial(trainer: L.Trainer) -> bool:
    """Return whether a run only tries that it runs: its files would replace those of real ones."""
    return bool(getattr(trainer, "fast_dev_run", 0))


def checkpoint_folder(trainer: L.Trainer) -> Path:
    """Return the run's folder of checkpoints; all ranks must call it."""
    folder = str(trainer.log_dir or trainer.default_root_dir)
    if "://" in folder:
        raise ConfigError(
            f"the run's folder is {folder}, but checkpoints are kept on a disk: give the Trainer's "
            "logger a save_dir, or the Trainer a default_root_dir, that is a path of this machine"
        )
    return Path(folder) / "checkpoints"


def versions(runs: Path, name: str) -> list[Path]:
    """Return the folders of a run's versions, oldest first."""
    folders = (runs / name).glob("version_*")
    numbered = [f for f in folders if f.name.removeprefix("version_").isdecimal()]
    return sorted(numbered, key=lambda folder: int(folder.name.removeprefix("version_")))


def new_version(runs: Path, name: str) -> str:
    """Make the folder of a run's new version and return its name; no other process gets the same.

    Raises:
        ConfigError: The folder cannot be made.
    """
    existing = versions(runs, name)
    number = int(existing[-1].name.removeprefix("version_")) + 1 if existing else 0
    while True:
        folder = runs / name / f"version_{number}"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):  # another process was quicker
                folder.mkdir()
                return folder.name
        except OSError as error:
            raise ConfigError(f"--runs {runs}: {folder} cannot be made: {error}") from error
        number += 1


def resolve_checkpoint(
    path: str | None, runs: Path, name: str, may_be_missing: bool = False
) -> str | None:
    """Turn `best` and `last` into the newest such checkpoint of the runs of that name.

    The file is read, so that a damaged one ends nothing later, and its content kept for whoever
    loads it next (see `read_checkpoint`). For a damaged `last`, or one whose replay was not written
    to its end, the one before it is taken, of the run before if there is none, with a warning.

    A warning also says if the newest run has none, so that an older one is taken: a run that ended
    before it saved anything must not keep its predecessor from being gone on with. The best of a
    run that went on from another and was never better is the other's.

    Where `last` is not there but `may_be_missing`, the run starts afresh, with a warning.

    Raises:
        ConfigError: There is none (Lightning would start afresh for `last`), or it is damaged.
    """
    if path is None:
        return None
    if path not in _NAMES:
        if "://" not in path and not Path(path).is_file():
            raise ConfigError(f"--ckpt_path {path}: there is no such file")
        _read(path)
        return path
    folders = versions(runs, name)
    files = [
        folder / "checkpoints" / f"{file}.ckpt"
        for folder in reversed(folders)
        for file in _NAMES[path]
    ]
    existing = [file for file in files if file.is_file()]
    if path == "best":
        existing = [*_handed_on(folders), *existing]
    if existing:
        found = _first_whole(existing if path == "last" else existing[:1])
        if existing[0].parent.parent != folders[-1]:
            # Further ranks start once the first one has made the folder of this run.
            rank_zero_only(_log.warning)(
                "--ckpt_path %s: %s has none, %s is taken", path, folders[-1], found
            )
        return str(found)
    if path == "last" and may_be_missing:
        _log.warning("--ckpt_path last: no run in %s has saved any, training begins", runs / name)
        return None
    raise ConfigError(
        f"--ckpt_path {path}: no run in {runs / name} has checkpoints/{path}.ckpt; train one, "
        "or give the path of a checkpoint"
    )


def _handed_on(folders: Sequence[Path]) -> list[Path]:
    """Return the best checkpoint that the newest run with any took over, unless it has its own."""
    for folder in reversed(folders):
        best, last = (folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last"))
        if best.is_file():
            return []
        if last.is_file():
            content: Mapping[str, Any] = {}
            with suppress(CheckpointError):
                content = read_checkpoint(last)
            found = find_best(last, content) if best_state(content) else None
            return [found[0]] if found else []
    return []


def find_best(checkpoint: Path, content: Mapping[str, Any]) -> tuple[Path, float] | None:
    """Return the best checkpoint that another one names, and its score; None if it is gone.

    Both may have been moved, and another run may lie where they were: it is looked for beside the
    one that names it, among the versions there, and where it was, and has the score that was named.
    One of the same run, beside, may have a higher score: a run that was killed had evaluations
    after its last checkpoint.

    Args:
        checkpoint: What names it.
        content: What is in it.

    Raises:
        CheckpointError: It is there, but cannot be read.
    """
    state = best_state(content)
    named, score = Path(state.get("best_model_path") or "best.ckpt"), _score_of(content)
    beside = checkpoint.parent / named.name
    among = checkpoint.parent.parent.parent.joinpath(*named.parts[-3:])  # of NAME/version_K/...
    found: dict[Path, Mapping[str, Any]] = {}
    error: CheckpointError | None = None
    for path in dict.fromkeys((beside, among, named)):
        if path.is_file():
            try:
                found[path] = read_checkpoint(path)
            except CheckpointError as caught:
                error = error or caught
    found = {path: there for path, there in found.items() if _is_of_a_run(there)}
    for path, there in found.items():
        if _score_of(there, score) == score > -math.inf:
            return path, score
    if beside in found:
        there = found[beside]
        is_later = there["global_step"] > content["global_step"] and _seed(there) == _seed(content)
        if is_later and _score_of(there) > score:
            return beside, _score_of(there)
        if named.is_file() and beside.samefile(named):  # its score could not be written into it
            return beside, score
    if error is not None:
        raise error
    return None


def _score_of(content: Mapping[str, Any], unknown: float = -math.inf) -> float:
    return float(best_state(content).get("best_model_score", unknown))


def _seed(content: Mapping[str, Any]) -> Any:
    return content.get(STAMP_KEY, {}).get("training", {}).get("seed")


def _first_whole(files: Sequence[Path]) -> Path:
    """Return the first file that can be used, with a warning if it is not the first of all."""
    try:
        newest = _read(files[0])
        problem = missing_replay(files[0], newest)
        if not problem:
            return files[0]
    except CheckpointError as error:
        problem = error.problem or str(error)
        for file in files[1:]:
            with suppress(CheckpointError):
                learner_step = _read(file)["global_step"]
                _log.warning("%s: %s is used, of learner step %d", problem, file, learner_step)
                return file
        raise
    # A replay is filled again sooner than training is repeated: one save back at most.
    for file in files[1:2]:
        with suppress(CheckpointError):
            content = _read(file)
            learner_step = content["global_step"]
            is_before = file.parent == files[0].parent or _seed(content) == _seed(newest)
            is_before &= learner_step <= newest["global_step"]  # else it is of another training
            if is_before and saved_replay_of(content) and not missing_replay(file, content):
                _log.warning("%s: %s is used, of learner step %d", problem, file, learner_step)
                return file
    return files[0]  # its replay is filled again, which the run says


def missing_replay(path: Path, content: Mapping[str, Any]) -> str:
    """Say that the replay which was saved with a checkpoint is not there; "" if it is, or none was.

    One that was killed while it wrote its replay has left none; of several ranks, all must have.
    """
    saved_id = saved_replay_of(content)
    if not saved_id:
        return ""
    rank, ranks = 0, 1
    with suppress(SavedReplayError, OSError):
        while rank < ranks:
            name = manifest_name(content["global_step"])
            manifest = read_manifest(replay_beside(path, rank) / name)
            if manifest.saved_id != saved_id:
                break
            rank, ranks = rank + 1, int(manifest.settings.get("ranks", 1))
    if rank == ranks:
        return ""
    return f"the replay of {path} is not beside it, or was not written to its end"


def saved_replay_of(content: Mapping[str, Any]) -> str:
    """Return the name of the replay that was saved with a checkpoint, "" if none was."""
    return dataset_state(content).get("saved_replay", "")


def best_state(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what lrl's callback says of the best checkpoint; empty if it was not there.

    Lightning's `ModelCheckpoint` says something under the same names, and more.
    """
    ours = {"best_model_path", "best_model_score"}
    of_old, of_new = ours, ours | {"best_model_monitor"}  # the return, where none is named
    states = content.get("callbacks", {}).values()
    return next((s for s in states if isinstance(s, Mapping) and s.keys() in (of_old, of_new)), {})


def dataset_state(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the run's dataset in a checkpoint; empty if it has none of lrl's."""
    try:
        (dataset,) = content["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    except (KeyError, TypeError, ValueError):
        return {}
    return dataset if isinstance(dataset, Mapping) else {}


def _is_of_a_run(content: Any) -> bool:
    return isinstance(content, dict) and content.keys() >= _WRITTEN_BY_LIGHTNING


def _read(path: Path | str) -> Mapping[str, Any]:
    """Return what is in the checkpoint of a training run; whoever loads it next takes it over."""
    content = read_checkpoint(path, keep=True)
    if not _is_of_a_run(content):
        raise CheckpointError(
            f"checkpoint {path} was not written by a training run: use one that was"
        )
    return content
