"""The settings that each overlay gives a run on Atari: lengths that fit together, paper values.

Overlays of protocols: the settings that have a name in `lrl.envs.PROTOCOLS`.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers.command_line import quiet_commands

from lrl import ActorConfig, ClusterConfig, InferenceConfig, RateLimiterConfig
from lrl.callbacks.feedback import DEFAULT_SYNC_PERIOD
from lrl.cli.exit_status import Outcome
from lrl.cli.main import LrlCLI
from lrl.envs import PROTOCOLS, AtariConfig
from lrl.preflight.settings import check_cluster, check_inference, check_synchronous

pytestmark = quiet_commands

CONFIGS = Path(__file__).parents[2] / "configs"
OVERLAYS = sorted(path.stem for path in (CONFIGS / "algo").glob("*.yaml"))
PROTOCOL_OVERLAYS = sorted(path.stem for path in (CONFIGS / "protocol").glob("*.yaml"))
SYSTEMS = {
    "captured": lambda c: c.model.updater == "captured" and c.model.optimizer.init_args.fused,
    "central_inference": lambda config: config.data.inference.num_servers == 1,
    "ddp": lambda config: config.trainer.devices == 2 and config.trainer.strategy == "ddp",
    "four_actors": lambda config: config.data.actors.num_actors == 4,
    "gpu": lambda c: c.trainer.accelerator == "gpu" and c.data.replay.device == "cuda",
    **{
        f"gpu_{cores}_cores": lambda c, actors=actors: (
            c.data.actors.num_actors == actors and c.actor_learner.evaluation == "background"
        )
        for cores, actors in ((8, 6), (16, 14), (64, 60))
    },
    "offline": lambda c: c.data.pool.class_path == "lrl.offline.MinariPool",
    "ray": lambda config: config.data.cluster.num_actors == 2,
    "seed": lambda config: config.data.inference.num_servers == 1,
    "synchronous": lambda config: config.data.actors.num_actors == 0,
}
# The others run as long as Mnih et al. 2015: 200 million frames, four of them in a step.
ENV_STEPS = {"data_efficient_rainbow": 100_000, "r2d2": 2_500_000_000}
GRADIENT_CLIPS = {
    "apex": 40.0,
    "beyond_the_rainbow": 10.0,
    "data_efficient_rainbow": 10.0,
    "dueling_double_dqn": 10.0,
    "r2d2": 40.0,
    "rainbow": 10.0,
}
# RMSProp's eps outside the root: the root of the paper's, over 32 where its gradients are sums.
ROOT_EPS = {
    "apex": math.sqrt(1.5e-7),
    "double_dqn": math.sqrt(0.01) / 32,
    "dqn": math.sqrt(0.01) / 32,
    "dueling_double_dqn": math.sqrt(0.01) / 32,
    "prioritized": math.sqrt(0.01) / 32,
}
NOISE = {"beyond_the_rainbow": 0.5, "data_efficient_rainbow": 0.1, "rainbow": 0.5}
HIDDEN_SIZES = {"data_efficient_rainbow": 256}


class ParserOnly(LrlCLI):
    """The command line as far as its parser, which takes seconds to build; nothing runs."""

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


@pytest.fixture(scope="module")
def parser() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lrl", "fit", "--config", str(CONFIGS / "atari.yaml")])
        patch.setenv("PL_GLOBAL_SEED", "0")  # restores it
        return ParserOnly(Outcome()).parser


@pytest.fixture(scope="module")
def configs(parser: Any) -> dict[str, Any]:
    """What `lrl fit` makes of `atari.yaml` with each overlay, all defaults included."""
    arguments = ["fit", "--config", str(CONFIGS / "atari.yaml")]
    overlays = {name: CONFIGS / "algo" / f"{name}.yaml" for name in OVERLAYS}
    overlays |= {name: CONFIGS / "protocol" / f"{name}.yaml" for name in PROTOCOL_OVERLAYS}
    overlays |= {name: CONFIGS / "system" / f"{name}.yaml" for name in SYSTEMS}
    return {
        name: parser.parse_args([*arguments, "--config", str(path)]).fit
        for name, path in overlays.items()
    }


def test_overlays_of_the_machine_are_understood(configs: dict[str, Any]):
    assert sorted(SYSTEMS) == sorted(path.stem for path in (CONFIGS / "system").glob("*.yaml"))
    for name, holds in SYSTEMS.items():
        assert holds(configs[name]), name


RECIPES = [*CONFIGS.glob("*.yaml"), *(CONFIGS.parent / "benchmark/peers/configs").glob("*.yaml")]


def section(files: list[Path], *names: str) -> dict[str, Any]:
    """Return what files set in a section, nothing where it is null; the last one wins.

    The command line itself would take 15 s for all of them.
    """
    merged: dict[str, Any] = {}
    for file in files:
        content = yaml.safe_load(file.read_text())
        for name in names:
            content = content.get(name, {})
        merged = {} if content is None else merged | content
    return merged


@pytest.mark.parametrize("overlay", [None, *SYSTEMS])
@pytest.mark.parametrize("recipe", sorted(RECIPES), ids=lambda path: "-".join(path.parts[-2:]))
def test_no_recipe_sets_what_would_do_nothing(recipe: Path, overlay: str | None):
    files = [recipe, *([CONFIGS / "system" / f"{overlay}.yaml"] if overlay else [])]
    actors = ActorConfig(**section(files, "data", "actors"))
    rate = RateLimiterConfig(**section(files, "data", "rate"))
    callback = section(files, "actor_learner")
    in_background = callback.get("evaluation") == "background"
    cluster = section(files, "data", "cluster")
    num_actors = actors.num_actors + cluster.get("num_actors", 0)
    check_synchronous(actors, rate, in_background, num_actors)
    servers = section(files, "data", "inference")
    inference = InferenceConfig(**servers) if servers else None
    if cluster:
        check_cluster(ClusterConfig(**cluster), actors, inference)
    elif inference is not None:
        check_inference(inference, actors)
    if num_actors == 0:
        assert callback.get("sync_period_learner_steps", DEFAULT_SYNC_PERIOD) == DEFAULT_SYNC_PERIOD


@pytest.mark.parametrize(
    "recipe", sorted({*RECIPES, *(CONFIGS / "algo").glob("*.yaml")}), ids=lambda path: path.stem
)
def test_periods_are_multiples_of_captured_updates(recipe: Path):
    captured = CONFIGS / "system/captured.yaml"
    updates = section([captured], "model")["updates_per_step"]
    trainer, callback = section([recipe], "trainer"), section([recipe], "actor_learner")
    periods = [trainer.get("max_steps", 0), trainer.get("log_every_n_steps", 0)]
    periods += [value for name, value in callback.items() if name.endswith("_learner_steps")]
    odd = [period for period in periods if period % updates]
    assert odd == ([1] if recipe.stem == "data_efficient_rainbow" else [])


every_overlay = pytest.mark.parametrize("name", OVERLAYS)


@every_overlay
def test_what_defines_a_target_and_a_batch_is_stated_and_not_a_default(name: str):
    replay = yaml.safe_load((CONFIGS / "algo" / f"{name}.yaml").read_text())["data"]["replay"]
    assert {"batch_size", "n_step", "gamma"} <= replay.keys()


# Runs of Ape-X have no fixed length.
@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "apex"])
def test_a_run_is_as_long_as_the_papers(name: str, configs: dict[str, Any]):
    config = configs[name]
    rate, replay = config.data.rate, config.data.replay
    length = replay.sequences.length if replay.sequences else 1
    samples = config.trainer.max_steps * replay.batch_size * length
    env_steps = samples / rate.samples_per_insert + rate.warm_up_env_steps
    assert env_steps == pytest.approx(ENV_STEPS.get(name, 50_000_000), rel=0.02)


@every_overlay
def test_a_run_is_evaluated_often_and_near_its_end(name: str, configs: dict[str, Any]):
    learner_steps = configs[name].trainer.max_steps
    period = configs[name].actor_learner.eval_period_learner_steps
    evaluations, after_the_last = divmod(learner_steps, period)
    assert evaluations >= 20
    assert after_the_last <= learner_steps / 10


def test_annealed_importance_weights_are_complete_at_the_end_of_a_run(configs: dict[str, Any]):
    annealed = {}
    for name, config in configs.items():
        sampler = config.data.replay.sampler
        if sampler.class_path == "lrl.replay.PrioritizedSampler":
            beta = sampler.init_args.beta
            if beta.class_path == "lrl.schedules.Linear":
                annealed[name] = (beta.init_args.duration, beta.init_args.end)
    assert annealed == {name: (configs[name].trainer.max_steps, 1.0) for name in annealed}
    assert set(annealed) == {"data_efficient_rainbow", "prioritized", "rainbow"}


@every_overlay
def test_gradients_are_clipped_where_the_paper_says(name: str, configs: dict[str, Any]):
    assert configs[name].model.gradient_clip_norm == GRADIENT_CLIPS.get(name)


def test_rmsprop_has_the_papers_eps_translated(configs: dict[str, Any]):
    optimizers = {name: configs[name].model.optimizer for name in OVERLAYS}
    found = {
        name: optimizer.init_args.eps
        for name, optimizer in optimizers.items()
        if optimizer.class_path == "torch.optim.RMSprop"
    }
    assert found == pytest.approx(ROOT_EPS, rel=0.001)


def test_noise_begins_as_large_as_the_papers(configs: dict[str, Any]):
    heads = {name: configs[name].model.head.init_args for name in OVERLAYS}
    noisy = {name: head.noisy_sigma for name, head in heads.items() if head.noisy}
    assert noisy == NOISE


def test_scalar_heads_have_the_papers_loss(configs: dict[str, Any]):
    losses = {
        name: configs[name].model.head.init_args.loss
        for name in OVERLAYS
        if configs[name].model.head.class_path == "lrl.networks.ScalarHead"
    }
    assert losses.pop("apex") == "mse"
    assert set(losses.values()) == {"huber"}


def build(spec: Any) -> Any:
    """Return the object that a part of a configuration describes."""
    if not hasattr(spec, "class_path"):
        return spec
    module, name = spec.class_path.rsplit(".", 1)
    given = vars(spec.init_args) if "init_args" in spec else {}
    arguments = {key: build(value) for key, value in given.items()}
    return getattr(importlib.import_module(module), name)(**arguments)


def epsilon(config: Any, env_steps: int) -> float:
    environments = np.arange(1)
    return float(build(config.data.exploration).epsilons(env_steps, environments, 1)[0])


def test_epsilon_falls_once_learning_begins(configs: dict[str, Any]):
    """As in the code that DQN's authors released, in dqn_zoo and in Dopamine."""
    annealed = {"c51", "double_dqn", "dqn", "dueling_double_dqn", "iqn", "munchausen_dqn"}
    annealed |= {"munchausen_iqn", "prioritized", "qr_dqn"}
    found = set()
    for name in OVERLAYS:
        config, begin = configs[name], configs[name].data.rate.warm_up_env_steps
        if config.data.exploration.class_path == "lrl.actors.exploration.EpsilonGreedy":
            found.add(name)
            last = 0.1 if name == "dqn" else 0.01
            duration = 250_000 if name.startswith("munchausen") else 1_000_000
            assert epsilon(config, 0) == epsilon(config, begin) == 1.0
            assert epsilon(config, begin + duration // 2) == pytest.approx((1.0 + last) / 2)
            assert epsilon(config, begin + duration - 1) > epsilon(config, begin + duration) == last
    assert found == annealed


def test_epsilon_of_beyond_the_rainbow_by_hand(configs: dict[str, Any]):
    """Its distance to 0.01 shrinks by a part in two million each step, for half of the run."""
    config = configs["beyond_the_rainbow"]
    found = [epsilon(config, step) for step in (0, 125_000, 1_000_000, 2_000_000)]
    assert found == pytest.approx([1.0, 0.940019, 0.610465, 0.374201], rel=1e-4)
    step = 0.99 - (epsilon(config, 1) - 0.01)
    assert step == pytest.approx(0.99 / 2_000_000, rel=1e-3)
    assert epsilon(config, 25_000_000) == pytest.approx(0.01, rel=1e-3)
    assert epsilon(config, 25_000_001) == 0.0


def test_the_seed_overlay_has_the_existing_trainers_defaults(configs: dict[str, Any]):
    data = configs["seed"].data
    assert data.env.max_episode_steps is None
    assert data.replay.n_step == 3
    assert [epsilon(configs["seed"], step) for step in (0, 10**9)] == [0.1, 0.1]
    assert (data.actors.num_actors, data.actors.envs_per_actor) == (1, 4)
    inference = data.inference
    assert (inference.num_servers, inference.groups_per_actor) == (1, 1)
    assert inference.devices == ("cpu",)
    assert (inference.batch_size, inference.max_batch_delay_seconds) == (4, 0.1)
    assert inference.sync_period_seconds == 2.5
    assert data.rate.warm_up_env_steps == 1000
    assert data.rate.max_learner_steps_per_second is None


@every_overlay
def test_every_network_has_one_hidden_layer_of_the_papers_size(name: str, configs: dict[str, Any]):
    assert configs[name].model.head.init_args.hidden_size == HIDDEN_SIZES.get(name, 512)
    assert configs[name].model.encoder.init_args.hidden_size is None


def test_every_protocol_has_an_overlay():
    assert set(PROTOCOL_OVERLAYS) == set(PROTOCOLS)


@pytest.mark.parametrize("name", PROTOCOL_OVERLAYS)
def test_an_overlay_is_the_protocol_of_its_name(name: str, configs: dict[str, Any]):
    data, protocol = configs[name].data, PROTOCOLS[name]
    assert data.env.atari.as_dict() == vars(protocol.atari)
    assert data.env.reward_clip == protocol.reward_clip
    assert data.evaluation.epsilon == protocol.evaluation_epsilon
    assert data.evaluation.max_frames_per_episode == protocol.atari.max_frames_per_episode


@pytest.mark.parametrize("name", PROTOCOL_OVERLAYS)
def test_a_protocols_overlay_states_every_option_and_its_source(name: str):
    text = (CONFIGS / "protocol" / f"{name}.yaml").read_text()
    settings = yaml.safe_load(text)
    assert settings["data"]["env"]["atari"].keys() == {field.name for field in fields(AtariConfig)}
    assert settings.keys() == {"data"}
    lines = text.splitlines()
    assert len(lines) <= 30
    assert re.search(r"et al\. 20\d\d", " ".join(line for line in lines if line.startswith("#")))
