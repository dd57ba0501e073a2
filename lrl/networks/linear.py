"""A linear layer whose large float32 products are oneDNN's on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_SMALLEST_WEIGHT = 2**20
"""Numbers in a weight; smaller ones lost time."""

_multiply = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # what TorchInductor calls


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """Return `input @ weight.T + bias`."""
        return linear(input, self.weight, self.bias)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Return `input @ weight.T + bias`, as `torch.nn.functional.linear` does but for rounding.

    torch gives float32 products on a CPU to MKL, though convolutions and bfloat16 to oneDNN. With
    a weight of a million numbers and more, oneDNN needed half to four fifths of MKL's time for
    output and gradients (AMD EPYC; docs/benchmarks.md, "An update of each head").

    Args:
        input: Numbers `[..., inputs]`.
        weight: Factors `[outputs, inputs]`.
        bias: Added to the output; `[outputs]`.

    Example:
        >>> linear(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([0.5]))
        tensor([[11.5000]])
    """
    if weight.numel() < _SMALLEST_WEIGHT or not _suits_onednn(input, weight):
        return functional.linear(input, weight, bias)
    rows = input.reshape(-1, weight.shape[1])
    return _onednn(rows, weight, bias).view(*input.shape[:-1], weight.shape[0])


def _suits_onednn(input: Tensor, weight: Tensor) -> bool:  # noqa: A002
    return (
        _multiply is not None
        and torch.backends.mkldnn.enabled
        and input.is_cpu
        and input.numel() > 0  # oneDNN takes no empty batch
        and input.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _onednn(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if torch.is_grad_enabled():  # also within a backward whose own gradient is wanted
        return _OneDNN.apply(rows, weight, bias)
    assert _multiply is not None
    return _multiply(rows, weight, bias, "none", [], "")


class _OneDNN(torch.autograd.Function):
    """torch has no gradient for oneDNN's product: it is made of two more of them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _onednn(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            _onednn(gradient, weight.t()) if of_rows else None,
            _onednn(gradient.t(), rows.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
