"""`lrl export`: an agent as a file that runs without lrl, and a description beside it."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lrl.checkpoints.atomic_files import replace_file
from lrl.checkpoints.files import reason
from lrl.deploy.graph import GreedyGraph, differing, inputs_of, outputs_of, recorded
from lrl.learner.agent import Agent, load_agent
from lrl.types import ConfigError, EnvSpec

_FORMAT = 1
_CHECKED_BATCHES = (1, 5)
_Written = tuple[bytes, Callable[[Sequence[Tensor]], Sequence[Tensor]]]
_PREPROCESSING = (
    "Observations are those of `environment` with all of its settings: wrappers applied, frames "
    "stacked, leaves of nested spaces by their paths. The graph scales bytes and expands "
    "categories itself. In a script with lrl, lrl.load_policy(checkpoint).make_env() makes this "
    "environment."
)


def export(ckpt_path: str, output: str, overwrite: bool = False) -> Path:
    """Write the greedy policy of a checkpoint to a file that runs without lrl.

    A checkpoint knows its environment and network, so no configuration is needed. The file takes
    observations, action masks and memory where there are any, in batches of any size, and returns
    action values, the best action and the next memory. FILE.json beside it describes them, the
    preprocessing and the protocol. What was written is compared with the network before.

    Args:
        ckpt_path: Checkpoint that lrl wrote.
        output: The file: .pt2 for torch.export, .onnx for ONNX (extra `onnx`).
        overwrite: Replace it if it is there already.

    Returns:
        The path of the file.

    Raises:
        ConfigError: An argument is wrong, the checkpoint cannot be used, or a part of its network
            cannot be recorded.
    """
    path = Path(output)
    writer = _writer_for(path, overwrite)
    agent = load_agent(ckpt_path)
    assert agent.module.env_spec is not None
    graph = GreedyGraph(agent.module.online, agent.module.env_spec)
    try:
        content, run = writer(recorded(graph), graph.spec)
    except ConfigError:
        raise
    except Exception as error:  # torch raises many kinds, where it does not follow a part
        parts = ", ".join(type(part).__name__ for part in _parts(graph))
        raise ConfigError(
            f"checkpoint {ckpt_path} cannot be exported to {path.suffix}, since torch does not "
            f"follow a part of its network ({parts}): {reason(error)}"
        ) from error
    _check_alike(graph, run, path)
    description = json.dumps(_description(agent, graph, path), indent=2).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda file: file.write(content))
        replace_file(_beside(path), lambda file: file.write(description))
    except OSError as error:
        raise ConfigError(f"output {output!r} cannot be written: {error}") from error
    print(f"written: {path}, {_beside(path)}")
    return path


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _writer_for(
    path: Path, overwrite: bool
) -> Callable[[torch.export.ExportedProgram, EnvSpec], _Written]:
    writers = {".pt2": _as_pt2, ".onnx": _as_onnx}
    if path.suffix not in writers:
        raise ConfigError(
            f"output {str(path)!r} must end in .pt2 (torch.export) or .onnx, which say what is "
            "written"
        )
    existing = [str(file) for file in (path, _beside(path)) if file.exists()]
    if existing and not overwrite:
        raise ConfigError(
            f"output {str(path)!r}: {existing[0]} exists; give another name, or --overwrite true"
        )
    if path.suffix == ".onnx":  # before a checkpoint is loaded for nothing
        try:
            for module in ("onnxruntime", "onnxscript"):
                import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"output {str(path)!r}: ONNX needs an extra, pip install 'lrl[onnx]'; .pt2 needs "
                "none"
            ) from error
    return writers[path.suffix]


def _as_pt2(program: torch.export.ExportedProgram, spec: EnvSpec) -> _Written:
    file = io.BytesIO()
    torch.export.save(program, file)
    module = program.module()
    return file.getvalue(), lambda inputs: module(*inputs)


def _as_onnx(program: torch.export.ExportedProgram, spec: EnvSpec) -> _Written:
    names = [[port.name for port in ports] for ports in (inputs_of(spec), outputs_of(spec))]
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converted = torch.onnx.export(
                program, input_names=names[0], output_names=names[1], dynamo=True, verbose=False
            )
    finally:
        log.setLevel(level)
    assert converted is not None
    content = converted.model_proto.SerializeToString()
    runtime = import_module("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        given = {name: tensor.numpy() for name, tensor in zip(names[0], inputs, strict=True)}
        return [torch.from_numpy(np.asarray(value)) for value in session.run(names[1], given)]

    return content, run


def _check_alike(
    graph: GreedyGraph, run: Callable[[Sequence[Tensor]], Sequence[Tensor]], path: Path
) -> None:
    """Compare what was recorded with the network, on random observations in batches of any size."""
    rng, ports = np.random.default_rng(1), inputs_of(graph.spec)
    inputs = [[port.sample(rows, rng) for port in ports] for rows in _CHECKED_BATCHES]
    with torch.inference_mode():
        name = differing(graph, [run(given) for given in inputs], inputs)
    if name:
        raise ConfigError(
            f"output {str(path)!r} was not written, because {name} in it would differ from the "
            "network's: a part of it depends on more than its input"
        )


def _parts(graph: GreedyGraph) -> list[torch.nn.Module]:
    network = graph.network
    return [part for part in (network.encoder, network.core, network.head) if part is not None]


def _description(agent: Agent, graph: GreedyGraph, path: Path) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "file": path.name,
        "kind": {".pt2": "torch.export", ".onnx": "ONNX"}[path.suffix],
        "inputs": [port.as_dict() for port in inputs_of(graph.spec)],
        "outputs": [port.as_dict() for port in outputs_of(graph.spec)],
        "branches": list(graph.spec.action.branches),
        "preprocessing": _PREPROCESSING,
        "environment": agent.stamp["environment"],
        "evaluation": agent.evaluation(),
        "protocol": agent.stamp["protocol"],
        "stamp": dict(agent.stamp),
        "checkpoint": str(agent.path),
    }
