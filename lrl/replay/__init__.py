"""Replay: rows of streams are stored, transitions are sampled."""

from lrl.replay.buffer import ReplayBuffer
from lrl.replay.config import ReplayConfig
from lrl.replay.prioritized import PrioritizedSampler, RankSampler
from lrl.replay.rate_limiter import RateLimiter, RateLimiterConfig
from lrl.replay.samplers import NotEnoughRows, Sampler, TrackingSampler, UniformSampler
from lrl.replay.streams import Streams
from lrl.replay.transitions import Transitions

__all__ = [
    "NotEnoughRows",
    "PrioritizedSampler",
    "RankSampler",
    "RateLimiter",
    "RateLimiterConfig",
    "ReplayBuffer",
    "ReplayConfig",
    "Sampler",
    "Streams",
    "TrackingSampler",
    "Transitions",
    "UniformSampler",
]
