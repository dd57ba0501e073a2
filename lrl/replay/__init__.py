"""Replay: rows of streams are stored, transitions or sequences of them are sampled."""

from lrl.replay.config import ReplayConfig
from lrl.replay.device_index import DeviceIndex, Drawing
from lrl.replay.experience import Experience, StoredExperience
from lrl.replay.prioritized import PrioritizedSampler, RankSampler
from lrl.replay.rate_limiter import RateLimiter, RateLimiterConfig
from lrl.replay.replay import Replay
from lrl.replay.rollouts import Rollouts
from lrl.replay.samplers import NotEnoughRows, Sampler, TrackingSampler, UniformSampler
from lrl.replay.sequences import SequenceConfig, Sequences
from lrl.replay.streams import Streams
from lrl.replay.transitions import Transitions, Windows

__all__ = [
    "DeviceIndex",
    "Drawing",
    "Experience",
    "NotEnoughRows",
    "PrioritizedSampler",
    "RankSampler",
    "RateLimiter",
    "RateLimiterConfig",
    "Replay",
    "ReplayConfig",
    "Rollouts",
    "Sampler",
    "SequenceConfig",
    "Sequences",
    "StoredExperience",
    "Streams",
    "TrackingSampler",
    "Transitions",
    "UniformSampler",
    "Windows",
]
