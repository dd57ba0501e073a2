"""The encoder of observations with leaves: an encoder for each, and a layer that joins them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lrl.networks.categories import EmbeddingEncoder, build_encoder
from lrl.networks.encoders import ConvEncoder, Encoder, MLPEncoder, NatureEncoder, dense
from lrl.parts.recipe import Recipe, blamed_on
from lrl.types import Column, ConfigError, Observation, leaves_of

EMBEDDED_FROM = 257
"""Categories of a leaf from which they are looked up unless settings say otherwise."""
_NATURE_FROM = 36
"""Pixels a side from which an image gets the convolutions of Nature's network."""


class MultiEncoder(Encoder):
    """Encode each leaf of an observation by itself, and join the features.

    A leaf for which nothing is set gets what suits it: an image `(channels, height, width)`
    convolutions, those of Nature's network from 36 pixels a side; up to 256 categories one-hot
    numbers and a layer, more an embedding; all else a layer. A run says at its start what it chose.

    Args:
        columns: The observation's columns, by the names of leaves.
        encoders: Encoders of leaves by name, each as `class_path` and `init_args`, such as
            `{camera: {class_path: lrl.networks.NatureEncoder}}`. The leaves in a Dict within a Dict
            and those of Tuples have names like arm.position and pair.0.
        ignored: Names of leaves that the network does not look at, at no cost.
        hidden_size: Units of the layer that joins all features, their number; null leaves it out,
            for heads that have a hidden layer of their own.
        layer_norm: Normalise that layer before its ReLU.

    Raises:
        ConfigError: There is no leaf of a name, or none is left.
    """

    takes_columns = True

    def __init__(
        self,
        columns: Mapping[str, Column],
        encoders: Mapping[str, Callable[[Any], Encoder]] | None = None,
        ignored: Sequence[str] = (),
        hidden_size: int | None = 256,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        given = encoders or {}
        _check_names(columns, given, ignored)
        self._names = [name for name in columns if name not in ignored]
        parts: list[Encoder] = []
        chosen: list[str] = []
        for name in self._names:
            column = columns[name]
            setting = f"encoder.encoders.{name}"
            recipe = Recipe.of(given.get(name) or usual_encoder(name, column), setting, Encoder)
            with blamed_on(setting):
                try:
                    parts.append(build_encoder(recipe, {"": column}))
                except ConfigError as error:
                    raise ConfigError(f"the encoder of the leaf {name!r}: {error}") from error
            if name not in given:
                chosen.append(_described(name, column, recipe))
            if parts[-1].choice:
                chosen.append(f"{name}: {parts[-1].choice}")
        self.choice = "; ".join(chosen)
        self.encoders = nn.ModuleList(parts)
        count = sum(part.num_features for part in parts)
        self.joined = nn.Sequential(*_joining_layer(count, hidden_size, layer_norm))
        self.num_features = hidden_size or count

    @override
    def encode(self, observation: Observation) -> Tensor:
        leaves = leaves_of(observation)
        pairs = zip(self._names, self.encoders, strict=True)
        return self.joined(torch.cat([encoder(leaves[name]) for name, encoder in pairs], dim=1))


def usual_encoder(name: str, column: Column) -> Callable[..., Encoder]:
    """Return the encoder of a leaf for which nothing is set.

    Raises:
        ConfigError: It is an image in an order of axes that no encoder of lrl's takes.
    """
    shape = column.stacked_shape
    if sum(column.categories) >= EMBEDDED_FROM:
        return EmbeddingEncoder
    layer = functools.partial(MLPEncoder, hidden_sizes=(64,))
    if column.categories or len(shape) < 3:
        return layer
    if len(column.shape) > 3 or shape[-1] <= 4 < min(shape[-3:-1]):
        raise ConfigError(
            f"observations: the leaf {name!r} has the shape {shape}, but images need (channels, "
            "height, width): change it in a wrapper of env.wrappers, or name an encoder of your "
            f"own for it in encoder.encoders"
        )
    side = min(shape[-2:])
    if side < 3:
        return layer
    if side >= _NATURE_FROM:
        return functools.partial(NatureEncoder, hidden_size=None)
    layers = ((16, 3, 1), (32, 3, 1))[: 2 if side >= 5 else 1]
    return functools.partial(ConvEncoder, layers=layers, hidden_size=None)


def _check_names(
    columns: Mapping[str, Column], given: Mapping[str, Any], ignored: Sequence[str]
) -> None:
    for setting, names in (("encoders", given), ("ignored", ignored)):
        unknown = [name for name in names if name not in columns]
        if unknown:
            leaves = "observations have no leaves"
            if "" not in columns:
                leaves = f"the leaves of observations are {list(columns)}"
            raise ConfigError(f"encoder.{setting} names {unknown[0]!r}, but {leaves}")
    both = [name for name in given if name in ignored]
    if both:
        raise ConfigError(
            f"encoder.ignored names {both[0]!r}, which has an encoder in encoder.encoders: "
            "leave one of them out"
        )
    if len(set(ignored)) == len(columns):
        raise ConfigError(
            f"encoder.ignored is {list(ignored)}, which are all leaves of observations: leave "
            "one out"
        )


def _described(name: str, column: Column, recipe: Recipe) -> str:
    kind = recipe.class_path.rpartition(".")[2]
    arguments = ", ".join(f"{key}={value}" for key, value in recipe.init_args.items())
    what = f"{sum(column.categories)} categories" if column.categories else column.dtype
    return f"{name or 'observations'} ({what} {column.stacked_shape}) {kind}({arguments})"


def _joining_layer(count: int, hidden_size: int | None, layer_norm: bool) -> list[nn.Module]:
    if hidden_size is not None:
        if hidden_size < 1:
            raise ConfigError(f"encoder.hidden_size must be at least 1, or null, got {hidden_size}")
        return dense(count, hidden_size, layer_norm)
    if layer_norm:
        raise ConfigError(
            "encoder.layer_norm is true, but encoder.hidden_size is null: there is no layer to "
            "normalise"
        )
    return []
