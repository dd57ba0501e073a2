"""Where runs and their checkpoints lie: RUNS/NAME/version_K/checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path

from lrl.types import ConfigError

_log = logging.getLogger(__name__)


def versions(runs: Path, name: str) -> list[Path]:
    """Return the folders of a run's versions, oldest first."""
    folders = (runs / name).glob("version_*")
    numbered = [f for f in folders if f.name.removeprefix("version_").isdigit()]
    return sorted(numbered, key=lambda folder: int(folder.name.removeprefix("version_")))


def resolve_checkpoint(path: str | None, runs: Path, name: str) -> str | None:
    """Turn `best` and `last` into the newest such checkpoint of the runs of that name.

    A warning says if the newest run has none, so that an older one is taken: a run that ended
    before it saved anything must not keep its predecessor from being gone on with.

    Raises:
        ConfigError: There is none. Lightning would start afresh for `last`.
    """
    if path is None or path not in ("best", "last"):
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"--ckpt_path {path}: there is no such file")
        return path
    folders = versions(runs, name)
    for folder in reversed(folders):
        candidate = folder / "checkpoints" / f"{path}.ckpt"
        if candidate.is_file():
            if folder != folders[-1]:
                _log.warning(
                    "--ckpt_path %s: %s has none, %s is taken", path, folders[-1], candidate
                )
            return str(candidate)
    raise ConfigError(
        f"--ckpt_path {path}: no run in {runs / name} has checkpoints/{path}.ckpt; train one, "
        "or give the path of a checkpoint"
    )
