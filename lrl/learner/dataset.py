"""The dataset: drains the actors into the experience and yields batches, endlessly."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from lrl.checkpoints.generators import generator_states, load_generator_states
from lrl.learner.statistics import RolloutStatistics
from lrl.pools.pool import ActorPool, Delivery
from lrl.replay import Experience, RateLimiter, Replay, StoredExperience
from lrl.types import AnyBatch, ConfigError, Rows

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 0.5
_PAUSE_SECONDS = 0.01
_SILENCE_SECONDS = 60.0
_INCARNATIONS = 1000  # of an actor in one session: a checkpoint knows the restarts of rank 0 alone
_ONE_PROCESS = (
    "ReplayDataset drains its actors in the learner process: use it directly as the "
    "dataloader, which also saves where it is (a DataLoader around it does not)"
)


class ReplayDataset(IterableDataset[AnyBatch | tuple[AnyBatch, ...]]):
    """An endless stream of batches; the Trainer's train dataloader.

    Runs in the learner process. Actors start at the first `__next__`, because only then has
    Lightning restored everything they must know. `__iter__` is called every epoch and returns the
    same stream. Waiting never lasts more than half a second without a look at the actors' health
    and at signals.

    Args:
        experience: Takes the pool's rows, gives the batches.
        limiter: Holds the ratio of learning to acting.
        start_pool: Builds the actor pool and starts it, at the first batch.
        check: Called while waiting and before each draw; raises when the run should stop, or
            returns whether it should once all ranks know.
        meet: Called when a training step has what its first batch needs, or should stop; the ranks
            meet there, and it raises in all of them if one should.
        rank: Learner process it belongs to; a checkpoint holds the state of rank 0.
        num_ranks: Learner processes, each of which counts its own environment steps.
        learner_steps: Returns the learner steps so far, by which experience is annealed and
            policy lag is measured.
        updates_per_step: Batches of one training step; more than one come as a tuple.
        check_rows: Called with all rows before they are taken; raises if one is wrong.

    Attributes:
        saved_replay: Name of the replay that is saved beside the checkpoint being written, if one
            is; the checkpoint holds it.
        replay_to_restore: What the checkpoint that was loaded said.
        is_closed: Whether actors have been stopped for good.
    """

    def __init__(
        self,
        experience: Experience,
        limiter: RateLimiter,
        start_pool: Callable[[ReplayDataset], ActorPool],
        check: Callable[[], object] = lambda: None,
        rank: int = 0,
        learner_steps: Callable[[], int] = lambda: 0,
        updates_per_step: int = 1,
        check_rows: Callable[[Rows], object] | None = None,
        meet: Callable[[], object] = lambda: None,
        num_ranks: int = 1,
    ) -> None:
        self.experience = experience
        self.limiter = limiter
        self.batches = 0
        self.env_steps_offset = 0
        self.episodes_offset = 0
        self.first_incarnation = 0
        self.wait_seconds = 0.0
        self.sample_seconds = 0.0
        self.pool: ActorPool | None = None
        self.rollout = RolloutStatistics()
        self.rows_received = 0
        self.learner_steps = learner_steps
        self._start_pool = start_pool
        self._check, self._meet = check, meet
        self._rank, self._num_ranks = rank, num_ranks
        self._updates_per_step = updates_per_step
        self._check_rows = check_rows
        self.is_closed = False
        self.saved_replay = ""
        self.replay_to_restore = ""
        self._pool_state: dict[str, Any] = {}
        self._pool_name: str | None = None
        self._generators: dict[str, Any] | None = None  # until the pool has started

    def goes_on(self, pool: type[ActorPool]) -> bool:
        """Return whether such a pool goes on where one was when the rows were saved.

        An actor does within its episodes, a finite pool behind its rows. The state is of the class
        that wrote it alone; replays that were saved before classes were do not say which it was.
        """
        return bool(self._pool_state) and self._pool_name in (None, pool.__name__)

    @property
    def env_steps(self) -> int:
        """Environment steps that came in over the whole run, earlier sessions included."""
        return self.experience.env_steps

    @property
    def replay(self) -> Replay:
        """The replay, where that is the experience."""
        if not isinstance(self.experience, Replay):
            raise ConfigError(
                f"data.experience is {type(self.experience).__name__}, which is no replay: leave "
                "out what needs one"
            )
        return self.experience

    @property
    def stored(self) -> StoredExperience:
        """The experience, where its rows can be saved with a checkpoint."""
        if not isinstance(self.experience, StoredExperience):
            raise ConfigError(
                f"data.experience is {type(self.experience).__name__}, whose rows cannot be saved: "
                "set actor_learner.checkpoint_replay to false"
            )
        return self.experience

    @property
    def episodes(self) -> int:
        """Episodes finished over the whole run."""
        return self.episodes_offset + self.rollout.episodes

    def __iter__(self) -> Iterator[AnyBatch | tuple[AnyBatch, ...]]:
        """Return the one continuing stream.

        Raises:
            ConfigError: It is iterated in a DataLoader's worker process.
        """
        if get_worker_info() is not None:
            raise ConfigError(_ONE_PROCESS)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to go to another process, as to a worker that a DataLoader spawns.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(_ONE_PROCESS)

    def __next__(self) -> AnyBatch | tuple[AnyBatch, ...]:
        """Return what one training step learns from."""
        self._get_ready(may_stop=True)
        self._meet()
        if self._updates_per_step == 1:
            return self._draw(1)[0]
        batches = list(self._draw(self._most(self._updates_per_step)))
        while missing := self._updates_per_step - len(batches):
            self._get_ready()
            batches += self._draw(self._most(missing))
        return tuple(batches)

    def _get_ready(self, may_stop: bool = False) -> None:
        """Take rows in until a batch can be drawn, or this rank should stop."""
        if self._check() and may_stop:  # before actors are started for a run that is over
            return
        try:
            pool = self.start()
            self._take_waiting(pool)
            # Before waiting, since it may take rows out.
            self.experience.anneal(self.learner_steps())
            if not self._can_sample():
                self._wait(pool, may_stop)
        except RuntimeError:
            # A signal to the whole process group ends actors and their helpers, too.
            if not (self._check() and may_stop):
                raise

    def _most(self, missing: int) -> int:
        return missing if self.experience.draws_independently else 1

    def _draw(self, most: int) -> Sequence[AnyBatch]:
        """Return as many batches as are earned, at least one: drawn together they cost less."""
        started = time.perf_counter()
        earned = self.limiter.batches_earned() if most > 1 else 1
        count = most if earned is None else min(most, earned)
        batches = self.experience.draw(count)
        self.limiter.record_sample(len(batches) * self.experience.samples_per_batch)
        self.batches += len(batches)
        self.sample_seconds += time.perf_counter() - started
        return batches

    def start(self) -> ActorPool:
        """Start the actors, once; returns their pool."""
        if self.is_closed:
            raise RuntimeError("the dataset is closed; build a new datamodule to train again")
        if self.pool is None:
            self.pool = self._start_pool(self)
            if self.goes_on(type(self.pool)):
                self.pool.load_state_dict(self._pool_state)
            if self._generators is not None:  # at last, since all before may have drawn from them
                load_generator_states(self._generators)
                self._generators = None
        return self.pool

    def close(self) -> None:
        """Stop the actors, whose last rows are kept; idempotent."""
        self.is_closed = True
        if self.pool is not None:
            try:
                self.pool.close(self._take)
            except Exception:  # what else has to be given back would not be
                _log.exception("closing %s failed", type(self.pool).__name__)

    def _take(self, delivery: Delivery) -> None:
        before = self.env_steps
        for rows in delivery.rows:
            if self._check_rows is not None:
                self._check_rows(rows)
            self.experience.add(rows)
            self.rows_received += len(rows)
            self.rollout.add_lag(rows, self.learner_steps())
        for episode in delivery.episodes:
            self.rollout.add_episode(*episode)
        if not self.is_closed:  # the last rows of a run, which nothing is learnt from
            self.limiter.record_insert(self.env_steps - before)

    def _take_waiting(self, pool: ActorPool) -> None:
        """Take what has arrived, as far as the rate limiter lets it."""
        pool.check()
        if self._may_insert():
            for delivery in pool.poll(0.0):
                self._take(delivery)
                if not self._may_insert():
                    break

    def _may_insert(self) -> bool:
        # A limiter that is satisfied with too few rows for one complete window must not starve it.
        can_insert = self.limiter.can_insert() and self.experience.has_room()
        return can_insert or not self.experience.can_draw()

    def _can_sample(self) -> bool:
        return (
            self.limiter.can_sample()
            and self.limiter.seconds_until_next_step() <= 0
            and self.experience.can_draw()
        )

    def _wait(self, pool: ActorPool, may_stop: bool) -> None:
        started = time.perf_counter()
        last, known, is_told = started, self.env_steps, False
        while not self._can_sample():
            if self._check() and may_stop:
                break
            if self.env_steps != known:
                last, known, is_told = time.perf_counter(), self.env_steps, False
            silence = time.perf_counter() - last
            if silence > _SILENCE_SECONDS and not is_told:
                is_told = True
                name = type(pool).__name__
                _log.warning("no environment step has come from %s for %.0f s", name, silence)
            pause = self.limiter.seconds_until_next_step()
            if pause > 0:
                time.sleep(min(pause, _WAIT_SECONDS))
                self._take_waiting(pool)
                last = time.perf_counter()  # nobody was asked for steps
                continue
            pool.check()
            asked, taken = time.perf_counter(), False
            for delivery in pool.poll(_WAIT_SECONDS):
                taken = True
                self._take(delivery)
                if self._can_sample():
                    break
            if not taken:
                self._check_drawable(pool)
            if not taken and time.perf_counter() - asked < _PAUSE_SECONDS:
                time.sleep(_PAUSE_SECONDS)  # the pool did not wait itself
        self.wait_seconds += time.perf_counter() - started

    def _check_drawable(self, pool: ActorPool) -> None:
        """Check that something can be drawn once a finite pool has brought all."""
        if pool.is_finite and self.limiter.can_sample() and not self.experience.can_draw():
            raise ConfigError(
                f"data.pool {type(pool).__name__} has brought all of its {self.env_steps} steps, "
                "but nothing can be learnt from them: its episodes are shorter than replay.n_step "
                "or replay.sequences need, and do not say that they end; lower those"
            )

    def count_afresh(self) -> None:
        """Forget the steps and episodes of earlier sessions, whose rows will come again."""
        self.experience.env_steps = self.env_steps_offset = self.episodes_offset = 0

    def state(self, with_rows: bool) -> dict[str, Any]:
        """Return counters and generators of this rank, as plain types, tensors and arrays.

        Args:
            with_rows: Whether it goes with this rank's saved rows, with all that learning and
                acting go on from; else it goes into a checkpoint, which every rank reads.
        """
        restarts = self.pool.counts().restarts if self.pool else 0
        state = {
            "episodes": self.episodes,
            "next_incarnation": self.first_incarnation + max(restarts + 1, _INCARNATIONS),
            "replay": self.experience.state(with_rows),
            "generators": self._generators or generator_states(),
        }
        if not with_rows:
            return {**state, "saved_replay": self.saved_replay, "ranks": self._num_ranks}
        pool, name = self._pool_state, self._pool_name
        if self.pool:
            pool, name = self.pool.state_dict(), type(self.pool).__name__
        source = {**self.rollout.state_dict(), "actor": pool, "pool": name}
        return {**state, "limiter": self.limiter.state_dict(), "source": source}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`, before the first batch.

        After one without rows the rate limiter starts afresh: the buffer is filled to its minimum
        again and no burst of updates follows. Counts are shared out among as many ranks as there
        are now.
        """
        share = state.get("ranks", self._num_ranks) / self._num_ranks
        self.episodes_offset = round(state["episodes"] * share)
        self.first_incarnation = state["next_incarnation"]  # seeds that no actor used before
        if "limiter" in state:
            self.limiter.load_state_dict(state["limiter"])
            self.rollout.load_state_dict(state["source"])
            self._pool_state = state["source"].get("actor", {})
            self._pool_name = state["source"].get("pool")
            self._generators = state["generators"]
        else:
            self.replay_to_restore = state.get("saved_replay", "")
            self._generators = state.get("generators") if self._rank == 0 else None
        self.experience.restore(state["replay"])
        self.experience.env_steps = round(self.experience.env_steps * share)
        self.env_steps_offset = self.env_steps

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning puts into a checkpoint."""
        return self.state(with_rows=False)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.restore(state)
