"""How rows travel from actors to the learner, and weights back. Numpy and standard library only."""

from lrl.transport.chunks import ActorEnd, Channel, ChunkWriter
from lrl.transport.layout import ChunkLayout, Counters
from lrl.transport.queue import Chunk, ChunkQueue, LedgerEntry
from lrl.transport.weights import Weights, WeightStore

__all__ = [
    "ActorEnd",
    "Channel",
    "Chunk",
    "ChunkLayout",
    "ChunkQueue",
    "ChunkWriter",
    "Counters",
    "LedgerEntry",
    "WeightStore",
    "Weights",
]
