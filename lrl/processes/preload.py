"""What a fork server imports first: it then ends with the learner even while it imports the rest.

A fork server looks at its parent only once all its imports are done, which takes torch two seconds.
Linux kills a process with the *thread* that started it, where asked to; so that actors outlive a
thread that ends, this is taken back before the first of them is forked. The main module may be
imported even before this one: heavy imports of scripts belong in functions.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _end_with_parent(signal_number: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)


if sys.platform == "linux" and sys.argv[:1] == ["-c"]:  # as a fork server is started
    _end_with_parent(signal.SIGKILL)
    os.register_at_fork(before=lambda: _end_with_parent(0))
