"""Every head, small, by name."""

from __future__ import annotations

import functools
from typing import Any

from lrl.networks import CategoricalHead, ImplicitQuantileHead, QuantileHead, ScalarHead

HEADS: dict[str, Any] = {
    "scalar": ScalarHead,
    "dueling": functools.partial(ScalarHead, dueling=True, hidden_size=8, noisy=True),
    "categorical": functools.partial(CategoricalHead, v_min=-5.0, v_max=5.0),
    "quantile": functools.partial(QuantileHead, num_quantiles=8),
    "implicit": functools.partial(ImplicitQuantileHead, embedding_size=8),
}
