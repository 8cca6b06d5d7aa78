"""A communicator whose results are wrong by one bit."""

from __future__ import annotations

from typing import Any

import numpy as np


class Corrupting:
    """A communicator that flips a bit of one element of every all_reduce of float32."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def all_reduce(self, x: Any, out: Any = None, **more: Any) -> Any:
        result = self._comm.all_reduce(x, out, **more)
        if result.dtype == np.float32:
            result.view(np.uint32)[result.size // 2] ^= 1
        return result
