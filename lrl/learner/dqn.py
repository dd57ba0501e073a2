"""The DQN agent as a LightningModule: networks, loss, optimisation step, target network."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from lrl.checkpoints.compatibility import check_fits
from lrl.checkpoints.stamp import STAMP_KEY, other_protocol
from lrl.evaluation.episodes import Episodes
from lrl.learner.bootstrap import BootstrapRule, MaxBootstrap, NextValues
from lrl.learner.branching import branched_loss, branched_target, greedy_action
from lrl.learner.captured import CapturedUpdater, check_capturable
from lrl.learner.statistics import Measured, batch_statistics, evaluating
from lrl.learner.updater import CompiledUpdater, EagerUpdater, Losses, Updater
from lrl.networks import (
    Encoder,
    Head,
    MLPEncoder,
    MultiEncoder,
    NetworkRecipe,
    QNetwork,
    RecurrentCore,
    ScalarHead,
)
from lrl.networks.multi_encoder import EMBEDDED_FROM
from lrl.parts.recipe import Recipe, blamed_on
from lrl.parts.settings import check_count, check_positive, is_a
from lrl.preflight.callbacks import GuardsLosses, parts_of
from lrl.preflight.run import BringsExperience, check_run
from lrl.preflight.settings import is_logging_step, own_optimisation
from lrl.types import (
    ActionSpec,
    AnyBatch,
    Batch,
    ConfigError,
    EnvSpec,
    Memory,
    Observation,
    map_leaves,
)

_log = logging.getLogger(__name__)

_NOT_CALLED = ("training_step", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step")
"""Methods that are not called where a training step makes several updates."""
_WITHIN_STEPS = ("configure_gradient_clipping", "backward", "manual_backward", "optimize")
"""Methods that are not called in learner steps that are repeated."""
_TARGET_PERIOD = 25
_DEFAULT_OPTIMIZER = functools.partial(torch.optim.Adam, lr=1e-3)
_UPDATERS: dict[str, Callable[[Any], Updater]] = {
    "eager": EagerUpdater, "compiled": CompiledUpdater, "captured": CapturedUpdater
}  # fmt: skip


class DQN(L.LightningModule):
    """A value-based agent; which one is decided by its parts.

    It knows tensors only: no environment, no replay, no process. The Trainer feeds it `Batch`es
    from a `ReplayDataModule`; `ActorLearnerCallback` carries its weights to the actors. Parts are
    given as classes or as `functools.partial` of classes, in YAML as `class_path` and `init_args`.

    Args:
        encoder: From an observation shape to an `Encoder`. An `MLPEncoder` without settings stands
            for a `MultiEncoder` where observations have leaves or very many categories.
        head: From the number of features and of actions to a `Head`, which owns the loss.
        bootstrap: The `BootstrapRule` of the target.
        optimizer: From parameters to a torch optimizer.
        lr_scheduler: From an optimizer to a learning rate scheduler, stepped once a learner step.
        target_update_period_learner_steps: Learner steps between updates of the target network.
        target_update_tau: Share of the online network in each update: 1 copies it (hard update),
            smaller values average (soft update).
        gradient_clip_norm: Largest norm of all gradients together, to which larger ones are scaled;
            None leaves it to the Trainer's `gradient_clip_val`, which takes one update per step.
        updates_per_step: Learner steps in one training step of Lightning, each with a batch of its
            own: saves what the Trainer does in between, and of the target's work (docs/speed.md).
        updater: What learner steps are made with: `eager`; `compiled`, by torch.compile, which
            takes half a minute at the start; or `captured`, which records one and repeats it. The
            last two pay for small networks (docs/speed.md).
        env_spec: The environment's specification; taken from the datamodule where not given.
        core: From the encoder's number of features to a `RecurrentCore`, for agents that remember;
            None remembers nothing.
    """

    online: QNetwork
    target: QNetwork
    evaluated: Episodes
    """Episodes of the newest evaluation, of all ranks."""
    measured_otherwise: str = ""
    """Settings in which the checkpoint that was loaded was scored otherwise than this run is."""

    def __init__(
        self,
        encoder: Callable[[Any], Encoder] = MLPEncoder,
        head: Callable[[int, int], Head] = ScalarHead,
        bootstrap: Callable[[], BootstrapRule] = MaxBootstrap,
        optimizer: Callable[[Any], torch.optim.Optimizer] = _DEFAULT_OPTIMIZER,
        lr_scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
        | None = None,
        target_update_period_learner_steps: int = _TARGET_PERIOD,
        target_update_tau: float = 1.0,
        gradient_clip_norm: float | None = None,
        updates_per_step: int = 1,
        updater: Literal["eager", "compiled", "captured"] = "eager",
        env_spec: EnvSpec | None = None,
        core: Callable[[int], RecurrentCore] | None = None,
    ) -> None:
        super().__init__()
        self.target_update_period_learner_steps = target_update_period_learner_steps
        self.target_update_tau = target_update_tau
        self.gradient_clip_norm = gradient_clip_norm
        self.updates_per_step = updates_per_step
        self._check_settings(updater)
        self.encoder_recipe = Recipe.of(encoder, "model.encoder", Encoder)
        self.head_recipe = Recipe.of(head, "model.head", Head)
        self.core_recipe = core and Recipe.of(core, "model.core", RecurrentCore)
        self.optimizer_recipe = Recipe.of(optimizer, "model.optimizer", torch.optim.Optimizer)
        if updater == "captured":
            check_capturable(self.optimizer_recipe)
        self.scheduler_recipe = lr_scheduler and Recipe.of(
            lr_scheduler, "model.lr_scheduler", torch.optim.lr_scheduler.LRScheduler
        )
        self.bootstrap_recipe = Recipe.of(bootstrap, "model.bootstrap", BootstrapRule)
        with blamed_on("model.bootstrap"):
            self.bootstrap: BootstrapRule = self.bootstrap_recipe()
        self._check_target()
        self.updater: Updater = EagerUpdater(self)
        self.automatic_optimization = own_optimisation(updates_per_step, updater) is None
        self.env_spec = EnvSpec.of(env_spec) if isinstance(env_spec, Mapping) else env_spec
        self.statistics: dict[str, Tensor] = {}
        self.measured: Measured | None = None
        self._target_updates = 0
        self._guards: Sequence[GuardsLosses] = ()
        self._begun: L.Trainer | None = None
        self.save_hyperparameters({**self._hyperparameters(), "updater": updater}, logger=False)
        if self.env_spec is not None:
            self.configure_model()

    def _hyperparameters(self) -> dict[str, Any]:
        """Return what a checkpoint builds the same agent from, as plain types."""
        recipes = {
            "encoder": self.encoder_recipe,
            "core": self.core_recipe,
            "head": self.head_recipe,
            "bootstrap": self.bootstrap_recipe,
            "optimizer": self.optimizer_recipe,
            "lr_scheduler": self.scheduler_recipe,
        }
        norm = self.gradient_clip_norm
        return {
            **{name: recipe and recipe.as_dict() for name, recipe in recipes.items()},
            "target_update_period_learner_steps": int(self.target_update_period_learner_steps),
            "target_update_tau": float(self.target_update_tau),
            "gradient_clip_norm": None if norm is None else float(norm),
            "updates_per_step": int(self.updates_per_step),
            "env_spec": self.env_spec and self.env_spec.as_dict(),
        }

    def _check_settings(self, updater: str) -> None:
        for name in ("target_update_period_learner_steps", "updates_per_step"):
            check_count(f"model.{name}", getattr(self, name), 1)
        tau, norm, updates = self.target_update_tau, self.gradient_clip_norm, self.updates_per_step
        if not (is_a(tau, float) and 0.0 < tau <= 1.0):
            raise ConfigError(
                f"model.target_update_tau must be a number above 0 and at most 1, got {tau!r}"
            )
        if norm is not None:
            check_positive("model.gradient_clip_norm", norm, ", or null to clip nothing")
        if updater not in _UPDATERS:
            raise ConfigError(f"model.updater is {updater!r}, but is one of {list(_UPDATERS)}")
        own = own_optimisation(updates, updater)
        within = _WITHIN_STEPS if updater == "captured" else ()
        for method in (*_NOT_CALLED, *within):
            if own and is_overridden(method, self, DQN):
                raise ConfigError(
                    f"{own.setting}, but {type(self).__name__} has a {method} of its own, which "
                    f"would not be called: set it to {own.otherwise}, or override compute_loss only"
                )

    def _check_target(self) -> None:
        settings = {
            "target_update_period_learner_steps": (
                self.target_update_period_learner_steps, _TARGET_PERIOD
            ),
            "target_update_tau": (self.target_update_tau, 1.0),
        }  # fmt: skip
        for name, (value, default) in settings.items():
            if value != default and not self.bootstrap.bootstraps:
                raise ConfigError(
                    f"model.{name} is {value}, but model.bootstrap "
                    f"{type(self.bootstrap).__name__} asks no target network, so that it would do "
                    "nothing: leave it out"
                )

    @property
    def network_recipe(self) -> NetworkRecipe:
        """How actors build the same network."""
        if self.env_spec is None:
            raise ConfigError("the network's sizes are not known before env_spec is")
        return self._recipe(self.env_spec)

    def with_memory(self, env_spec: EnvSpec) -> EnvSpec:
        """Return an environment's specification with what the network remembers in it.

        Replay and transport are made from it, before the network is.
        """
        return replace(env_spec, memory=self._recipe(env_spec).memory())

    @property
    def _action(self) -> ActionSpec:
        assert self.env_spec is not None
        return self.env_spec.action

    def _recipe(self, env_spec: EnvSpec) -> NetworkRecipe:
        encoder, alone = self.encoder_recipe, env_spec.observation.get("")
        is_plain = alone is not None and sum(alone.categories) < EMBEDDED_FROM
        if not is_plain and encoder.is_as_by_default(MLPEncoder):
            encoder = Recipe.of(MultiEncoder)
        return NetworkRecipe(env_spec, encoder, self.head_recipe, self.core_recipe)

    def configure_model(self) -> None:
        """Build both networks once the environment's specification is known."""
        if hasattr(self, "online"):
            return
        if self.env_spec is None:
            datamodule = getattr(self._trainer, "datamodule", None)
            self.env_spec = getattr(datamodule, "env_spec", None)
        if self.env_spec is None:
            raise ConfigError(
                "env_spec is not known: fit with a ReplayDataModule, or pass DQN(env_spec=...)"
            )
        self.online = self.network_recipe.build()
        self.env_spec = replace(self.env_spec, memory=self.online.memory)
        self.hparams["env_spec"] = self.env_spec.as_dict()
        self.hparams["encoder"] = self.network_recipe.encoder.as_dict()
        rescaling = getattr(self.online.head, "value_rescaling", None)
        if self.bootstrap.adds_bonus and rescaling is not None:
            raise ConfigError(
                f"model.head rescales values (value_rescaling {rescaling}), but model.bootstrap "
                f"{type(self.bootstrap).__name__} adds a bonus to them, which is not defined: set "
                "value_rescaling to null"
            )
        # Also where nobody asks it (`NoBootstrap`): checkpoints and updaters are then the same.
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def configure_optimizers(self) -> Any:
        """Build the optimizer, and its scheduler with one step per learner step."""
        with blamed_on("model.optimizer"):
            optimizer = self.optimizer_recipe(self.online.parameters())
        if self.scheduler_recipe is None:
            return optimizer
        with blamed_on("model.lr_scheduler"):
            scheduler = self.scheduler_recipe(optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_fit_start(self) -> None:
        """Choose the updater, and find who guards the run; have it checked if no data did."""
        if not isinstance(getattr(self.trainer, "datamodule", None), BringsExperience):
            check_run(self.trainer, self.hparams)
        self.updater = _UPDATERS[self.hparams["updater"]](self)
        self._guards = tuple(parts_of(self.trainer, GuardsLosses))
        self._begun = self.trainer

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was compiled, which cannot be pickled, and what is the Trainer's."""
        return {
            **super().__getstate__(),
            "updater": EagerUpdater(self),
            "_guards": (),
            "_begun": None,
            "measured": None,
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Have the weights looked at; add the stamp, if a `ReplayDataModule` knows it."""
        for guard in self._guards:
            guard.check_weights(self.online, checkpoint["global_step"])
        checkpoint["target_updates"] = self._target_updates
        stamp = getattr(getattr(self._trainer, "datamodule", None), "stamp", None)
        if stamp is not None:
            checkpoint[STAMP_KEY] = stamp()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse what is of another agent; warn of what was measured otherwise than this run is."""
        check_fits(self, checkpoint)
        self._target_updates = checkpoint.get("target_updates", 0)
        found = other_protocol(checkpoint, getattr(self._trainer, "datamodule", None))
        self.measured_otherwise = found
        if found and self.global_rank == 0:
            _log.warning("the checkpoint was trained and scored under other settings: %s", found)

    def forward(self, observation: Observation, memory: Memory | None = None) -> Tensor:
        """Return expected action values, `[batch, actions]`; see `QNetwork` for the memory."""
        return self.online.q_values(observation, memory)

    @torch.inference_mode()
    def act(
        self,
        observation: Observation,
        action_mask: Tensor | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Return the greedy action of each observation, int64 `[batch]` or `[batch, branches]`.

        Noisy layers make no noise.

        Args:
            observation: `[batch, *observation_shape]`, one tensor or one for each leaf.
            action_mask: Bool `[batch, actions]`, True where allowed; None allows all.
            memory: What an agent with a core remembers; to play on with one, take a
                `NetworkPolicy`, which returns what it remembers next.
        """
        mask, observation, memory = (
            map_leaves(lambda tensor: tensor.to(self.device), value)
            for value in (action_mask, observation, memory)
        )
        with evaluating(self.online):
            return greedy_action(self(observation, memory), mask, self._action)

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the `loss` of a batch, and `keys` and `priorities` of its rows for the sampler.

        The updater asks the target network and calls `compute_loss`. With a tuple of batches a
        learner step is made with each in turn; the loss is the last.
        """
        if not self.automatic_optimization:
            return self.updater([batch] if isinstance(batch, AnyBatch) else batch)._asdict()
        losses = self.updater.losses(batch)
        return {"loss": losses.loss, "keys": batch.keys, "priorities": losses.td.priority}

    def compute_loss(self, batch: Batch, next_values: NextValues) -> Losses:
        """Return the loss of a batch: the one method that an idea which fits no part overrides.

        Args:
            batch: The transitions; of sequences those of all their rows (see `transitions_of`),
                whose observations the networks have been through already.
            next_values: What the target network says of them.
        """
        values = None
        if not self.bootstrap.bootstraps:
            values = self.online(batch.observation, batch.memory)
            next_values = NextValues(values, self.online.head.expected_values(values))
        with torch.no_grad():
            if self.bootstrap.needs_online_next_q:
                next_q = self.online.q_values(batch.next_observation, batch.next_memory)
                next_values = next_values._replace(online_next_q=next_q)
            target = branched_target(self.bootstrap, batch, next_values, self._action)
        if values is None:
            values = self.online(batch.observation, batch.memory)
        td = branched_loss(self.online.head, values, batch.action, target, self._action)
        return Losses((batch.weights * td.loss).mean(), td)  # importance weights act here only

    def look_at(self, batch: AnyBatch, losses: Losses) -> None:
        """Show a loss to the guards of the run."""
        if self._trainer not in (None, self._begun):
            raise ConfigError(
                f"{type(self).__name__}.on_fit_start leaves DQN's out, so that nobody would look "
                "at losses: call super().on_fit_start()"
            )
        for guard in self._guards:
            guard.remember(batch, losses.td.loss, losses.loss)

    def measure(self, batch: Batch, losses: Losses, learns: Tensor | None = None) -> None:
        """Measure a loss if it is logged; see `batch_statistics`."""
        if not self.is_measured():
            return
        self.statistics = batch_statistics(batch, self.online, losses, self._action, learns)
        self.measured = Measured(losses.td.prediction, losses.td.target, learns)
        if self.bootstrap.bootstraps and not is_overridden("update_target", self, DQN):
            self.statistics["train/target_updates"] = torch.tensor(float(self._target_updates))

    def optimize(self, loss: Tensor) -> None:
        """Make one learner step of a loss, in the place of the Trainer (manual optimisation)."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.configure_gradient_clipping(optimizer)
        optimizer.step()
        self._after_step()

    def count(self, step: Callable[[], Tensor]) -> None:
        """Make a learner step that optimises by itself and returns the norm of its gradients."""
        optimizer: Any = self.optimizers()
        optimizer._on_before_step()
        norm = step()
        for guard in self._guards:
            guard.check(self.trainer.global_step + 1, [], norm)
        optimizer._on_after_step()
        self._after_step()

    def _after_step(self) -> None:
        scheduler: Any = self.lr_schedulers()
        if scheduler is not None:
            scheduler.step()
        self.move_target(self.trainer.global_step)

    def plain_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer, without what Lightning puts around it."""
        optimizer: Any = self.optimizers()
        return optimizer.optimizer

    def steps_until_target_moves(self) -> int:
        """Return for how many learner steps the target network certainly stays as it is."""
        period = self.target_update_period_learner_steps
        own = is_overridden("move_target", self, DQN)
        return 1 if own else period - self.trainer.global_step % period

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip to `gradient_clip_norm`, or as the Trainer says, once guards saw the gradients.

        Lightning's own clipping refuses fused optimizers under bf16.
        """
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            # Lightning leaves it to fused optimizers; unscaled here, they do not unscale again.
            scaler.unscale_(optimizer)
        if self.gradient_clip_norm is not None:
            gradient_clip_val, gradient_clip_algorithm = self.gradient_clip_norm, "norm"
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm: Any = None
        if gradient_clip_val or self.is_measured():
            norm = nn.utils.get_total_norm(gradients)
        if self.is_measured():
            self.statistics["train/grad_norm"] = norm
        for guard in self._guards:
            guard.check(self.trainer.global_step + 1, gradients, norm)
        if gradient_clip_val and gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(parameters, gradient_clip_val)
        elif gradient_clip_val:
            nn.utils.clip_grads_with_norm_(parameters, gradient_clip_val, norm)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step the optimizer, then the target network when its period has passed."""
        super().optimizer_step(*args, **kwargs)
        self.move_target(self.trainer.global_step + 1)

    def move_target(self, learner_step: int) -> None:
        """Update the target network if its period ends with this learner step."""
        is_due = learner_step % self.target_update_period_learner_steps == 0
        if is_due and self.bootstrap.bootstraps:  # else nobody asks it
            self.update_target()

    @torch.no_grad()
    def update_target(self) -> None:
        """Move the target network towards the online network by `target_update_tau`."""
        self._target_updates += 1
        targets = list(self.target.state_dict().values())
        onlines = list(self.online.state_dict().values())
        if self.target_update_tau == 1.0:
            torch._foreach_copy_(targets, onlines)  # pyright: ignore[reportPrivateImportUsage]
            return
        for target, online in zip(targets, onlines, strict=True):
            if target.is_floating_point():
                target.lerp_(online, self.target_update_tau)
            else:
                target.copy_(online)

    def validation_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> None:
        """Log the returns and lengths that the evaluation loader brings, in `lrl test`, too."""
        names = ("return", "length", "timed_out")
        arrays = [torch.as_tensor(self.all_gather(batch[n])).reshape(-1).cpu() for n in names]
        self.evaluated = Episodes(*(array.numpy() for array in arrays))
        metrics = self.evaluated.metrics()
        statistics = {name: torch.tensor(v, dtype=torch.float64) for name, v in metrics.items()}
        # The callback writes the loggers' rows: Lightning's own x-axis counts batches.
        self.log_dict(statistics, logger=self.trainer.state.fn != "fit", batch_size=1)

    test_step = validation_step

    def is_measured(self) -> bool:
        """Return whether the next learner step is logged."""
        trainer = self._trainer  # None where a user calls training_step by hand
        return trainer is not None and is_logging_step(trainer, trainer.global_step + 1)
