from collections.abc import Iterator

import numpy as np
import pytest
import torch
from helpers.tiny_networks import FlatEncoder, ModalEncoder
from torch import nn

from lrl.actors.policy import LocalPolicyFactory, NetworkPolicy, SubscribedPolicy
from lrl.actors.process import Pulse
from lrl.actors.slot import ActorSlot
from lrl.learner.dqn import DQN
from lrl.networks import NatureEncoder, QNetwork
from lrl.networks.q_network import vector_size, weights_of
from lrl.transport import WeightStore
from lrl.types import EnvSpec


class Learner:
    """An agent and the weight store that it publishes to."""

    def __init__(self, agent: DQN) -> None:
        self.agent = agent
        self.store = WeightStore(vector_size(agent.online))

    def publish(self, version: int) -> None:
        vector = weights_of(self.agent.online)
        self.store.publish(vector.numpy(), version)

    def q(self, observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.agent(torch.from_numpy(observation)).numpy()

    def train(self) -> None:
        with torch.no_grad():
            for parameter in self.agent.online.parameters():
                parameter.add_(1.0)


@pytest.fixture
def learner(tiny_spec: EnvSpec) -> Iterator[Learner]:
    learner = Learner(DQN(env_spec=tiny_spec))
    yield learner
    learner.store.close()


@pytest.fixture
def policy(learner: Learner) -> SubscribedPolicy:
    return SubscribedPolicy(learner.agent.network_recipe.build(), learner.store)


def no_pulse() -> Pulse:
    return Pulse(None)  # pyright: ignore[reportArgumentType]


OBSERVATION = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)


class InPlace(FlatEncoder):
    """Writes into what it is given."""

    def encode(self, observation: torch.Tensor) -> torch.Tensor:
        observation /= 100
        return observation


def test_a_network_that_writes_into_observations_changes_no_row(tiny_spec: EnvSpec):
    observation = OBSERVATION.copy()
    policy = NetworkPolicy(DQN(InPlace, env_spec=tiny_spec).online)
    policy(observation)
    assert np.array_equal(observation, OBSERVATION)


def test_actors_answer_bit_for_bit_like_the_learner(learner: Learner, policy: SubscribedPolicy):
    learner.publish(0)
    q, version, _ = policy(OBSERVATION)
    assert version == 0
    assert q.dtype == np.float32
    np.testing.assert_array_equal(q, learner.q(OBSERVATION))


def test_images_too():
    learner = Learner(
        DQN(encoder=NatureEncoder, env_spec=EnvSpec.box((4, 84, 84), "uint8", 6, frame_stack=4))
    )
    policy = SubscribedPolicy(learner.agent.network_recipe.build(), learner.store)
    learner.publish(3)
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 84, 84)).astype(np.uint8)
    q, version, _ = policy(images)
    assert version == 3
    np.testing.assert_array_equal(q, learner.q(images))
    learner.store.close()


def test_the_newest_version_is_taken_before_acting(learner: Learner, policy: SubscribedPolicy):
    learner.publish(0)
    policy(OBSERVATION)
    for version in (7, 8, 9):
        learner.train()
        learner.publish(version)
    q, version, _ = policy(OBSERVATION)
    assert version == policy.version == 9
    np.testing.assert_array_equal(q, learner.q(OBSERVATION))


def test_a_published_snapshot_does_not_follow_the_learner(
    learner: Learner, policy: SubscribedPolicy
):
    learner.publish(0)
    published = learner.q(OBSERVATION)
    learner.train()
    for _ in range(2):
        q, version, _ = policy(OBSERVATION)
        assert version == 0
        np.testing.assert_array_equal(q, published)
    assert (learner.q(OBSERVATION) != published).all()


def test_versions_are_only_read_when_they_change(
    learner: Learner, policy: SubscribedPolicy, monkeypatch: pytest.MonkeyPatch
):
    learner.publish(0)
    policy(OBSERVATION)
    reads = []
    read = WeightStore.read
    monkeypatch.setattr(
        WeightStore, "read", lambda *args, **kwargs: reads.append(1) or read(*args, **kwargs)
    )
    policy(OBSERVATION)
    assert reads == []
    learner.publish(1)
    policy(OBSERVATION)
    policy(OBSERVATION)
    assert reads == [1]


def test_policies_return_arrays_of_their_own(learner: Learner, policy: SubscribedPolicy):
    learner.publish(0)
    first, *_ = policy(OBSERVATION)
    before = first.copy()
    policy(OBSERVATION + 1)
    np.testing.assert_array_equal(first, before)


def test_actors_keep_no_gradients(learner: Learner, policy: SubscribedPolicy):
    assert not any(p.requires_grad for p in policy.policy.network.parameters())
    assert all(p.requires_grad for p in learner.agent.online.parameters())


def test_the_synchronous_policy_is_the_online_network_itself(learner: Learner):
    policy = NetworkPolicy(learner.agent.online)
    before, version, _ = policy(OBSERVATION)
    assert version == 0
    np.testing.assert_array_equal(before, learner.q(OBSERVATION))
    learner.train()
    policy.version = 5
    after, version, _ = policy(OBSERVATION)
    assert version == 5
    np.testing.assert_array_equal(after, learner.q(OBSERVATION))
    assert (after != before).all()


def test_acting_leaves_the_learner_trainable(learner: Learner):
    NetworkPolicy(learner.agent.online)(OBSERVATION)
    learner.agent(torch.from_numpy(OBSERVATION)).sum().backward()
    assert all(p.grad is not None for p in learner.agent.online.parameters())


@pytest.fixture
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("torch_threads")
def test_the_factory_takes_the_weights_before_the_first_step(learner: Learner):
    torch.set_num_threads(2)
    learner.publish(4)
    factory = LocalPolicyFactory(learner.agent.network_recipe, learner.store)
    (policy,) = factory.build([ActorSlot(0)], no_pulse())
    assert policy.version == 4
    assert torch.get_num_threads() == 1
    published = learner.q(OBSERVATION)
    np.testing.assert_array_equal(policy.policy(OBSERVATION)[0], published)


def test_building_in_an_actor_gives_an_independent_network(learner: Learner):
    network = learner.agent.network_recipe.build()
    assert isinstance(network, QNetwork)
    own = {p.data_ptr() for p in network.parameters()}
    assert not own & {p.data_ptr() for p in learner.agent.online.parameters()}


# --- Modes and noise ------------------------------------------------------------------------


def noisy_agent(spec: EnvSpec) -> DQN:
    """A network with a noisy layer, and two that change themselves in training mode."""
    return DQN(encoder=ModalEncoder, env_spec=spec)


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("noise", [True, False])
def test_acting_changes_neither_modes_nor_state(tiny_spec: EnvSpec, training: bool, noise: bool):
    network = noisy_agent(tiny_spec).online.train(training)
    next(network.encoder.children()).train(not training)  # modes need not be equal everywhere
    before = modes(network), {name: value.clone() for name, value in network.state_dict().items()}
    NetworkPolicy(network, noise=noise)(OBSERVATION)
    assert modes(network) == before[0]
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[1][name]), name


def test_modes_come_back_after_an_error(tiny_spec: EnvSpec):
    network = noisy_agent(tiny_spec).online.train()
    with pytest.raises(RuntimeError):
        NetworkPolicy(network)(np.zeros((1, 3), np.float32))
    assert all(modes(network))


@pytest.mark.parametrize("training", [True, False])
def test_every_step_draws_fresh_noise_and_evaluation_none(tiny_spec: EnvSpec, training: bool):
    network = noisy_agent(tiny_spec).online.train(training)
    acting, evaluating = NetworkPolicy(network), NetworkPolicy(network, noise=False)
    first, second = (acting(OBSERVATION)[0] for _ in range(2))
    assert (first != second).any()
    state = torch.get_rng_state()
    mean, again = (evaluating(OBSERVATION)[0] for _ in range(2))
    np.testing.assert_array_equal(mean, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert (mean != second).any()
    network.eval()
    with torch.no_grad():
        expected = network.q_values(torch.from_numpy(OBSERVATION)).numpy()
    np.testing.assert_array_equal(mean, expected)


def test_without_noisy_layers_nothing_is_drawn(learner: Learner):
    state = torch.get_rng_state()
    NetworkPolicy(learner.agent.online)(OBSERVATION)
    assert torch.equal(torch.get_rng_state(), state)


def test_noise_that_an_actor_drew_leaves_the_learner_trainable(tiny_spec: EnvSpec):
    agent = noisy_agent(tiny_spec)
    NetworkPolicy(agent.online)(OBSERVATION)
    agent.online.q_values(torch.from_numpy(OBSERVATION)).sum().backward()
    assert all(p.grad is not None for p in agent.online.parameters())


@pytest.mark.usefixtures("torch_threads")
def test_actors_draw_noise_of_their_own_from_the_run_seed(tiny_spec: EnvSpec):
    learner = Learner(noisy_agent(tiny_spec))
    learner.publish(0)
    factory = LocalPolicyFactory(learner.agent.network_recipe, learner.store)
    slots = [ActorSlot(seed, actor=actor) for seed in (0, 1) for actor in (0, 1)]
    slots.append(slots[0].restarted())

    def act(slot: ActorSlot) -> bytes:
        (policy,) = factory.build([slot], no_pulse())
        return b"".join(policy(OBSERVATION)[0].tobytes() for _ in range(3))

    acted = [act(slot) for slot in slots]
    assert len(set(acted)) == len(slots)
    assert [act(slot) for slot in slots] == acted
    learner.store.close()
