"""Fixtures for pytest: `from lrl.testing.fixtures import janitor` in a conftest.py.

The only module of lrl that needs pytest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lrl.testing.leftovers import left_since, take_inventory


@pytest.fixture
def janitor() -> Iterator[None]:
    """Fail a test that leaves a process, thread, descriptor or named shared memory behind (Linux).

    Name it before fixtures that clean up, so that it looks after they did.
    """
    before = take_inventory()
    yield
    left = left_since(before)
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)
