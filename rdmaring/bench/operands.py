"""One rank's arrays of a case: which part of the vector it gives, which it gets, and what is right there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rdmaring.bench.cases import Case
from rdmaring.bench.data import PERIOD, Array, combined, contribution, count_wrong, fill, inverted
from rdmaring.chunks import even
from rdmaring.communicator import Communicator
from rdmaring.schedule.collectives import COLLECTIVES

Piece = tuple[int, int, Array]  # elements [begin, end) of the vector, and the pattern that stands there


@dataclass(frozen=True, slots=True)
class Operands:
    """given and result: whole vectors, one memory if the call is in place. Parts: elements [begin, end)."""

    given: Array
    result: Array
    input: tuple[int, int]
    output: tuple[int, int]
    contributed: Array  # one period of what this rank gives
    right: tuple[Piece, ...]  # of the output, after the call

    @property
    def in_place(self) -> bool:
        return self.given is self.result

    def set_crafted(self) -> None:
        """Contributions into the input; into the rest of the output what is wrong in every element."""
        for begin, end, pattern in self.right:
            fill(self.result[begin:end], inverted(pattern), begin)
        begin, end = self.input
        fill(self.given[begin:end], self.contributed, begin)

    def set_neutral(self, value: int) -> None:
        """One value in all of input and output."""
        for array, (begin, end) in ((self.given, self.input), (self.result, self.output)):
            array[begin:end] = value

    def count_wrong(self) -> int:
        """Elements of the output that are not right, and of the input if the call was to leave it alone."""
        wrong = sum(count_wrong(self.result[begin:end], pattern, begin) for begin, end, pattern in self.right)
        if not self.in_place or not self.right:
            begin, end = self.input
            wrong += count_wrong(self.given[begin:end], self.contributed, begin)
        return wrong


def make_operands(case: Case, rank: int, world: int, buffers: Sequence[Array], *, in_place: bool) -> Operands:
    """buffers: raw bytes; the first is enough in place."""
    given = buffers[0][: case.nbytes].view(case.dtype)
    input_part, output_part = _parts(case, rank, world)
    return Operands(
        given=given,
        result=given if in_place else buffers[1][: case.nbytes].view(case.dtype),
        input=input_part,
        output=output_part,
        contributed=contribution(case.op, case.dtype, rank, world),
        right=tuple(_right(case, rank, output_part, world)),
    )


def _parts(case: Case, rank: int, world: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Elements [begin, end) of the vector that are this rank's input and output."""
    whole, nothing = (0, case.count), (0, 0)
    offsets = even(case.count, world)
    own = (offsets[rank], offsets[rank + 1])
    if case.collective == "reduce_scatter":
        return whole, own
    if case.collective == "all_gather":
        return own, whole
    if case.collective == "gather":
        return own, (whole if rank == case.root else nothing)
    if case.collective == "scatter":
        return (whole if rank == case.root else nothing), own
    if case.collective == "broadcast":
        return (whole if rank == case.root else nothing), whole
    if case.collective == "reduce":
        return whole, (whole if rank == case.root else nothing)
    return whole, whole


def _right(case: Case, rank: int, output: tuple[int, int], world: int) -> list[Piece]:
    begin, end = output
    if begin == end:
        return []
    offsets = even(case.count, world)
    if case.collective in ("all_gather", "gather"):
        return [(offsets[r], offsets[r + 1], contribution(None, case.dtype, r, world)) for r in range(world)]
    if case.collective == "all_to_all":  # what stands there at `rank`'s offset in the sender's vector
        shifts = [offsets[s] - offsets[rank] for s in range(world)]
        patterns = [np.roll(contribution(None, case.dtype, s, world), shifts[s] % PERIOD) for s in range(world)]
        return [(offsets[s], offsets[s + 1], patterns[s]) for s in range(world)]
    if case.op is None:
        assert case.root is not None
        return [(begin, end, contribution(None, case.dtype, case.root, world))]
    return [(begin, end, combined(case.op, case.dtype, world))]


def bind(comm: Communicator, case: Case, operands: Operands, *, plan: bool) -> Callable[[], Any]:
    """The call that is timed: as a user would write it, arguments and all."""
    x: Array | None = operands.given[slice(*operands.input)]
    out = operands.result[slice(*operands.output)]
    more: dict[str, Any] = {}
    if case.algorithm is not None:
        more["algorithm"] = case.algorithm
    if case.op not in (None, "sum"):
        more["op"] = case.op
    if COLLECTIVES[case.collective].rooted:
        more["root"] = case.root
    if case.collective == "broadcast":
        x = operands.result
    elif case.collective in ("reduce_scatter", "all_gather", "all_to_all"):
        more["out"] = out
    elif case.collective == "gather":
        more["out"] = out if comm.rank == case.root else None
    elif case.collective == "scatter":
        x = x if comm.rank == case.root else None
        more["out"] = out
    elif not operands.in_place:
        more["out"] = out
    if plan:
        planned: Callable[[], Any] = getattr(comm, f"plan_{case.collective}")(x, **more)
        return planned
    return partial(getattr(comm, case.collective), x, **more)
