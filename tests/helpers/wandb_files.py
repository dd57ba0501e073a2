"""Read what W&B writes where it is offline: records of protobuf in blocks of 32 KiB."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _FILE_HEADER = 32768, 7
_HEADER = struct.Struct(
    "<IHB"
)  # CRC, length, and whether it is a whole, first, middle or last part


def records(folder: Path) -> Iterator[Any]:
    """Yield the records of the one run in W&B's folder."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # has its classes made when it is imported
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, parts = path.read_bytes(), _FILE_HEADER, b""
    while at + _HEADER.size <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER.size:
            at += left
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        parts += data[at + _HEADER.size : at + _HEADER.size + length]
        at += _HEADER.size + length
        if kind in (1, 4):
            yield messages.Record.FromString(parts)
            parts = b""
