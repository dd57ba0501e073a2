"""`lrl push`, and agents that are loaded from the hub; the hub is a server of this process."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.checkpoints import edited, untrained
from helpers.command_line import Project, quiet_commands
from helpers.training_runs import make_run, small_agent, small_data

from lrl.cli import commands
from lrl.deploy.card import foreign_modules
from lrl.deploy.policy import load_policy
from lrl.deploy.push import push
from lrl.envs import EnvConfig
from lrl.report.contents import contents
from lrl.report.evaluate import evaluate
from lrl.types import ConfigError

pytest.importorskip("huggingface_hub")
from helpers.fake_hub import FakeHub, serving

pytestmark = [
    *quiet_commands,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:huggingface_hub"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The best.ckpt of a short run, beside its settings."""
    folder = tmp_path_factory.mktemp("run")
    run = make_run(folder, module=small_agent(), data=small_data(), max_steps=10).fit()
    (run.folder / "config.yaml").write_text("seed_everything: 0\n")
    return run.checkpoint("best")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with serving(monkeypatch, str(tmp_path / "cache"), "hf_secret") as hub:
        yield hub


def metadata_of(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_an_agent_comes_back_as_it_was_pushed(checkpoint, hub, capsys):
    push(str(checkpoint), "me/identity", private=True)
    assert capsys.readouterr().out == "pushed: hub:me/identity\n"
    assert hub.private == {"me/identity": True}
    assert set(hub.tokens) == {"Bearer hf_secret"}
    files = hub.files["me/identity", "main"]
    assert files.keys() >= {"README.md", "agent.ckpt", "config.yaml", "stamp.json"}
    assert files["agent.ckpt"] == checkpoint.read_bytes()
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    own, loaded = load_policy(checkpoint), load_policy("hub:me/identity")
    np.testing.assert_array_equal(own.predict(observations)[0], loaded.predict(observations)[0])
    assert loaded.agent.path.name == "agent.ckpt"


def test_the_code_of_the_card_and_of_the_page_runs(checkpoint, hub):
    push(str(checkpoint), "owner/name")
    card = hub.files["owner/name", "main"]["README.md"].decode()
    for text in (card, (Path(__file__).parents[2] / "docs/hub.md").read_text()):
        (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        found: dict = {}
        exec(code, found)
        found["env"].close()
        assert found["action"] in range(4)


def test_a_revision_is_a_branch_of_its_own(checkpoint, hub):
    push(str(checkpoint), "me/identity", revision="v1")
    assert "agent.ckpt" in hub.files["me/identity", "v1"]
    load_policy("hub:me/identity@v1")
    assert (
        'load_policy("hub:me/identity@v1")' in hub.files["me/identity", "v1"]["README.md"].decode()
    )
    with pytest.raises(ConfigError, match=r"has no file agent\.ckpt: it was not written by lrl"):
        load_policy("hub:me/identity")
    with pytest.raises(ConfigError, match=r"repository 'me/identity' has no revision 'v2'"):
        load_policy("hub:me/identity@v2")


def test_a_second_push_leaves_nothing_of_the_first_agent(checkpoint, hub, tmp_path, monkeypatch):
    film = tmp_path / "game.gif"
    film.write_bytes(b"film")
    push(str(checkpoint), "me/identity", film=str(film))
    files = hub.files["me/identity", "main"]
    files["NOTES.md"] = b"mine"
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    shutil.copyfile(checkpoint, folder / "best.ckpt")
    (tmp_path / "config.yaml").write_text("somebody: else\n")
    monkeypatch.chdir(folder)
    push("best.ckpt", "me/identity")
    assert files.keys() == {"README.md", "agent.ckpt", "stamp.json", "NOTES.md"}


def test_commands_take_an_agent_of_the_hub(checkpoint, hub, capsys):
    push(str(checkpoint), "me/identity")
    assert commands.run("inspect", ["--ckpt_path", "hub:me/identity"]) == 0
    assert "lrl/Identity-v0" in capsys.readouterr().out
    assert commands.run("inspect", ["--ckpt_path", "hub:me/other"]) == commands.CONFIG_ERROR
    assert "there is no repository 'me/other' on the hub that you may" in capsys.readouterr().err


def test_the_trainer_takes_an_agent_of_the_hub(checkpoint, hub, tmp_path, monkeypatch, capsys):
    push(str(checkpoint), "me/identity")
    call = functools.partial(Project(tmp_path).call, monkeypatch, capsys)
    arguments = ("--config=base.yaml", "--ckpt_path=hub:me/identity")
    code, out, err = call("test", *arguments)
    assert not code, err
    assert "over 6 episodes" in out
    code, _, err = call(
        "fit", *arguments, "--model.optimizer=torch.optim.Adam", "--data.actors.num_actors=0",
        "--trainer.max_steps=15",
    )  # fmt: skip
    assert not code, err
    summary = json.loads((tmp_path / "runs/small/version_0/summary.json").read_text())
    assert summary["learner_steps"] == 15


def test_what_is_damaged_on_the_way_is_not_loaded(checkpoint, hub):
    push(str(checkpoint), "me/identity")
    files = hub.files["me/identity", "main"]
    content = bytearray(files["agent.ckpt"])
    content[len(content) // 2] ^= 1
    files["agent.ckpt"] = bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        load_policy("hub:me/identity")


def test_a_film_that_is_not_there_is_named_and_nothing_is_written(checkpoint, tmp_path):
    with pytest.raises(ConfigError, match=r"film 'missing\.mp4': there is no such file"):
        push(str(checkpoint), "me/identity", film="missing.mp4", output=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_card_states_what_the_checkpoint_knows(checkpoint, tmp_path):
    film, folder = tmp_path / "game.MP4", tmp_path / "out"
    film.write_bytes(b"film")
    evaluate([str(checkpoint)], episodes=5, epsilon=0.5, max_frames_per_episode=1000,
             out=str(tmp_path / "scores"), device="cpu")  # fmt: skip
    score = json.loads((tmp_path / "scores.json").read_text())["scores"][0]["statistics"]
    push(str(checkpoint), "me/identity", film=str(film), score=str(tmp_path / "scores.json"),
         output=str(folder))  # fmt: skip
    names = {path.name for path in folder.iterdir()}
    assert names == {"README.md", "agent.ckpt", "config.yaml", "stamp.json", "replay.mp4",
                     "scores.json"}  # fmt: skip
    card = (folder / "README.md").read_text()
    metadata = metadata_of(card)
    assert metadata["library_name"] == "lrl"
    assert {"reinforcement-learning", "lrl", "lrl/Identity-v0"} <= set(metadata["tags"])
    (index,) = metadata["model-index"]
    (result,) = index["results"]
    assert index["name"] == "identity"
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"name": "lrl/Identity-v0", "type": "lrl/Identity-v0"}
    (metric,) = result["metrics"]
    value = f"{score['mean']:.2f} +/- {score['std']:.2f}"
    assert (metric["type"], metric["value"]) == ("mean_reward", value)
    assert f"Mean return {value}: mean and standard deviation over 5 episodes of the seeds" in card
    assert "epsilon 0.5, at most 1,000 frames an episode" in card  # as it was measured
    assert str(checkpoint.parent) not in card
    assert json.loads((folder / "stamp.json").read_text()) == contents(checkpoint)["stamp"]
    for words in ("lrl.load_policy(\"hub:me/identity\")", "## Limitations",
                  "optimizer:", "written by:", "What it names is part of lrl"):  # fmt: skip
        assert words in card, words
    with pytest.raises(ConfigError, match="must be a new or an empty folder"):
        push(str(checkpoint), "me/identity", output=str(folder))


def test_a_score_is_that_of_the_checkpoint_or_none(checkpoint, tmp_path):
    last = checkpoint.with_name("last.ckpt")
    push(str(checkpoint), "me/identity", output=str(tmp_path / "best"))
    metadata = metadata_of((tmp_path / "best" / "README.md").read_text())
    value = metadata["model-index"][0]["results"][0]["metrics"][0]["value"]
    assert value == contents(checkpoint)["best_evaluation"]
    push(str(last), "me/identity", output=str(tmp_path / "last"))
    card = (tmp_path / "last" / "README.md").read_text()
    assert "model-index" not in metadata_of(card)
    assert "It was not scored." in card
    other = untrained(tmp_path, EnvConfig("lrl/Identity-v0"))
    evaluate([str(other)], episodes=2, out=str(tmp_path / "scores"), device="cpu")
    with pytest.raises(ConfigError, match=r"holds no score of .*best\.ckpt"):
        push(
            str(checkpoint), "me/x", score=str(tmp_path / "scores.json"), output=str(tmp_path / "o")
        )
    with pytest.raises(ConfigError, match="is no JSON file that lrl evaluate --out wrote"):
        push(str(checkpoint), "me/x", score=str(checkpoint), output=str(tmp_path / "o"))
    assert not (tmp_path / "o").exists()


def test_a_score_of_other_weights_with_the_same_stamp_is_none_of_the_checkpoint(
    checkpoint, tmp_path
):
    """Two algorithms with one seed, and as many steps, have equal stamps."""

    def change(content: dict[str, Any]) -> None:
        weights = content["state_dict"]
        weights[next(name for name in weights if name.startswith("online."))] += 1.0

    other = edited(checkpoint, "other", change)
    paths, scores = [str(other), str(checkpoint)], tmp_path / "scores"
    values = [score.return_mean for score in evaluate(paths, episodes=9, out=str(scores))]
    push(str(checkpoint), "me/x", score=f"{scores}.json", output=str(tmp_path / "out"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"Mean return {values[1]:.2f} +/-" in card
    evaluate(paths[:1], episodes=2, out=str(tmp_path / "one"))
    one = str(tmp_path / "one.json")
    with pytest.raises(ConfigError, match="holds no score of"):
        push(str(checkpoint), "me/x", score=one, output=str(tmp_path / "o"))


def test_the_card_warns_of_code_that_is_not_lrls(checkpoint, tmp_path):
    def name_a_stranger(content: dict) -> None:
        inner = {"class_path": "their.parts.Net", "init_args": {}}
        content["hyper_parameters"]["encoder"] = {
            "class_path": "lrl.networks.MultiEncoder",
            "init_args": {"encoders": {"map": inner}},
        }
        content["lrl"]["environment"] = {**content["lrl"]["environment"], "id": "games:Maze-v0"}

    stranger = edited(checkpoint, "stranger", name_a_stranger)
    assert foreign_modules(contents(stranger)) == ["games", "their.parts"]
    push(str(stranger), "me/maze", output=str(tmp_path / "out"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "names code of its author's, which is not here: `games`, `their.parts`" in card
    assert "their" not in sys.modules


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("lrl/MinAtarBreakout-v0", "pip install 'lrl[minatar]'"),
        ("LunarLander-v3", "pip install 'lrl[box2d]'"),
        ("scripts/Own-v0", "no package that lrl knows: import what registers it first"),
    ],
)
def test_the_card_says_what_the_environment_needs(checkpoint, tmp_path, env_id, words):
    def name_it(content: dict) -> None:
        content["lrl"]["environment"] = {**content["lrl"]["environment"], "id": env_id}

    push(str(edited(checkpoint, "other", name_it)), "me/x", output=str(tmp_path / "out"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert words in card
    assert ("What it names is part of lrl" in card) == ("[" in words)


def test_mistakes_are_one_sentence_each(checkpoint, hub, monkeypatch):
    path = str(checkpoint)
    for name in ("me", "me/a b", "a/b/c"):
        with pytest.raises(ConfigError, match=r"must be owner/name|give owner/name"):
            push(path, name)
    with pytest.raises(ConfigError, match=r"private is true, but with --output nothing is pushed"):
        push(path, "me/identity", private=True, output="out")
    hub.private["me/public"] = False
    with pytest.raises(ConfigError, match=r"'me/public' is there already and public"):
        push(path, "me/public", private=True)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match=r"no token to write to the hub with: log in"):
        push(path, "me/identity")
    hub.shutdown()
    hub.server_close()
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with pytest.raises(
        ConfigError, match=r"the hub cannot be reached for repository 'me/identity'"
    ):
        load_policy("hub:me/identity")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"pip install 'lrl\[hub\]'"):
        load_policy("hub:me/identity")
