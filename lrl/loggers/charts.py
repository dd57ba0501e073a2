"""The charts that TensorBoard shows on one page of custom scalars."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

from lrl.loggers.records import tell_loggers

LAYOUT: dict[str, dict[str, list[str]]] = {
    "learning": {
        "loss": ["train/loss"],
        "values": ["train/q_mean", "train/target_mean", "rollout/start_value_mean"],
        "error": ["train/td_error_mean", "train/target_minus_q_mean"],
        "gradient norm": ["train/grad_norm"],
        "dead units": ["train/dead_units"],
    },
    "acting": {
        "return of training episodes": ["rollout/return_mean"],
        "length of training episodes": ["rollout/length_mean"],
        "exploration": ["train/epsilon", "train/greedy_fraction"],
        "env steps per second": ["speed/env_steps_per_second"],
        "waiting": ["speed/learner_wait_fraction", "speed/actor_wait_fraction"],
    },
    "replay": {
        "size": ["replay/size"],
        "samples per insert": ["speed/samples_per_insert"],
        "distinct rows of a batch": ["train/distinct_rows"],
        "highest priority": ["replay/priority_max"],
        "rewards": ["train/reward_mean", "train/reward_abs_max"],
    },
    "sync": {
        "age of the policies": ["sync/policy_lag_mean"],
        "fill of the rings": ["transport/queue_fill"],
        "restarts of actors": ["count/actor_restarts"],
    },
    "evaluation": {
        "return": ["eval/return_mean", "eval/return_min", "eval/return_max"],
        "length": ["eval/length_mean"],
        "timeouts": ["eval/timeouts"],
    },
}
"""Categories of TensorBoard's custom scalars, their charts, and the metrics in each."""


class ChartLayout(L.Callback):
    """Lay out charts in TensorBoard when training begins."""

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _lay_out(trainer)


@rank_zero_only
def _lay_out(trainer: L.Trainer) -> None:
    layout = {
        category: {
            chart: ["Multiline", [f"^{tag}$" for tag in tags]] for chart, tags in charts.items()
        }
        for category, charts in LAYOUT.items()
    }

    def write(logger: Any) -> None:
        logger.experiment.add_custom_scalars(layout)
        logger.experiment.flush()  # now, since a writer that fails later loses what it holds

    tell_loggers(trainer, write, TensorBoardLogger)
