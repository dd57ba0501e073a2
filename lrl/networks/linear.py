"""A linear layer whose large float32 products a learner on a CPU leaves to oneDNN.

`python -m benchmark.parts.learner` measures what that gains, and where it gains nothing any more
this file can go.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_SMALLEST_WEIGHT = 2**20
"""Numbers in a weight: MKL was faster with 512x512 and fewer, oneDNN with 1024x1024 (by hand)."""

_multiply: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # what TorchInductor calls
_wanted = ContextVar("_wanted", default=False)


@contextmanager
def onednn_products() -> Iterator[None]:
    """Have the large products of `Linear` layers made by oneDNN, as lrl does for its own loss.

    On x86 torch gives float32 products to MKL, though convolutions and bfloat16 to oneDNN, which
    is faster with large weights and the rows of a batch (docs/architecture.md), not with the few
    rows of acting. Forward-mode derivatives and transforms of `torch.func` do not know its
    operator: use it where neither is.

    Example:
        >>> with onednn_products():
        ...     output = Linear(2048, 512)(torch.ones(32, 2048))
        >>> output.shape
        torch.Size([32, 512])
    """
    if torch.compiler.is_compiling():  # torch chooses then, and cannot trace what is below
        yield
        return
    token = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(token)


class Linear(nn.Linear):
    """`torch.nn.Linear`, which heeds `onednn_products`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """Return `input @ weight.T + bias`."""
        return linear(input, self.weight, self.bias)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002
    """Return what `torch.nn.functional.linear` does, but for rounding within `onednn_products`."""
    if torch.compiler.is_compiling() or not (_wanted.get() and _suits(input, weight, bias)):
        return functional.linear(input, weight, bias)
    # oneDNN refuses views whose elements overlap, and ignores a bias's stride.
    rows = input.reshape(-1, weight.shape[1]).contiguous()
    bias = None if bias is None else bias.contiguous()
    product = _OneDNN.apply(rows, weight.contiguous(), bias)
    return product.view(*input.shape[:-1], weight.shape[0])


def _suits(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:  # noqa: A002
    """Tell whether oneDNN is faster and knows the case; what is wrong is torch's to say."""
    return (
        weight.numel() >= _SMALLEST_WEIGHT
        and _multiply is not None
        and torch.backends.mkldnn.enabled
        and not torch.is_autocast_enabled("cpu")
        and input.numel() > 0
        and input.shape[-1:] == weight.shape[1:]
        and (bias is None or bias.shape == weight.shape[:1])
        and all(
            tensor is None or (tensor.is_cpu and tensor.dtype == torch.float32)
            for tensor in (input, weight, bias)
        )
    )


class _OneDNN(torch.autograd.Function):
    """torch has no gradient for oneDNN's product: it is made of two more of them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _multiply(rows, weight, bias, "none", [], "")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0].contiguous()
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            _OneDNN.apply(gradient, weight.t(), None) if of_rows else None,
            _OneDNN.apply(gradient.t(), rows.t(), None) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
