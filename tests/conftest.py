"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

from benchmark.leftovers import left_since, take_inventory
from lrl.types import EnvSpec

_LOADED = [name for name in sys.modules if name.startswith("lrl.functional.")]
if _LOADED:
    raise RuntimeError(f"{_LOADED} were imported before their shapes could be checked")
# From here on the shapes in the signatures of lrl.functional are checked at every call.
install_import_hook("lrl.functional", "beartype.beartype")

# Threads of two workers on the same cores wait for one another at every small product.
torch.set_num_threads(1)

# One fork server serves all tests, whichever starts it: with less imported, processes would import
# NumPy by themselves, and its linear algebra starts threads.
multiprocessing.set_forkserver_preload(
    ["lrl.processes.preload", "lrl.actors.process", "lrl.actors.policy"]
)

# A shared machine may pause for longer than any deadline; the same examples every time.
settings.register_profile("lrl", deadline=None, derandomize=True)
settings.load_profile("lrl")

_EXPECTED_WARNINGS = (
    # An agent may be trained on batches alone; evaluation belongs to the datamodule.
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    # Lightning 2.6 asks torch's pytree in a way that torch 2.13 calls deprecated.
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
)


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


@pytest.fixture(autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    """Begin with the handlers of a fresh Python, though the tests may run under `nohup`."""
    numbers = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]
    before = {number: signal.getsignal(number) for number in numbers if number is not None}
    for number in before:
        fresh = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, fresh)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def pytest_configure(config: pytest.Config) -> None:
    """Let through what libraries have to warn of; pyproject.toml turns warnings into errors."""
    # A shell starts background jobs with Ctrl-C ignored, and the programs under test inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for warning_filter in _EXPECTED_WARNINGS:
        config.addinivalue_line("filterwarnings", warning_filter)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of a GPU where there is none."""
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported: its look at all of it takes 0.2 s.

    The janitor has it look twice in every test that names it.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def tiny_spec() -> EnvSpec:
    """A vector of 2 numbers and 2 actions."""
    return EnvSpec.box(observation_shape=(2,), observation_dtype="float32", num_actions=2)
