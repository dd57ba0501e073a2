"""Products that oneDNN makes."""

from __future__ import annotations

from typing import Any

import pytest

from lrl.networks import linear


def counted_products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return a list that takes the arguments of every product from now on."""
    multiply, calls = linear._multiply, []

    def count(*arguments: Any) -> Any:
        calls.append(arguments)
        return multiply(*arguments)

    monkeypatch.setattr(linear, "_multiply", count)
    return calls
