"""Does a checkpoint belong to the agent that loads it? The answer names settings, not tensors."""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import lightning as L
import torch

from lrl.checkpoints.stamp import STAMP_KEY, check_format, trained_in
from lrl.types import ConfigError

_log = logging.getLogger(__name__)

_PARTS, _LEARNING = ("encoder", "core", "head"), ("optimizer", "lr_scheduler")
_CLASSES = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)


def check_fits(module: L.LightningModule, checkpoint: Mapping[str, Any]) -> None:
    """Check that a checkpoint belongs to this agent, whose network is built, and its environment.

    Raises:
        ConfigError: Another version of lrl wrote it, or an agent with another environment, network
            or optimizer; the settings that differ are named. Or a weight is not finite.
    """
    saved, own = checkpoint.get("hyper_parameters", {}), dict(module.hparams)
    trainer = module._trainer  # None where a script loads the agent
    stamp = checkpoint.get(STAMP_KEY)
    if stamp is not None:
        check_format(stamp)
        _check_environment(trained_in(stamp)["id"], getattr(trainer, "datamodule", None))
    _check_network(module, checkpoint["state_dict"], saved, own)
    check_finite(module, checkpoint["state_dict"])
    if trainer is None or trainer.state.fn != "fit":
        return
    if not checkpoint.get("optimizer_states"):
        raise ConfigError(
            "the checkpoint holds weights without the state of their optimizer, so that training "
            "cannot go on from it: take one that was saved as a whole, such as last.ckpt"
        )
    _check_updates(saved, own)
    _compare_seeds(stamp, getattr(trainer, "datamodule", None))
    if "optimizer" in saved:
        there, here = saved["optimizer"]["class_path"], own["optimizer"]["class_path"]
        if there != here:
            raise ConfigError(
                f"the checkpoint holds the state of optimizer {there}, which {here} cannot go on "
                f"from: set model.optimizer to {there}"
            )
        there, here = (_class_of(each.get("lr_scheduler")) for each in (saved, own))
        if there != here:
            raise ConfigError(
                f"the checkpoint holds the state of lr_scheduler {there}, which {here} cannot go "
                f"on from: set model.lr_scheduler to {there}"
            )
        _compare_optimizers(saved, own)


def _class_of(part: Mapping[str, Any] | None) -> str:
    return part["class_path"] if part else "null"


def _check_updates(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Lightning counts steps and batches otherwise where a training step optimises by itself."""
    there, here = (each.get("updates_per_step", 1) for each in (saved, own))
    if there == here == 1:
        was, now = (each.get("updater", "eager") for each in (saved, own))
        if (was == "captured") != (now == "captured"):
            raise ConfigError(
                f"model.updater is {now}, but the checkpoint's run had {was}, with which its "
                f"counts of steps go: set it to {was}"
            )
    if there != here:
        raise ConfigError(
            f"model.updates_per_step is {here}, but the checkpoint's run had {there}, with which "
            f"its counts of steps go: set it to {there}"
        )


def _compare_seeds(stamp: Mapping[str, Any] | None, datamodule: Any) -> None:
    """Say if another run's checkpoint is gone on with, perhaps by mistake: names may be shared."""
    here = getattr(datamodule, "seed", None)
    if stamp is None or here is None or stamp["training"]["seed"] == here:
        return
    _log.warning(
        "the checkpoint's training seed is %s, and this run's is %s: if another run wrote it, "
        "give each a name of its own (--name)",
        stamp["training"]["seed"], here,
    )  # fmt: skip


def _compare_optimizers(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Say which settings of the optimizer have no effect: its saved state holds them."""
    saved, own = ({**each, **_with_defaults(each)} for each in (saved, own))
    changed = _said(saved, own, _LEARNING)
    if changed:
        _log.warning(
            "a run that goes on keeps the checkpoint's settings of optimizer and scheduler: %s; "
            "train afresh to change them",
            changed,
        )


def _check_environment(there: str, datamodule: Any) -> None:
    env = getattr(datamodule, "env", None)
    if env is not None and env.id != there:
        raise ConfigError(
            f"the checkpoint was trained in environment {there}, but env.id is {env.id}: set it to "
            f"{there}, or take a checkpoint of that environment"
        )


def _check_network(
    module: L.LightningModule,
    tensors: Mapping[str, Any],
    saved: Mapping[str, Any],
    own: Mapping[str, Any],
) -> None:
    saved, own = ({**each, **_with_defaults(each)} for each in (saved, own))
    there = {name: list(tensor.shape) for name, tensor in tensors.items()}
    here = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    names = sorted(there.keys() | here.keys())
    if not module.strict_loading:
        names = [name for name in names if name in there and name in here]
    tensor = next((name for name in names if there.get(name) != here.get(name)), None)
    if tensor is None:
        if changed := _said(saved, own, _PARTS):
            _log.warning(
                "the checkpoint's weights have the shapes of this network, but were learnt with "
                "other settings: %s. What they say may mean something else here",
                changed,
            )
        return
    settings = _said(saved, own, (*_PARTS, "env_spec"))
    shapes = f"the shape of {tensor} is {there.get(tensor)} there and {here.get(tensor)} here"
    raise ConfigError(
        f"the checkpoint holds another network: {settings or shapes}; set them alike, or train "
        "afresh"
    )


def _with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an agent with all arguments: scripts save those that they gave."""
    found = {}
    for name in (*_PARTS, *_LEARNING):
        part = settings.get(name)
        if isinstance(part, Mapping) and "class_path" in part:
            module, _, cls = part["class_path"].rpartition(".")
            part_class = getattr(sys.modules.get(module), cls, None)
            defaults = {}
            if isinstance(part_class, type) and issubclass(part_class, _CLASSES):
                parameters = inspect.signature(part_class).parameters
                defaults = {k: p.default for k, p in parameters.items() if p.default is not p.empty}
            given = {**defaults, **part.get("init_args", {})}
            plain = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
            found[name] = {**part, "init_args": plain}
    return found


def check_finite(module: torch.nn.Module, tensors: Mapping[str, Any]) -> None:
    """Check that a checkpoint's weights of a module are finite; its buffers may be infinite.

    Raises:
        ConfigError: One is not.
    """
    for name, _ in module.named_parameters():
        if name in tensors and not torch.isfinite(tensors[name]).all():
            raise ConfigError(
                f"the weights {name} of the checkpoint are NaN or infinite: its training diverged, "
                "so that its actions mean nothing; take an earlier one"
            )


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of an agent's weights, by which its scores are known to be its own.

    Args:
        tensors: A state dict in which the acting network's names begin with `online.`.
    """
    digest = hashlib.sha256()
    for name in sorted(name for name in tensors if name.startswith("online.")):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def differing_settings(one: Any, other: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Return nested settings that are not alike by dotted names, each with both values.

    Example:
        >>> differing_settings({"head": {"a": 1, "b": 2}}, {"head": {"a": 1, "b": 3}})
        {'head.b': (2, 3)}
    """
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return {} if one == other else {name: (one, other)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in [*one, *(key for key in other if key not in one)]:
        found |= differing_settings(one.get(key), other.get(key), f"{name}.{key}" if name else key)
    return found


def _said(saved: Mapping[str, Any], own: Mapping[str, Any], parts: Iterable[str]) -> str:
    """Name the settings of these parts, as far as they were saved, that differ."""
    there = {part: saved[part] for part in parts if part in saved}
    found = differing_settings(there, {part: own.get(part) for part in there}, "model")
    return "; ".join(f"{name} is {a!r} there and {b!r} here" for name, (a, b) in found.items())
