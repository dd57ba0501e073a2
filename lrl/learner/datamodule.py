"""The datamodule: builds environment, replay and actors from configuration, and owns them."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import lightning as L
import numpy as np
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lrl.actors.config import ActorConfig
from lrl.actors.exploration import EpsilonGreedy, Exploration
from lrl.actors.slot import ActorSlot
from lrl.checkpoints.stamp import make_stamp, trained_in
from lrl.cluster.config import ClusterConfig
from lrl.envs import EnvConfig, make_spec
from lrl.evaluation.episodes import TEST_SEED, VALIDATION_SEED, EvaluationConfig
from lrl.evaluation.loader import EvaluationLoader
from lrl.inference.config import InferenceConfig
from lrl.learner.dataset import ReplayDataset
from lrl.learner.restoring import restore_replay
from lrl.networks import QNetwork
from lrl.parts.denormals import flush_denormals
from lrl.parts.device_copies import to_device_together
from lrl.parts.devices import of_this_rank
from lrl.parts.quiet import quieten
from lrl.parts.recipe import blamed_on
from lrl.parts.settings import check_count, check_section
from lrl.pools.choice import background_pool, local_pool
from lrl.pools.local import LocalPool
from lrl.pools.plan import ActingPlan
from lrl.pools.pool import ActorPool
from lrl.pools.row_check import RowCheck
from lrl.preflight.callbacks import evaluates_in_background, saves_replay
from lrl.preflight.cores import MOST_THREADS, share_cores
from lrl.preflight.own_parts import check_own_pool, check_replay_unset
from lrl.preflight.ranks import announce_ranks
from lrl.preflight.run import BringsExperience, check_agent, check_evaluation, check_run
from lrl.preflight.settings import check_experience, check_holds, check_offline
from lrl.processes.interrupt import interrupt
from lrl.processes.main_module import check_main_guard, check_parts
from lrl.processes.memory import keep_freed_memory
from lrl.ranks.meeting import Ranks, leave_ranks_at_exit
from lrl.ranks.watch import rank_watch
from lrl.replay import (
    Experience,
    RateLimiter,
    RateLimiterConfig,
    Replay,
    ReplayConfig,
    Sampler,
    TrackingSampler,
)
from lrl.types import AnyBatch, ConfigError, EnvSpec

_log = logging.getLogger(__name__)

_SECTIONS = {
    "env": EnvConfig,
    "actors": ActorConfig,
    "inference": InferenceConfig | None,
    "exploration": Exploration,
    "replay": ReplayConfig,
    "rate": RateLimiterConfig,
    "evaluation": EvaluationConfig,
    "cluster": ClusterConfig | None,
}


class ReplayDataModule(L.LightningDataModule, BringsExperience):
    """Experience for a `DQN`: environments, actors, replay and evaluation episodes.

    Each rank owns its actors and its replay. Processes start at the first training batch and stop
    in `teardown` and `on_exception`.

    Args:
        env: The environment.
        actors: Number of actors, and how failures are met.
        inference: Servers that compute all actors' action values in batches; None lets every actor
            compute its own.
        exploration: How actors explore; None is `EpsilonGreedy()`.
        replay: Size of the replay and how transitions are made.
        rate: Ratio of learning to acting.
        evaluation: Evaluation episodes.
        learner_threads: Threads of torch in the learner; None leaves the actors one core each.
        seed: Seed of actors and of sampling. Network weights follow torch's global generator, and
            so do draws on a device (`replay.index: device`).
        cluster: Actors on the machines of a Ray cluster, beside those of this machine, if there are
            any; None has none.
        pool: Rows of another making, instead of `actors`, `inference` and `exploration`, which are
            then left out (examples/own_pool.py).
        experience: From the environment's specification and the number of streams to what is learnt
            from, instead of `replay`, which is then left out (examples/own_experience.py).

    Attributes:
        threads: Threads of torch that the learner has.
        ranks: What learner ranks ask each other, once a run is set up.
    """

    def __init__(
        self,
        env: EnvConfig = EnvConfig(),  # noqa: B008 (frozen)
        actors: ActorConfig = ActorConfig(),  # noqa: B008
        inference: InferenceConfig | None = None,
        exploration: Exploration | None = None,
        replay: ReplayConfig = ReplayConfig(),  # noqa: B008
        rate: RateLimiterConfig = RateLimiterConfig(),  # noqa: B008
        evaluation: EvaluationConfig = EvaluationConfig(),  # noqa: B008
        learner_threads: int | None = None,
        seed: int = 0,
        cluster: ClusterConfig | None = None,
        pool: ActorPool | None = None,
        experience: Callable[[EnvSpec, int], Experience] | None = None,
    ) -> None:
        super().__init__()
        quieten()  # here, since a Trainer speaks as soon as it is made
        rank_watch.watch_first()  # here, since a Trainer starts ranks before it calls any hook
        self.env = env
        self.pool = pool
        self.has_own_pool, self.has_own_experience = pool is not None, experience is not None
        self.cluster = cluster
        self._make_experience = experience
        self.actors = actors
        self.inference = inference
        self.exploration = EpsilonGreedy() if exploration is None else exploration
        self.replay = replay
        self.rate = rate
        self.evaluation = evaluation
        self.learner_threads = learner_threads
        check_count("data.seed", seed, 0)
        self.seed = int(seed)
        self._check_arguments()
        self.evaluation_env = evaluation.env_for(env)
        self.takes_weights = pool.takes_weights if pool is not None else self.num_actors > 0
        self.dataset: ReplayDataset | None = None
        self.ranks = Ranks()
        self._env_spec: EnvSpec | None = None
        self._undo = contextlib.ExitStack()  # what this run set of torch
        self.threads = torch.get_num_threads()

    def __str__(self) -> str:
        """Return what it brings; Lightning's would draw a batch to say what is in it."""
        return f"{type(self).__name__}({self.env.id})"

    def _check_arguments(self) -> None:
        for name, kind in _SECTIONS.items():
            check_section(f"data.{name}", getattr(self, name), kind)
        threads = self.learner_threads
        if threads is not None:
            check_count("data.learner_threads", threads, 1)
            if threads > MOST_THREADS:
                raise ConfigError(
                    f"data.learner_threads must be at most {MOST_THREADS}, got {threads}"
                )
        if self.pool is not None:
            check_own_pool(self.pool, self.actors, self.inference, self.exploration, self.cluster)
            if self.pool.is_finite:
                name, has_replay = type(self.pool).__name__, not self.has_own_experience
                check_offline(name, self.rate, has_replay)
                self.rate = replace(self.rate, samples_per_insert=None, warm_up_env_steps=1)
        if self.has_own_experience:
            check_replay_unset(self.replay)

    @property
    def env_spec(self) -> EnvSpec:
        """The environment's specification, read from the environment itself.

        Once a run is set up it also says what the agent remembers.
        """
        if self._env_spec is None:
            self._env_spec = make_spec(self.env)
        return self._env_spec

    @property
    def slot(self) -> ActorSlot:
        """The slot of this rank's first actor."""
        trainer = self._trainer()
        return ActorSlot(
            self.seed,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            num_actors=max(1, self.num_actors),
            envs_per_actor=self.actors.envs_per_actor,
            incarnation=self.dataset.first_incarnation if self.dataset else 0,
        )

    def prepare_data(self) -> None:
        """Check that processes can import what they need, and do not start the script again.

        It is the first hook of all: nothing has been written yet.
        """
        is_alone = self.num_processes == 0 and not evaluates_in_background(self._trainer())
        if is_alone or self._trainer().state.fn != "fit":
            return
        check_main_guard()
        settings = getattr(self._trainer().lightning_module, "hparams", {})
        network = settings.get("encoder"), settings.get("core"), settings.get("head")
        check_parts(self.env, self.evaluation_env, self.exploration, *network)
        if (spec := gymnasium.registry.get(self.env.id)) is not None:
            check_parts(spec.entry_point, spec.vector_entry_point)

    def setup(self, stage: str) -> None:
        """Check the configuration as a whole and build what is learnt from; starts no process."""
        check_agent(self._trainer().lightning_module, self.env_spec)
        check_evaluation(self._trainer(), self)
        if stage != "fit":
            return
        if self.dataset is not None and self.dataset.is_closed:
            raise ConfigError(
                "this datamodule has trained before, and its actors and environments are closed: "
                "build a new datamodule to train again"
            )
        self.ranks = Ranks(self._trainer().world_size)
        rank_watch.watch_first()  # again, as a validation before stopped it
        rank_watch.watch_started(self._trainer())
        module: Any = self._trainer().lightning_module
        if hasattr(module, "with_memory"):  # rows, chunks and requests hold what it remembers
            self._env_spec = module.with_memory(self.env_spec)
        with blamed_on("replay.sampler"):
            sampler = self.replay.sampler()
        settings = getattr(self._trainer().lightning_module, "hparams", {})
        check_run(self._trainer(), settings, self, sampler)
        evaluates = self._trainer().is_global_zero and evaluates_in_background(self._trainer())
        busy = self.busy_cores + evaluates
        before = share_cores(self.learner_threads, self._trainer().num_devices, busy)
        self._undo.callback(torch.set_num_threads, before)
        self.threads = torch.get_num_threads()
        keep_freed_memory()
        if flush_denormals():  # before torch starts threads, which inherit it
            self._undo.callback(torch.set_flush_denormal, False)
        if self.dataset is None:
            self.dataset = self._build_dataset(self.env_spec, sampler)
        if self._trainer().is_global_zero:
            samples = "sequences" if self.replay.sequences else "transitions"
            announce_ranks(self._trainer(), self.dataset.experience.batch_size, samples)

    def _build_dataset(self, spec: EnvSpec, sampler: Sampler) -> ReplayDataset:
        streams = max(1, self.num_actors) * self.actors.envs_per_actor
        insert_size = streams if self.num_actors == 0 else self.actors.chunk_rows
        if self.cluster is not None:  # whose answers hold whole steps of all environments
            insert_size += self.actors.envs_per_actor - 1
        rate = self.rate
        if self.pool is not None:
            streams = insert_size = self.pool.num_streams
            rows, env_steps = self.pool.prepare(self.env, spec)
            if self.pool.is_finite:
                check_holds(self.replay, rows)
                rate = replace(rate, warm_up_env_steps=env_steps)
        if self._make_experience is None:
            experience: Experience = self._replay(spec, streams, sampler)
        else:
            experience = self._make_experience(spec, streams)
        module: Any = self._trainer().lightning_module
        updates_per_step = getattr(module, "updates_per_step", 1)
        check_experience(
            experience, self.rate, getattr(module, "bootstrap", None), updates_per_step
        )
        if experience.sets_pace:
            rate = replace(rate, samples_per_insert=None, warm_up_env_steps=1)
        check_rows = None
        if self.pool is not None:
            whose = f"data.pool {type(self.pool).__name__}"
            carried = replace(spec, values=experience.needs_values)
            check_rows = RowCheck(whose, carried, streams, self.env.reward_clip)
        limiter = RateLimiter(rate, experience.samples_per_batch, insert_size)
        return ReplayDataset(
            experience,
            limiter,
            self._start_pool,
            self.check,
            rank=self._trainer().global_rank,
            learner_steps=lambda: self._trainer().global_step,
            updates_per_step=updates_per_step,
            check_rows=check_rows,
            meet=self.meet,
            num_ranks=self._trainer().world_size,
        )

    def _replay(self, spec: EnvSpec, streams: int, sampler: Sampler) -> Replay:
        if isinstance(sampler, TrackingSampler) and self._trainer().world_size > 1:
            sampler.minimum_of_ranks = self.ranks.minimum
        return Replay(
            spec,
            self.replay.capacity,
            streams,
            batch_size=self.replay.batch_size,
            n_step=self.replay.n_step,
            gamma=self.replay.gamma,
            sampler=sampler,
            seed=self.seed + 2**20 * self._trainer().global_rank,
            device=self.replay.device,
            index=self.replay.index,
            memory_map=self.replay.memory_map,
            rank=self._trainer().global_rank,
            sequences=self.replay.sequences,
        )

    def train_dataloader(self) -> ReplayDataset:
        """Return the one stream of batches."""
        assert self.dataset is not None, "setup('fit') builds it"
        return self.dataset

    def val_dataloader(self) -> EvaluationLoader:
        """Return the evaluation during training and of `lrl validate`."""
        return self._evaluation_loader(VALIDATION_SEED, self.evaluation.episodes)

    def test_dataloader(self) -> EvaluationLoader:
        """Return the evaluation of `lrl test`."""
        return self._evaluation_loader(TEST_SEED, self.evaluation.test_episodes)

    def epsilon_mean(self, env_steps: int) -> float:
        """Return the mean epsilon over all ranks' environments after so many environment steps."""
        total = self.slot.total_environments
        return float(self.exploration.epsilons(env_steps, np.arange(total), total).mean())

    def publish(self, network: QNetwork, version: int) -> None:
        """Give the actors new weights."""
        if self.dataset is not None and self.dataset.pool is not None:
            self.dataset.pool.publish(network, version)

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move each batch in one copy; what a GPU computes comes after it, and nobody waits."""
        send = functools.partial(to_device_together, device=device)
        if isinstance(batch, AnyBatch):
            return batch.sent(send)
        if isinstance(batch, tuple):
            return tuple(part.sent(send) for part in batch)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def stamp(self, env_steps: int | None = None) -> dict[str, Any]:
        """Return the protocol stamp of the agent as it is now.

        Args:
            env_steps: Of all ranks; None takes them all to have acted as much as this one.
        """
        if env_steps is None:
            env_steps = self.dataset.env_steps * self._trainer().world_size if self.dataset else 0
        stamp = make_stamp(
            self.env,
            self.evaluation,
            seed=self.seed,
            learner_steps=self._trainer().global_step,
            env_steps=env_steps,
            frames=env_steps * self.env_spec.frame_skip,
        )
        stamp["hardware"]["torch_threads"] = self.threads  # the summary is written after `close`
        return stamp

    def replay_settings(self) -> dict[str, Any]:
        """Return the settings, beside the replay's own, with which its rows are made."""
        return {"env": trained_in(self.stamp()), "ranks": self._trainer().world_size}

    def restore_replay(self) -> None:
        """Give this rank's replay back if the checkpoint that was loaded names one; once."""
        if self.dataset is not None:
            restore_replay(self._trainer(), self.dataset, self.pool, self.replay_settings())

    def check(self) -> bool:
        """Raise if a signal asks for the end, or if another rank is gone.

        Of several ranks that train, a signal is only noted until they `meet`, since one that
        stopped alone would leave the others waiting.

        Returns whether this rank has noted one.
        """
        rank_watch.check()
        if self.ranks.count > 1:
            return interrupt.asked != 0
        interrupt.check()
        if self._trainer().received_sigterm and self._trainer().world_size == 1:
            raise SIGTERMException
        return False

    def meet(self) -> None:
        """Raise in all ranks if a signal asks one of them for the end; all have to call it."""
        if self.ranks.count == 1:
            return
        number = int(self.ranks.maximum(interrupt.asked))
        if number:
            self.ranks.stopped_together = True
            interrupt.requested = interrupt.terminated = False
            raise KeyboardInterrupt if number == signal.SIGINT else SIGTERMException

    def teardown(self, stage: str) -> None:
        """Stop the actors."""
        if stage == "fit":
            self.close()
        rank_watch.stop()
        leave_ranks_at_exit()

    def on_exception(self, exception: BaseException) -> None:
        """Stop the actors: Lightning calls no teardown after an exception."""
        self.close()

    def close(self) -> None:
        """Stop the actors and give back what was taken; idempotent and bounded."""
        if self.dataset is not None:
            self.dataset.close()
        self._undo.close()

    def _trainer(self) -> L.Trainer:
        if self.trainer is None:
            raise ConfigError(
                "the datamodule works in a Trainer: trainer.fit(model, datamodule=...)"
            )
        return self.trainer

    def _start_pool(self, dataset: ReplayDataset) -> ActorPool:
        """Build and start what makes rows, now that weights and counters have been restored."""
        self.restore_replay()
        trainer, slot = self._trainer(), self.slot
        module: Any = trainer.lightning_module
        if slot.world_size > 1:
            # Each rank draws noise and levels of its own, which are not those of its first actor.
            torch.manual_seed(slot.policy_seed() + 1)
        if self.pool is not None:
            pool = self.pool
        elif self.num_actors > 0:
            pool = self._background_pool(dataset.experience.needs_values)
        else:
            pool = local_pool(
                self.env,
                self.actors.envs_per_actor,
                self.exploration,
                slot,
                lambda: trainer.global_step,
                can_be_saved=saves_replay(trainer) or dataset.goes_on(LocalPool),
            )
        if pool.is_finite and not dataset.goes_on(type(pool)):
            dataset.count_afresh()
        pool.start(module.online, dataset.env_steps_offset * slot.world_size)
        return pool

    def _background_pool(self, needs_values: bool) -> ActorPool:
        trainer: Any = self._trainer()
        inference = self.inference
        if (servers := self.local_inference) is not None:
            learner, rank = trainer.strategy.root_device, trainer.local_rank
            devices = tuple(of_this_rank(name, learner, rank) for name in servers.devices)
            inference = replace(servers, devices=devices)
        plan = ActingPlan(
            self.actors,
            self.env,
            replace(self.env_spec, values=needs_values),
            self.exploration,
            self.slot,
            trainer.lightning_module.network_recipe,
            inference,
            trainer.global_step,
        )
        return background_pool(plan, self.cluster)

    def _evaluation_loader(self, first_seed: int, episodes: int) -> EvaluationLoader:
        return EvaluationLoader(
            self.trainer,
            self.evaluation_env,
            range(first_seed, first_seed + episodes),
            self.evaluation.epsilon_for(self.env),
            self.evaluation.max_frames_for(self.env),
            self.check,
            self.meet,
        )


def datamodule_of(trainer: L.Trainer) -> ReplayDataModule:
    """Return the datamodule that a Trainer fits with.

    Raises:
        ConfigError: It is none of lrl's.
    """
    datamodule = getattr(trainer, "datamodule", None)
    if not isinstance(datamodule, ReplayDataModule):
        raise ConfigError(
            "lrl's callbacks need a ReplayDataModule: trainer.fit(model, datamodule=...), got "
            f"{type(datamodule).__name__}"
        )
    return datamodule


def dataset_of(trainer: L.Trainer) -> ReplayDataset:
    """Return the dataset of a Trainer that is fitting."""
    dataset = datamodule_of(trainer).dataset
    assert dataset is not None, "setup('fit') builds it"
    return dataset
