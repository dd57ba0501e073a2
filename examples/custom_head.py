"""A head of your own: value regression by classification, on CartPole.

    python examples/custom_head.py [--max-steps 3500]

The head learns a histogram of the value, smoothed by a Gaussian (Farebrother et al. 2024, "Stop
Regressing", https://arxiv.org/abs/2403.03950). In YAML it would be
`model.head: {class_path: custom_head.HistogramHead}`, with this file's folder on PYTHONPATH.
"""

import argparse
import functools

import lightning as L
import torch
from torch import Tensor, nn

import lrl
from lrl.learner import DoubleBootstrap
from lrl.networks import BellmanTarget, Head, TDLoss


class HistogramHead(Head):
    """Logits of the bins of a histogram per action; the value is the histogram's mean."""

    edges: Tensor
    centres: Tensor

    def __init__(
        self, num_features: int, num_actions: int, bins: int = 51, v_min: float = 0.0,
        v_max: float = 200.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.linear = nn.Linear(num_features, num_actions * bins)
        edges = torch.linspace(v_min, v_max, bins + 1)
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("centres", (edges[1:] + edges[:-1]) / 2, persistent=False)
        self.bins, self.sigma = bins, 0.75 * (v_max - v_min) / bins

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features).unflatten(-1, (-1, self.bins))  # [batch, actions, bins]

    def expected_values(self, values: Tensor) -> Tensor:
        return (values.softmax(-1) * self.centres).sum(-1)

    def td_loss(self, values: Tensor, action: Tensor, target: BellmanTarget) -> TDLoss:
        next_q = self.expected_values(target.next_values)
        if target.next_bonus is not None:
            next_q = next_q + target.next_bonus
        goal = target.reward + target.discount * (target.next_policy * next_q).sum(-1)
        goal = goal.clamp(self.edges[0], self.edges[-1]).detach()
        below = torch.special.ndtr((self.edges - goal.unsqueeze(-1)) / self.sigma)
        histogram = below.diff(dim=-1) / (below[:, -1:] - below[:, :1])
        taken = values[torch.arange(len(action)), action].log_softmax(-1)
        prediction = (taken.detach().exp() * self.centres).sum(-1)
        loss = -(histogram * taken).sum(-1)
        return TDLoss(loss, (prediction - goal).abs(), prediction, goal)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=3500, help="learner steps")
    args = parser.parse_args()

    L.seed_everything(0)
    agent = lrl.DQN(
        head=HistogramHead,
        bootstrap=DoubleBootstrap,
        optimizer=functools.partial(torch.optim.Adam, lr=1e-3),
        target_update_period_learner_steps=25,
    )
    experience = lrl.ReplayDataModule(
        lrl.EnvConfig("CartPole-v1"),
        lrl.ActorConfig(num_actors=2, envs_per_actor=16),
        replay=lrl.ReplayConfig(capacity=50_000, batch_size=512, n_step=5, gamma=0.995),
    )
    callback = lrl.ActorLearnerCallback(
        sync_period_learner_steps=10, eval_period_learner_steps=min(250, args.max_steps)
    )
    trainer = L.Trainer(
        devices=1, max_steps=args.max_steps, callbacks=[callback, lrl.RLProgressBar()]
    )
    trainer.fit(agent, datamodule=experience)
    print(f"best evaluation return {callback.best_model_score:.1f}: {callback.best_model_path}")


if __name__ == "__main__":
    main()
