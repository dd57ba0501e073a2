"""Rows of a Minari dataset in the place of actors: learning offline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from lrl.envs import EnvConfig
from lrl.networks import QNetwork
from lrl.offline.episodes import RecordedEpisode, num_rows, rows_of
from lrl.offline.minari_files import MinariEpisodes, import_minari
from lrl.pools.pool import ActorPool, Delivery, Episode
from lrl.types import ConfigError, EnvSpec

_log = logging.getLogger(__name__)


class MinariPool(ActorPool):
    """Brings the episodes of a Minari dataset into the replay, once; nobody acts.

    Learning begins when all of them are there. Everything else is as with actors: n-step returns,
    samplers, heads, evaluation in `data.env`, resume. With several ranks each of them reads the
    whole dataset and draws batches of its own from it.

    Args:
        dataset: Name of a dataset of this machine, such as cartpole/own-v0.

    Raises:
        ConfigError: No dataset is named, or the extra `minari` is not installed.
    """

    num_streams = 1
    is_finite = True

    def __init__(self, dataset: str) -> None:
        import_minari()
        if not dataset:
            raise ConfigError("data.pool.init_args.dataset is empty: name a dataset of Minari's")
        self.dataset = dataset

    @override
    def prepare(self, env: EnvConfig, spec: EnvSpec) -> tuple[int, int]:
        if spec.memory:
            raise ConfigError(
                f"dataset {self.dataset!r} does not hold what an agent remembers: leave model.core "
                "and replay.sequences out"
            )
        self._spec, self._clip = spec, env.reward_clip
        self._found = found = MinariEpisodes(self.dataset, spec)
        if found.env_id not in (None, env.id.rpartition(":")[2]):
            _log.warning(
                "dataset %r was recorded in %s, and its agent is evaluated in data.env %s",
                self.dataset, found.env_id, env.id,
            )  # fmt: skip
        return num_rows(found.episodes, found.env_steps, spec), found.env_steps

    def start(self, network: QNetwork, run_env_steps: int) -> None:
        """Begin with the first episode."""
        self._begin_behind(0, 0)

    def _begin_behind(self, episodes: int, env_steps: int) -> None:
        self._episodes = self._found.since(episodes)
        self._episodes_read, self._env_steps_read = episodes, env_steps

    def poll(self, timeout: float) -> Iterator[Delivery]:
        """Yield episodes for so many seconds, or until there are no more."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            episode = next(self._episodes, None)
            if episode is None:
                self._check_whole()
                return
            self._episodes_read += 1
            if len(episode):
                yield self._delivery(episode)

    def close(self, take: Callable[[Delivery], object]) -> None:
        """Do nothing: no process reads."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            **self._identity(),
            "episodes_read": self._episodes_read,
            "env_steps_read": self._env_steps_read,
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self._identity()
        saved = {name: state[name] for name in own}
        if saved != own:
            raise ConfigError(
                f"data.pool.init_args.dataset is {own}, but the saved replay holds rows of "
                f"{saved}: give that dataset, or begin a new run"
            )
        self._begin_behind(state["episodes_read"], state["env_steps_read"])

    def _identity(self) -> dict[str, Any]:
        found = self._found
        return {"name": self.dataset, "episodes": found.episodes, "env_steps": found.env_steps}

    def _delivery(self, episode: RecordedEpisode) -> Delivery:
        self._env_steps_read += len(episode)
        if self._env_steps_read >= self._found.env_steps:  # learning begins: nobody asks again
            self._env_steps_read += sum(map(len, self._episodes))
            self._check_whole()
        raw = float(episode.reward.sum())
        if self._clip is not None:
            episode = episode._replace(reward=episode.reward.clip(-self._clip, self._clip))
        try:
            rows = rows_of(episode, self._spec)
        except ValueError as error:
            raise ConfigError(f"dataset {self.dataset!r}: {error}") from error
        return Delivery([rows], [Episode(raw, len(episode), float("nan"))])

    def _check_whole(self) -> None:
        if self._env_steps_read != self._found.env_steps:
            raise ConfigError(
                f"dataset {self.dataset!r} has {self._env_steps_read} steps, but says that it has "
                f"{self._found.env_steps}: it is damaged"
            )
