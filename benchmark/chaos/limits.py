"""Runs on a machine with too little: shared memory, memory, disk (Linux)."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.chaos.checkpoints import some_checkpoint
from benchmark.chaos.signals import environment
from lrl.checkpoints.files import CheckpointError, SaveError, read_checkpoint, write_checkpoint
from lrl.checkpoints.runs import resolve_checkpoint
from lrl.types import ConfigError

_FIT = (
    "-m", "lrl", "fit", "--name", "limited", "--trainer.enable_progress_bar", "false",
    "--model.encoder", "lrl.networks.MLPEncoder", "--data.env.id", "lrl/Ledger-v0",
    "--data.actors.num_actors", "1", "--data.actors.envs_per_actor", "2",
    "--data.replay.capacity", "2000", "--data.rate.warm_up_env_steps", "100",
    "--actor_learner.eval_period_learner_steps", "0",
)  # fmt: skip
_MIB = 2**20
_BYTES = r"[\d.]+ [kMG]?B"


def can_mount() -> bool:
    """Return whether small disks can be mounted here, for processes of their own."""
    return _namespace() is not None


def with_small_shared_memory(folder: Path) -> dict[str, Any]:
    """Train with a `/dev/shm` of 8 MiB.

    Returns:
        `code` of the run's end, which is 0: rings and weights lie in memory without a name; and
        what it `said`.
    """
    result = on_tmpfs("/dev/shm", folder, [*_FIT, "--trainer.max_steps", "30"])
    return {"code": result.returncode, "said": result.stderr[-2000:]}


def with_too_little_memory(folder: Path) -> dict[str, Any]:
    """Ask for a ring of chunks that is larger than any memory.

    Returns:
        `code` of the run's end, the sizes that the message `names`, and what it `said`.
    """
    huge = ["--data.actors.chunk_rows", str(10**9), "--data.replay.capacity", str(2000)]
    free = ["--data.rate.samples_per_insert", "null"]
    result = _call([sys.executable, *_FIT, *huge, *free, "--trainer.max_steps", "30"], folder)
    sizes = re.findall(_BYTES, result.stderr)
    return {"code": result.returncode, "names": sizes, "said": result.stderr.strip()[-2000:]}


def with_full_disk(folder: Path) -> dict[str, Any]:
    """Train into a disk of 8 MiB on which one checkpoint fits, but not a second one.

    Returns:
        `code` of the run's end, the `learner_step` of the checkpoint that is left (-1 if none can
        be read), `failed_saves` in a row, whether training `came_to_its_end`, where the last save
        fails, and what the run `said`.
    """
    disk = folder / "disk"
    disk.mkdir()
    kept = folder / "kept"
    large = ["--model.encoder.hidden_sizes", "[1024,256]"]
    often = ["--actor_learner.save_period_learner_steps", "20", "--runs", str(disk)]
    # What a namespace mounts is gone with it: copy what is left.
    after = f'; code=$?; cp -r "{disk}" "{kept}"; exit $code'
    arguments = [*_FIT, *large, *often, "--trainer.max_steps", "200"]
    result = on_tmpfs(str(disk), folder, arguments, after)
    try:
        path = resolve_checkpoint("last", kept, "limited")
        learner_step = int(read_checkpoint(Path(str(path)))["global_step"])
    except (ConfigError, CheckpointError):
        learner_step = -1
    failures = re.findall(r"No space left .*\(failed saves in a row: (\d+)", result.stderr)
    return {
        "code": result.returncode,
        "learner_step": learner_step,
        "failed_saves": max(map(int, failures), default=0),
        "came_to_its_end": "the final weights are lost" in result.stderr,
        "said": result.stderr.strip()[-2000:],
    }


def save_on_full_disk(folder: Path) -> dict[str, Any]:
    """Save on a disk of 8 MiB that has no room left.

    Returns:
        `identical`: whether the old file is; `said`: the error, and whether it `names_bytes`;
        `files`: the names in the folder; `saved_later`: whether it works again with more room.
    """
    disk = folder / "small"
    disk.mkdir()
    code = f"import sys; from {__name__} import _fill; _fill(sys.argv[1])"
    result = on_tmpfs(str(disk), folder, ["-c", code, str(disk)])
    return json.loads(result.stdout)


def _fill(disk: str) -> None:
    path, said = Path(disk, "last.ckpt"), ""
    write_checkpoint(some_checkpoint(1, 3 * _MIB), path)
    before = path.read_bytes()
    try:
        write_checkpoint(some_checkpoint(2, 6 * _MIB), path)
    except SaveError as error:
        said = str(error)
    counts: dict[str, Any] = {"identical": path.read_bytes() == before, "said": said}
    counts["names_bytes"] = re.search(r"[\d,]+ bytes needed, [\d,]+ free", said) is not None
    counts["files"] = sorted(file.name for file in path.parent.iterdir())
    write_checkpoint(some_checkpoint(3, 3 * _MIB), path)
    counts["saved_later"] = read_checkpoint(path)["global_step"] == 3
    print(json.dumps(counts))


def on_tmpfs(
    mount_point: str, folder: Path, arguments: Sequence[str], after: str = "", size: str = "8m"
) -> subprocess.CompletedProcess[str]:
    """Run Python where a little memory is mounted; `can_mount` says whether that is allowed.

    Args:
        mount_point: An empty folder.
        folder: The current one of the command.
        arguments: Of Python.
        after: What follows them in the shell.
        size: As `mount` has it.
    """
    shell = _namespace()
    assert shell is not None, "can_mount comes first"
    script = f'{_mount(mount_point, size)} && "$0" "$@"{after}'
    return _call([*shell, script, sys.executable, *arguments], folder)


@functools.cache
def _namespace() -> tuple[str, ...] | None:
    """Return the beginning of a command that may mount; None if that is not allowed."""
    tool = shutil.which("unshare")
    if tool is None:
        return None
    for rights in ("-m", "-rm"):  # as root, or else as root of a namespace
        shell = (tool, rights, "sh", "-c")
        if subprocess.run([*shell, _mount("/dev/shm")], capture_output=True).returncode == 0:
            return shell
    return None


def _mount(mount_point: str, size: str = "8m") -> str:
    return f'mount -t tmpfs -o size={size} tmpfs "{mount_point}"'


def _call(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600
    )
