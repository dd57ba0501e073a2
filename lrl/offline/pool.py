"""Rows of a Minari dataset in the place of actors: learning offline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from lrl.envs import EnvConfig
from lrl.learner.actor_pools import ActorPool, Delivery, Episode
from lrl.networks import QNetwork
from lrl.offline.episodes import RecordedEpisode, num_rows, rows_of
from lrl.offline.minari_files import MinariEpisodes, import_minari
from lrl.types import ConfigError, EnvSpec

_log = logging.getLogger(__name__)
_LONGEST_SECONDS = 0.5  # without a look at signals


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
        self._is_done = False

    @override
    def prepare(self, env: EnvConfig, spec: EnvSpec) -> tuple[int, int]:
        if spec.memory:
            raise ConfigError(
                f"dataset {self.dataset!r} does not hold what an agent remembers: leave model.core "
                "and replay.sequences out"
            )
        self._spec, self._clip = spec, env.reward_clip
        self._found = found = MinariEpisodes(self.dataset, spec)
        if found.env_id not in (None, env.id):
            _log.warning(
                "dataset %r was recorded in %s, and its agent is evaluated in data.env %s",
                self.dataset, found.env_id, env.id,
            )  # fmt: skip
        return num_rows(found.episodes, found.env_steps, spec), found.env_steps

    def start(self, network: QNetwork, run_env_steps: int) -> None:
        """Begin with the first episode."""
        self._episodes = iter(self._found)
        self._env_steps = 0

    def poll(self, timeout: float) -> Iterator[Delivery]:
        """Yield episodes for half a second, or until there are no more."""
        until = time.monotonic() + _LONGEST_SECONDS
        while not self._is_done and time.monotonic() < until:
            episode = next(self._episodes, None)
            if episode is None:
                self._is_done = True
                self._check_whole()
            elif len(episode):
                yield self._delivery(episode)

    def close(self, take: Callable[[Delivery], object]) -> None:
        """Do nothing: no process reads."""

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"is_done": self._is_done}  # it goes with the rows alone

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._is_done = bool(state.get("is_done"))

    def _delivery(self, episode: RecordedEpisode) -> Delivery:
        self._env_steps += len(episode)
        raw = float(episode.reward.sum())
        if self._clip is not None:
            episode = episode._replace(reward=episode.reward.clip(-self._clip, self._clip))
        try:
            rows = rows_of(episode, self._spec)
        except ValueError as error:
            raise ConfigError(f"dataset {self.dataset!r}: {error}") from error
        return Delivery([rows], [Episode(raw, len(episode), float("nan"))])

    def _check_whole(self) -> None:
        if self._env_steps != self._found.env_steps:
            raise ConfigError(
                f"dataset {self.dataset!r} has {self._env_steps} steps, but says that it has "
                f"{self._found.env_steps}: it is damaged"
            )
