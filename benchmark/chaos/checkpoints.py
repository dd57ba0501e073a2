"""Checkpoints under attack: writers killed while they save, and damaged files."""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lrl.checkpoints.files import (
    CheckpointError,
    predecessor_kept,
    read_checkpoint,
    remove_leftovers,
    write_checkpoint,
)
from lrl.checkpoints.runs import resolve_checkpoint

_MIB = 2**20


def some_checkpoint(learner_step: int, num_bytes: int = 2 * _MIB) -> dict[str, Any]:
    """Return what looks like a checkpoint: all of its numbers are the learner step."""
    tensors = {f"layer{i}": torch.full((num_bytes // 16,), float(learner_step)) for i in range(4)}
    return {
        "global_step": learner_step,
        "state_dict": tensors,
        "pytorch-lightning_version": "2.6.4",
    }


def kill_writers(count: int, folder: Path, seed: int = 0) -> dict[str, int]:
    """Kill processes that save `last.ckpt` without pause, each at a random moment.

    Each goes on from what the one before left, as a resumed run does.

    Returns:
        `kills`; `resumed`: after how many `last` could be read, unmixed, and no older than the last
        save that the writer knew to be complete; `in_the_middle`: how many left a half-written
        file, and `left_over`: how many of these were still there after the next writer started.
    """
    names = ("kills", "resumed", "in_the_middle", "left_over")
    counts: dict[str, int] = dict.fromkeys(names, 0)
    rng = random.Random(seed)
    checkpoints = folder / "run" / "version_0" / "checkpoints"
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(["lrl.checkpoints.runs"])
    reached = 0
    for _ in range(count):
        known = _write_until_killed(context, checkpoints, reached, rng)
        counts["kills"] += 1
        counts["in_the_middle"] += bool(list(checkpoints.glob("*.tmp")))
        remove_leftovers(checkpoints)
        counts["left_over"] += bool(list(checkpoints.glob("*.tmp")))
        with suppress(CheckpointError):
            content = read_checkpoint(Path(str(resolve_checkpoint("last", folder, "run"))))
            reached = content["global_step"]
            tensors = content["state_dict"].values()
            is_unmixed = all(bool((tensor == reached).all()) for tensor in tensors)
            counts["resumed"] += is_unmixed and reached >= known
    return counts


def damage_files(count: int, folder: Path, seed: int = 0) -> dict[str, int]:
    """Read checkpoints that were damaged in random ways.

    Returns:
        `damaged`; `refused`: how many gave a sentence that names the file; `silent`: how many were
        read as if nothing were wrong; `crashed`: how many gave any other error.
    """
    names = ("damaged", "refused", "silent", "crashed")
    counts: dict[str, int] = dict.fromkeys(names, 0)
    rng = random.Random(seed)
    path = folder / "damaged.ckpt"
    write_checkpoint(some_checkpoint(7, 16_384), path)
    whole = path.read_bytes()
    while counts["damaged"] < count:
        content = damaged(whole, rng)
        if content == whole:
            continue
        path.write_bytes(content)
        counts["damaged"] += 1
        try:
            read_checkpoint(path)
            counts["silent"] += 1
        except CheckpointError as error:
            counts["refused"] += str(path) in str(error) and "\n" not in str(error)
        except Exception:
            counts["crashed"] += 1
    return counts


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return a file's content as a bad disk, a power cut or a broken copy may leave it."""
    start = rng.randrange(len(content))
    stop = min(len(content), start + rng.choice([1, 8, 512, 4096]))
    kind = rng.choice(["bit", "noise", "zeros", "cut", "hole", "more"])
    if kind == "bit":
        flipped = content[start] ^ (1 << rng.randrange(8))
        return content[:start] + bytes([flipped]) + content[start + 1 :]
    if kind == "noise":
        return content[:start] + rng.randbytes(stop - start) + content[stop:]
    if kind == "zeros":
        return content[:start] + bytes(stop - start) + content[stop:]
    if kind == "cut":
        return content[:start]
    if kind == "hole":
        return content[:start] + content[stop:]
    return content + rng.randbytes(stop - start)


def _write_until_killed(context: Any, folder: Path, reached: int, rng: random.Random) -> int:
    """Return the last step of which a writer said that it was saved."""
    receiver, sender = context.Pipe(duplex=False)
    writer = context.Process(target=_save_for_ever, args=(folder, reached + 1, sender))
    writer.start()
    sender.close()
    if not receiver.poll(300):
        writer.kill()
        raise TimeoutError("a writer of checkpoints did not begin")
    known = receiver.recv()
    time.sleep(rng.uniform(0.0, 0.1))
    writer.kill()
    writer.join()
    with suppress(EOFError):
        while True:
            known = receiver.recv()
    receiver.close()
    return known


def _save_for_ever(folder: Path, learner_step: int, saved: Connection) -> None:
    path = folder / "last.ckpt"
    while True:
        with predecessor_kept(path, "previous.ckpt"):
            write_checkpoint(some_checkpoint(learner_step), path)
        saved.send(learner_step)
        learner_step += 1
