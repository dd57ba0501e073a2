from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lrl.actors.policy import LocalPolicyFactory, NetworkPolicy, SubscribedPolicy
from lrl.learner.dqn import DQN
from lrl.networks import NatureEncoder, QNetwork
from lrl.networks.q_network import vector_size, write_vector
from lrl.transport import WeightStore
from lrl.types import EnvSpec


class Learner:
    """An agent and the weight store that it publishes to."""

    def __init__(self, agent: DQN) -> None:
        self.agent = agent
        self.store = WeightStore(vector_size(agent.online))

    def publish(self, version: int) -> None:
        vector = torch.empty(vector_size(self.agent.online))
        write_vector(self.agent.online, vector)
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


OBSERVATION = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)


def test_actors_answer_bit_for_bit_like_the_learner(learner: Learner, policy: SubscribedPolicy):
    learner.publish(0)
    q, version = policy(OBSERVATION)
    assert version == 0
    assert q.dtype == np.float32
    np.testing.assert_array_equal(q, learner.q(OBSERVATION))


def test_images_too():
    learner = Learner(
        DQN(encoder=NatureEncoder, env_spec=EnvSpec((4, 84, 84), "uint8", 6, frame_stack=4))
    )
    policy = SubscribedPolicy(learner.agent.network_recipe.build(), learner.store)
    learner.publish(3)
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 84, 84)).astype(np.uint8)
    q, version = policy(images)
    assert version == 3
    np.testing.assert_array_equal(q, learner.q(images))
    learner.store.close()


def test_the_newest_version_is_taken_before_acting(learner: Learner, policy: SubscribedPolicy):
    learner.publish(0)
    policy(OBSERVATION)
    for version in (7, 8, 9):
        learner.train()
        learner.publish(version)
    q, version = policy(OBSERVATION)
    assert version == policy.version == 9
    np.testing.assert_array_equal(q, learner.q(OBSERVATION))


def test_a_published_snapshot_does_not_follow_the_learner(
    learner: Learner, policy: SubscribedPolicy
):
    learner.publish(0)
    published = learner.q(OBSERVATION)
    learner.train()
    for _ in range(2):
        q, version = policy(OBSERVATION)
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
    first, _ = policy(OBSERVATION)
    before = first.copy()
    policy(OBSERVATION + 1)
    np.testing.assert_array_equal(first, before)


def test_actors_keep_no_gradients(learner: Learner, policy: SubscribedPolicy):
    assert not any(p.requires_grad for p in policy.policy.network.parameters())
    assert all(p.requires_grad for p in learner.agent.online.parameters())


def test_the_synchronous_policy_is_the_online_network_itself(learner: Learner):
    policy = NetworkPolicy(learner.agent.online)
    before, version = policy(OBSERVATION)
    assert version == 0
    np.testing.assert_array_equal(before, learner.q(OBSERVATION))
    learner.train()
    policy.version = 5
    after, version = policy(OBSERVATION)
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
    policy = LocalPolicyFactory(learner.agent.network_recipe, learner.store).build()
    assert policy.version == 4
    assert torch.get_num_threads() == 1
    published = learner.q(OBSERVATION)
    np.testing.assert_array_equal(policy.policy(OBSERVATION)[0], published)


def test_building_in_an_actor_gives_an_independent_network(learner: Learner):
    network = learner.agent.network_recipe.build()
    assert isinstance(network, QNetwork)
    own = {p.data_ptr() for p in network.parameters()}
    assert not own & {p.data_ptr() for p in learner.agent.online.parameters()}
