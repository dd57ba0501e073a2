"""`lrl` and `python -m lrl`: hand over to what was asked for, and import nothing else."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:
        from lrl import __version__

        print(f"lrl {__version__}")
        return
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # your own parts, as with `python -m lrl`
    from lrl import commands

    if sys.argv[1:] and sys.argv[1] in commands.COMMANDS:
        sys.exit(commands.run(sys.argv[1], sys.argv[2:]))
    from lrl.cli import run

    sys.exit(run())


if __name__ == "__main__":
    main()
