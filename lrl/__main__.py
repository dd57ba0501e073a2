"""`lrl` and `python -m lrl`: what needs no Lightning is answered before it is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--version"]:
        from lrl import __version__

        print(f"lrl {__version__}")
        return
    from lrl.cli import run

    sys.exit(run())


if __name__ == "__main__":
    main()
