"""The loss of sequences against an independent loop, and against that of single transitions."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.replay_rows import Row, episode, filled, make_spec
from torch import Tensor

from lrl.learner import BootstrapRule, DoubleBootstrap, MaxBootstrap, MunchausenBootstrap
from lrl.learner.bootstrap import NextValues
from lrl.learner.dqn import DQN
from lrl.learner.sequences import of_each_sequence, transitions_of
from lrl.learner.statistics import batch_statistics
from lrl.learner.updater import Losses
from lrl.networks import (
    CategoricalHead,
    GRUCore,
    Head,
    ImplicitQuantileHead,
    LSTMCore,
    MLPEncoder,
    QuantileHead,
    ScalarHead,
)
from lrl.networks.heads import TDLoss
from lrl.replay import PrioritizedSampler, Replay, SequenceConfig
from lrl.types import ActionSpec, Batch, Column, EnvSpec, RowKind, Rows, SequenceBatch

EPSILON, GAMMA, N_STEP, ETA, HIDDEN = 0.01, 0.9, 3, 0.7, 6
CONFIG = SequenceConfig(length=7, overlap=4, burn_in=3, eta=ETA)
ENCODER = functools.partial(MLPEncoder, hidden_sizes=(8,))
HEADS: dict[type[Head], dict[str, Any]] = {
    ScalarHead: {"hidden_size": 8, "dueling": True},
    CategoricalHead: {"num_atoms": 11},
    QuantileHead: {"num_quantiles": 5},
    ImplicitQuantileHead: {"num_quantiles": 5, "num_target_quantiles": 4, "embedding_size": 6},
}
RULES = (MaxBootstrap, DoubleBootstrap, MunchausenBootstrap)


def h(value: float) -> float:
    return math.copysign(math.sqrt(abs(value) + 1) - 1, value) + EPSILON * value


def h_inverse(value: float) -> float:
    """By bisection: h grows."""
    low, high = -1e6, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle) < value else (low, middle)
    return low


def agent_with(core: Any, rule: type[BootstrapRule] = DoubleBootstrap, **head: Any) -> Any:
    """Two networks that differ, as they do while an agent learns."""
    torch.manual_seed(0)
    settings = {"hidden_size": 8, "dueling": True, "value_rescaling": EPSILON, **head}
    made = functools.partial(ScalarHead, **settings)
    agent = DQN(ENCODER, made, rule, core=core, env_spec=make_spec())
    agent.target.load_state_dict(agent.network_recipe.build().state_dict())
    return agent


def rows_of_a_stream(rng: np.random.Generator) -> list[Row]:
    """Episodes that terminate and are truncated, of lengths below and above a window's."""
    rows: list[Row] = []
    for end in itertools.islice(itertools.cycle(["terminated", "truncated"]), 12):
        rewards = [float(r) for r in rng.normal(0, 20, rng.integers(1, 15))]
        rows += episode(rewards, end, first=float(rng.normal()))
    for row in rows:
        row.name = float(rng.normal())
        row.action = int(rng.integers(5))
    return rows


def replay_of(streams: list[list[Row]], spec: EnvSpec, memories: list[Tensor]) -> Replay:
    """A replay whose rows have memories; large enough for all of them."""
    buffer = Replay(
        spec, 1000, len(streams), n_step=N_STEP, gamma=GAMMA,
        sampler=PrioritizedSampler(1.0), sequences=CONFIG,
    )  # fmt: skip
    for stream, (rows, memory) in enumerate(zip(streams, memories, strict=True)):
        count = len(rows)
        hidden, cell = memory.numpy().reshape(count, 2, HIDDEN).swapaxes(0, 1)
        buffer.add(
            Rows(
                stream=np.full(count, stream, np.int32),
                kind=np.array([row.kind for row in rows], np.uint8),
                frame=np.array([[row.name, -row.name] for row in rows], np.float32),
                action=np.array([row.action for row in rows], np.int32),
                reward=np.array([row.reward for row in rows], np.float32),
                terminated=np.array([row.terminated for row in rows]),
                truncated=np.array([row.truncated for row in rows]),
                policy_version=np.zeros(count, np.int64),
                memory={"hidden": np.array(hidden), "cell": np.array(cell)},
            )
        )
    return buffer


def features_of(network: Any, rows: list[Row], memory: Tensor) -> list[Tensor]:
    """What the head gets of each row of a window; the burn-in is computed without a gradient."""
    state = tuple(part.clone() for part in memory.view(2, 1, HIDDEN))
    found = []
    for place, row in enumerate(rows):
        frame = torch.tensor([[row.name, -row.name]])
        state = network.core.cell(network.encoder(frame), state)
        found.append(state[0])
        if row.kind == RowKind.BOUNDARY:
            state = (torch.zeros(1, HIDDEN), torch.zeros(1, HIDDEN))
        if place < CONFIG.burn_in:
            state = tuple(part.detach() for part in state)
    return found


def squared_errors(agent: Any, rows: list[Row], memory: Tensor) -> list[Tensor]:
    """Half the squared TD error of each learnt row of one window, by the paper's formulas."""
    online = features_of(agent.online, rows, memory)
    target = features_of(agent.target, rows, memory)
    errors = []
    for first in range(CONFIG.burn_in, CONFIG.burn_in + CONFIG.length):
        goal, row, complete = 0.0, first, True
        for step in range(N_STEP):
            row = first + step
            if rows[row].kind != RowKind.STEP:
                complete = False
                break
            goal += GAMMA**step * rows[row].reward
            if rows[row].terminated or rows[row].truncated:
                break
        if not complete:
            assert row == first  # behind a step comes another or the end of its episode
            continue
        if not rows[row].terminated:
            best = agent.online.head(online[row + 1]).argmax()
            value = float(agent.target.head(target[row + 1])[0, best])
            goal += GAMMA ** (row + 1 - first) * h_inverse(value)
        prediction = agent.online.head(online[first])[0, rows[first].action]
        errors.append(prediction - h(goal))
    return errors


def test_the_loss_is_the_one_of_the_paper():
    """Stored state, burn-in, ends and truncations in the window, rescaled values, priorities."""
    rng = np.random.default_rng(0)
    agent = agent_with(functools.partial(LSTMCore, hidden_size=HIDDEN))
    streams = [rows_of_a_stream(rng) for _ in range(2)]
    memories = [torch.randn(len(rows), 2 * HIDDEN) for rows in streams]
    buffer = replay_of(streams, agent.env_spec, memories)
    keys = buffer.samplable_keys()
    buffer.learnt(keys, torch.rand(len(keys)) + 0.1)
    batch = buffer.sample(16)
    time = CONFIG.burn_in + CONFIG.length + N_STEP
    weighted, priorities, ended = [], [], 0
    for (stream, number), weight in zip(batch.keys.tolist(), batch.weights, strict=True):
        rows = streams[stream][number : number + time]
        errors = squared_errors(agent, rows, memories[stream][number])
        weighted += [weight * error.square() / 2 for error in errors]
        sizes = torch.stack(errors).detach().abs()
        priorities.append(ETA * sizes.max() + (1 - ETA) * sizes.mean())
        ended += sum(row.truncated for row in rows[CONFIG.burn_in :])
    assert ended > 5
    expected = torch.stack(weighted).mean()
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in agent.online.parameters()]
    agent.zero_grad()
    result = agent.training_step(batch, 0)
    torch.testing.assert_close(result["loss"], expected.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        result["priorities"], torch.stack(priorities).float(), rtol=1e-3, atol=1e-4
    )
    assert result["keys"] is batch.keys
    result["loss"].backward()
    for parameter, gradient in zip(agent.online.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-4)
    assert all(parameter.grad is None for parameter in agent.target.parameters())


def sequences_and_transitions() -> tuple[SequenceBatch, Any]:
    """The same rows twice: as one sequence, all of which is learnt from, and one by one."""
    rng = np.random.default_rng(1)
    rows = episode([float(r) for r in rng.normal(0, 1, 20)], "open")
    config = SequenceConfig(length=8, overlap=0, burn_in=0)
    buffers = [filled(rows, n_step=N_STEP, gamma=GAMMA, sequences=cut) for cut in (config, None)]
    sequences: Any = buffers[0]._windows.batch(np.array([[0, 8]]), np.ones(1, np.float32))
    keys = np.array([[0, number] for number in range(8, 16)])
    return sequences, buffers[1]._windows.batch(keys, np.ones(8, np.float32))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rule", RULES)
def test_without_a_core_it_is_the_loss_of_single_transitions(
    head: type[Head], rule: type[BootstrapRule]
):
    torch.manual_seed(0)
    agent: Any = DQN(ENCODER, functools.partial(head, **HEADS[head]), rule, env_spec=make_spec())
    agent.target.load_state_dict(agent.network_recipe.build().state_dict())
    sequences, transitions = sequences_and_transitions()
    found = []
    for batch in (sequences, transitions):
        torch.manual_seed(1)  # levels of the implicit head
        found.append(agent.updater.losses(batch))
    torch.testing.assert_close(found[0].loss, found[1].loss)
    priorities = found[1].td.priority
    expected = 0.9 * priorities.max() + 0.1 * priorities.mean()
    torch.testing.assert_close(found[0].td.priority, expected[None])
    made = transitions_of(sequences, agent.online)
    assert torch.equal(made.keys, transitions.keys)
    statistics = [
        batch_statistics(batch, agent.online, found[1], agent.env_spec.action)
        for batch in (made, transitions)
    ]
    for each in statistics:  # of sequences the encoder has seen its part before
        each.pop("train/dead_units", None)
    torch.testing.assert_close(*statistics)


def test_an_action_may_be_a_choice_in_each_of_several_branches():
    spec = EnvSpec({"": Column("float32", (2,))}, ActionSpec((2, 3)))
    agent: Any = DQN(ENCODER, env_spec=spec)
    agent.target.load_state_dict(agent.network_recipe.build().state_dict())
    rng, count, losses = np.random.default_rng(0), 30, []
    rows = Rows(
        stream=np.zeros(count, np.int32), kind=np.zeros(count, np.uint8),
        frame=rng.normal(0, 1, (count, 2)).astype(np.float32),
        action=rng.integers(2, size=(count, 2)).astype(np.int32),
        reward=rng.normal(0, 1, count).astype(np.float32), terminated=np.zeros(count, bool),
        truncated=np.zeros(count, bool), policy_version=np.zeros(count, np.int64),
    )  # fmt: skip
    keys = np.array([[0, number] for number in range(8, 16)])
    for cut, wanted in ((SequenceConfig(8, 0, 0), keys[:1]), (None, keys)):
        replay = Replay(spec, 100, 1, n_step=N_STEP, sequences=cut)
        replay.add(rows)
        batch = replay._windows.batch(wanted, np.ones(len(wanted), np.float32))
        losses.append(agent.updater.losses(batch).loss)
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("core", [GRUCore, LSTMCore])
def test_every_parameter_learns_from_sequences(head: type[Head], core: type):
    torch.manual_seed(0)
    agent: Any = DQN(
        ENCODER, functools.partial(head, **HEADS[head]), DoubleBootstrap, core=core,
        env_spec=make_spec(),
    )  # fmt: skip
    sequences, _ = sequences_and_transitions()
    memory = {name: torch.zeros(1, *column.shape) for name, column in agent.online.memory.items()}
    frame = torch.randn_like(sequences.frame)
    batch = SequenceBatch(**{**vars(sequences), "frame": frame, "memory": memory})
    agent.training_step(batch, 0)["loss"].backward()
    for name, parameter in agent.online.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights")  # a cell's are not in one piece
@pytest.mark.parametrize("core", [GRUCore, LSTMCore])
@pytest.mark.parametrize("episode", [30, 3])
def test_on_a_gpu_it_is_the_same_loss(core: type, episode: int):
    """At once or in pieces, and with what stays on the host there."""
    agent: Any = DQN(ENCODER, core=core, env_spec=make_spec())
    sequences, _ = sequences_and_transitions()
    kind = sequences.kind.clone()
    kind[:, episode::episode] = RowKind.BOUNDARY
    memory = {n: torch.randn(1, *c.shape) for n, c in agent.online.memory.items()}
    batch = SequenceBatch(**{**vars(sequences), "kind": kind, "memory": memory})
    expected = agent.training_step(batch, 0)["loss"]
    found = agent.cuda().training_step(batch.to("cuda"), 0)
    torch.testing.assert_close(found["loss"].cpu(), expected, rtol=1e-3, atol=1e-4)
    assert not found["keys"].is_cuda


class Doubled(DQN):
    """A loss of one's own, which looks at values of its own, too."""

    def compute_loss(self, batch: Batch, next_values: NextValues) -> Losses:
        losses = super().compute_loss(batch, next_values)
        values = self.online.q_values(batch.observation, batch.memory)
        assert values.shape == (len(batch.action), 5)
        return losses._replace(loss=2 * losses.loss + 0 * values.sum())


def test_a_loss_of_ones_own_sees_the_transitions():
    agents: list[Any] = [kind(ENCODER, env_spec=make_spec()) for kind in (DQN, Doubled)]
    agents[1].load_state_dict(agents[0].state_dict())
    batch, _ = sequences_and_transitions()
    once, twice = (agent.training_step(batch, 0) for agent in agents)
    torch.testing.assert_close(2 * once["loss"], twice["loss"])
    assert torch.equal(once["priorities"], twice["priorities"])


def test_rows_that_are_not_learnt_from_change_nothing():
    """Rewards of rows behind the end of an episode, and actions in it."""
    agent = agent_with(None)
    rows = episode([1.0, 2.0, 3.0], "truncated") + episode([5.0] * 20, "open", first=7.0)
    cut = SequenceConfig(length=6, overlap=0, burn_in=0)
    buffer = filled(rows, n_step=2, gamma=GAMMA, sequences=cut)
    batch = buffer._windows.batch(np.array([[0, 0]]), np.ones(1, np.float32))
    assert isinstance(batch, SequenceBatch)
    assert batch.learns.tolist() == [[True, True, True, False, True, True]]
    before = agent.training_step(batch, 0)
    batch.reward[0, 3], batch.action[0, 3], batch.discount[0, 3] = 1e6, 4, 1.0
    after = agent.training_step(batch, 0)
    assert torch.equal(before["loss"], after["loss"])
    assert torch.equal(before["priorities"], after["priorities"])


def test_masks_hold_where_a_row_bootstraps():
    agent = agent_with(None)
    rows = episode([1.0] * 20, "open")
    cut = SequenceConfig(length=4, overlap=0, burn_in=0)
    buffer = filled(rows, n_step=2, gamma=GAMMA, sequences=cut)
    batch: Any = buffer._windows.batch(np.array([[0, 0]]), np.ones(1, np.float32))
    mask = torch.rand(1, 6, 5) < 0.5
    discount = batch.discount.clone()
    discount[0, 1] = 0.0
    masked = SequenceBatch(**{**vars(batch), "action_mask": mask, "discount": discount})
    made = transitions_of(masked, agent.online)
    assert made.action_mask is not None
    assert made.next_action_mask is not None
    assert torch.equal(made.action_mask, mask[0, :4])
    assert torch.equal(made.next_action_mask[[0, 2, 3]], mask[0, [2, 4, 5]])
    assert made.next_action_mask[1].all()


def test_a_sequence_s_priority_by_hand():
    learns = torch.tensor([[True, True, False], [False, True, False]])
    rows = torch.tensor([1.0, 3.0, 100.0, 100.0, 2.0, 100.0])
    batch = sequences_and_transitions()[0]
    batch = SequenceBatch(**{**vars(batch), "learns": learns, "eta": 0.75})
    found = of_each_sequence(batch, TDLoss(rows, rows, rows, rows))
    assert found.priority.tolist() == [0.75 * 3 + 0.25 * 2, 2.0]
    assert found.loss.tolist() == found.prediction.tolist() == [2.0, 2.0]
