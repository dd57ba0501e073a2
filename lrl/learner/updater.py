"""From batches to updates: what happens around an agent's loss, whoever optimises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from lrl.learner.bootstrap import BootstrapRule, NextValues, ask_target
from lrl.learner.sequences import of_each_sequence, seen_by, transitions_of
from lrl.networks import QNetwork, onednn_products
from lrl.networks.heads import TDLoss
from lrl.replay import Drawing
from lrl.types import AnyBatch, Batch, ConfigError, SequenceBatch, leaves_of

_ROWS_ASKED_AT_ONCE = 512  # on a CPU, twice as many of Atari's take longer for each


class Losses(NamedTuple):
    """The loss of a batch.

    Attributes:
        loss: What is optimised, a scalar with a gradient.
        td: What the head says of each row, or of each sequence.
    """

    loss: Tensor
    td: TDLoss


class Updated(NamedTuple):
    """What learner steps leave, in the order of their batches; on the learner's device.

    Attributes:
        loss: The last loss, a scalar without a gradient.
        keys: Keys of all rows or sequences, `[updates * batch]`; -1 where `Drawing`s were learnt
            from, whose priorities are set already.
        priorities: Their new priorities, `[updates * batch]`.
    """

    loss: Tensor
    keys: Tensor
    priorities: Tensor


class Agent(Protocol):
    """What an updater needs of the module whose networks it updates."""

    online: QNetwork
    target: QNetwork
    bootstrap: BootstrapRule

    def compute_loss(self, batch: Batch, next_values: NextValues) -> Losses:
        """Return the loss of a batch."""
        ...

    def look_at(self, batch: AnyBatch, losses: Losses) -> None:
        """Have guards take note of a loss before it is optimised."""
        ...

    def measure(self, batch: Batch, losses: Losses, learns: Tensor | None = None) -> None:
        """Measure a loss if it is logged.

        Args:
            batch: The transitions.
            losses: Of them.
            learns: Which of them are learnt from; None says all.
        """
        ...

    def optimize(self, loss: Tensor) -> None:
        """Make one learner step of a loss."""
        ...

    def steps_until_target_moves(self) -> int:
        """Return for how many learner steps the target network certainly stays as it is."""
        ...


class Updater(Protocol):
    """Turns batches into losses and learner steps; whatever it speeds up, the agent stays as it is.

    `Updated` holds tensors of the device, which are read when they have arrived.
    """

    def losses(self, batch: AnyBatch) -> Losses:
        """Return the loss of a batch, which somebody else optimises."""
        ...

    def __call__(self, batches: Sequence[AnyBatch]) -> Updated:
        """Make one learner step with each batch, in turn."""
        ...


class EagerUpdater:
    """Asks the target network, computes losses and, for several updates a step, optimises them.

    Args:
        agent: The module.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._compute: Callable[[Batch, NextValues | None], Losses] = self._ask_and_compute

    def losses(self, batch: AnyBatch, next_values: NextValues | None = None) -> Losses:
        """Return the loss of a batch, of sequences with what is known of each sequence.

        Args:
            batch: The transitions or sequences.
            next_values: What the target network says of the transitions; None asks it now.
        """
        if isinstance(batch, Drawing):
            batch.index.prepare()
            drawn = batch.index.draw(batch.batch_size)
            losses = self.losses(drawn)
            batch.index.set_priorities(drawn.keys, losses.td.priority)
            return losses
        before = _count_writes(batch)
        self._agent.online.sample_noise()
        self._agent.target.sample_noise()
        if isinstance(batch, SequenceBatch):
            losses = self._of_sequences(batch)
        else:
            assert isinstance(batch, Batch)
            with onednn_products():
                losses = self._checked(batch, next_values)
            self._agent.measure(batch, losses)
        if _count_writes(batch) > before:
            raise ConfigError(
                "the network wrote into the batch that it was given: have encoder and core make "
                "new tensors (x / 255, not x.div_(255) or x /= 255), since a batch is looked at "
                "several times"
            )
        self._agent.look_at(batch, losses)
        return losses

    def __call__(self, batches: Sequence[AnyBatch]) -> Updated:
        """Make one learner step with each batch, in turn."""
        losses: list[Losses] = []
        for batch, next_values in zip(batches, self._next_values(batches), strict=True):
            losses.append(self.losses(batch, next_values))
            self._agent.optimize(losses[-1].loss)
        keys = torch.cat([batch.keys for batch in batches])
        priorities = torch.cat([one.td.priority for one in losses])
        return Updated(losses[-1].loss.detach(), keys, priorities)

    def _checked(self, batch: Batch, next_values: NextValues | None = None) -> Losses:
        return _checked(self._compute(batch, next_values), batch)

    def _ask_and_compute(self, batch: Batch, next_values: NextValues | None) -> Losses:
        agent = self._agent
        if next_values is None:
            (next_values,) = ask_target(agent.bootstrap, agent.target, batch)
        return agent.compute_loss(batch, next_values)

    def _of_sequences(self, batch: SequenceBatch) -> Losses:
        """Return the loss of the transitions in sequences, through which both networks go."""
        agent = self._agent
        with onednn_products():
            transitions = transitions_of(batch, agent.online)
            with torch.no_grad():
                here, there = seen_by(agent.target, batch)
            of_target = replace(transitions, observation=here, next_observation=there)
            (next_values,) = ask_target(agent.bootstrap, agent.target, of_target)
            losses = _checked(agent.compute_loss(transitions, next_values), transitions)
        agent.measure(transitions, losses, batch.learns.flatten())
        return losses._replace(td=of_each_sequence(batch, losses.td))

    def _next_values(self, batches: Sequence[AnyBatch]) -> Iterator[NextValues | None]:
        """Ask the target network for as many batches at once as come before it moves.

        Asked for many rows it takes less time for each. None leaves the question to the loss, since
        noise is new for every batch, and sequences are many rows already.
        """
        agent, first = self._agent, 0
        plain = [batch for batch in batches if isinstance(batch, Batch)]
        if agent.target.is_noisy or len(plain) < len(batches):
            yield from [None] * len(batches)
            return
        most = max(1, _ROWS_ASKED_AT_ONCE // len(plain[0].action))
        while first < len(plain):
            group = plain[first : first + min(most, agent.steps_until_target_moves())]
            with onednn_products():
                yield from ask_target(agent.bootstrap, agent.target, *group)
            first += len(group)


class CompiledUpdater(EagerUpdater):
    """Compiles the loss with the question to the target network, at the first call: half a minute.

    Args:
        agent: The module.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._compute = torch.compile(self._ask_and_compute)

    @override
    def _next_values(self, batches: Sequence[AnyBatch]) -> Iterator[None]:
        return iter([None] * len(batches))  # the question is part of what was compiled


def _count_writes(batch: AnyBatch) -> int:
    """Return how often tensors of what networks are given have been written into."""
    if torch.compiler.is_compiling():  # which keeps no count, and leaves what it was given
        return 0
    given: list[Any] = []
    if isinstance(batch, Batch):
        given = [batch.observation, batch.memory, batch.next_observation, batch.next_memory]
    elif isinstance(batch, SequenceBatch):
        given = [batch.frame, batch.memory]
    leaves = [leaf for part in given for leaf in leaves_of(part).values()]
    return sum(leaf._version for leaf in leaves if isinstance(leaf, Tensor))


def _checked(losses: Losses, batch: Batch) -> Losses:
    """Return what a loss of the user's own returned, if it is one.

    Raises:
        TypeError: It is no `Losses`.
        ConfigError: The head's figures are not one for each row, so that weights of rows would be
            multiplied with others' losses.
    """
    if not isinstance(losses, Losses):
        raise TypeError(
            f"compute_loss must return Losses(loss, td), got {type(losses).__name__}: change "
            "what super().compute_loss returns with ._replace(loss=...)"
        )
    for name, value in losses.td._asdict().items():
        if value.shape != batch.weights.shape:
            raise ConfigError(
                f"the head's loss returned a {name} of shape {list(value.shape)}, but must return "
                f"{list(batch.weights.shape)}, a number for each row of the batch"
            )
    return losses
