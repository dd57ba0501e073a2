"""Environments: settings, construction, and the checked vector that actors step.

Importing this package registers the toy environments of `lrl.envs.toy` with Gymnasium. Nothing
here imports torch or Lightning, and ale-py is imported only for Atari.
"""

from lrl.envs.config import AtariConfig, EnvConfig, WrapperConfig
from lrl.envs.make import make_envs, make_spec
from lrl.envs.minatar import register_minatar
from lrl.envs.toy import register_toys
from lrl.envs.vector import EnvStep, StreamEnvs
from lrl.envs.wrappers import ChannelsFirst

__all__ = [
    "AtariConfig",
    "ChannelsFirst",
    "EnvConfig",
    "EnvStep",
    "StreamEnvs",
    "WrapperConfig",
    "make_envs",
    "make_spec",
]

register_toys()
register_minatar()
