"""Objects of which there is one: what they own outside Python has no copy."""

from __future__ import annotations

from typing import Any, NoReturn

from rdmaring.errors import ArgumentTypeError


class Single:
    """Refuses copy.copy, copy.deepcopy and pickle, in words. ``_instead``: what to do then."""

    __slots__ = ()

    _instead = "pass the object itself: it may be shared within its process"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raises ArgumentTypeError: copy and pickle ask here."""
        name = f"{type(self).__module__.split('.')[0]}.{type(self).__qualname__}"
        raise ArgumentTypeError(
            f"a {name} cannot be copied or pickled: it owns connections and memory of its process, once",
            hint=self._instead,
        )
