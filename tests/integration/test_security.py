"""What a file from somebody else can do: nothing. See docs/security.md."""

from __future__ import annotations

import ast
import os
import pickle
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import Project, quiet_commands
from helpers.training_runs import (
    AfterEachStep,
    actor_processes,
    background,
    make_run,
    quiet,
    small_data,
)

import lrl
from benchmark.leftovers import named_segments, segments_since, take_inventory
from lrl import ActorLearnerCallback
from lrl.inference.config import InferenceConfig
from lrl.learner.agent import load_agent
from lrl.processes.shared_memory import SharedBlock
from lrl.types import ConfigError

pytestmark = [*quiet, *quiet_commands]

PACKAGE = Path(lrl.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
LISTENING = "0A"  # in /proc/net/tcp


def complaints(tree: ast.AST) -> list[str]:
    """Say what a module does that could run code from a file or a string."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [module or ""] if module else [alias.name for alias in node.names]
            found += [f"imports {n}" for n in names if n.partition(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.Call):
            found += complaints_of_call(node)
    return found


def complaints_of_call(node: ast.Call) -> list[str]:
    keywords = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg}
    name = ast.unparse(node.func)
    found = []
    if name in FORBIDDEN_CALLS:
        found.append(f"calls {name}")
    if name in ("torch.load", "load_from_checkpoint") and keywords.get("weights_only") != "True":
        found.append("torch.load without weights_only=True")
    if name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
        found.append(f"{name}: use yaml.safe_load")
    if name.endswith(("np.load", "numpy.load")) and keywords.get("allow_pickle") != "False":
        found.append("np.load without allow_pickle=False")
    if keywords.get("shell", "False") != "False" or name in ("os.system", "os.popen"):
        found.append(f"{name} runs a shell")
    if keywords.get("allow_pickle") == "True":
        found.append("allows pickle")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_runs_code_from_files_or_strings(path):
    """multiprocessing pickles what a child is started with, by itself: from parent to child."""
    assert complaints(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import multiprocessing, dill",
        "eval(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.savez(path, allow_pickle=True, a=1)",
        "yaml.load(text)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
    ],
)
def test_the_check_finds_what_it_looks_for(source):
    assert len(complaints(ast.parse(source))) >= 1


def test_every_checkpoint_loads_as_tensors_and_plain_types(tmp_path):
    run = make_run(tmp_path, ActorLearnerCallback(5, 10, 5), max_steps=20).fit()
    written = sorted(run.folder.rglob("*.ckpt"))
    assert {"best.ckpt", "last.ckpt"} <= {path.name for path in written}
    added = [item for item in torch.serialization.get_safe_globals() if callable(item)]
    assert {item.__module__.partition(".")[0] for item in added} <= {"torch"}  # its own
    for path in written:
        assert torch.load(path, weights_only=True)["global_step"] > 0


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run"), ActorLearnerCallback(5, 0, 5), max_steps=5)
    return run.fit().checkpoint("last")


PLACES = {
    "whole": lambda content, payload: payload,
    "hyperparameters": lambda content, payload: {
        **content, "hyper_parameters": {**content["hyper_parameters"], "encoder": payload}
    },
    "callback": lambda content, payload: {**content, "callbacks": {"x": payload}},
    "stamp": lambda content, payload: {**content, "lrl": payload},
    "weights": lambda content, payload: {
        **content, "state_dict": {**content["state_dict"], "extra": payload}
    },
}  # fmt: skip


@pytest.mark.parametrize("protocol", ["torch", "torch, old", "pickle"])
@pytest.mark.parametrize("place", PLACES)
def test_a_payload_in_a_checkpoint_is_refused_and_never_runs(
    tmp_path, monkeypatch, capsys, checkpoint, place, protocol
):
    target, path = tmp_path / "touched", tmp_path / "payload.ckpt"
    content = PLACES[place](torch.load(checkpoint, weights_only=True), Payload(target))
    if protocol == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=protocol == "torch")
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        load_agent(path)
    project = Project(tmp_path)
    commands = ["evaluate"] if place != "whole" else ["evaluate", "play", "fit", "validate", "test"]
    for command in commands:
        settings = () if command in ("evaluate", "play") else ("--config", "base.yaml")
        code, _, err = project.call(
            monkeypatch, capsys, command, *settings, "--ckpt_path", str(path)
        )
        assert code == 2, err
        assert "Traceback" not in err
        assert [line for line in err.splitlines() if line.startswith("lrl: error:")] != []
    assert not target.exists()


def sockets_of(pids: set[int]) -> set[str]:
    """Inodes of the sockets that processes hold."""
    found = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                name = str(link.readlink())
            except OSError:
                continue
            if name.startswith("socket:["):
                found.add(name[len("socket:[") : -1])
    return found


def listening_addresses(inodes: set[str]) -> list[str]:
    """Local addresses of the TCP and UDP sockets among these that wait for others."""
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        path = Path("/proc/net") / table
        for line in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = line.split()
            waits = fields[3] == LISTENING or table.startswith("udp")
            if waits and fields[9] in inodes:
                found.append(f"{table} {fields[1]}")
    return found


def listening_files(inodes: set[str]) -> list[str]:
    """Paths of the Unix sockets among these that accept connections."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return [f[7] if len(f) > 7 else "" for f in fields if f[3] == "00010000" and f[6] in inodes]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's tables")
@pytest.mark.parametrize("servers", [0, 1])
def test_nothing_listens_on_a_network_and_shared_memory_has_no_name(tmp_path, servers):
    seen: dict[str, list[str]] = {"network": [], "files": [], "memory": []}

    def look(*_: object) -> None:
        family = {os.getpid(), *take_inventory().processes}
        family |= {process.pid for process in actor_processes() if process.pid}
        inodes = sockets_of(family)
        seen["network"] += listening_addresses(inodes)
        seen["files"] += listening_files(inodes)
        seen["memory"] += [path.name for path in Path("/dev/shm").glob("lrl*")]

    before = named_segments()
    run = make_run(
        tmp_path,
        AfterEachStep(look),
        ActorLearnerCallback(5, 0, 0),
        data=small_data(
            actors=background(2), inference=InferenceConfig(servers) if servers else None
        ),
        max_steps=3,
    )
    run.fit()
    assert seen["network"] == seen["memory"] == []
    # multiprocessing's fork server waits for its parent, in a folder that is the user's alone.
    for path in {name for name in seen["files"] if name}:
        assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    assert segments_since(before) == []


def test_shared_memory_is_the_users_alone():

    block = SharedBlock(4096)
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line for line in maps if "memfd:lrl" in line]
    assert mapped
    assert all(line.endswith("(deleted)") for line in mapped)  # no path leads to it
    block.close()
