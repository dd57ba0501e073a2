"""How long a process may take to start: on a busy machine minutes, as long as it works."""

from __future__ import annotations

import os
import time
from pathlib import Path

MOST_SECONDS = 600.0
"""A start that takes longer is given up, however much it works."""


class Patience:
    """Tells a process that works on its start from one that hangs, by its processor time.

    Where the system does not tell that (other than Linux), any process counts as working. The
    clock starts when this is created.
    """

    def __init__(self) -> None:
        self._began = self._worked_at = time.monotonic()
        self._used = -1.0

    def verdict(self, pid: int, idle_seconds: float, since: float = 0.0) -> str | None:
        """Say why the start of a process is given up; None if it is not. To be asked repeatedly.

        Args:
            pid: The process.
            idle_seconds: How long it may use no processor time.
            since: `time.monotonic()` before which nothing counts against it.
        """
        now, used = time.monotonic(), _processor_seconds(pid)
        if used is None or used > self._used:
            self._worked_at, self._used = now, used or 0.0
        if now - max(self._worked_at, since) > idle_seconds:
            return f"did nothing for {idle_seconds:g} s while it started"
        most = max(MOST_SECONDS, idle_seconds)
        if now - max(self._began, since) > most:
            return f"did not come through its start in {most:g} s"
        return None


def _processor_seconds(pid: int) -> float | None:
    """Return the processor time of all threads of a process, in steps of a tick."""
    try:
        # "pid (command) state ...", where a command may hold spaces and brackets
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
