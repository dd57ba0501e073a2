"""`lrl doctor` without an agent: what this machine is, what suits it, and what may go wrong."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.command_line import Project, quiet_commands

from lrl.cli.recipes import find
from lrl.doctor import command as doctoring
from lrl.doctor import speeds as measuring
from lrl.doctor import this_machine as looking
from lrl.doctor.advice import advice, warnings
from lrl.doctor.speeds import Speeds, measure
from lrl.doctor.this_machine import Machine, this_machine

pytestmark = quiet_commands
FAST = Speeds(1.0, 40_000.0, 10.0, None)
WELL = Machine(
    processor="a processor",
    cores=2,
    load=0.1,
    memory=64 * 10**9,
    shared=32 * 10**9,
    descriptors=100_000,
    gpus=(),
    has_driver=False,
    bfloat16=(),
    compiler="g++",
    compiler_fault=None,
    versions={"python": "3.11.7", "torch": "2.13.0"},
    extras={"ray": True, "mlflow": False, "video": False},
)
H100 = ("H100", 80 * 10**9)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    return functools.partial(Project(tmp_path).call, monkeypatch, capsys, "doctor")


def test_it_tells_of_this_machine(call, monkeypatch):
    asked: list[object] = []
    monkeypatch.setattr(measuring, "measure", lambda *how: asked.append(how) or FAST)
    monkeypatch.setattr(doctoring, "this_machine", lambda: WELL)
    code, out, err = call()
    assert (code, err) == (0, "")
    titles = [line for line in out.splitlines() if not line.startswith(" ")]
    assert titles == ["this machine:", "measured in 0 s:", "recommended:", "warnings:"]
    assert "processor    a processor, 2 cores for this process\n" in out
    assert "ray; not installed: mlflow, video (as in pip install 'lrl[mlflow,video]')\n" in out
    assert "40,000 steps a second\n" in out
    assert out.endswith("warnings:\n  none\n")
    assert asked == [(2, False)]
    code, out, _ = call("--measure", "false")
    assert code == 0
    assert "measured" not in out
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "Acrobot-v1"], "--env is Acrobot-v1, which does nothing without --gpu_ready"),
        (["--learner_steps", "8"], "--learner_steps is 8, which does nothing without"),
        (["--gpu_ready", "lrl.DQN", "--measure", "false"], "--measure is of this machine"),
        (["--measure", "perhaps"], "measure"),
    ],
)
def test_what_would_do_nothing_is_refused(call, arguments, words):
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_what_is_found_is_of_the_system(tmp_path, monkeypatch):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").touch()
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "proc/cpuinfo").write_text("processor: 0\nflags\t\t: fpu avx512_bf16 amx_bf16\n")
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 1000 kB\n")
    found = this_machine(tmp_path)
    assert found.bfloat16 == ("avx512_bf16", "amx_bf16")
    assert found.has_driver
    assert found.memory == 1_024_000
    assert (found.shared or 0) > 0
    assert found.cores >= 1
    assert found.versions["torch"] == torch.__version__
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    of_developers = {"bench", "dev", "docs"}
    assert {*found.extras} == {*re.findall(r"^(\w+) = \[", section, re.MULTILINE)} - of_developers
    nothing = this_machine(tmp_path / "nowhere")
    assert (nothing.memory, nothing.shared, nothing.bfloat16) == (None, None, ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpu = SimpleNamespace(name="a GPU", total_memory=8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    assert looking._gpus() == (("a GPU", 8), ("a GPU", 8))


def test_speeds_are_measured_and_threads_put_back():
    threads = torch.get_num_threads()
    found = measure(1, bfloat16=True, seconds=0.01)
    assert min(found.mlp, found.env_steps, found.nature, found.nature_bfloat16 or 0) > 0
    assert measure(1, bfloat16=False, seconds=0.01).nature_bfloat16 is None
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("cores", "gpus", "words"),
    [
        (1, 0, "recipe:pong --config recipe:system/synchronous"),
        (2, 0, "lrl fit --config recipe:pong_laptop;"),
        (4, 0, "--data.actors.num_actors 3"),
        (5, 0, "recipe:system/four_actors"),
        (8, 0, "recipe:system/four_actors, or --data.actors.num_actors 7"),
        (4, 1, "recipe:system/gpu --config recipe:system/captured"),
        (8, 1, "recipe:system/gpu_8_cores --config recipe:system/captured"),
        (20, 1, "recipe:system/gpu_16_cores --config"),
        (96, 1, "recipe:system/gpu_64_cores --config recipe:system/captured"),
        (96, 2, "recipe:system/gpu_16_cores --config recipe:system/ddp"),
    ],
)
def test_what_is_recommended_follows_from_cores_and_gpus(cores, gpus, words):
    machine = replace(WELL, cores=cores, gpus=gpus * (H100,))
    said = "\n".join(advice(machine, FAST))
    assert words in said
    named = re.findall(r"recipe:([a-z_\d/]+)", said)
    assert all(find(name).is_file() for name in named)


def test_what_is_recommended_follows_from_memory_and_speed():
    assert "capacity" not in "\n".join(advice(WELL, None))
    assert "--data.replay.capacity 250000" in "\n".join(
        advice(replace(WELL, memory=4 * 10**9), None)
    )
    assert "bf16-mixed" not in "\n".join(advice(WELL, replace(FAST, nature_bfloat16=9.0)))
    slow = "\n".join(advice(WELL, Speeds(9.0, 1000.0, 120.0, 60.0)))
    assert "2.0 times as fast in bfloat16: --trainer.precision bf16-mixed" in slow
    assert "about 125 minutes with recipe:pong; on a machine like this: lrl fit" in slow


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"load": 1.7}, "other processes are busy (1.7 on 2 cores"),
        ({"has_driver": True}, "torch 2.13.0 finds no GPU: install torch with CUDA"),
        ({"shared": 64 * 2**20}, "/dev/shm has 67.11 MB: enough for lrl"),
        (
            {"descriptors": 256},
            "256 open files, few for data.actors.num_actors 1: run `ulimit -n 1024`",
        ),
        (
            {"descriptors": 1024, "cores": 200},
            "data.actors.num_actors 199: run `ulimit -n 1656` before",
        ),
        ({"compiler_fault": "there is no C++ compiler g++"}, "no C++ compiler g++: model.updater"),
        ({"memory": 10**9}, "only 1.00 GB of memory are free"),
    ],
)
def test_what_may_go_wrong_is_said(change, words):
    assert list(warnings(WELL)) == []
    (said,) = warnings(replace(WELL, **change))
    assert words in said
