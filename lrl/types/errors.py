"""What went wrong, as users are told."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting is wrong: the message names it, its value and the fix. The CLI exits with 2."""


def first_line(error: BaseException) -> str:
    """Return what an error says first, or of what kind it is where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)
