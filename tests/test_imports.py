"""What imports what: actors stay light, and importing changes nothing in the process."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lrl

HEAVY = ("torch", "lightning", "pytorch_lightning", "tensorboard", "jsonargparse")


def run_python(code: str) -> dict:
    """Run code in a fresh interpreter and return what it prints as JSON."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=55
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def loaded_after(*modules: str) -> list[str]:
    """Return which of the heavy packages a fresh interpreter holds after some imports."""
    imports = "\n".join(f"import {module}" for module in modules)
    code = (
        f"import json, sys\n{imports}\nprint(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    )
    return list(run_python(code))


def test_actors_asking_a_server_import_neither_torch_nor_lightning():
    modules = (
        "envs",
        "envs.atari",
        "transport",
        "types",
        "schedules",
        "actors.actor",
        "inference.remote_policy",
    )
    assert loaded_after("lrl", *(f"lrl.{m}" for m in modules), "lrl.actors.process") == []


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], [], ["misspelt"]])
def test_what_is_asked_of_lrl_itself_needs_neither(arguments):
    code = (
        "import contextlib, json, sys, lrl.__main__\n"
        f"sys.argv = ['lrl', *{arguments}]\n"
        "sys.stdout, out = sys.stderr, sys.stdout\n"
        "with contextlib.suppress(SystemExit):\n"
        "    lrl.__main__.main()\n"
        f"print(json.dumps([m for m in {HEAVY} if m in sys.modules]), file=out)"
    )
    assert list(run_python(code)) == []


@pytest.mark.parametrize("name", lrl.__all__)
def test_every_public_name_is_there(name: str):
    value = getattr(lrl, name)
    assert name in dir(lrl)
    if isinstance(value, type):
        assert value.__name__ == name
        assert value.__module__.startswith("lrl.")


def test_what_type_checkers_see_is_what_is_there():
    source = Path(lrl.__file__).read_text(encoding="utf-8")
    declared = {
        line.split(" as ")[1] for line in source.splitlines() if line.startswith("    from lrl.")
    }
    assert declared == set(lrl.__all__) - {"__version__"}


def test_rooms_are_attributes():
    assert lrl.networks.MLPEncoder is not None
    assert lrl.learner.DQN is lrl.DQN


def test_other_names_are_an_attribute_error():
    with pytest.raises(AttributeError, match="'lrl' has no attribute 'Trainer'"):
        _ = lrl.Trainer  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_shape_annotations_need_no_jaxtyping():
    code = (
        "import sys, json; sys.modules['jaxtyping'] = None\n"
        "import torch, lrl.functional.bootstrap as b, lrl.functional.returns\n"
        "print(json.dumps(b.huber(torch.tensor([3.0])).tolist()))"
    )
    assert run_python(code) == [2.5]


SIDE_EFFECTS = """
import json, logging, os, random, signal, sys, threading
import numpy, torch

def state():
    return {
        "torch threads": torch.get_num_threads(),
        "torch seed": torch.initial_seed(),
        "torch random": torch.get_rng_state().tolist(),
        "numpy random": str(numpy.random.get_state()),
        "python random": str(random.getstate()),
        "interrupt handler": str(signal.getsignal(signal.SIGINT)),
        "termination handler": str(signal.getsignal(signal.SIGTERM)),
        "gradients": torch.is_grad_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "default type": str(torch.get_default_dtype()),
        "root log level": logging.getLogger().level,
        "root log handlers": len(logging.getLogger().handlers),
        "threads": threading.active_count(),
        "folder": os.getcwd(),
    }

def loaded():
    return [name for name in %(heavy)s if name in sys.modules]

%(first)s
torch.set_num_threads(2)
torch.manual_seed(5)
before = state()
import pkgutil, importlib, lrl
%(then)s
changed = [name for name, value in state().items() if value != before[name]]
print(json.dumps({"changed": changed, "loaded": loaded()}))
"""


def run_watched(first: str, then: str) -> dict:
    return run_python(SIDE_EFFECTS % {"heavy": HEAVY, "first": first, "then": then})


def test_actors_with_a_network_import_torch_but_not_lightning_and_change_nothing():
    result = run_watched("", "import lrl.actors.process, lrl.actors.policy")
    assert result == {"changed": [], "loaded": ["torch"]}


@pytest.mark.slow
def test_no_module_changes_anything_in_the_process():
    everything = (
        "for module in pkgutil.walk_packages(lrl.__path__, 'lrl.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
    )
    # Lightning and what it brings may change what they like; lrl may not.
    result = run_watched("import lightning.pytorch.cli", everything)
    assert result["changed"] == []
    assert "lightning" in result["loaded"]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("pyproject.toml", r'^version = "(.+)"$'), ("CITATION.cff", r"^version: (.+)$")],
)
def test_the_version_is_the_same_everywhere(name: str, pattern: str):
    text = (Path(__file__).parents[1] / name).read_text()
    assert re.findall(pattern, text, re.MULTILINE) == [lrl.__version__]
