"""What inference servers did, in figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

LATENCY_EDGES = np.geomspace(1e-5, 100.0, 160)
"""Seconds between which latencies are counted: each is a tenth above the one before."""


def figures_of(counted: Mapping[str, Any], rows: int) -> dict[str, float]:
    """Return what servers did, in figures (docs/metrics.md); nothing if they did nothing.

    Args:
        counted: `batches`; `requests` in them and `capacity`, those they could have held;
            `latency`, requests by their latency; and, where the servers know them, `waiting`,
            requests that were waiting when a batch began, and `lag`, learner steps between the
            newest version and the one used, both summed over batches.
        rows: Observations in a request.
    """
    batches, requests = float(counted.get("batches", 0)), float(counted.get("requests", 0))
    if batches == 0:
        return {}
    figures = {
        "inference/batch_size_mean": requests / batches * rows,
        "inference/batch_fill": requests / float(counted["capacity"]),
        "inference/latency_ms_p50": 1e3 * _quantile(counted["latency"], 0.5),
        "inference/latency_ms_p99": 1e3 * _quantile(counted["latency"], 0.99),
    }
    if "waiting" in counted:
        figures["inference/queue_depth"] = float(counted["waiting"]) / batches * rows
        figures["inference/policy_lag_mean"] = float(counted["lag"]) / batches
    return figures


def _quantile(counts: npt.NDArray[np.int64], share: float) -> float:
    """Return the upper edge of the bin below or in which a share of all requests lies."""
    position = int(np.searchsorted(np.cumsum(counts), share * counts.sum()))
    return float(LATENCY_EDGES[min(position, len(LATENCY_EDGES) - 1)])
