"""Ray without Ray."""

import sys

import pytest
from helpers.fake_ray import FakeRay


@pytest.fixture
def ray(monkeypatch):
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray
