"""`lrl dataset`: saved replays and fresh episodes as Minari datasets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec as EnvMade
from gymnasium.spaces import Box, Discrete
from helpers.checkpoints import trained, untrained
from helpers.training_runs import make_run, quiet, small_agent, small_data

from lrl import ActorConfig, ActorLearnerCallback, AtariConfig, EnvConfig, ReplayConfig
from lrl.checkpoints import saved_replay
from lrl.cli import commands
from lrl.envs import make_spec
from lrl.envs.toy import Identity
from lrl.evaluation.episodes import EvaluationConfig
from lrl.networks import LSTMCore, MultiEncoder
from lrl.offline.dataset import dataset
from lrl.offline.episodes import RecordedEpisode, rows_of
from lrl.offline.minari_files import MinariEpisodes, write_dataset
from lrl.pools.row_check import check_rows
from lrl.replay import Replay
from lrl.replay.streams import Streams
from lrl.types import ConfigError, EnvSpec, map_leaves

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")

pytestmark = [*quiet]
STACKED = EnvConfig("lrl/Catch-v0", frame_stack=3)


@pytest.fixture(autouse=True)
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def drawn(replay: Replay) -> list[dict[str, Any]]:
    keys = replay.samplable_keys().numpy()
    batch: Any = replay._windows.batch(keys, np.ones(len(keys), np.float32))
    columns = {name: column for name, column in batch.columns().items() if name != "keys"}
    return [{n: c[i].tolist() for n, c in columns.items()} for i in range(len(keys))]


def saved(folder: Path, env: EnvConfig) -> tuple[Path, Replay]:
    """Train for a moment, in one environment; return the checkpoint and its replay."""
    data = small_data(
        env=env, actors=ActorConfig(0, 1), replay=ReplayConfig(1000, 8, n_step=1, gamma=0.9)
    )
    callback = ActorLearnerCallback(
        eval_period_learner_steps=0, save_period_learner_steps=0, checkpoint_replay=True
    )
    run = make_run(folder, callback, module=small_agent(), data=data, max_steps=20).fit()
    assert run.data.dataset is not None
    return run.checkpoint("last"), run.data.dataset.replay


@pytest.mark.parametrize("env", [STACKED, EnvConfig("lrl/Masked-v0", action_masks=True)])
def test_a_saved_replay_comes_back_transition_by_transition(tmp_path, capsys, env: EnvConfig):
    checkpoint, replay = saved(tmp_path, env)
    episodes, steps = dataset(str(checkpoint), "own/replay-v0")
    assert f"written: own/replay-v0, {episodes} episodes, {steps} steps" in capsys.readouterr().out
    spec = make_spec(env)
    copy = Replay(spec, 1000, 1, n_step=1, gamma=0.9)
    for episode in MinariEpisodes("own/replay-v0", spec):
        copy.add(rows_of(episode, spec))
    assert len(copy) == steps
    assert len(drawn(replay)) == steps  # all of them, and the newest row, which has no successor
    assert drawn(copy) == drawn(replay)


def test_what_minari_reads_says_where_it_comes_from(tmp_path):
    checkpoint, _ = saved(tmp_path, EnvConfig("lrl/Identity-v0", max_episode_steps=7))
    dataset(str(checkpoint), "own/replay-v0")
    found = minari.load_dataset("own/replay-v0")
    assert found.spec.env_spec.id == "lrl/Identity-v0"
    assert found.recover_environment().spec.max_episode_steps == 7
    metadata = found.storage.metadata
    assert metadata["algorithm_name"] == "lrl agent with ScalarHead and MaxBootstrap"
    assert "saved with last.ckpt" in metadata["description"]
    assert not metadata.keys() & {"author", "author_email", "code_permalink"}
    assert all(len(episode) == 7 and episode.truncations[-1] for episode in list(found)[:-1])
    preprocessed = untrained(tmp_path, STACKED)
    dataset(str(preprocessed), "own/stacks-v0", episodes=1)
    assert minari.load_dataset("own/stacks-v0").spec.env_spec is None
    assert (
        '"frame_stack": 3' in minari.load_dataset("own/stacks-v0").storage.metadata["description"]
    )


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        (EnvConfig("lrl/Signpost-v0"), {"encoder": MultiEncoder}),
        (EnvConfig(factory="helpers.dict_envs.NestedLedger"), {"encoder": MultiEncoder}),
        (EnvConfig("lrl/Dials-v0"), {}),
        (EnvConfig("lrl/Recall-v0"), {"core": LSTMCore}),
        (EnvConfig("lrl/Masked-v0", action_masks=True), {}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.id,
)
def test_fresh_episodes_of_leaves_branches_memory_and_masks(tmp_path, env: EnvConfig, parts: Any):
    checkpoint = untrained(tmp_path, env, **parts)
    _, steps = dataset(str(checkpoint), "fresh/all-v0", episodes=2, epsilon=0.5, seed=3)
    spec = make_spec(env)
    read = list(MinariEpisodes("fresh/all-v0", spec))
    assert [len(read), sum(map(len, read))] == [2, steps]
    replay = Replay(spec, 5000, 1, n_step=1)
    for episode in read:
        rows = rows_of(episode, spec)
        check_rows(rows, spec)
        replay.add(rows)
        assert (episode.terminated | episode.truncated).tolist() == [False] * (len(episode) - 1) + [
            True
        ]
        if episode.action_mask is not None:
            taken = episode.action_mask[np.arange(len(episode)), episode.action]
            assert taken.all()
    assert len(drawn(replay)) == steps
    dataset(str(checkpoint), "fresh/again-v0", episodes=2, epsilon=0.5, seed=3)
    for one, other in zip(read, MinariEpisodes("fresh/again-v0", spec), strict=True):
        map_leaves(np.testing.assert_array_equal, one.observation, other.observation)
        np.testing.assert_array_equal(one.action, other.action)


def test_fresh_episodes_are_cut_as_those_of_evaluation_are(tmp_path, monkeypatch):
    small: dict[str, Any] = {"image_height": 12, "image_width": 12, "frame_skip": 4}
    evaluation = EvaluationConfig(
        max_frames_per_episode=80, env={"atari": {**small, "frame_skip": 2}}
    )
    monkeypatch.setattr("helpers.checkpoints.EvaluationConfig", lambda epsilon: evaluation)
    checkpoint = untrained(tmp_path, EnvConfig("ALE/Pong-v5", atari=AtariConfig(**small)))
    assert dataset(str(checkpoint), "fresh/pong-v0", episodes=1) == (1, 40)


def test_frames_are_kept_to_the_last_bit():
    spec = EnvSpec.box((16, 16, 3), "uint8", 2)
    frames = np.random.default_rng(0).integers(256, size=(3, 16, 16, 3), dtype=np.uint8)
    ends = np.array([False, True])
    made = RecordedEpisode(frames, np.array([0, 1], np.int32), np.ones(2), ends, ~ends & False)
    write_dataset("frames/rgb-v0", spec, [made], None, "none", "random")
    (found,) = MinariEpisodes("frames/rgb-v0", spec)
    np.testing.assert_array_equal(found.observation, frames)


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_what_fails_leaves_no_dataset_behind(tmp_path):
    def broken():
        ends = np.zeros(2, np.bool_)
        yield RecordedEpisode(np.zeros(3), np.zeros(2, np.int32), np.zeros(2), ends, ends)
        raise RuntimeError("the environment broke")

    spec = EnvSpec.box((), "float32", 2)
    with pytest.raises(RuntimeError, match="the environment broke"):
        write_dataset("half/made-v0", spec, broken(), None, "none", "")
    assert not minari.list_local_datasets()
    odd = replace(spec, observation={"pos/x": next(iter(spec.observation.values()))})
    with pytest.raises(ConfigError, match=r"leaf 'pos/x', but the files of a dataset take no '/'"):
        write_dataset("half/made-v0", odd, [], None, "none", "")
    with pytest.raises(ConfigError, match=r"dataset_id 'half/made-v0' would be empty"):
        write_dataset("half/made-v0", spec, [], None, "none", "")
    assert not minari.list_local_datasets()
    spaces = {"observation_space": Box(0, 1, ()), "action_space": Discrete(2)}
    minari.create_dataset_from_buffers("half/empty-v0", [], **spaces)
    with pytest.raises(ConfigError, match=r"dataset 'half/empty-v0' holds no steps"):
        MinariEpisodes("half/empty-v0", spec)


def test_a_saved_replay_becomes_a_dataset_without_any_environment(tmp_path, monkeypatch):
    checkpoint, _ = saved(tmp_path, EnvConfig("lrl/Identity-v0"))

    def make(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"{args} was made")

    monkeypatch.setattr(gymnasium, "make", make)
    dataset(str(checkpoint), "own/replay-v0")
    monkeypatch.undo()


def test_it_is_the_rows_of_a_saved_replay_that_must_fit_and_not_its_capacity(tmp_path, monkeypatch):
    env = EnvConfig("lrl/Identity-v0")
    checkpoint, replay = saved(tmp_path, env)
    needed = Streams.bytes_needed(make_spec(env), replay.streams.num_rows)
    assert needed < Streams.bytes_needed(make_spec(env), 1000) // 2
    monkeypatch.setattr(saved_replay, "available_bytes", lambda: needed - 1)
    with pytest.raises(ConfigError, match=r"rows of the saved replay need .* available: read"):
        dataset(str(checkpoint), "own/replay-v0")
    monkeypatch.setattr(saved_replay, "available_bytes", lambda: needed)
    link = tmp_path / "link.ckpt"
    link.symlink_to(checkpoint)
    assert dataset(str(link), "own/replay-v0")[1] >= len(replay) - 1  # the newest has no successor


def test_environments_of_modules_and_of_classes(tmp_path, monkeypatch):
    checkpoint = untrained(tmp_path / "one", EnvConfig("lrl.envs.toy:lrl/Identity-v0"))
    dataset(str(checkpoint), "own/module-v0", episodes=1)
    assert minari.load_dataset("own/module-v0").env_spec.id == "lrl/Identity-v0"
    made = replace(gymnasium.spec("lrl/Identity-v0"), id="own/Held-v0", entry_point=Identity)
    monkeypatch.setitem(gymnasium.registry, "own/Held-v0", made)
    leaves = replace(made, id="own/Leaves-v0", entry_point="helpers.dict_envs:NestedLedger")
    monkeypatch.setitem(gymnasium.registry, "own/Leaves-v0", leaves)
    nested = untrained(tmp_path / "three", EnvConfig("own/Leaves-v0"), encoder=MultiEncoder)
    dataset(str(nested), "own/leaves-v0", episodes=1)
    assert minari.load_dataset("own/leaves-v0").env_spec is None  # its leaves have other names
    dataset(str(untrained(tmp_path / "two", EnvConfig("own/Held-v0"))), "own/held-v0", episodes=1)
    assert minari.load_dataset("own/held-v0").env_spec is None


def test_a_dataset_runs_no_code(tmp_path):
    """Without its spaces Minari would make whatever environment the file names."""
    place, trace = tmp_path / "minari/evil/code-v0/data", tmp_path / "trace"
    place.mkdir(parents=True)
    made = EnvMade("Evil-v0", entry_point="os:mkdir", kwargs={"path": str(trace)})
    box, spec = (
        minari.serialization.serialize_space(Box(0, 1, (2,))),
        EnvSpec.box((2,), "float32", 2),
    )
    for spaces in (
        {},
        {"observation_space": box},
        {"observation_space": box, "action_space": None},
    ):
        content = {"env_spec": made.to_json(), "data_format": "hdf5", **spaces}
        (place / "metadata.json").write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=r"metadata\.json has no (observation|action)_space"):
            MinariEpisodes("evil/code-v0", spec)
    for name in (str(place.parent), "../minari/evil/code-v0", "evil/code"):
        with pytest.raises(ConfigError, match="must be a name of Minari's such as"):
            MinariEpisodes(name, spec)
    assert not trace.exists()
    (place / "metadata.json").write_text("[" * 10)
    with pytest.raises(ConfigError, match="'evil/code-v0' cannot be read"):
        MinariEpisodes("evil/code-v0", spec)


def test_mistakes_are_named(tmp_path, monkeypatch, capsys):
    checkpoint = trained(tmp_path)
    with pytest.raises(ConfigError, match=r"no replay was saved with .*last\.ckpt: train with"):
        dataset(str(checkpoint), "own/replay-v0")
    with pytest.raises(ConfigError, match=r"epsilon 0\.1 and seed 0 are of fresh episodes"):
        dataset(str(checkpoint), "own/replay-v0", epsilon=0.1)
    with pytest.raises(ConfigError, match="episodes must be at least 1, got 0"):
        dataset(str(checkpoint), "own/replay-v0", episodes=0)
    for name in ("own/replay", "no name-v0"):
        with pytest.raises(ConfigError, match="but must be a name of Minari's such as"):
            dataset(str(checkpoint), name, episodes=1)
    arguments = ["--ckpt_path", str(checkpoint), "--dataset_id", "own/played-v0", "--episodes", "1"]
    assert commands.run("dataset", arguments) == 0
    assert commands.run("dataset", arguments) == commands.CONFIG_ERROR
    assert "'own/played-v0' exists in" in capsys.readouterr().err
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(checkpoint / "minari"))  # where no folder can be
    with pytest.raises(ConfigError, match=r"'own/a-v0' cannot be written: \[Errno"):
        dataset(str(checkpoint), "own/a-v0", episodes=1)
