"""Value rescaling: learn returns of any size without clipping rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from lrl.functional._shapes import Float


def rescale_value(value: Float[Tensor, "*shape"], epsilon: float) -> Float[Tensor, "*shape"]:
    """Shrink large values: h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x.

    Written without the difference of two close numbers, which loses small values in float32.

    Reference: Pohlen et al. 2018, https://arxiv.org/abs/1805.11593, proposition A.2.

    Example:
        >>> rescale_value(torch.tensor([0.0, 8.0, -99.0]), epsilon=0.01)
        tensor([ 0.0000,  2.0800, -9.9900])
    """
    return value / ((value.abs() + 1.0).sqrt() + 1.0) + epsilon * value


def unrescale_value(value: Float[Tensor, "*shape"], epsilon: float) -> Float[Tensor, "*shape"]:
    """Undo `rescale_value`.

    With t = sqrt(|x| + 1) - 1, h(x) is the root of a quadratic in t, and |x| = t (t + 2).

    Reference: Pohlen et al. 2018, https://arxiv.org/abs/1805.11593, proposition A.2.

    Example:
        >>> unrescale_value(torch.tensor([0.0, 2.08, -9.99]), epsilon=0.01)
        tensor([  0.,   8., -99.])
    """
    slope = 1.0 + 2.0 * epsilon
    root = 2.0 * value / (slope + torch.sqrt(slope**2 + 4.0 * epsilon * value.abs()))
    return root * (root.abs() + 2.0)
