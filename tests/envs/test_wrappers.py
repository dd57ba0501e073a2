import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from lrl.envs import ChannelsFirst, EnvConfig, WrapperConfig, make_envs, make_spec
from lrl.types import ConfigError, EnvSpec


class Board(gymnasium.Env):
    """Observations of the given space, all different."""

    def __init__(self, space):
        self.observation_space = space
        self.dtype = space.dtype
        self.action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        shape = self.observation_space.shape or ()
        return (np.arange(np.prod(shape)) % 7).reshape(shape).astype(self.dtype), {}


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(10, 9, 4), (3, 2), (2, 3, 4, 5)])
def test_channels_move_to_the_front(dtype, shape):
    low, high = np.zeros(shape, dtype), np.ones(shape, dtype)
    high[..., 0] = 0  # bounds differ between channels
    env = ChannelsFirst(Board(Box(low, high, dtype=dtype)))
    space = env.observation_space
    assert isinstance(space, Box)
    assert (space.shape, space.dtype) == ((shape[-1], *shape[:-1]), dtype)
    assert not space.high[0].any()
    assert space.high[1:].all()
    observation, _ = env.reset()
    plain, _ = env.unwrapped.reset()
    assert observation.dtype == dtype
    for channel in range(shape[-1]):
        np.testing.assert_array_equal(observation[channel], plain[..., channel])


@pytest.mark.parametrize("space", [Discrete(3), Box(0, 1, (4,)), Box(0, 1, ())])
def test_observations_without_channels_are_refused(space):
    with pytest.raises(ConfigError, match=r"env\.wrappers: ChannelsFirst needs Box observations"):
        ChannelsFirst(Board(space))


def test_it_works_from_the_settings():
    config = EnvConfig("lrl/Ledger-v0", wrappers=[WrapperConfig("lrl.envs.ChannelsFirst")])
    assert make_spec(config) == EnvSpec((4, 3), "uint8", 3)
    plain = make_envs(EnvConfig("lrl/Ledger-v0"), 1, training=True)
    wrapped = make_envs(config, 1, training=True)
    np.testing.assert_array_equal(wrapped.reset([5])[0], plain.reset([5])[0].T)
    first = wrapped.step([1]).observation
    np.testing.assert_array_equal(first[0], plain.step([1]).observation[0].T)
