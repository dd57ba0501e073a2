"""Minari datasets on this machine: reading and writing whole episodes (extra `minari`).

Minari's own functions do all that is about files; MINARI_DATASETS_PATH says where they lie.
"""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from lrl.deploy.played_env import action_space, observation_space
from lrl.envs.gym import spec_from_spaces
from lrl.envs.spaces import Choices, ObservationLeaves
from lrl.offline.episodes import RecordedEpisode, described, stacked
from lrl.types import ConfigError, EnvSpec, first_line, map_leaves, whole_of


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
        ConfigError: There is no such dataset, it is empty or damaged, or it has other spaces.
    """

    def __init__(self, dataset_id: str, spec: EnvSpec) -> None:
        self._spec, self._whose = spec, f"dataset {dataset_id!r}"
        try:
            self._dataset = _load(dataset_id)
        except (AssertionError, ImportError, KeyError, OSError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{self._whose} cannot be read: {first_line(error)} (minari list local shows what "
                "is here, minari download fetches one)"
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
        """Read all episodes; see `since`."""
        return self.since(0)

    def since(self, number: int) -> Iterator[RecordedEpisode]:
        """Read one episode after the other, from one on.

        Args:
            number: Of the first one, from 0.

        Raises:
            ConfigError: One is not what the dataset says.
        """
        try:
            for episode in self._dataset.iterate_episodes(range(number, self.episodes)):
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
        try:
            found = spec_from_spaces(space, self._dataset.action_space, self._whose)
        except ConfigError as error:
            raise ConfigError(
                f"{str(error).rstrip('.')}. A dataset stays as it was recorded: take one that was "
                "recorded with that wrapper"
            ) from error
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


def _load(dataset_id: str) -> Any:
    minari, place = import_minari(), _place_of(dataset_id) / "data"
    storage = import_module("minari.dataset.minari_storage").MinariStorage
    metadata = storage.read_raw_metadata(place)
    for name in ("observation_space", "action_space"):
        if not isinstance(metadata.get(name), str):  # Minari would make what env_spec names
            raise ValueError(
                f"its metadata.json has no {name}, and lrl makes no environment to find it out"
            )
    return minari.load_dataset(dataset_id)


def write_dataset(
    dataset_id: str,
    spec: EnvSpec,
    episodes: Iterable[RecordedEpisode],
    env: str | None,
    algorithm: str,
    description: str,
) -> tuple[int, int]:
    """Write episodes as a new dataset, one at a time; what fails leaves none behind.

    Args:
        dataset_id: Its name, `group/name-v0`.
        spec: The environment.
        episodes: What was experienced.
        env: Gymnasium's specification of the environment, as JSON, where it alone can make it.
        algorithm: What acted.
        description: What else there is to say.

    Returns:
        The number of episodes and of steps.

    Raises:
        ConfigError: The name is taken or cannot be one, there are no episodes, or nothing can be
            written there.
    """
    minari = import_minari()
    for name in spec.observation:
        if "/" in name:
            raise ConfigError(
                f"the observation has a leaf {name!r}, but the files of a dataset take no '/' in a "
                "name: rename it with a wrapper (env.wrappers)"
            )
    with _removed_if_it_fails(dataset_id, check_new(dataset_id)):
        with warnings.catch_warnings():  # of authors and links, which are not ours to name
            warnings.simplefilter("ignore", UserWarning)
            dataset = minari.create_dataset_from_buffers(
                dataset_id,
                (_buffer(minari, episode) for episode in episodes),
                observation_space=observation_space(spec.observation),
                action_space=action_space(spec.action),
                algorithm_name=algorithm,
                description=description,
                jpeg_encoding=False,  # frames are the same when they are read again
            )
        if not dataset.total_steps:
            raise ConfigError(
                f"dataset_id {dataset_id!r} would be empty: there is no step whose observation "
                "after it is stored"
            )
        if env is not None:  # given to Minari, it would make the environment
            dataset.storage.update_metadata({"env_spec": env})
    return int(dataset.total_episodes), int(dataset.total_steps)


@contextlib.contextmanager
def _removed_if_it_fails(dataset_id: str, place: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(error, OSError):
            raise ConfigError(f"dataset_id {dataset_id!r} cannot be written: {error}") from error
        raise


def check_new(dataset_id: str) -> Path:
    """Return where a new dataset will lie.

    Raises:
        ConfigError: There is one of that name, it is no name of a dataset, or the folder of all
            cannot be made or read.
    """
    import_minari()
    try:
        place = _place_of(dataset_id)
        is_there = place.exists()
    except OSError as error:
        raise ConfigError(f"dataset_id {dataset_id!r} cannot be written: {error}") from error
    if is_there:
        raise ConfigError(
            f"dataset_id {dataset_id!r} exists in {place}: give another name or version, or "
            f"remove it (minari delete {dataset_id})"
        )
    return place


def _place_of(dataset_id: str) -> Path:
    """Return the folder of a dataset; no name leads out of that of all."""
    parse = import_module("minari.dataset.minari_dataset").parse_dataset_id
    try:
        parse(dataset_id)
    except (ValueError, TypeError) as error:  # TypeError: without a version
        raise ConfigError(
            f"dataset_id is {dataset_id!r}, but must be a name of Minari's such as cartpole/own-v0"
        ) from error
    return import_module("minari.storage.datasets_root_dir").get_dataset_path(dataset_id)


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
