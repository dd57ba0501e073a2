"""The settings that each overlay gives a run on Atari: lengths that fit together, paper values.

Overlays of protocols: the settings that have a name in `lrl.envs.PROTOCOLS`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.command_line import quiet_commands

from lrl.cli import LrlCLI
from lrl.envs import PROTOCOLS, AtariConfig
from lrl.outcome import Outcome

pytestmark = quiet_commands

CONFIGS = Path(__file__).parents[1] / "configs"
OVERLAYS = sorted(path.stem for path in (CONFIGS / "algo").glob("*.yaml"))
PROTOCOL_OVERLAYS = sorted(path.stem for path in (CONFIGS / "protocol").glob("*.yaml"))
SYSTEMS = {
    "central_inference": lambda config: config.data.inference.num_servers == 1,
    "ddp": lambda config: config.trainer.devices == 2 and config.trainer.strategy == "ddp",
    "four_actors": lambda config: config.data.actors.num_actors == 4,
    "gpu": lambda c: c.trainer.accelerator == "gpu" and c.data.replay.device == "cuda",
    "synchronous": lambda config: config.data.actors.num_actors == 0,
}
# The others run as long as Mnih et al. 2015: 200 million frames, four of them in a step.
ENV_STEPS = {"data_efficient_rainbow": 100_000}
GRADIENT_CLIPS = {
    "apex": 40.0,
    "beyond_the_rainbow": 10.0,
    "data_efficient_rainbow": 10.0,
    "dueling_double_dqn": 10.0,
}
HIDDEN_SIZES = {"data_efficient_rainbow": 256}


class ParserOnly(LrlCLI):
    """The command line as far as its parser, which takes seconds to build; nothing runs."""

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


@pytest.fixture(scope="module")
def configs() -> dict[str, Any]:
    """What `lrl fit` makes of `atari.yaml` with each overlay, all defaults included."""
    arguments = ["fit", "--config", str(CONFIGS / "atari.yaml")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lrl", *arguments])
        patch.setenv("PL_GLOBAL_SEED", "0")  # restores it
        parser = ParserOnly(Outcome()).parser
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


every_overlay = pytest.mark.parametrize("name", OVERLAYS)


# Runs of Ape-X have no fixed length.
@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "apex"])
def test_a_run_is_as_long_as_the_papers(name: str, configs: dict[str, Any]):
    config = configs[name]
    rate, samples = config.data.rate, config.trainer.max_steps * config.data.replay.batch_size
    env_steps = samples / rate.samples_per_insert + rate.min_size_env_steps
    assert env_steps == pytest.approx(ENV_STEPS.get(name, 50_000_000), rel=0.02)


@every_overlay
def test_a_run_is_evaluated_often_and_near_its_end(name: str, configs: dict[str, Any]):
    learner_steps = configs[name].trainer.max_steps
    interval = configs[name].actor_learner.eval_interval_learner_steps
    evaluations, after_the_last = divmod(learner_steps, interval)
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
    assert configs[name].trainer.gradient_clip_val == GRADIENT_CLIPS.get(name)


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
