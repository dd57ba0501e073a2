"""One run of a task: train, go on where it was interrupted, test, and say it in a row."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import yaml

from benchmark.scores.tasks import Task
from lrl.checkpoints.atomic_files import replace_file
from lrl.checkpoints.runs import versions
from lrl.preflight.cores import available_cores

FIELDS: tuple[str, ...] = (
    "task", "seed", "score", "deviation", "seconds", "env_steps", "learner_steps",
    "validation", "cores", "torch", "digest", "environment", "protocol", "epsilon", "max_frames",
    "episodes", "frames", "lrl", "ale_py", "processor",
)  # fmt: skip
"""Columns of `docs/scores.csv`."""
_STOPS = {128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT}
_KILLED_AT_MOST = 3
_REFILLED = re.compile("it is filled again|filled to its minimum again")
"""What a run warns of that goes on without its replay (`lrl.callbacks`, `lrl.learner`)."""


class Stopped(Exception):
    """The run has no row yet: the message says why."""


class Failed(Exception):
    """The run ended with an error, which the message says.

    Attributes:
        status: Exit status of the process that ended so; below 0 if a signal killed it.
    """

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def run(task: Task, seed: int, kept: Path | None = None) -> dict[str, object]:
    """Train and test a task in processes of their own; return its row.

    Args:
        task: What to train.
        seed: Seed of the training.
        kept: Folder in which the run stays as `TASK_SEED`; none to delete it.

    Raises:
        Failed: Training or testing ended with an error.
    """
    folder = None if kept is None else str(kept / f"{task.name}_{seed}")
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as runs:
        command, digest = _command(task, seed, Path(runs)), task.digest
        started = time.perf_counter()
        _call([*command("fit"), "--trainer.enable_progress_bar", "false"])
        seconds = time.perf_counter() - started
        return {**_scored(task, seed, Path(runs), digest), "seconds": round(seconds, 1)}


def advance(
    task: Task,
    seed: int,
    folder: Path,
    until: float | None,
    machine: Sequence[str] = (),
    is_tested: bool = True,
) -> dict[str, object]:
    """Train what is missing of a run, test it, and keep its row as `row.json`.

    A run that was interrupted goes on from its last checkpoint, or begins anew if it had saved
    none; one that was trained is tested only. `fit.log` is what it printed, and `sittings.json` has
    a record of each time that it was trained. One that was killed together with this process has no
    seconds there, and then the row has none either; `scheduling` is "idle" if any of them was.

    Args:
        task: What to train.
        seed: Seed of the training.
        folder: The run's own folder, made if need be.
        until: Time (`time.time()`) at which it is stopped; none for no limit.
        machine: Further arguments of `lrl fit`, which leave the recipe what it is.
        is_tested: Whether to test what was trained; otherwise the next call does.

    Raises:
        Stopped: It was interrupted or killed and goes on the next time, or is not to be tested, or
            another process works on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = task.digest
    row: dict[str, object] = {
        "task": task.name, "algorithm": task.algorithm, "seed": seed, "digest": digest,
        **task.tested,
    }  # fmt: skip
    with _locked(folder / "lock") as lock:
        found = _read_json(folder / "row.json", None)
        if found is not None and task.has(found):  # another process has ended it meanwhile
            return found
        try:
            _sit(task, seed, folder, until, lock, machine)
            if not is_tested:
                raise Stopped("trained, and not tested yet")
            row |= {**_tested(task, seed, folder, digest), "outcome": "done", "reason": ""}
            row["resumed"] = _how_it_went_on(folder, _sittings(folder))
        except Failed as error:
            row |= {"outcome": "failed", "reason": " ".join(str(error).split())[-300:]}
        row |= _spent(_sittings(folder))
        for replay in (folder / "runs").glob("*/*/checkpoints/replay"):
            shutil.rmtree(replay)
        _write_json(folder / "row.json", row)
    return row


def scheduling() -> str:
    """Return "idle" for a process that only gets what others leave, else "normal"."""
    policy = getattr(os, "sched_getscheduler", lambda _: 0)(0)
    return "idle" if policy == getattr(os, "SCHED_IDLE", -1) else "normal"


def newest_version(runs: Path) -> Path:
    """Return the folder of the newest run in `runs`; a kept one may lie beside interrupted ones."""
    (named,) = runs.iterdir()
    return versions(runs, named.name)[-1]


def _sit(
    task: Task, seed: int, folder: Path, until: float | None, lock: int, machine: Sequence[str]
) -> None:
    """Train until it is done, unless it was, and note how long.

    A sitting is noted before it begins, so that one that was killed with the machine counts, too.
    Where nothing was saved, what there is of the run is deleted: its evaluations are of no score.
    """
    sittings = _sittings(folder)
    if sittings and sittings[-1]["ended"] == "done":
        return
    is_saved = any(
        any((folder / "runs").glob(f"*/*/checkpoints/{name}.ckpt")) for name in ("last", "previous")
    )
    if not is_saved and (folder / "runs").exists():
        shutil.rmtree(folder / "runs")
    sitting = {
        "ended": "killed", "scheduling": scheduling(), "from_checkpoint": is_saved,
        "cores": available_cores(), "commit": _commit(),
    }  # fmt: skip
    _write_json(folder / "sittings.json", [*sittings, sitting])
    command = [*_command(task, seed, folder / "runs")("fit")]
    command += [*machine, "--trainer.enable_progress_bar", "false"]
    command += ["--ckpt_path", "last"] if is_saved else []
    started, cpu = time.perf_counter(), _cpu_seconds()
    log = folder / "fit.log"
    begin = log.stat().st_size if log.exists() else 0

    def note(ended: str) -> None:
        used = {"seconds": time.perf_counter() - started, "cpu_seconds": _cpu_seconds() - cpu}
        _write_json(folder / "sittings.json", [*sittings, {**sitting, "ended": ended, **used}])

    try:
        status = _watched(command, log, until, lock)
    except BaseException:
        note("stopped")
        raise
    note("done" if status == 0 else "stopped" if status in _STOPS else f"status {status}")
    if status:
        _check_is_final(status, 1 + sum("status -" in sitting["ended"] for sitting in sittings))
        raise Failed(f"lrl fit ended with {status}: {_last_words(log, begin)}", status)


def _tested(task: Task, seed: int, folder: Path, digest: str) -> dict[str, object]:
    """Return the row of a trained run; note a test that was killed."""
    try:
        return _scored(task, seed, folder / "runs", digest)
    except Failed as error:
        sittings = _sittings(folder)
        killed = sittings[-1].get("tests_killed", 0) + 1
        if error.status < 0:
            sittings[-1]["tests_killed"] = killed
            _write_json(folder / "sittings.json", sittings)
        _check_is_final(error.status, killed)
        raise


def _check_is_final(status: int, killed: int) -> None:
    """Raise `Stopped` where a run that ended so goes on: stopped, or killed not too often yet."""
    if status in _STOPS:
        raise Stopped("stopped, goes on the next time")
    if status < 0 and killed < _KILLED_AT_MOST:
        raise Stopped(f"killed by signal {-status}, goes on the next time")


def _watched(command: Sequence[str], log: Path, until: float | None, lock: int) -> int:
    """Run a command to its end, or stop it; return its exit status.

    It holds the lock as long as it lives, even if this process is killed.
    """
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, pass_fds=(lock,))
        try:
            return process.wait(None if until is None else max(0.0, until - time.time()))
        except subprocess.TimeoutExpired:
            process.terminate()
            return process.wait()
        except BaseException:  # SIGTERM and Ctrl-C: it saves, and is waited for
            process.terminate()
            process.wait()
            raise


def _command(task: Task, seed: int, runs: Path) -> Any:
    """Return what makes the command line of `fit` and `test`."""

    def line(name: str, *more: str) -> list[str]:
        settings = ["--config", f"configs/{task.recipe}.yaml", "--runs", str(runs)]
        seeded = [*settings, "--seed_everything", str(seed), *task.settings]
        return [sys.executable, "-m", "lrl", name, *seeded, *more]

    return line


def _scored(task: Task, seed: int, runs: Path, digest: str) -> dict[str, object]:
    """Test a run that was trained by a recipe of this digest; return its row without seconds."""
    if task.digest != digest:
        raise Failed(
            "the recipe changed during training: --next trains the new one; to score this run, "
            "restore the recipe and delete its row.json"
        )
    command = _command(task, seed, runs)
    output = _call([*command("test", *task.test_settings), "--ckpt_path", task.checkpoint])
    score = re.search(r"return (-?[\d.]+) ± ([\d.]+) over (\d+) episodes", output)
    if score is None:
        raise Failed(f"lrl test printed no score:\n{output}")
    summary = _read_json(newest_version(runs) / "summary.json", None)
    if summary is None:
        raise Failed("the run was killed when it had ended, and left no summary.json")
    return {
        "task": task.name,
        "seed": seed,
        "score": score[1],
        "deviation": score[2],
        "env_steps": summary["env_steps"],
        "learner_steps": summary["learner_steps"],
        "validation": summary["best_return_mean"],
        "cores": available_cores(),
        "digest": digest,
        **_measured(summary["stamp"]),
        "episodes": score[3],
    }


def _measured(stamp: Mapping[str, Any]) -> dict[str, object]:
    """Return what of a protocol stamp belongs to a row."""
    evaluation, packages = stamp["evaluation"], stamp["versions"]
    return {
        "environment": stamp["environment"]["id"],
        "protocol": stamp["protocol"],
        "epsilon": evaluation["epsilon"],
        "max_frames": evaluation["max_frames_per_episode"],
        "frames": stamp["training"]["frames"],
        "torch": packages["torch"].partition("+")[0],
        "lrl": packages["lrl"],
        "ale_py": packages["ale-py"],
        "processor": stamp["hardware"]["processor"],
        "gpu": ", ".join(stamp["hardware"]["gpus"]),
    }


def _how_it_went_on(folder: Path, sittings: Sequence[Mapping[str, Any]]) -> str:
    """Return how an interrupted run went on: "exactly", "at once" or "refilled" (its replay).

    Returns "" for one that never went on from a checkpoint.
    """
    if not any(sitting["from_checkpoint"] for sitting in sittings):
        return ""
    config = yaml.safe_load((newest_version(folder / "runs") / "config.yaml").read_text())
    keeps_replay = config["actor_learner"]["checkpoint_replay"]
    if not keeps_replay or _REFILLED.search((folder / "fit.log").read_text()):
        return "refilled"
    is_exact = config["data"]["actors"]["num_actors"] == 0 and config["trainer"]["devices"] != 2
    return "exactly" if is_exact else "at once"


def _spent(sittings: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return what a row says of its sittings; seconds only where each of them has some."""
    is_idle = any(sitting["scheduling"] == "idle" for sitting in sittings)
    spent: dict[str, object] = {
        "sittings": len(sittings),
        "seconds": "",
        "cpu_seconds": "",
        "scheduling": "idle" if is_idle else "normal",
        "cores": sittings[-1]["cores"],  # the test may have had others
        "commit": ", ".join(dict.fromkeys(sitting["commit"] for sitting in sittings)),
    }
    if all("cpu_seconds" in sitting for sitting in sittings):
        spent["cpu_seconds"] = round(sum(sitting["cpu_seconds"] for sitting in sittings))
        if not is_idle:  # where others go first, wall time says nothing
            spent["seconds"] = round(sum(sitting["seconds"] for sitting in sittings), 1)
    return spent


def _commit() -> str:
    """Return the commit of the code here, with a + where files of it were changed since."""
    ask = ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _call(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if status := result.returncode:
        said = result.stdout + result.stderr
        raise Failed(f"{' '.join(command)} ended with {status}:\n{said}", status)
    return result.stdout


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold a file that no other process holds; it is free when all that have it open have ended."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Stopped("another process works on it") from None
        yield file.fileno()


def _cpu_seconds() -> float:
    """Return the processor time of processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_words(log: Path, begin: int) -> str:
    """Return the last error that was printed, or the last line, of what follows that byte."""
    printed = log.read_bytes()[begin:].decode(errors="replace")
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["nothing was printed"])[-1]


def _sittings(folder: Path) -> list[dict[str, Any]]:
    return _read_json(folder / "sittings.json", [])


def _read_json(path: Path, otherwise: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else otherwise


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=1)
    replace_file(path, lambda file: file.write(text.encode()))
