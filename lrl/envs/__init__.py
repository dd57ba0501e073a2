"""Environments: settings, construction, and the checked vector that actors step.

Importing this package registers the toy environments of `lrl.envs.toy` with Gymnasium. Nothing
here imports torch or Lightning, and ale-py is imported only for Atari.
"""

from lrl.envs.config import EnvConfig, WrapperConfig
from lrl.envs.kind import EnvKind, RenderedEnv
from lrl.envs.make import kind_of, make_envs, make_rendered, make_spec
from lrl.envs.minatar import register_minatar
from lrl.envs.protocols import PROTOCOLS, AtariConfig, Protocol
from lrl.envs.restorable import RestorableEnvs
from lrl.envs.toy import register_toys
from lrl.envs.vector import EnvStep, StreamEnvs
from lrl.envs.wrappers import (
    ChannelsFirst,
    Discretize,
    JointActions,
    KeepEntries,
    LastStep,
    Luminance,
)

__all__ = [
    "PROTOCOLS",
    "AtariConfig",
    "ChannelsFirst",
    "Discretize",
    "EnvConfig",
    "EnvKind",
    "EnvStep",
    "JointActions",
    "KeepEntries",
    "LastStep",
    "Luminance",
    "Protocol",
    "RenderedEnv",
    "RestorableEnvs",
    "StreamEnvs",
    "WrapperConfig",
    "kind_of",
    "make_envs",
    "make_rendered",
    "make_spec",
]

register_toys()
register_minatar()
