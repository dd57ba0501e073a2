"""The greedy policy as one graph: its inputs and outputs, and what torch records of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrl.learner.branching import greedy_action
from lrl.networks import QNetwork
from lrl.types import Column, EnvSpec, leaves_from, named

_LARGEST_SAMPLE = 256
_RECORDED_ROWS = 2  # of one row torch would believe that there is always one
_MEANINGS = {
    "uint8": "bytes from 0 to 255, which the network divides by 255",
    "bool": "true or false",
    "float32": "numbers as the environment gives them",
}


@dataclass(frozen=True)
class Port:
    """An input or an output of the graph; the batch is its first axis, of any size."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # without the batch
    meaning: str
    column: Column | None = None  # of an observation

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for the description beside the file."""
        plain = {
            "name": self.name,
            "dtype": self.dtype,
            "shape": ["batch", *self.shape],
            "meaning": self.meaning,
        }
        if self.column is None:
            return plain
        return {**plain, "stack": self.column.stack, "categories": list(self.column.categories)}

    def sample(self, rows: int, rng: np.random.Generator) -> Tensor:
        """Return random values that the input may have; masks allow all."""
        shape, column = (rows, *self.shape), self.column
        if self.name == "action_mask":
            return torch.ones(shape, dtype=torch.bool)
        if column is not None and column.categories:
            limits = np.reshape(column.categories, column.shape)
            values = rng.integers(np.broadcast_to(limits, shape))
        elif self.dtype in ("uint8", "bool"):
            values = rng.integers(_LARGEST_SAMPLE if self.dtype == "uint8" else 2, size=shape)
        else:
            values = rng.standard_normal(shape)
        return torch.from_numpy(np.asarray(values).astype(self.dtype))


def inputs_of(spec: EnvSpec) -> list[Port]:
    """Return the inputs in their order: observation, then mask and memory where there are any."""
    ports = [
        Port(name, column.dtype, column.stacked_shape, _meaning(column), column)
        for name, column in named("observation", spec.observation).items()
    ]
    if spec.action.masks:
        ports.append(
            Port("action_mask", "bool", (spec.num_actions,), "true for each action that is allowed")
        )
    meaning = "next_memory of the step before; zeros where an episode begins"
    return ports + [
        Port(name, column.dtype, column.shape, meaning)
        for name, column in named("memory", spec.memory).items()
    ]


def outputs_of(spec: EnvSpec) -> list[Port]:
    """Return the outputs in their order: values, action, and the next memory if there is one."""
    q = "expected return of each action, of forbidden ones too"
    action = "the best allowed action, numbered from 0"
    if len(spec.action.branches) > 1:
        q += f"; those of branches of {list(spec.action.branches)} choices side by side"
        action += ", in each branch"
    return [
        Port("q_values", "float32", (spec.num_actions,), q),
        Port("action", "int64", spec.action.column.shape, action),
        *(
            Port(name, column.dtype, column.shape, "memory of the next step")
            for name, column in named("next_memory", spec.memory).items()
        ),
    ]


class GreedyGraph(nn.Module):
    """A copy of a network on the CPU that takes and returns tensors in the order of their ports.

    It acts without noise, as in evaluation.

    Args:
        network: The network.
        spec: Observations, actions and memory.
    """

    def __init__(self, network: QNetwork, spec: EnvSpec) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).cpu().eval().requires_grad_(False)
        self.spec = spec
        self._names = [port.name for port in inputs_of(spec)]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return action values, the greedy action and the next memory."""
        given = dict(zip(self._names, inputs, strict=True))
        observation = leaves_from("observation", given)
        memory = leaves_from("memory", given) if self.spec.memory else None
        features, after = self.network.features(observation, memory)
        q = self.network.head.q_values(features).float()
        action = greedy_action(q, given.get("action_mask"), self.spec.action)
        columns = self.spec.memory.items()
        kept = after or {}
        return q, action, *(kept[name].to(getattr(torch, c.dtype)) for name, c in columns)


def recorded(graph: GreedyGraph) -> torch.export.ExportedProgram:
    """Return what `torch.export` records of a graph, for batches of any size.

    Whatever torch raises where a part of the network cannot be recorded goes through.
    """
    ports, rng = inputs_of(graph.spec), np.random.default_rng(0)
    inputs = tuple(port.sample(_RECORDED_ROWS, rng) for port in ports)
    batch = torch.export.Dim("batch")
    shapes = (tuple({0: batch} for _ in inputs),)
    with torch.no_grad():
        return torch.export.export(graph, inputs, dynamic_shapes=shapes, strict=False)


def differing(
    graph: GreedyGraph, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Sequence[Tensor]]
) -> str:
    """Name an output that is another than the graph's own, up to rounding; "" if all are alike.

    Actions may differ only where the two best values do by no more than rounding.
    """
    names = [port.name for port in outputs_of(graph.spec)]
    for given, found in zip(inputs, outputs, strict=True):
        expected = graph(*given)
        for name, one, other in zip(names, expected, found, strict=True):
            scale = 1.0 + one.abs().max()
            if one.shape != other.shape or one.dtype != other.dtype:
                return name
            if name == "action":
                if graph.spec.action.outside(other.numpy()).any():
                    return name
                q = expected[0]
                scale = 1.0 + q.abs().max()
                one, other = (_values_of(q, action, graph.spec) for action in (one, other))
            if not torch.allclose(one / scale, other / scale, 0, 1e-4):
                return name
    return ""


def _values_of(q: Tensor, action: Tensor, spec: EnvSpec) -> Tensor:
    """Return the values of the actions that were taken, `[rows, branches]`."""
    return q.gather(-1, torch.from_numpy(spec.action.indices(action.numpy())))


def _meaning(column: Column) -> str:
    meaning = _MEANINGS.get(column.dtype, "")
    if column.categories:
        meaning = "categories numbered from 0, which the network expands itself"
    if column.stack > 1:
        meaning += f"; a stack of {column.stack} along the first axis, newest last"
    return meaning
