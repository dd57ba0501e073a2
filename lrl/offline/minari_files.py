"""Minari datasets on this machine: reading and writing whole episodes (extra `minari`).

Minari's own functions do all that is about files; MINARI_DATASETS_PATH says where they lie.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec as Registered
from gymnasium.spaces import Space

from lrl.deploy.played_env import action_space, observation_space
from lrl.envs.gym import spec_from_spaces
from lrl.envs.spaces import Choices, ObservationLeaves
from lrl.offline.episodes import RecordedEpisode, described, stacked
from lrl.types import ConfigError, EnvSpec, map_leaves, whole_of


def import_minari() -> Any:
    """Return the package.

    Raises:
        ConfigError: It is not installed, or h5py is not, which its files need.
    """
    try:
        import_module("h5py")
        return import_module("minari")
    except ImportError as error:
        raise ConfigError("Minari datasets need an extra: pip install 'lrl[minari]'") from error


class MinariEpisodes:
    """The episodes of a dataset of this machine, for an environment of lrl's.

    Args:
        dataset_id: Its name.
        spec: The environment.

    Raises:
        ConfigError: There is no such dataset, it is empty, or it has other spaces.
    """

    def __init__(self, dataset_id: str, spec: EnvSpec) -> None:
        minari = import_minari()
        self._spec, self._whose = spec, f"dataset {dataset_id!r}"
        try:
            self._dataset = minari.load_dataset(dataset_id)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{self._whose} cannot be read: {str(error).splitlines()[0]} (minari list local "
                "shows what is here, minari download fetches one)"
            ) from error
        self.episodes = int(self._dataset.total_episodes)
        self.env_steps = int(self._dataset.total_steps)
        if not self.env_steps:
            raise ConfigError(f"{self._whose} holds no steps")
        space = self._dataset.observation_space
        self._check_spaces(space)
        self._leaves = ObservationLeaves(space, self._whose)
        self._choices = Choices(self._dataset.action_space, self._whose)

    @property
    def env_id(self) -> str | None:
        """Id of the environment that the dataset was recorded in, if it says so."""
        made = self._dataset.env_spec
        return None if made is None else made.id

    def __iter__(self) -> Iterator[RecordedEpisode]:
        """Read one episode after the other.

        Raises:
            ConfigError: One is not what the dataset says.
        """
        number = 0
        try:
            for episode in self._dataset.iterate_episodes():
                yield self._read(episode)
                number += 1
        except (AssertionError, KeyError, OSError, TypeError, ValueError) as error:
            raise ConfigError(f"{self._whose}, episode {number}: {error}") from error

    def _read(self, episode: Any) -> RecordedEpisode:
        steps = len(episode)
        leaves = self._leaves.of(episode.observations, "it")
        observation = {
            name: self._leaves.read(
                name, leaves[name], (steps + 1, *column.stacked_shape), "it"
            ).astype(column.type)
            for name, column in self._leaves.columns.items()
        }
        mask = None
        if self._spec.action.masks:
            mask = np.asarray((episode.infos or {}).get("action_mask", ()), np.bool_)
            if mask.shape != (steps + 1, self._spec.num_actions):
                raise ValueError(
                    "env.action_masks is true, but infos['action_mask'] has the shape "
                    f"{mask.shape} instead of {(steps + 1, self._spec.num_actions)}: set it to "
                    "false"
                )
        return RecordedEpisode(
            whole_of(observation),
            self._choices.chosen(np.asarray(episode.actions)),
            np.asarray(episode.rewards),
            np.asarray(episode.terminations, np.bool_),
            np.asarray(episode.truncations, np.bool_),
            mask,
        )

    def _check_spaces(self, space: Space) -> None:
        found = spec_from_spaces(space, self._dataset.action_space, self._whose)
        here, there = self._spec.observation, found.observation
        alike = {n: stacked(c) for n, c in here.items()} == {
            n: stacked(c) for n, c in there.items()
        }
        recorded = f" (recorded in {self.env_id})" if self.env_id else ""
        if not alike:
            raise ConfigError(
                f"{self._whose}{recorded} has observations of {described(there)}, but data.env "
                f"gives {described(here)}: name the environment that it was recorded in, with its "
                "wrappers and stack of frames"
            )
        if self._spec.action.branches != found.action.branches:
            raise ConfigError(
                f"{self._whose}{recorded} has actions of {list(found.action.branches)} choices, "
                f"but data.env has {list(self._spec.action.branches)}: name the environment that "
                "it was recorded in"
            )


def write_dataset(
    dataset_id: str,
    spec: EnvSpec,
    episodes: Iterable[RecordedEpisode],
    env: Registered | None,
    algorithm: str,
    description: str,
) -> tuple[int, int]:
    """Write episodes as a new dataset, one at a time; what fails leaves none behind.

    Args:
        dataset_id: Its name, `group/name-v0`.
        spec: The environment.
        episodes: What was experienced.
        env: Makes the environment anew, where Gymnasium alone can.
        algorithm: What acted.
        description: What else there is to say.

    Returns:
        The number of episodes and of steps.

    Raises:
        ConfigError: The name is taken or cannot be one, or nothing can be written there.
    """
    minari = import_minari()
    place = check_new(dataset_id)
    try:
        with warnings.catch_warnings():  # of authors and links, which are not ours to name
            warnings.simplefilter("ignore", UserWarning)
            dataset = minari.create_dataset_from_buffers(
                dataset_id,
                (_buffer(minari, episode) for episode in episodes),
                env=env,
                observation_space=observation_space(spec.observation),
                action_space=action_space(spec.action),
                algorithm_name=algorithm,
                description=description,
                jpeg_encoding=False,  # frames are the same when they are read again
            )
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(error, OSError):
            raise ConfigError(f"dataset_id {dataset_id!r} cannot be written: {error}") from error
        raise
    return int(dataset.total_episodes), int(dataset.total_steps)


def check_new(dataset_id: str) -> Any:
    """Return where a new dataset will lie.

    Raises:
        ConfigError: There is one of that name, or it is no name of a dataset.
    """
    import_minari()
    parse = import_module("minari.dataset.minari_dataset").parse_dataset_id
    try:
        version = parse(dataset_id)[2]
    except (ValueError, TypeError) as error:
        raise ConfigError(_no_name(dataset_id)) from error
    if version is None:
        raise ConfigError(_no_name(dataset_id))
    place = import_module("minari.storage.datasets_root_dir").get_dataset_path(dataset_id)
    if place.exists():
        raise ConfigError(
            f"dataset_id {dataset_id!r} exists in {place}: give another name or version, or "
            f"remove it (minari delete {dataset_id})"
        )
    return place


def _no_name(dataset_id: str) -> str:
    return f"dataset_id is {dataset_id!r}, but must be a name of Minari's such as cartpole/own-v0"


def _buffer(minari: Any, episode: RecordedEpisode) -> Any:
    mask = episode.action_mask
    return minari.data_collector.EpisodeBuffer(
        observations=map_leaves(np.asarray, episode.observation),
        actions=episode.action.astype(np.int64),
        rewards=episode.reward,
        terminations=episode.terminated,
        truncations=episode.truncated,
        infos={} if mask is None else {"action_mask": mask},
    )
