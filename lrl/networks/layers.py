"""Layers: noisy linear layers, and the layers between features and the values of actions."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from lrl.networks.linear import Linear, linear
from lrl.parts.settings import check_positive, is_a
from lrl.types import ConfigError

DEFAULT_SIGMA = 0.5
"""Initial noise of Fortunato et al. 2018."""
_MANY_ROWS = 64
"""From so many on, one product with a noisy weight is faster (`benchmark.parts.arithmetic`)."""


class NoisyLinear(Linear):
    """A linear layer whose weights carry learnt, factorised Gaussian noise while it trains.

    `sample_noise` draws; until it is called first there is none. In eval mode the noise is off.

    Reference: Fortunato et al. 2018, https://arxiv.org/abs/1706.10295, equations 9 to 11 and
    section 3.2 for the initial values.

    Args:
        in_features: Size of the input.
        out_features: Size of the output.
        sigma: Initial standard deviation of the noise, times the square root of `in_features`
            (the paper's sigma_0 = 0.5).
    """

    input_noise: Tensor
    output_noise: Tensor

    def __init__(self, in_features: int, out_features: int, sigma: float = DEFAULT_SIGMA) -> None:
        super().__init__(in_features, out_features)
        check_positive("sigma", sigma)
        # nn.Linear has drawn weight and bias as the paper asks: within 1 / sqrt(in_features) of 0.
        initial = sigma / math.sqrt(in_features)
        self.weight_sigma = nn.Parameter(torch.full_like(self.weight, initial))
        self.bias_sigma = nn.Parameter(torch.full_like(self.bias, initial))
        # Not in the state dict: noise is neither saved nor sent to the actors.
        self.register_buffer("input_noise", torch.zeros(in_features), persistent=False)
        self.register_buffer("output_noise", torch.zeros(out_features), persistent=False)

    @torch.no_grad()
    def sample_noise(self, rows: int | None = None) -> None:
        """Draw new noise from torch's global generator.

        Args:
            rows: Draw noise of its own for each of so many rows, which is what the next input has
                to have; None draws once for all.
        """
        for name in ("input_noise", "output_noise"):
            noise = getattr(self, name)
            shape = noise.shape[-1:] if rows is None else (rows, *noise.shape[-1:])
            if noise.shape != shape:
                noise = noise.new_empty(shape)
                setattr(self, name, noise)
            noise.normal_()
            noise.copy_(noise.sign() * noise.abs().sqrt())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """Return the layer's output, with the noise drawn last while in training mode."""
        if self.training and self.input_noise.ndim == 1 and input[..., 0].numel() >= _MANY_ROWS:
            noise = torch.outer(self.output_noise, self.input_noise)
            weight = torch.addcmul(self.weight, noise, self.weight_sigma)
            return linear(
                input, weight, torch.addcmul(self.bias, self.output_noise, self.bias_sigma)
            )
        output = super().forward(input)
        if not self.training:
            return output
        # The outer product of both noises, without ever being a matrix.
        scaled = input * _per_row(self.input_noise, input)
        noisy = linear(scaled, self.weight_sigma, self.bias_sigma)
        return output + noisy * _per_row(self.output_noise, input)


def _per_row(noise: Tensor, input: Tensor) -> Tensor:  # noqa: A002
    """Return noise that fits an input with more axes between its rows and features."""
    if noise.ndim == 1:
        return noise
    return noise.view(len(noise), *[1] * (input.ndim - 2), -1)


class ActionLayers(nn.Module):
    """From features `[..., features]` to some numbers per action, `[..., actions, size]`.

    One linear layer, after a hidden one with ReLU where `hidden_size` is given. Dueling layers
    compute a value V and advantages A apart, each that way, and return V + A - mean of A over
    actions, separately for each of the `size` numbers. Where `noisy`, all layers are `NoisyLinear`.
    Where actions are divided into branches, V is of all of them and the mean of each apart.

    Reference: Wang et al. 2016, https://arxiv.org/abs/1511.06581, equation 9; for branches Tavakoli
    et al. 2018, https://arxiv.org/abs/1711.08946.

    Attributes:
        branches: Actions of each branch.
    """

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        size: int = 1,
        hidden_size: int | None = None,
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = DEFAULT_SIGMA,
    ) -> None:
        super().__init__()
        if hidden_size is not None and hidden_size < 1:
            raise ConfigError(f"head.hidden_size must be at least 1 or null, got {hidden_size}")
        if not is_a(dueling, bool):
            raise ConfigError(f"head.dueling is {dueling!r}, but must be true or false")
        sigma = sigma_of("head", noisy, noisy_sigma)
        make_layer = Linear if sigma is None else functools.partial(NoisyLinear, sigma=sigma)

        def layers(outputs: int) -> nn.Module:
            if hidden_size is None:
                return make_layer(num_features, outputs)
            hidden = make_layer(num_features, hidden_size)
            return nn.Sequential(hidden, nn.ReLU(), make_layer(hidden_size, outputs))

        self.shape = (num_actions, size)
        self.branches: tuple[int, ...] = (num_actions,)
        self.actions = layers(num_actions * size)
        self.value = layers(size) if dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """Return `[..., actions, size]`, in 32 bits also under mixed precision.

        Targets are computed in their type, and errors of 8 bits add up over steps like a discount.
        """
        actions = _in_full(self.actions(features)).unflatten(-1, self.shape)
        if self.value is None:
            return actions
        value = _in_full(self.value(features)).unsqueeze(-2)
        if len(self.branches) == 1:
            return value + actions - actions.mean(dim=-2, keepdim=True)
        parts = actions.split(self.branches, dim=-2)
        centred = [part - part.mean(dim=-2, keepdim=True) for part in parts]
        return value + torch.cat(centred, dim=-2)


def sigma_of(owner: str, noisy: bool, noisy_sigma: float) -> float | None:
    """Return the initial noise of a part's layers, None where they have none.

    Raises:
        ConfigError: It is no such noise, or was set, but would do nothing.
    """
    if not is_a(noisy, bool):
        raise ConfigError(f"{owner}.noisy is {noisy!r}, but must be true or false")
    if noisy:
        check_positive(f"{owner}.noisy_sigma", noisy_sigma)
        return noisy_sigma
    if noisy_sigma != DEFAULT_SIGMA:
        raise ConfigError(
            f"{owner}.noisy_sigma is {noisy_sigma}, but {owner}.noisy is false, so that there is "
            f"no noise: set {owner}.noisy to true, or leave {owner}.noisy_sigma out"
        )
    return None


def _in_full(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
