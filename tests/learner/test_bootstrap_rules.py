import torch
from helpers.tiny_networks import FlatEncoder, linear_dqn, random_batch, set_weights
from hypothesis import given
from hypothesis import strategies as st

from lrl.learner.bootstrap import DoubleBootstrap, MaxBootstrap
from lrl.networks import QNetwork, ScalarHead
from lrl.types import EnvSpec

NEXT_OBSERVATION = torch.tensor([[3.0, 2.0], [1.0, 4.0]])


def network(weight: list[list[float]]) -> QNetwork:
    network = QNetwork(FlatEncoder((2,)), ScalarHead(2, 2))
    set_weights(network, weight)
    return network


def test_rules_ask_different_networks():
    online = network([[1.0, 0.0], [0.0, 1.0]])  # q = (3, 2) and (1, 4)
    next_q = torch.tensor([[1.0, 6.0], [2.0, 12.0]])  # of the target network
    assert MaxBootstrap().next_policy(NEXT_OBSERVATION, online, next_q).tolist() == [[0, 1], [0, 1]]
    assert DoubleBootstrap().next_policy(NEXT_OBSERVATION, online, next_q).tolist() == [
        [1, 0], [0, 1]
    ]  # fmt: skip


@given(st.integers(0, 1000))
def test_double_with_equal_networks_is_max(seed: int):
    torch.manual_seed(seed)
    online = QNetwork(FlatEncoder((2,)), ScalarHead(2, 4))
    observation = torch.randn(6, 2)
    next_q = online.q_values(observation).detach()
    assert torch.equal(
        DoubleBootstrap().next_policy(observation, online, next_q),
        MaxBootstrap().next_policy(observation, online, next_q),
    )


def test_with_equal_networks_both_agents_have_the_same_loss(tiny_spec: EnvSpec):
    torch.manual_seed(0)
    plain = linear_dqn(tiny_spec)
    double = linear_dqn(tiny_spec, bootstrap=DoubleBootstrap)
    double.load_state_dict(plain.state_dict())
    losses = [agent.training_step(random_batch(), 0)["loss"].item() for agent in (plain, double)]
    assert losses[0] == losses[1]
