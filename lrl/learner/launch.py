"""Starting what makes rows, when the first batch is asked for."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from lrl.actors.actor import Actor
from lrl.actors.manager import ActorManager
from lrl.actors.policy import LocalPolicyFactory, NetworkPolicy
from lrl.actors.slot import TRAINING_SEED_FLOOR
from lrl.envs import RestorableEnvs, StreamEnvs, make_envs
from lrl.inference.config import InferenceConfig
from lrl.inference.manager import InferenceManager
from lrl.learner.dataset import ReplayDataset
from lrl.learner.sources import AsynchronousSource, Source, SynchronousSource
from lrl.preflight.devices import of_this_rank
from lrl.preflight.settings import saves_replay
from lrl.transport import ChunkQueue, WeightStore

if TYPE_CHECKING:
    from lrl.learner.datamodule import ReplayDataModule


def start_source(data: ReplayDataModule, module: Any, dataset: ReplayDataset) -> Source:
    """Start the actors that the datamodule asks for, in this process or in the background.

    Weights and counters have been restored by now, and actors begin with them.
    """
    if data.slot.world_size > 1:
        # Each rank draws noise and levels of its own, which are not those of its first actor.
        torch.manual_seed(data.slot.policy_seed() + 1)
    if data.store is None:
        return _synchronous(data, module, dataset)
    return _asynchronous(data, data.store, module, dataset)


def _synchronous(data: ReplayDataModule, module: Any, dataset: ReplayDataset) -> Source:
    envs = _synchronous_envs(data, dataset)
    return SynchronousSource(
        dataset.replay,
        dataset.limiter,
        lambda source: Actor(
            envs,
            NetworkPolicy(module.online, module.device),
            data.exploration,
            source,
            data.slot,
            reward_clip=data.env.reward_clip,
            env_steps_offset=dataset.env_steps_offset * data.slot.world_size,
        ),
    )


def _synchronous_envs(data: ReplayDataModule, dataset: ReplayDataset) -> StreamEnvs:
    """Build the environments, in single ones if they are saved, or were."""
    count = data.actors.envs_per_actor
    if not (saves_replay(data.trainer) or dataset.restores_actor):
        # The learner waits while they step.
        return make_envs(data.env, count, training=True, num_threads=torch.get_num_threads())
    singles = [make_envs(data.env, 1, training=True) for _ in range(count)]
    return RestorableEnvs(singles, TRAINING_SEED_FLOOR)


def _with_devices(data: ReplayDataModule) -> InferenceConfig:
    """Return the configuration of this rank's inference servers."""
    trainer: Any = data.trainer
    learner = trainer.strategy.root_device
    devices = (of_this_rank(n, learner, trainer.local_rank) for n in data.inference.devices)
    return dataclasses.replace(data.inference, devices=tuple(devices))


def _asynchronous(
    data: ReplayDataModule, store: WeightStore, module: Any, dataset: ReplayDataset
) -> Source:
    inference = None
    local = LocalPolicyFactory(module.network_recipe, store)
    with contextlib.ExitStack() as undo:
        if data.inference.num_servers > 0:
            inference = InferenceManager(
                _with_devices(data), data.actors, module.network_recipe, store, data.slot
            )
            undo.callback(inference.close)
        manager = ActorManager(
            data.actors,
            data.env,
            data.env_spec,
            data.exploration,
            inference.policy_of if inference else lambda actor: local,
            ChunkQueue(),
            data.slot,
            env_steps_offset=dataset.env_steps_offset * data.slot.world_size,
        )
        trainer: Any = data.trainer
        source = AsynchronousSource(
            dataset.replay, dataset.limiter, manager, lambda: trainer.global_step, inference
        )
        undo.callback(source.close)
        source.start()
        undo.pop_all()
    return source
