"""`lrl inspect`: what a checkpoint holds, told from the file alone."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.checkpoints import edited
from helpers.command_line import Project, quiet_commands

from lrl.checkpoints.saved_replay import read_manifest
from lrl.report.contents import contents, text
from lrl.types import ConfigError

pytestmark = quiet_commands
GOLDEN = Path(__file__).parents[1] / "data"


@pytest.fixture
def checkpoint(tmp_path):
    """One of a run whose name and folders are as usual."""
    folder = tmp_path / "runs/dqn/version_0/checkpoints"
    folder.mkdir(parents=True)
    return Path(shutil.copy(GOLDEN / "lrl-0.1.0.ckpt", folder / "last.ckpt"))


@pytest.fixture
def with_replay(checkpoint):
    """One whose replay was saved beside it."""
    shutil.copytree(GOLDEN / "lrl-0.1.0-replay", checkpoint.parent / "replay/rank-0")

    def name_it(content):
        content["loops"]["fit_loop"]["state_dict"]["combined_loader"][0]["saved_replay"] = "id20"

    return edited(checkpoint, "saved", name_it)


def test_the_command_tells_it_and_writes_it(tmp_path, checkpoint, monkeypatch, capsys):
    call = functools.partial(Project(tmp_path).call, monkeypatch, capsys, "inspect")
    code, out, err = call("--ckpt_path", "last", "--json", "found.json")
    assert (code, err) == (0, "")
    lines = dict(line.split(":", 1) for line in out.splitlines())
    lines = {name: line.strip() for name, line in lines.items()}
    assert lines["written by"].startswith("lrl 0.1.0 (python 3.11.7, torch 2.13.0+cpu, ")
    assert (lines["environment"], lines["observation"]) == ("CartPole-v1", "float32 4")
    assert lines["actions"] == "2"
    assert lines["steps"] == "20 learner steps, 61 env steps, 61 frames, 1 episodes (seed 0)"
    assert lines["best score"] == "10.5 (eval/return_mean)"
    assert lines["encoder"] == "lrl.networks.encoders.MLPEncoder(hidden_sizes=[8])"
    assert lines["core"] == "none"
    assert lines["its state"] == "lr=0.001, betas=[0.9, 0.999], eps=1e-08"
    assert lines["parameters"].startswith("58 ")
    assert "weights 464 B and optimizer 480 B; no saved replay" in lines["sizes"]
    assert lines["goes on"].startswith("not exactly: it names no saved replay")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["parameters"] == 8 * 4 + 8 + 2 * 8 + 2
    assert found["stamp"]["training"]["env_steps"] == found["env_steps"] == 61

    code, _, err = call("--ckpt_path", "last", "--json", "nowhere/found.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "--json nowhere/found.json: there is no folder nowhere" in err
    code, _, err = call("--ckpt_path", "last", "--json", "/dev/full")
    assert (code, err.count("\n")) == (2, 1)
    assert "--json /dev/full cannot be written: [Errno 28] No space left" in err
    (tmp_path / "link.json").symlink_to("found.json")
    assert call("--ckpt_path", "last", "--json", "link.json")[0] == 0
    assert (tmp_path / "link.json").is_symlink()
    code, _, err = call("--ckpt_path", "base.yaml")
    assert (code, err.count("\n")) == (2, 1)
    assert "checkpoint base.yaml is damaged, or no checkpoint" in err


def test_a_saved_replay_is_looked_for(with_replay):
    found = contents(with_replay)
    assert found["bytes"]["saved_replay"] > 1000
    assert "begin new episodes" in found["going_on"]["why"]
    assert "goes on:      at once, but not exactly: " in text(found)

    folder = with_replay.parent / "replay/rank-0"
    manifest = read_manifest(folder / "manifest-20.json")
    episodes = {"dict": {"source": {"dict": {"actor": {"dict": {"steps": 3}}}}}}
    manifest_file = folder / "manifest-20.json"
    manifest_file.write_bytes(replace(manifest, tree=episodes).to_bytes())
    assert contents(with_replay)["going_on"]["exactly"]
    two = {**manifest.settings, "ranks": 2}
    manifest_file.write_bytes(replace(manifest, tree=episodes, settings=two).to_bytes())
    assert "was not written to its end" in contents(with_replay)["going_on"]["why"]
    shutil.copytree(folder, folder.with_name("rank-1"))
    assert "2 ranks" in contents(with_replay)["going_on"]["why"]


@pytest.mark.parametrize("name", ["manifest-20.json", "state-id20.bin"])
def test_a_saved_replay_that_lacks_a_file_is_none(with_replay, name):
    (with_replay.parent / "replay/rank-0" / name).unlink()
    found = contents(with_replay)
    assert not found["going_on"]["at_once"]
    assert "fills its replay again" in found["going_on"]["why"]
    assert found["bytes"]["saved_replay"] == 0


def test_what_it_names_is_printed_and_not_imported(checkpoint, monkeypatch):
    def change(content):
        encoder = {"class_path": "antigravity.Encoder", "init_args": {"scale": torch.tensor(0.5)}}
        content["hyper_parameters"]["encoder"] = encoder
        content["lrl"]["environment"]["id"] = "antigravity:Flying-v0"
        content["callbacks"]["ActorLearnerCallback"]["best_model_score"] = float("-inf")

    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    said = text(contents(edited(checkpoint, "foreign", change)))
    assert "antigravity.Encoder(scale=0.5)" in said
    assert "antigravity:Flying-v0" in said
    assert "none: not evaluated yet" in said
    assert "antigravity" not in sys.modules


def test_snapshots_of_lightning_beside_it_have_another_best(checkpoint):
    def add(content):
        snapshots = {"monitor": None, "best_model_path": "step=20.ckpt", "best_model_score": None}
        content["callbacks"] = {"ModelCheckpoint": snapshots, **content["callbacks"]}

    assert contents(edited(checkpoint, "snapshots", add))["best_evaluation"] == 10.5


def test_leaves_masks_and_memory_are_told(checkpoint):
    def column(dtype, shape, stack=1, categories=()):
        missing = None
        return {"dtype": dtype, "shape": shape, "stack": stack, "missing": missing,
                "categories": categories}  # fmt: skip

    def change(content):
        content["hyper_parameters"]["env_spec"] = {
            "observation": {"arm": column("float32", (3,)), "eye": column("uint8", (8, 8), 4)},
            "action": {"branches": (3, 2), "masks": True},
            "memory": {"h": column("float32", (16,))},
            "frame_skip": 1,
        }

    said = text(contents(edited(checkpoint, "leaves", change)))
    assert "observation:  arm float32 3, eye uint8 4 x 8 x 8, of 4 frames\n" in said
    assert "actions:      3 x 2, some of them masked\n" in said
    assert "memory:       h [16]\n" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content.pop("lrl"), "has no protocol stamp"),
        (lambda content: content["lrl"].update(format=9), "was written by lrl 0.1.0: use that"),
        (lambda content: content.pop("hyper_parameters"), "is not complete: KeyError"),
        (lambda content: content["lrl"].pop("training"), "is not complete: KeyError"),
        (lambda content: content.update(optimizer_states=[3]), "is not complete: TypeError"),
    ],
)
def test_what_is_no_checkpoint_of_lrls_is_refused(checkpoint, change, words):
    with pytest.raises(ConfigError, match=words):
        contents(edited(checkpoint, "wrong", change))


def test_the_stamp_is_exact(checkpoint):
    """A score belongs to a checkpoint by its stamp, and says which environment it is of."""
    third = {"rate": 1 / 3}
    path = edited(checkpoint, "exact", lambda content: content["lrl"]["environment"].update(third))
    assert contents(path)["stamp"]["environment"]["rate"] == 1 / 3
