"""The model card of an agent: what a repository says of it, all from its checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium

from lrl.checkpoints.stamp import flatten
from lrl.deploy.hub import ADDRESS
from lrl.parts import safety
from lrl.parts.recipe import TRUSTED_PACKAGES
from lrl.report.contents import text
from lrl.types import ConfigError

_EXTRAS = {"lrl.envs.minatar": "minatar", "gymnasium.envs.box2d": "box2d"}
"""What environments need beside lrl, by where they are."""
_MUJOCO = "gymnasium.envs.mujoco"
_OF_TRAINING = ("training", "environment")
_LOCAL_LINES = ("sizes:", "goes on:")  # of the files where it was trained
_CARD = """---
{metadata}
---

# {title}

A value-based agent for `{environment}`, trained with lrl (Lightning RL).

## Use

Install lrl with its extra `hub`, then:

```python
import lrl

policy = lrl.load_policy("{address}")
env = policy.make_env()
observation, info = env.reset(seed=0)
action, state = policy.predict(observation)
```

`lrl play --ckpt_path {address}` films it, `lrl evaluate --ckpt_path {address}` scores it.
The checkpoint holds numbers and names, no code. {needs}

## Score

{score}

## Training

```text
{training}
```

## Limitations

- It knows observations of this environment with this preprocessing alone, which
  `policy.make_env()` gives.
- It is one training run with one seed, which says little of the algorithm.
- Its values are discounted returns of training's rewards, which may be clipped or rescaled.

## Files

{files}
"""


@dataclass(frozen=True)
class CardScore:
    """The score that a card states.

    Attributes:
        value: Mean return, with its standard deviation where it is known.
        source: Which episodes it is of.
        stamp: How they were played.
    """

    value: float | str
    source: str
    stamp: Mapping[str, Any]


def score_of(found: Mapping[str, Any], file: str | None) -> CardScore | None:
    """Return the score of a checkpoint; None where only that of another moment is known.

    Args:
        found: What `lrl.report.contents.contents` says of it.
        file: The JSON file of `lrl evaluate --out`; None takes the evaluation in training, which is
            known of a best.ckpt alone.

    Raises:
        ConfigError: The file cannot be read, or holds no score of this checkpoint.
    """
    stamp = found["stamp"]
    if file is None:
        best, is_best = found["best_evaluation"], Path(found["checkpoint"]).name == "best.ckpt"
        if best is None or not is_best or found["best_by"] != "eval/return_mean":
            return None
        episodes = stamp["evaluation"]["episodes"]
        return CardScore(
            best,
            f"the {episodes} evaluation episodes in training by which this checkpoint was chosen, "
            "so that it is optimistic",
            stamp,
        )
    try:
        scores = json.loads(Path(file).read_text())["scores"]
        own = flatten({name: stamp[name] for name in _OF_TRAINING})
        for score in scores:
            other = score["stamp"]
            is_own = score["weights_sha256"] == found["weights_sha256"]
            if is_own and own == flatten({name: other[name] for name in _OF_TRAINING}):
                return _measured(score)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"score {file!r} is no JSON file that lrl evaluate --out wrote: {error}"
        ) from error
    raise ConfigError(f"score {file!r} holds no score of {found['checkpoint']}")


def model_card(
    found: Mapping[str, Any], address: str, score: CardScore | None, files: Mapping[str, str]
) -> str:
    """Return a card in Markdown, with metadata for the hub's index.

    Args:
        found: What `lrl.report.contents.contents` says of the checkpoint.
        address: Repository, with its revision if it is not the main one.
        score: What it scored, if that is known.
        files: Names of all other files, and what they are.
    """
    lines = text({**found, "checkpoint": Path(found["checkpoint"]).name}).splitlines()
    return _CARD.format(
        metadata=_metadata(found, address, score),
        title=_title(found),
        environment=found["environment"],
        address=f"{ADDRESS}{address}",
        needs=_needs(found),
        score=_said_score(score, found["stamp"]),
        training="\n".join(line for line in lines if not line.startswith(_LOCAL_LINES)),
        files="\n".join(f"- `{name}`: {meaning}" for name, meaning in files.items()),
    )


def foreign_modules(found: Mapping[str, Any]) -> list[str]:
    """Return the modules that a checkpoint names and that are none of lrl's or its packages'."""
    environment = found["stamp"]["environment"]
    named = safety.strings(found["parts"])
    paths = [path for key, path in named if key.rpartition(".")[2] == "class_path"]
    paths += [wrapper["path"] for wrapper in environment.get("wrappers", ())]
    paths += [environment["factory"]] if environment.get("factory") else []
    modules = {path.rpartition(".")[0] for path in paths}
    modules |= {environment["id"].rpartition(":")[0]} - {""}
    return sorted(name for name in modules if name.partition(".")[0] not in _known_packages())


def _known_packages() -> set[str]:
    return {*TRUSTED_PACKAGES, *safety.ENVIRONMENTS}


def _registered(environment: Mapping[str, Any]) -> str | None:
    """Return the import path of an environment that its id alone names; empty if not known here.

    None: it is named otherwise, or is Atari's.
    """
    if environment.get("factory") or ":" in environment["id"] or "atari" in environment:
        return None
    entry = getattr(gymnasium.registry.get(environment["id"]), "entry_point", None)
    return entry if isinstance(entry, str) else ""


def _title(found: Mapping[str, Any]) -> str:
    head, rule = (
        found["parts"][part]["class_path"].rpartition(".")[2] for part in ("head", "bootstrap")
    )
    return f"{found['environment']}: DQN with {head} and {rule}"


def _metadata(found: Mapping[str, Any], address: str, score: CardScore | None) -> str:
    hub, environment = import_module("huggingface_hub"), found["environment"]
    name = address.partition("@")[0].rpartition("/")[2]
    results = None
    if score is not None:
        results = [
            hub.EvalResult(
                task_type="reinforcement-learning",
                task_name="reinforcement-learning",
                dataset_type=environment,
                dataset_name=environment,
                metric_type="mean_reward",
                metric_name="mean_reward",
                metric_value=score.value,
            )
        ]
    data = hub.ModelCardData(
        library_name="lrl",
        tags=["reinforcement-learning", "deep-reinforcement-learning", "dqn", "lrl", environment],
        model_name=name,
        eval_results=results,
    )
    return data.to_yaml().strip()


def _needs(found: Mapping[str, Any]) -> str:
    modules, environment = foreign_modules(found), found["stamp"]["environment"]
    entry = _registered(environment)
    named = ", ".join(f"`{module}`" for module in modules)
    if entry is not None and re.split("[.:]", entry)[0] not in _known_packages():
        also = f" It also names code of its author's: {named}." if modules else ""
        return (
            f"Its environment `{environment['id']}` is of no package that lrl knows: import what "
            f"registers it first (on the command line: `--modules MODULE`).{also}"
        )
    if modules:
        return (
            f"It names code of its author's, which is not here: {named}. Read that code, install "
            f"it and import it first (on the command line: `--modules {' '.join(modules)}`)."
        )
    extras = [extra for place, extra in _EXTRAS.items() if (entry or "").startswith(place)]
    needed = [f"`pip install 'lrl[{extra}]'`" for extra in extras]
    if (entry or "").startswith(_MUJOCO):
        needed.append("`pip install 'gymnasium[mujoco]'`")
    return "What it names is part of lrl, or of torch, Gymnasium or ale-py, which come with it." + (
        "".join(f" The environment needs an extra: {command}." for command in needed)
    )


def _said_score(score: CardScore | None, stamp: Mapping[str, Any]) -> str:
    if score is None:
        return f"It was not scored. {_protocol(stamp)}"
    return f"Mean return {score.value}: {score.source}. {_protocol(score.stamp)}"


def _protocol(stamp: Mapping[str, Any]) -> str:
    evaluation = stamp["evaluation"]
    return (
        f"Protocol `{stamp['protocol']}`: raw rewards, epsilon {evaluation['epsilon']:g}, at most "
        f"{evaluation['max_frames_per_episode']:,} frames an episode."
    )


def _measured(score: Mapping[str, Any]) -> CardScore:
    found = score["statistics"]
    return CardScore(
        f"{found['mean']:.2f} +/- {found['std']:.2f}",
        f"mean and standard deviation over {score['episodes']} episodes of the seeds "
        f"{score['first_seed']} to {score['last_seed']}, which neither training nor its "
        "evaluations use",
        score["stamp"],
    )
