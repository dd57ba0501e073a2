"""Replay: rows of streams are stored, transitions are sampled."""

from lrl.replay.config import ReplayConfig
from lrl.replay.experience import Experience
from lrl.replay.prioritized import PrioritizedSampler, RankSampler
from lrl.replay.rate_limiter import RateLimiter, RateLimiterConfig
from lrl.replay.replay import Replay
from lrl.replay.samplers import NotEnoughRows, Sampler, TrackingSampler, UniformSampler
from lrl.replay.streams import Streams
from lrl.replay.transitions import Transitions

__all__ = [
    "Experience",
    "NotEnoughRows",
    "PrioritizedSampler",
    "RankSampler",
    "RateLimiter",
    "RateLimiterConfig",
    "Replay",
    "ReplayConfig",
    "Sampler",
    "Streams",
    "TrackingSampler",
    "Transitions",
    "UniformSampler",
]
