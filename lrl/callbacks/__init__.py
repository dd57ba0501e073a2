"""What flows back: weights, priorities, evaluation, checkpoints, metrics."""

from lrl.callbacks.actor_learner import ActorLearnerCallback
from lrl.callbacks.background_evaluation import BackgroundEvaluation
from lrl.callbacks.checkpoints import BestCheckpoint, LastCheckpoint
from lrl.callbacks.evaluation import PeriodicEvaluation
from lrl.callbacks.feedback import PriorityUpdate, WeightSync
from lrl.callbacks.group import CallbackGroup
from lrl.callbacks.guard import NonFiniteGuard, NonFiniteLossError
from lrl.callbacks.metrics import ParameterStatistics, Throughput
from lrl.callbacks.progress import RLProgressBar
from lrl.callbacks.summary import RunSummary
from lrl.video.tensorboard import EpisodeVideo

__all__ = [
    "ActorLearnerCallback",
    "BackgroundEvaluation",
    "BestCheckpoint",
    "CallbackGroup",
    "EpisodeVideo",
    "LastCheckpoint",
    "NonFiniteGuard",
    "NonFiniteLossError",
    "ParameterStatistics",
    "PeriodicEvaluation",
    "PriorityUpdate",
    "RLProgressBar",
    "RunSummary",
    "Throughput",
    "WeightSync",
]
