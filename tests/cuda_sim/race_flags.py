"""Which store each wait for a flag came after: by what the log says of the flag, not by which one it happened to see.

A wait that saw a late store is ordered behind it in that run alone: with other delays it would have gone on behind an
earlier one. So a wait is given the store that it has in every run.

A *token* flag: each wait of its one waiting stream is followed, in that stream, by a store that takes the value away.
Then wait n takes store n (or n - 1, where the flag begins with the value), whether or not store n + 1 came before it
looked.

A *counting* flag: waits are for "at least", and stores grow. Then a wait has the first store that is enough.

Of others the last store is meant that left the value seen and began before it was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Store:
    """Of a memory operation, or of a copy onto the flag: then value is None."""

    at_ns: int
    value: int | None
    node: int
    line: tuple[Any, ...]


@dataclass(frozen=True)
class Fill:
    """A write of a range that the flag is a part of; a copy: value is None."""

    at_ns: int
    value: int | None
    node: int

    @classmethod
    def of(cls, at_ns: int, node: int, nbytes: int, element: tuple[int, int] | None) -> Fill:
        """nbytes: of the flag. element: value and bytes of what is repeated; None: it is a copy."""
        if element is None:
            return cls(at_ns, None, node)
        value, width = element
        return cls(at_ns, int.from_bytes((value.to_bytes(width, "little") * nbytes)[:nbytes], "little"), node)


@dataclass(frozen=True)
class Wait:
    seen_ns: int
    value: int  # seen
    wanted: int
    how: str  # "geq", "eq", "and", "nor"
    nbytes: int  # of the flag
    node: int
    line: tuple[Any, ...]

    def ends_with(self, value: int | None) -> bool:
        """Whether it goes on when it sees the value; one that is not known is what somebody waits for."""
        if value is None:
            return True
        mask = (1 << 8 * self.nbytes) - 1
        if self.how == "geq":
            return (value - self.wanted) & mask < 1 << 8 * self.nbytes - 1
        if self.how == "eq":
            return value == self.wanted
        return bool(value & self.wanted) if self.how == "and" else (value | self.wanted) & mask != mask


@dataclass
class Flag:
    """All that was done to one flag; nodes of a line have numbers in its order."""

    stores: list[Store] = field(default_factory=list)
    fills: list[Fill] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)

    def came_after(self) -> Iterator[tuple[int, int]]:
        """Pairs of a wait's node and the node of its store. A wait without one: the host stored it, or it was there."""
        known = self._as_tokens()
        known = self._as_counts() if known is None else known
        yield from self._as_seen() if known is None else known

    def _begins_with(self, wait: Wait) -> bool | None:
        """Whether the first fill's value, or the host's, ends the wait; None: fills came later, too."""
        uses = [store.at_ns for store in self.stores] + [each.seen_ns for each in self.waits]
        if any(fill.value is None or fill.at_ns > min(uses) for fill in self.fills):
            return None
        if not self.fills:  # the host's memory: it is there if somebody went on before all stores
            stores = [store.at_ns for store in self.stores if wait.ends_with(store.value)]
            return not stores or min(each.seen_ns for each in self.waits) < min(stores)
        return wait.ends_with(max(self.fills, key=lambda fill: fill.at_ns).value)

    def _takers(self) -> set[int] | None:
        """Nodes of stores that take away what the wait before them has seen; None: not each wait has one."""
        if len({wait.line for wait in self.waits}) != 1:
            return None
        line = self.waits[0].line
        done: list[Store | Wait] = [*self.waits, *(store for store in self.stores if store.line == line)]
        done.sort(key=lambda each: each.node)
        takers = {
            later.node
            for earlier, later in pairwise(done)
            if isinstance(earlier, Wait) and isinstance(later, Store) and not earlier.ends_with(later.value)
        }
        last = isinstance(done[-1], Wait)  # what it takes away may still be to come
        return takers if len(takers) + last == len(self.waits) else None

    def _as_tokens(self) -> list[tuple[int, int]] | None:
        takers = self._takers()
        begins = None if takers is None else self._begins_with(self.waits[0])
        if takers is None or begins is None or len({(wait.wanted, wait.how) for wait in self.waits}) != 1:
            return None
        tokens: list[Store | None] = [None] if begins else []
        given = [each for each in self.stores if each.node not in takers and self.waits[0].ends_with(each.value)]
        tokens += in_order(given)
        waits = sorted(self.waits, key=lambda wait: wait.node)
        return [(wait.node, token.node) for wait, token in zip(waits, tokens, strict=False) if token is not None]

    def _as_counts(self) -> list[tuple[int, int]] | None:
        stores = in_order(self.stores)
        half = 1 << 8 * self.waits[0].nbytes - 1
        values = [store.value for store in stores if store.value is not None]
        grow = all(0 <= later - earlier < half for earlier, later in pairwise(values))
        if not grow or len(values) < len(stores) or {wait.how for wait in self.waits} != {"geq"}:
            return None
        if self._begins_with(self.waits[0]) is None:
            return None
        enough = [(wait, [each for each in stores if wait.ends_with(each.value)]) for wait in self.waits]
        return [(wait.node, those[0].node) for wait, those in enough if those and not self._there_before(wait)]

    def _there_before(self, wait: Wait) -> bool:
        if self.fills:
            return bool(self._begins_with(wait))
        enough = [store.at_ns for store in self.stores if wait.ends_with(store.value)]
        return wait.seen_ns < min(enough)

    def _as_seen(self) -> Iterator[tuple[int, int]]:
        for wait in self.waits:
            seen = [(each.at_ns, each.node) for each in self.stores if each.value in (wait.value, None)]
            seen += [(fill.at_ns, fill.node) for fill in self.fills]
            earlier = [each for each in seen if each[0] <= wait.seen_ns]
            if earlier:
                yield wait.node, max(earlier)[1]


def in_order(stores: Sequence[Store]) -> list[Store]:
    """Of one line as it made them, else by their times: where several lines store, other waits give these an order."""
    one_line = len({store.line for store in stores}) == 1
    return sorted(stores, key=lambda store: (store.node if one_line else store.at_ns, store.node))
