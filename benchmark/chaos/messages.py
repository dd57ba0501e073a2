"""Messages of actors that were changed on their way."""

from __future__ import annotations

import random
from collections import Counter, deque

import numpy as np

from lrl.actors.actor import rows_without_action
from lrl.testing import LedgerEnv
from lrl.transport import Channel, ChunkLayout
from lrl.transport.layout import MESSAGE
from lrl.transport.queue import Receiver
from lrl.types import EnvSpec, RowKind

CHUNK_ROWS = 16


class Line:
    """A channel whose two ends are in this process, with a full chunk in it.

    Attributes:
        chunk: All of its bytes but the frames, which can be changed.
        message: What announced it.
    """

    def __init__(self) -> None:
        frame, _ = LedgerEnv().reset(seed=0)
        layout = ChunkLayout(EnvSpec.box(frame.shape, "uint8", 3), CHUNK_ROWS, 4)
        self._channel = Channel(layout, 0, 0)
        self._receiver = Receiver(self._channel, Counter())
        self.chunk = self._receiver.slots[0].small
        stream = np.zeros(CHUNK_ROWS, np.int32)
        frames = np.repeat(frame[None], CHUNK_ROWS, axis=0)
        self._channel.actor_end.open().put(rows_without_action(RowKind.PREFIX, stream, frames))
        self.message = self._channel.full.recv_bytes()

    def send(self, message: bytes) -> bool:
        """Send a message as the first one; return whether what it announces is accepted."""
        # To a receiver that got rubbish before, all that follows would be out of turn.
        self._receiver._sequence, self._receiver._order = 0, deque([0])
        self._channel.actor_end.full.send_bytes(message)
        accepted = self._receiver.receive() is not None
        while self._channel.actor_end.free.poll():
            self._channel.actor_end.free.recv_bytes()
        return accepted

    def close(self) -> None:
        """Let go of the channel."""
        self._channel.close()


def change_messages(count: int, seed: int = 0) -> dict[str, int]:
    """Send changed messages.

    Returns:
        `sent`; how many of these were `accepted`, and how many `crashed` the learner's end.
    """
    rng, line = random.Random(seed), Line()
    counts = {"sent": 0, "accepted": 0, "crashed": 0}
    while counts["sent"] < count:
        message = changed(line.message, rng)
        if message == line.message:
            continue
        counts["sent"] += 1
        try:
            counts["accepted"] += line.send(message)
        except Exception:
            counts["crashed"] += 1
    line.close()
    return counts


def changed(message: bytes, rng: random.Random) -> bytes:
    """Return a message as noise, a cut or an ill-meant actor may leave it."""
    kind = rng.choice(["flip", "field", "noise", "cut", "reversed"])
    if kind == "flip":
        position = rng.randrange(len(message))
        flipped = message[position] ^ rng.randint(1, 255)
        return message[:position] + bytes([flipped]) + message[position + 1 :]
    if kind == "field":  # a plausible message with the checksum of another
        fields = list(MESSAGE.unpack(message[: MESSAGE.size]))
        fields[rng.randrange(len(fields))] = rng.choice([0, 1, 2, CHUNK_ROWS, 2**31, 2**32 - 1])
        return MESSAGE.pack(*fields) + message[MESSAGE.size :]
    if kind == "noise":
        return rng.randbytes(len(message))
    if kind == "cut":
        return message[: rng.randrange(len(message))]
    return message[::-1]
