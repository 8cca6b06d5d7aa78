"""Drawn operations in a real world of ranks, compared bit by bit: what every rank of such a test runs.

All ranks draw the same cases from one seed and each knows all ranks' inputs, which are views of one pool of drawn bits.
A case is a collective and an algorithm (built in, or a random proven schedule), in turn, and dtype, operation, memory,
root, cut and size by chance.
Arrays lie in the middle of larger memory; what stands around them must be there afterwards.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import ml_dtypes
import numpy as np
from bits_expected import HALVES, Arithmetic, Array, Expected, is_float, unlike
from bits_memory import KIB, Arena, Pool
from schedules_random import random_schedule

import rdmaring as rr
from rdmaring.buffers import as_vector
from rdmaring.schedule import ORDERED, SHAPED, Schedule, ScheduleError, algorithms_of, generate
from rdmaring.schedule.channels import CUT, schedule_in_channels
from rdmaring.schedule.collectives import COLLECTIVES

INTS = tuple(np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8))
DTYPES = (*INTS, *map(np.dtype, (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)))
KINDS = ("ordinary", "registered", "ordinary", "list", "list of both")
SPARE = 1 << 16  # bytes by which the ranks' inputs may be shifted in the pool
# Through the scratch of other ranks: what is damaged there nobody else sees, so these are drawn more often.
FORWARDING = (("gather", "binomial"), ("scatter", "binomial"))
FORWARDED = 2
WIDE = tuple((collective, name) for collective in ("all_reduce", "reduce_scatter") for name in ("ring", None))
FRESH_MAX = 4 * KIB * KIB  # bytes of an array that is made for one case alone
SMALL = (1, 63, 4 * KIB, 64 * KIB, 256 * KIB)  # bytes a part, now and then


@dataclass(frozen=True)
class Case:
    """One drawn operation."""

    number: int
    seed: int
    collective: str
    algorithm: str | None  # "random": a schedule by the seed
    dtype: np.dtype[Any]
    op: str
    scale: float | None
    root: int | None
    sizes: tuple[int, ...]  # of the chunks that the caller cuts: one; one a rank; one a pair of ranks
    counted: bool
    channels: int | None
    wire: str | None
    in_place: bool
    asynchronous: bool
    given: str  # kinds of memory
    taken: str

    @property
    def count(self) -> int:
        return sum(self.sizes)


def names_of(seed: int) -> list[tuple[str, str | None]]:
    """Each collective by each algorithm, in an order of the seed; None: the library's choice."""
    names: list[tuple[str, str | None]] = []
    for collective in COLLECTIVES:
        built_in = algorithms_of(collective)
        names += [(collective, name) for name in (*built_in, "random", "random", None)]
    names += [name for name in FORWARDING for _ in range(FORWARDED)]
    random.Random(seed).shuffle(names)
    return names


def drawn_case(number: int, seed: int, world: int, parts: Sequence[int], most: int) -> Case:
    """parts: bytes a part to draw from; most: bytes that a rank may have to hold of one vector."""
    rng = random.Random(f"{seed}/{number}")
    names = names_of(seed)
    name, algorithm = names[number % len(names)]
    collective = COLLECTIVES[name]
    dtype = rng.choice(DTYPES)
    op, scale = "sum", None
    if collective.reduces:
        op = rng.choice(("sum", "sum", "prod", "min", "max", *(("avg", "avg") if is_float(dtype) else ())))
        scale = rng.choice((None, None, 0.3)) if is_float(dtype) else None
    wire = None
    if (name, algorithm) in WIDE and dtype in HALVES and op in ("sum", "avg") and rng.random() < 0.7:
        wire = "float32"
    counted = name in ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter") and rng.random() < 0.6
    sizes = _sizes(rng, name, world, dtype.itemsize, parts, most, counted=counted)
    channels = rng.choice((None, None, 2, 3)) if name in CUT else None
    in_place = rng.random() < 0.4 and name != "all_to_all"
    given, taken = rng.choice(KINDS), rng.choice(KINDS)
    if in_place and name not in ("all_reduce", "reduce", "broadcast"):
        given = taken = rng.choice(KINDS[:3])  # a part is a slice of the whole
    root = rng.randrange(world) if collective.rooted else None
    return Case(
        number, seed, name, algorithm, dtype, op, scale, root, sizes, counted, channels, wire, in_place,
        rng.random() < 0.3, given, taken,
    )  # fmt: skip


def _sizes(
    rng: random.Random, collective: str, world: int, itemsize: int, parts: Sequence[int], most: int, *, counted: bool
) -> tuple[int, ...]:
    part = rng.choice(SMALL) if rng.random() < 0.2 else rng.choice(parts)
    each = max(0, min(part, most // world) // itemsize + rng.choice((-1, 0, 0, 1)))
    if collective in ("all_reduce", "broadcast", "reduce"):
        return (max(0, each * world + rng.choice((-1, 0, 0, 1, world // 2))),)
    if not counted:
        return (each,) * (world * world if collective == "all_to_all" else world)

    def uneven() -> int:
        return max(0, rng.choice((0, each, each, each - 1, each + 1, rng.randint(0, each), rng.randint(0, 3))))

    return tuple(uneven() for _ in range(world * world if collective == "all_to_all" else world))


class World:
    """What a rank has for all its cases."""

    def __init__(self, comm: Any, seed: int, most: int) -> None:
        self.comm, self.most = comm, most
        room = 2 * most + (SPARE << 2)
        self.pool = Pool(seed, most + 2 * SPARE)
        self.arenas = {"ordinary": Arena(np.empty(room, np.uint8)), "registered": Arena(comm.empty(room, np.uint8))}

    def array(self, rng: random.Random, kind: str, count: int, dtype: np.dtype[Any]) -> list[Array]:
        """The pieces of one vector."""
        if not kind.startswith("list"):
            if rng.random() < 0.1 and count * dtype.itemsize <= FRESH_MAX:
                return [np.empty(count, dtype) if kind == "ordinary" else self.comm.empty(count, dtype)]
            return [self.arenas[kind].cut(rng, count, dtype)]
        cuts = sorted({0, count, *(rng.randint(0, count) for _ in range(rng.randint(1, 4)))})
        arenas = ("ordinary", "registered") if kind == "list of both" else ("ordinary",)
        sizes = [end - begin for begin, end in pairwise(cuts)] or [0]
        return [self.arenas[rng.choice(arenas)].cut(rng, size, dtype) for size in sizes]

    def whole_around(self) -> bool:
        return [arena.reset() for arena in self.arenas.values()] == [True, True]


def _argument(pieces: list[Array]) -> Any:
    return pieces[0] if len(pieces) == 1 else pieces


def _fill(pieces: Sequence[Array], data: Array) -> None:
    at = 0
    for piece in pieces:
        piece[:] = data[at : at + piece.size]
        at += piece.size


def _compare(pieces: Sequence[Array], begin: int, want: Array, *, computed: bool = False) -> str:
    """The elements from ``begin`` on against ``want``; empty: alike."""
    at = 0
    for piece in pieces:
        first, last = max(begin, at), min(begin + want.size, at + piece.size)
        if first < last:
            got = piece[first - at : last - at]
            wrong = unlike(got, want[first - begin : last - begin], computed=computed)
            if wrong.size:
                place = int(wrong[0])
                due = want[first - begin + place]
                return f"{wrong.size} of {last - first} wrong, first at {first + place}: {got[place]!r}, not {due!r}"
        at += piece.size
    return ""


def _can_be_cut(algorithm: str | Schedule | None, channels: int) -> bool:
    """Rows that name channels, or lie in a cell with several ranks' chunks, go as they are."""
    if not isinstance(algorithm, Schedule):
        return True
    try:
        cut = schedule_in_channels(algorithm, channels)
        for rank in range(cut.world):
            cut.rows(rank)
    except ScheduleError:
        return False
    return True


class Run:
    """One case on one rank."""

    def __init__(self, world: World, case: Case) -> None:
        self.world, self.case, self.comm = world, case, world.comm
        self.rank, self.size = self.comm.rank, self.comm.size
        self.collective = COLLECTIVES[case.collective]
        self.rng = random.Random(f"{case.seed}/{case.number}/memory")  # the same shifts on all ranks
        self.shifts = [self.rng.randrange(0, SPARE // 8) for _ in range(self.size)]
        self.bounds = [0]
        for size in case.sizes:
            self.bounds.append(self.bounds[-1] + size)
        self.own = random.Random(f"{case.seed}/{case.number}/{self.rank}")

    # ---- inputs ----

    def origin(self, rank: int) -> int:
        """Where in the vector the input of ``rank`` begins."""
        if self.case.collective in ("all_gather", "gather"):
            return self.bounds[rank]
        return self.bounds[rank * self.size] if self.case.collective == "all_to_all" else 0

    def length(self, rank: int) -> int:
        if self.case.collective in ("all_gather", "gather"):
            return self.case.sizes[rank]
        if self.case.collective == "all_to_all":
            return sum(self.case.sizes[rank * self.size : (rank + 1) * self.size])
        return self.case.count

    def give(self, rank: int, begin: int, end: int) -> Array:
        pool = self.world.pool.of(self.case.dtype, reduced=self.collective.reduces)
        at = self.shifts[rank] - self.origin(rank)
        return pool[at + begin : at + end]

    def whole_input(self, rank: int) -> Array:
        return self.give(rank, self.origin(rank), self.origin(rank) + self.length(rank))

    # ---- the call ----

    def algorithm(self) -> str | Schedule | None:
        if self.case.algorithm != "random":
            return self.case.algorithm
        rng = random.Random(f"{self.case.seed}/{self.case.number}/rows")
        return random_schedule(rng, self.case.collective, self.size, root=self.case.root)

    def refused(self, algorithm: str | Schedule | None) -> bool:
        """Counts by pair are known to the pair alone: others cannot forward the block, and rows hold one."""
        if not (isinstance(algorithm, Schedule) and self.case.counted and self.case.collective == "all_to_all"):
            return False
        return any(
            rank not in divmod(row.chunk_begin, self.size) for rank in range(self.size) for row in algorithm.rows(rank)
        )

    def run(self) -> list[str]:
        algorithm = self.algorithm()
        more: dict[str, Any] = {"algorithm": algorithm, "async_op": self.case.asynchronous}
        if self.case.channels is not None and _can_be_cut(algorithm, self.case.channels):
            more["channels"] = self.case.channels
        if self.case.counted and self.case.collective != "all_to_all":
            more["counts"] = list(self.case.sizes)
        if self.collective.reduces:
            more.update(op=self.case.op, scale=self.case.scale)
        if self.case.wire is not None:
            more["wire"] = self.case.wire
        if self.case.root is not None:
            more["root"] = self.case.root
        call: Callable[[dict[str, Any]], list[tuple[str, str]]] = getattr(self, "_" + self.case.collective)
        if self.refused(algorithm):
            try:
                call(more)
            except rr.ArgumentError:
                self.world.whole_around()
                return []
            return [f"{self.case}: not refused"]
        found = [(what, text) for what, text in call(more) if text]
        if not self.world.whole_around():
            found.append(("memory around the arrays", "was written"))
        return [f"{self.case}: {what}: {text}" for what, text in found]

    def call(self, name: str, *arguments: Any, **more: Any) -> Any:
        made = getattr(self.comm, name)(*arguments, **more)
        return made.wait() if self.case.asynchronous else made

    def array(self, kind: str, count: int) -> list[Array]:
        """For a result: nothing right is there before."""
        pieces = self.world.array(self.own, kind, count, self.case.dtype)
        for piece in pieces:
            piece.view(np.uint8)[:] = 0x77
        return pieces

    def filled(self, kind: str, rank: int) -> list[Array]:
        pieces = self.world.array(self.own, kind, self.length(rank), self.case.dtype)
        _fill(pieces, self.whole_input(rank))
        return pieces

    def unchanged(self, pieces: Sequence[Array]) -> tuple[str, str]:
        return "input", _compare(pieces, 0, self.whole_input(self.rank))

    # ---- what is due ----

    def reduced(self, pieces: Sequence[Array], begin: int, more: dict[str, Any]) -> tuple[str, str]:
        """The result on this rank, whose ``pieces`` begin at ``begin`` of the vector."""
        like = as_vector(_argument(list(pieces)), "x", writable=False)
        factor = 1.0 if self.case.scale is None else self.case.scale
        known = {key: more.get(key) for key in ("algorithm", "channels", "root", "wire")}
        cut = {"offsets": list(self.bounds)} if self.case.collective == "reduce_scatter" else {}
        native = self.comm._native(
            self.case.collective, like, self.case.count, op=self.case.op, scale=factor, **known, **cut
        )
        schedule = self.schedule(more["algorithm"], native.choice.algorithm, native.channels)
        if self.case.op == "avg":
            factor /= self.size
        expected = Expected(schedule, native.offsets, Arithmetic(self.case.dtype, self.case.op, factor))
        chunks = range(schedule.chunk_count)
        if self.case.collective == "reduce_scatter":
            parts = schedule.chunk_count // self.size
            chunks = range(self.rank * parts, (self.rank + 1) * parts)
        for chunk in chunks:
            for first, _, want in expected.of_chunk(self.rank, chunk, self.give):
                text = _compare(pieces, first - begin, want, computed=True)
                if text:
                    return "result", f"chunk {chunk} of {schedule.algorithm}: {text}"
        return "result", ""

    def schedule(self, asked: Any, chosen: str, channels: int) -> Schedule:
        if isinstance(asked, Schedule):
            return asked if channels == 1 else schedule_in_channels(asked, channels)
        order = self.comm._order if chosen in ORDERED else None
        nodes = self.comm._nodes if chosen in SHAPED else None
        return generate(self.case.collective, chosen, self.size, self.case.root, order, nodes, self.case.wire, channels)

    # ---- one method a collective: what, and why it is wrong ----

    def _all_reduce(self, more: dict[str, Any]) -> list[tuple[str, str]]:
        x = self.filled(self.case.given, self.rank)
        out = x if self.case.in_place else self.array(self.case.taken, self.case.count)
        self.call("all_reduce", _argument(x), **({} if out is x else {"out": _argument(out)}), **more)
        return [self.reduced(out, 0, more), ("input", "") if out is x else self.unchanged(x)]

    def _reduce(self, more: dict[str, Any]) -> list[tuple[str, str]]:
        x = self.filled(self.case.given, self.rank)
        if self.rank != self.case.root:
            self.call("reduce", _argument(x), **more)
            return [self.unchanged(x)]
        out = x if self.case.in_place else self.array(self.case.taken, self.case.count)
        self.call("reduce", _argument(x), **({} if out is x else {"out": _argument(out)}), **more)
        return [self.reduced(out, 0, more), ("input", "") if out is x else self.unchanged(x)]

    def _reduce_scatter(self, more: dict[str, Any]) -> list[tuple[str, str]]:
        x = self.filled(self.case.given, self.rank)
        begin, end = self.bounds[self.rank], self.bounds[self.rank + 1]
        out = [x[0][begin:end]] if self.case.in_place else self.array(self.case.taken, end - begin)
        self.call("reduce_scatter", _argument(x), _argument(out), **more)
        return [self.reduced(out, begin, more), ("input", "") if self.case.in_place else self.unchanged(x)]

    def _all_gather(self, more: dict[str, Any]) -> list[tuple[str, str]]:
        out = self.array(self.case.taken, self.case.count)
        x = self._part_of(out)
        self.call("all_gather", _argument(x), _argument(out), **more)
        return [*self._gathered(out), self.unchanged(x)]

    def _gather(self, more: dict[str, Any]) -> list[tuple[str, str]]:
        if self.rank != self.case.root:
            x = self.filled(self.case.given, self.rank)
            self.call("gather", _argument(x), **more)
            return [self.unchanged(x)]
        out = self.array(self.case.taken, self.case.count)
        x = self._part_of(out)
        self.call("gather", _argument(x), out=_argument(out), **more)
        return [*self._gathered(out), self.unchanged(x)]

    def _part_of(self, whole: list[Array]) -> list[Array]:
        if not self.case.in_place:
            return self.filled(self.case.given, self.rank)
        begin, end = self.bounds[self.rank], self.bounds[self.rank + 1]
        part = [whole[0][begin:end]]
        _fill(part, self.whole_input(self.rank))
        return part

    def _gathered(self, out: Sequence[Array]) -> list[tuple[str, str]]:
        return [
            (f"part of rank {rank}", _compare(out, self.bounds[rank], self.whole_input(rank)))
            for rank in range(self.size)
        ]

    def _broadcast(self, more: dict[str, Any]) -> list[tuple[str, str]]:
        root = self.case.root
        assert root is not None
        x = self.filled(self.case.given, self.rank)
        self.call("broadcast", _argument(x), **more)
        return [("result", _compare(x, 0, self.whole_input(root)))]

    def _scatter(self, more: dict[str, Any]) -> list[tuple[str, str]]:
        root = self.case.root
        assert root is not None
        begin, end = self.bounds[self.rank], self.bounds[self.rank + 1]
        want = self.give(root, begin, end)
        if self.rank != root:
            out = self.array(self.case.taken, end - begin)
            self.call("scatter", None, out=_argument(out), **more)
            return [("result", _compare(out, 0, want))]
        x = self.filled(self.case.given, root)
        out = [x[0][begin:end]] if self.case.in_place else self.array(self.case.taken, end - begin)
        self.call("scatter", _argument(x), out=_argument(out), **more)
        return [("result", _compare(out, 0, want)), self.unchanged(x)]

    def _all_to_all(self, more: dict[str, Any]) -> list[tuple[str, str]]:
        x = self.filled(self.case.given, self.rank)
        get = [self.case.sizes[source * self.size + self.rank] for source in range(self.size)]
        out = self.array(self.case.taken, sum(get))
        if self.case.counted:
            more["counts"] = (list(self.case.sizes[self.rank * self.size : (self.rank + 1) * self.size]), get)
        self.call("all_to_all", _argument(x), _argument(out), **more)
        found, at = [self.unchanged(x)], 0
        for source, size in enumerate(get):
            begin = self.bounds[source * self.size + self.rank]
            found.append((f"part of rank {source}", _compare(out, at, self.give(source, begin, begin + size))))
            at += size
        return found


def forwarded_cases(world: int, dtype: str = "i8") -> list[Case]:
    """Blocks from ordinary memory through the scratch of other ranks, from each root and to it."""
    return [
        Case(
            number, 0, collective, algorithm, np.dtype(dtype), "sum", None, root, (count,) * world, False, None, None,
            False, False, "ordinary", "ordinary",
        )
        for number, (root, count, (collective, algorithm)) in enumerate(
            product(range(world), (100_003, 500_000, 1_000_003), FORWARDING)
        )
    ]  # fmt: skip


def drawn_cases(
    comm: Any, seed: int, seconds: float, parts: Sequence[int], most: int, least: int, only: Sequence[int] = ()
) -> Iterator[Case]:
    """One after another until the time is over and ``least`` are drawn; or those of the numbers ``only``."""
    begin, number = time.monotonic(), 0
    while number < len(only) if only else _goes_on(comm, number < least or time.monotonic() - begin < seconds):
        yield drawn_case(only[number] if only else number, seed, comm.size, parts, most)
        number += 1


def run_cases(comm: Any, seed: int, most: int, cases: Iterable[Case]) -> dict[str, Any]:
    """Returns how many ran, which collectives by which algorithms, and what went wrong on this rank."""
    world = World(comm, seed, most)
    faults: list[str] = []
    names: set[tuple[str, str | None]] = set()
    number = 0
    for case in cases:
        try:
            faults += Run(world, case).run()
        except rr.CommunicatorError as error:  # the others have it too, and nothing can come after
            faults.append(f"{case}: {type(error).__name__}: {error}")
            break
        except rr.RdmaringError as error:
            faults.append(f"{case}: {type(error).__name__}: {error}")
            world.whole_around()
        names.add((case.collective, case.algorithm))
        number += 1
    return {"cases": number, "names": sorted(map(str, names)), "faults": faults}


def _goes_on(comm: Any, wanted: bool) -> bool:
    """What rank 0 wants."""
    told = np.array([wanted], np.int32)
    comm.broadcast(told, root=0)
    return bool(told[0])
