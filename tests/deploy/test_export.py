"""`lrl export`: what is written acts as the checkpoint does."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.checkpoints import untrained
from helpers.training_runs import quiet

from lrl.deploy.export import export
from lrl.deploy.graph import GreedyGraph, differing, inputs_of
from lrl.deploy.policy import load_policy
from lrl.envs import EnvConfig
from lrl.evaluation.episodes import choose_actions
from lrl.learner.agent import load_agent
from lrl.learner.branching import greedy_action
from lrl.networks import (
    CategoricalHead,
    Encoder,
    GRUCore,
    ImpalaEncoder,
    ImplicitQuantileHead,
    LSTMCore,
    MultiEncoder,
    NatureEncoder,
    QuantileHead,
    ScalarHead,
)
from lrl.types import ConfigError, leaves_from

pytestmark = [*quiet, pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")]

FRAMES = EnvConfig("lrl/Catch-v0", frame_stack=4, kwargs={"rows": 36, "columns": 36})
NATURE = {"encoder": functools.partial(NatureEncoder, hidden_size=32)}
AGENTS: dict[str, tuple[EnvConfig, dict[str, Any]]] = {
    "mlp": (EnvConfig("lrl/Identity-v0"), {}),
    "frames": (FRAMES, NATURE),
    "impala": (
        FRAMES,
        {"encoder": functools.partial(ImpalaEncoder, pool_size=6, spectral_norm=True)},
    ),
    "leaves": (EnvConfig("lrl/Signpost-v0"), {"encoder": MultiEncoder}),
    "categories": (EnvConfig(factory="helpers.dict_envs.NestedLedger"), {"encoder": MultiEncoder}),
    "c51": (
        EnvConfig("lrl/Masked-v0", action_masks=True),
        {"head": functools.partial(CategoricalHead, dueling=True, noisy=True)},
    ),
    "quantiles": (EnvConfig("lrl/Identity-v0"), {"head": QuantileHead}),
    "iqn": (EnvConfig("lrl/Identity-v0"), {"head": ImplicitQuantileHead}),
    "branches": (EnvConfig("lrl/Dials-v0"), {"head": functools.partial(ScalarHead, dueling=True)}),
    "lstm": (EnvConfig("lrl/Recall-v0"), {"core": LSTMCore}),
    "gru": (
        EnvConfig("lrl/Recall-v0"),
        {"core": GRUCore, "head": functools.partial(ScalarHead, value_rescaling=0.01)},
    ),
}
FAST = ["mlp", "frames", "leaves", "c51", "lstm"]


def agents(fast: list[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in AGENTS]


def checkpoint_of(folder: Path, name: str) -> Path:
    env, settings = AGENTS[name]
    return untrained(folder, env, **settings)


def assert_alike(checkpoint: Path, run: Any, rows: int = 1000) -> None:
    """Compare actions on random observations, with random masks and memories."""
    policy, rng = load_policy(checkpoint), np.random.default_rng(2)
    ports = inputs_of(policy.spec)
    inputs = {port.name: port.sample(rows, rng).numpy() for port in ports}
    if "action_mask" in inputs:
        inputs["action_mask"] = rng.random((rows, policy.spec.num_actions)) < 0.5
        inputs["action_mask"][:, 0] = True
    q, action, *memory = run([torch.from_numpy(inputs[port.name]) for port in ports])
    remembered = leaves_from("memory", inputs) or None
    decision = policy.agent.policy()(leaves_from("observation", inputs), remembered)
    np.testing.assert_allclose(q, decision.values, atol=1e-4, rtol=1e-4)
    mask = inputs.get("action_mask")
    expected = choose_actions(decision.values, 0.0, [rng] * rows, mask, policy.spec.action)
    np.testing.assert_array_equal(action, expected)
    for (name, after), found in zip((decision.memory or {}).items(), memory, strict=True):
        np.testing.assert_allclose(found, after, atol=1e-5, err_msg=name)


def onnx_session(path: Path) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [port["name"] for port in json.loads(Path(f"{path}.json").read_text())["inputs"]]

    def run(inputs: list[torch.Tensor]) -> Any:
        given = zip(names, inputs, strict=True)
        return session.run(None, {name: tensor.numpy() for name, tensor in given})

    return run


@pytest.mark.parametrize("name", agents(FAST))
def test_a_program_chooses_the_same_actions(tmp_path, name: str):
    checkpoint, path = checkpoint_of(tmp_path, name), tmp_path / "agent.pt2"
    assert export(str(checkpoint), str(path)) == path
    module = torch.export.load(path).module()
    assert_alike(checkpoint, lambda inputs: module(*inputs))
    assert_alike(checkpoint, lambda inputs: module(*inputs), rows=1)


@pytest.mark.parametrize("name", ["mlp", "branches"])
def test_another_action_than_the_best_one_is_found(tmp_path, name: str):
    agent, rng = load_agent(checkpoint_of(tmp_path, name)), np.random.default_rng(0)
    spec = agent.module.env_spec
    assert spec is not None
    graph = GreedyGraph(agent.module.online, spec)
    inputs = [port.sample(5, rng) for port in inputs_of(spec)]
    q, action = graph(*inputs)
    worst = greedy_action(-q, None, spec.action)
    assert not differing(graph, [(q, action)], [inputs])
    for wrong in (worst, action + 100, action - 100):
        assert differing(graph, [(q, wrong)], [inputs]) == "action"


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_an_onnx_file_chooses_the_same_actions(tmp_path, name: str):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    checkpoint, path = checkpoint_of(tmp_path, name), tmp_path / "agent.onnx"
    export(str(checkpoint), str(path))
    assert_alike(checkpoint, onnx_session(path))
    assert_alike(checkpoint, onnx_session(path), rows=1)


def test_the_description_says_what_goes_in_and_comes_out(tmp_path, capsys):
    env = EnvConfig("lrl/Catch-v0", frame_stack=2, action_masks=False)
    path = tmp_path / "out" / "agent.pt2"
    checkpoint = untrained(tmp_path, env, epsilon=0.1, core=LSTMCore)
    export(str(checkpoint), str(path))
    assert capsys.readouterr().out == f"written: {path}, {path}.json\n"
    said = json.loads(Path(f"{path}.json").read_text())
    assert [port["name"] for port in said["inputs"]] == [
        "observation", "memory.hidden", "memory.cell"
    ]  # fmt: skip
    assert [port["name"] for port in said["outputs"]] == [
        "q_values", "action", "next_memory.hidden", "next_memory.cell"
    ]  # fmt: skip
    frames = said["inputs"][0]
    assert frames["dtype"] == "uint8"
    assert frames["shape"][:2] == ["batch", 2]
    assert frames["stack"] == 2
    assert "divides by 255; a stack of 2 along the first axis, newest last" in frames["meaning"]
    assert said["environment"]["frame_stack"] == 2
    assert said["evaluation"]["epsilon"] == 0.1
    assert said["stamp"]["versions"]["torch"] == torch.__version__
    with pytest.raises(ConfigError, match=r"agent\.pt2 exists; give another name"):
        export(str(checkpoint), str(path))


class Peeking(Encoder):
    """Looks at values to decide, which no graph can."""

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        (self.num_features,) = observation_shape

    def encode(self, observation: torch.Tensor) -> torch.Tensor:
        return observation if observation.sum() > 0 else -observation


def test_a_part_that_cannot_be_recorded_is_named(tmp_path):
    checkpoint = untrained(tmp_path, EnvConfig("lrl/Identity-v0"), encoder=Peeking)
    with pytest.raises(ConfigError, match=r"does not follow a part .*\(Peeking, ScalarHead\): "):
        export(str(checkpoint), str(tmp_path / "agent.pt2"))
    assert not (tmp_path / "agent.pt2").exists()


def test_what_is_not_there_is_said_before_anything_is_loaded(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"agent\.pth' must end in \.pt2"):
        export("nowhere.ckpt", "agent.pth")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install 'lrl\[onnx\]'"):
        export("nowhere.ckpt", "agent.onnx")
