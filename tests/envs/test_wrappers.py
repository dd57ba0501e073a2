import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from lrl.envs import (
    ChannelsFirst,
    EnvConfig,
    KeepEntries,
    LastStep,
    Luminance,
    WrapperConfig,
    make_envs,
    make_spec,
)
from lrl.types import Column, ConfigError, EnvSpec


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
    assert make_spec(config) == EnvSpec.box((4, 5), "uint8", 3)
    plain = make_envs(EnvConfig("lrl/Ledger-v0"), 1, training=True)
    wrapped = make_envs(config, 1, training=True)
    np.testing.assert_array_equal(wrapped.reset([5])[0], plain.reset([5])[0].T)
    first = wrapped.step([1]).observation
    np.testing.assert_array_equal(first[0], plain.step([1]).observation[0].T)


def test_entries_are_kept_and_the_others_hidden():
    wrapper = WrapperConfig("lrl.envs.KeepEntries", {"entries": [0, 2]})
    config = EnvConfig("CartPole-v1", wrappers=[wrapper])
    assert make_spec(config) == EnvSpec.box((2,), "float32", 2)
    hidden, whole = (make_envs(c, 1, training=True) for c in (config, EnvConfig("CartPole-v1")))
    np.testing.assert_array_equal(hidden.reset([5])[0], whole.reset([5])[0][[0, 2]])
    env = KeepEntries(Board(Box(np.arange(3.0), np.arange(3.0) + 9, dtype=np.float64)), [2, 0])
    assert env.observation_space == Box(
        np.array([2.0, 0.0]), np.array([11.0, 9.0]), dtype=np.float64
    )


@pytest.mark.parametrize(
    ("space", "entries", "message"),
    [
        (Discrete(3), [0], "needs Box observations of one axis"),
        (Box(0, 1, (2, 2)), [0], "needs Box observations of one axis"),
        (Box(0, 1, (2,)), [2], "entries is .2., but observations have the entries 0 to 1"),
        (Box(0, 1, (2,)), [0.0], "entries is .0.0., but"),
        (Box(0, 1, (2,)), [True], "entries is .True., but"),
        (Box(0, 1, (2,)), [-1], "entries is .-1., but"),
        (Box(0, 1, (2,)), [], "entries is .., but"),
    ],
)
def test_entries_that_do_not_exist_are_refused(space, entries, message):
    with pytest.raises(ConfigError, match=rf"env\.wrappers: KeepEntries.*{message}"):
        KeepEntries(Board(space), entries)


def test_the_last_step_is_shown_with_what_came_of_it():
    config = EnvConfig("lrl/Chain-v0", wrappers=[WrapperConfig("lrl.envs.LastStep")])
    assert make_spec(config).observation == {
        "action": Column("int8", categories=(3,)),
        "observation": Column("float32", (6,)),
        "reward": Column("float32", (1,)),
    }
    envs, plain = (make_envs(c, 1, training=True) for c in (config, EnvConfig("lrl/Chain-v0")))
    first = envs.reset([5])
    np.testing.assert_array_equal(first["observation"], plain.reset([5]))
    assert (first["action"].tolist(), first["reward"].tolist()) == ([0], [[0.0]])
    for action in (1, 0):
        seen = envs.step([action]).observation
        np.testing.assert_array_equal(seen["observation"], plain.step([action]).observation)
        assert seen["action"].tolist() == [action + 1]
        assert seen["reward"].tolist() == [[np.float32(-0.1)]]


def test_the_last_step_needs_numbered_actions():
    with pytest.raises(ConfigError, match=r"env\.wrappers: LastStep needs Discrete actions"):
        LastStep(gymnasium.make("lrl/Dials-v0"))


class Flag(gymnasium.Env):
    """Four stripes of pure colour: red, green, blue, white."""

    def __init__(self):
        self.observation_space = Box(0, 255, (2, 4, 3), np.uint8)
        self.action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], np.uint8)
        return np.stack([colours, colours]), {}


@pytest.mark.parametrize(
    ("wrapper", "stripes"),
    [
        ("lrl.envs.Luminance", [76, 150, 29, 255]),  # 76.2, 149.7, 29.1
        ("gymnasium.wrappers.GrayscaleObservation", [54, 182, 18, 255]),  # other weights, cut off
    ],
)
def test_grey_of_pure_colours_from_the_settings(wrapper, stripes):
    gymnasium.register("Flag-v0", lambda **kwargs: Flag())
    try:
        config = EnvConfig("Flag-v0", wrappers=[WrapperConfig(wrapper)], frame_stack=2)
        envs = make_envs(config, 1, training=True)
        assert envs.spec == EnvSpec.box((2, 2, 4), "uint8", 2, frame_stack=2)
        assert envs.reset([0]).tolist() == [[[stripes, stripes]] * 2]
    finally:
        del gymnasium.registry["Flag-v0"]


@pytest.mark.parametrize(
    "space", [Discrete(3), Box(0, 255, (4, 4), np.uint8), Box(0.0, 1.0, (4, 4, 3), np.float32)]
)
def test_observations_without_colours_are_refused(space):
    with pytest.raises(ConfigError, match=r"env\.wrappers: Luminance needs uint8 Box .* 3 colours"):
        Luminance(Board(space))
