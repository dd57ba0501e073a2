"""`lrl inspect`: what a checkpoint holds, told from the file alone.

Nothing is built: what the checkpoint names, such as its encoder, is printed and never imported.
"""

from __future__ import annotations

import json as json_format
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lrl.checkpoints.atomic_files import check_place, write_asked
from lrl.checkpoints.compatibility import weights_digest
from lrl.checkpoints.files import read_checkpoint, reason
from lrl.checkpoints.runs import best_state, dataset_state, missing_replay, saved_replay_of
from lrl.checkpoints.saved_replay import (
    Manifest,
    SavedReplayError,
    manifest_name,
    read_manifest,
    replay_beside,
)
from lrl.checkpoints.stamp import STAMP_KEY, check_format
from lrl.processes.memory import format_bytes
from lrl.types import ConfigError, EnvSpec

_PARTS = ("encoder", "core", "head", "bootstrap", "lr_scheduler", "optimizer")
_LEARNING = (
    "target_update_period_learner_steps", "target_update_tau", "gradient_clip_norm",
    "updates_per_step", "updater",
)  # fmt: skip


def inspect(ckpt_path: str, json: Path | None = None) -> None:
    """Tell what a checkpoint holds: versions, environment, steps, scores, parts, sizes.

    It is told from the file alone: no environment is made, no network is built, and no code that
    the checkpoint names is imported.

    Args:
        ckpt_path: A checkpoint that lrl wrote.
        json: A file that also takes all of it, with the whole protocol stamp.

    Raises:
        ConfigError: It is no checkpoint of lrl's, or there is no folder for the file.
    """
    if json is not None:
        check_place("--json", json)
    found = contents(ckpt_path)
    print(text(found))
    if json is not None:
        content = json_format.dumps(found, indent=2, default=str) + "\n"
        write_asked("--json", json, content)


def contents(path: str | Path) -> dict[str, Any]:
    """Return what a checkpoint holds, as plain data for JSON.

    Raises:
        ConfigError: There is no such file, it is damaged, or it is no checkpoint of lrl's.
    """
    content, path = read_checkpoint(path), Path(path)
    if not isinstance(content, dict) or not isinstance(content.get(STAMP_KEY), Mapping):
        raise ConfigError(
            f"checkpoint {path} has no protocol stamp: it was not written by lrl, or before "
            "checkpoints carried stamps"
        )
    try:
        check_format(content[STAMP_KEY])
        return _contents(path, content)
    except ConfigError as error:
        raise ConfigError(f"checkpoint {path}: {error}") from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"checkpoint {path} is not complete: {reason(error)}") from error


def text(found: Mapping[str, Any]) -> str:
    """Return what `contents` found for a person, a line each."""
    return "\n".join(f"{name + ':':<14}{line}" for name, line in _lines(found))


def _contents(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    stamp, settings = content[STAMP_KEY], content["hyper_parameters"]
    replay = _replay(path, content)
    online = [t for name, t in content["state_dict"].items() if name.startswith("online.")]
    return {
        "checkpoint": str(path),
        "environment": stamp["environment"]["id"],
        "spec": _spec(settings.get("env_spec")),
        "learner_steps": content["global_step"],
        "env_steps": stamp["training"].get("env_steps"),
        "frames": stamp["training"]["frames"],
        "episodes": dataset_state(content).get("episodes"),
        "best_evaluation": _best(content),
        "best_by": best_state(content).get("best_model_monitor", "eval/return_mean"),
        "parts": {name: _part(settings.get(name)) for name in _PARTS},
        "learning": {name: settings[name] for name in _LEARNING if name in settings},
        "optimizer_now": _optimizer_now(content),
        "weights_sha256": weights_digest(content["state_dict"]),
        "parameters": sum(tensor.numel() for tensor in online),
        "bytes": {
            "file": path.stat().st_size,
            "weights": _nbytes(content["state_dict"]),
            "optimizer": _nbytes(content.get("optimizer_states", [])),
            "saved_replay": replay.pop("bytes"),
        },
        "going_on": replay,
        "stamp": stamp,
    }


def _spec(saved: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if saved is None:
        return None
    spec = EnvSpec.of(saved)
    return {
        "observation": {
            name: {
                "dtype": column.dtype,
                "shape": [*column.stacked_shape],
                "stack": column.stack,
                "categories": [*column.categories],
            }
            for name, column in spec.observation.items()
        },
        "actions": [*spec.action.branches],
        "action_masks": spec.action.masks,
        "memory": {name: [*column.shape] for name, column in spec.memory.items()},
        "frame_skip": spec.frame_skip,
    }


def _best(content: Mapping[str, Any]) -> float | None:
    """Return the best evaluation so far; None if there was none."""
    score = float(best_state(content).get("best_model_score", math.nan))
    return score if math.isfinite(score) else None


def _part(saved: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if saved is None:
        return None
    return {"class_path": saved["class_path"], "init_args": _plain(saved.get("init_args", {}))}


def _optimizer_now(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in the optimizer's state that do something: a run goes on with them."""
    states = content.get("optimizer_states") or [{"param_groups": [{}]}]
    group = states[0]["param_groups"][0]
    return {
        name: _plain(value)
        for name, value in group.items()
        if name not in ("params", "initial_lr") and _plain(value) not in (None, False, 0)
    }


def _replay(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a run goes on exactly, why, and how many bytes the saved replay has."""
    if not content.get("optimizer_states"):
        why = "it holds weights without the state of their optimizer: no run can go on from it"
        return {"exactly": False, "at_once": False, "why": why, "bytes": 0}
    if not saved_replay_of(content):
        why = (
            "it names no saved replay (actor_learner.checkpoint_replay was false, or it is no "
            "last.ckpt), so that a run that goes on fills its replay again"
        )
        return {"exactly": False, "at_once": False, "why": why, "bytes": 0}
    missing = missing_replay(path, content) or _missing_file(path, content["global_step"])
    if missing:
        why = f"{missing}, so that a run that goes on fills its replay again"
        return {"exactly": False, "at_once": False, "why": why, "bytes": 0}
    manifest = read_manifest(_manifest_path(path, content["global_step"]))
    ranks = manifest.settings.get("ranks", 1)
    exactly, why = True, "nothing acted beside it, and its saved replay is there"
    if ranks != 1:
        exactly, why = False, f"its saved replay is there, but {ranks} ranks are not repeatable"
    elif not _acted_itself(manifest.tree):
        exactly = False
        why = "its saved replay is there, but actors in the background begin new episodes"
    files = [*manifest.segments, manifest.state]
    return {
        "exactly": exactly,
        "at_once": True,
        "why": why,
        "bytes": sum(file.num_bytes for file in files),
    }


def _manifest_path(path: Path, learner_step: int) -> Path:
    return replay_beside(path) / manifest_name(learner_step)


def _missing_file(path: Path, learner_step: int) -> str:
    """Say that a file of the saved replay is missing or too short; "" if none is."""
    try:
        manifest: Manifest = read_manifest(_manifest_path(path, learner_step))
        for file in (*manifest.segments, manifest.state):
            place = replay_beside(path) / file.name
            if not place.is_file() or place.stat().st_size < file.num_bytes:
                return f"{place} of its saved replay is missing or damaged"
    except (SavedReplayError, OSError) as error:
        return str(error)
    return ""


def _acted_itself(tree: Any) -> bool:
    """Return whether running episodes were saved with a replay, as in synchronous mode alone."""
    for name in ("source", "actor"):
        tree = tree.get("dict", {}).get(name, {}) if isinstance(tree, Mapping) else {}
    return isinstance(tree, Mapping) and bool(tree.get("dict"))


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    parts = value.values() if isinstance(value, Mapping) else value
    return sum(map(_nbytes, parts)) if isinstance(value, (Mapping, list, tuple)) else 0


def _plain(value: Any) -> Any:
    """Return plain data for JSON, with the numbers of small tensors."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, torch.Tensor):
        return _plain(value.tolist()) if value.numel() <= 16 else f"tensor {[*value.shape]}"
    if isinstance(value, float):
        return float(f"{value:.7g}")  # what was float32 is no longer than it was written
    return value


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    stamp, sizes, going_on = found["stamp"], found["bytes"], found["going_on"]
    versions, hardware = dict(stamp["versions"]), stamp["hardware"]
    yield "checkpoint", found["checkpoint"]
    yield "written by", f"lrl {versions.pop('lrl')} ({_said(versions, ' ')})"
    machine = (hardware.get("processor"), f"{hardware['cores']} cores", *hardware["gpus"])
    yield "on", ", ".join(part for part in machine if part)
    yield "environment", found["environment"]
    if found["spec"] is not None:
        yield from _spec_lines(found["spec"])
    yield "protocol", f"{stamp['protocol']} ({_said(stamp['evaluation'], ' ')})"
    yield "steps", _steps(found)
    best = found["best_evaluation"]
    said = "none: not evaluated yet" if best is None else f"{best:g} ({found['best_by']})"
    yield "best score", said
    yield from ((name, _said_part(part)) for name, part in found["parts"].items())
    yield "its state", _said(found["optimizer_now"]) or "none"
    yield "learning", _said(found["learning"])
    yield "parameters", f"{found['parameters']:,} (online network)"
    replay = sizes["saved_replay"]
    yield (
        "sizes",
        f"file {format_bytes(sizes['file'])}, of it weights {format_bytes(sizes['weights'])} and "
        f"optimizer {format_bytes(sizes['optimizer'])}; "
        + (f"saved replay beside it {format_bytes(replay)}" if replay else "no saved replay"),
    )
    if going_on["exactly"]:
        answer = "exactly"
    else:
        answer = "at once, but not exactly" if going_on["at_once"] else "not exactly"
    yield "goes on", f"{answer}: {going_on['why']}"


def _spec_lines(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    columns = spec["observation"].items()
    yield (
        "observation",
        ", ".join(f"{name} {_column(column)}".strip() for name, column in columns),
    )
    actions = " x ".join(map(str, spec["actions"]))
    yield "actions", actions + (", some of them masked" if spec["action_masks"] else "")
    if spec["memory"]:
        yield "memory", _said(spec["memory"], " ")


def _column(column: Mapping[str, Any]) -> str:
    shape = " x ".join(map(str, column["shape"])) or "a number"
    kinds = f", of {_short(column['categories'])} categories" if column["categories"] else ""
    frames = f", of {column['stack']} frames" if column["stack"] > 1 else ""
    return f"{column['dtype']} {shape}{kinds}{frames}"


def _steps(found: Mapping[str, Any]) -> str:
    counts = ("learner_steps", "env_steps", "frames", "episodes")
    known = [
        f"{found[name]:,} {name.replace('_', ' ')}" for name in counts if found[name] is not None
    ]
    return ", ".join(known) + f" (seed {found['stamp']['training']['seed']})"


def _said_part(part: Mapping[str, Any] | None) -> str:
    return "none" if part is None else f"{part['class_path']}({_said(part['init_args'])})"


def _said(settings: Mapping[str, Any], between: str = "=") -> str:
    """Name settings with their values, but for those that are off."""
    return ", ".join(
        f"{name}{between}{_short(value)}"
        for name, value in settings.items()
        if value is not None and value is not False
    )


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "class_path" in value:
        return _said_part({"init_args": {}, **value})
    return f"{value:g}" if isinstance(value, float) else str(value)
