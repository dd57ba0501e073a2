"""`lrl` and `python -m lrl`: hand over to what was asked for, and import nothing else."""

from __future__ import annotations

import os
import sys

from lrl.processes import outputs
from lrl.processes.ending import ending


def main() -> None:
    """Run the command line."""
    ending.listen()
    outputs.guard()
    if sys.argv[1:] == ["--version"]:
        from lrl import __version__

        print(f"lrl {__version__}")
        return
    from lrl.cli.command_list import answer, own_commands

    if answered := answer(sys.argv[1:]):
        text, code = answered
        print(text, file=sys.stderr if code else sys.stdout)
        sys.exit(code)
    safe = "--safe" in sys.argv[1:] or os.environ.get("LRL_SAFE", "") not in ("", "0")
    _set_path(safe)
    from lrl.cli import commands, failure
    from lrl.parts import safety

    if safe:
        safety.enable()
    if "--debug" in sys.argv[1:]:
        failure.debug()
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in ("--safe", "--debug")]
    if sys.argv[1:] and sys.argv[1] in own_commands():
        sys.exit(commands.run(sys.argv[1], sys.argv[2:]))
    from lrl.cli.main import run

    ending.exit(run())


def _set_path(safe: bool) -> None:
    """Find your own parts in the current folder, as with `python -m lrl`; with `--safe` do not."""
    from pathlib import Path

    here = Path.cwd()
    if not safe:
        if str(here) not in sys.path:
            sys.path.append(str(here))
    elif here != Path(__file__).parents[1]:
        sys.path[:] = [entry for entry in sys.path if entry and Path(entry) != here]


if __name__ == "__main__":
    main()
