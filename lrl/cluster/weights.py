"""Weights on their way through a cluster: put into Ray's store once, copied out of it once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class SentWeights:
    """The newest weights, put into Ray's store when the first one is to have them.

    Args:
        ray: The module.
    """

    def __init__(self, ray: Any) -> None:
        self.version = -1
        self._ray = ray
        self._vector: npt.NDArray[np.float32] | None = None
        self._ref: Any = None

    def publish(self, vector: npt.NDArray[np.float32], version: int) -> None:
        """Take newer weights in place of those before, which may never have been sent."""
        self._vector, self.version, self._ref = vector, version, None

    def send_again(self) -> None:
        """Put them into the store anew for those who have not got them yet.

        A node fetches an object from any that has it, from a silent one, too, and waits there.
        """
        self._ref = None

    def newest(self) -> Any:
        """Return a reference to them; each node fetches them once."""
        if self._ref is None:
            self._ref = self._ray.put(self._vector)
        return self._ref

    def newer_than(self, version: int) -> Any:
        """Return a reference to them, or None if they are not newer."""
        return self.newest() if version < self.version else None


class HeldWeights:
    """The newest weights that an actor or server was called with.

    Args:
        num_parameters: Length of their vector.
    """

    def __init__(self, num_parameters: int) -> None:
        self.version = -1
        self._vector = np.empty(num_parameters, np.float32)

    def take(self, vector: npt.NDArray[np.float32] | None, version: int) -> None:
        """Copy them out of Ray's memory, which stays taken as long as somebody looks at it.

        Args:
            vector: None if there are no newer ones.
            version: Theirs.
        """
        if vector is not None:
            self._vector[:] = vector
            self.version = version

    def read(self, out: npt.NDArray[np.float32], newer_than: int = -1) -> int | None:
        """Copy them; return their version, or None if it is not newer."""
        if self.version <= newer_than:
            return None
        out[:] = self._vector
        return self.version
