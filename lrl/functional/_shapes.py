"""Shape annotations: jaxtyping where it is installed (development), else names that stay unused.

Modules that import these names postpone their annotations, so nothing is evaluated at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:
        Bool = Float = Int = None

__all__ = ["Bool", "Float", "Int"]
