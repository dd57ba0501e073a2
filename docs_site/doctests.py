"""Examples in docstrings, shown as code: to griffe only the title `Examples` is a section."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Call each `Example:` of a docstring `Examples:`."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
