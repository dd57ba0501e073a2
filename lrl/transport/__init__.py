"""How rows travel from actors to the learner, and weights back. Numpy and standard library only."""

from lrl.transport.chunks import ActorEnd, Channel, ChunkWriter, LearnerGone, StopRequested
from lrl.transport.doorbell import Doorbell
from lrl.transport.layout import ChunkLayout, Counters
from lrl.transport.queue import ChunkQueue
from lrl.transport.receiver import Chunk, LedgerEntry
from lrl.transport.request_queue import RequestQueue, Taken
from lrl.transport.requests import (
    LATENCY_EDGES,
    MAX_SLOTS,
    Reply,
    RequestEnd,
    Requester,
    RequestLayout,
    RequestSlots,
)
from lrl.transport.shared import SharedBlock
from lrl.transport.weights import WeightStore

__all__ = [
    "LATENCY_EDGES",
    "MAX_SLOTS",
    "ActorEnd",
    "Channel",
    "Chunk",
    "ChunkLayout",
    "ChunkQueue",
    "ChunkWriter",
    "Counters",
    "Doorbell",
    "LearnerGone",
    "LedgerEntry",
    "Reply",
    "RequestEnd",
    "RequestLayout",
    "RequestQueue",
    "RequestSlots",
    "Requester",
    "SharedBlock",
    "StopRequested",
    "Taken",
    "WeightStore",
]
