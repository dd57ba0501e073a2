"""lrl (Lightning RL): the DQN family with asynchronous actors on PyTorch Lightning."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lrl.actors.config import ActorConfig as ActorConfig
    from lrl.callbacks import ActorLearnerCallback as ActorLearnerCallback
    from lrl.callbacks import RLProgressBar as RLProgressBar
    from lrl.cluster.config import ClusterConfig as ClusterConfig
    from lrl.deploy.policy import load_policy as load_policy
    from lrl.envs import AtariConfig as AtariConfig
    from lrl.envs import EnvConfig as EnvConfig
    from lrl.evaluation.episodes import EvaluationConfig as EvaluationConfig
    from lrl.inference.config import InferenceConfig as InferenceConfig
    from lrl.learner import DQN as DQN
    from lrl.learner import ReplayDataModule as ReplayDataModule
    from lrl.learner import ReplayDataset as ReplayDataset
    from lrl.replay import RateLimiterConfig as RateLimiterConfig
    from lrl.replay import ReplayConfig as ReplayConfig
    from lrl.replay import SequenceConfig as SequenceConfig
    from lrl.types import ConfigError as ConfigError

__version__ = "0.1.0"

# Resolved on first use (PEP 562): actors import lrl, and must not import Lightning with it.
_HOMES = {
    "ActorConfig": "lrl.actors.config",
    "ActorLearnerCallback": "lrl.callbacks",
    "AtariConfig": "lrl.envs",
    "ClusterConfig": "lrl.cluster.config",
    "ConfigError": "lrl.types",
    "DQN": "lrl.learner",
    "EnvConfig": "lrl.envs",
    "EvaluationConfig": "lrl.evaluation.episodes",
    "InferenceConfig": "lrl.inference.config",
    "RLProgressBar": "lrl.callbacks",
    "RateLimiterConfig": "lrl.replay",
    "ReplayConfig": "lrl.replay",
    "ReplayDataModule": "lrl.learner",
    "ReplayDataset": "lrl.learner",
    "SequenceConfig": "lrl.replay",
    "load_policy": "lrl.deploy.policy",
}
__all__ = [
    "DQN",
    "ActorConfig",
    "ActorLearnerCallback",
    "AtariConfig",
    "ClusterConfig",
    "ConfigError",
    "EnvConfig",
    "EvaluationConfig",
    "InferenceConfig",
    "RLProgressBar",
    "RateLimiterConfig",
    "ReplayConfig",
    "ReplayDataModule",
    "ReplayDataset",
    "SequenceConfig",
    "__version__",
    "load_policy",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home, or a room of the package: `lrl.networks`."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name.startswith("_") or importlib.util.find_spec(f"lrl.{name}") is None:
        raise AttributeError(f"module 'lrl' has no attribute {name!r}")
    return importlib.import_module(f"lrl.{name}")


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
