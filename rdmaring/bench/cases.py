"""What is asked for, and the cases that it makes: one for each row of the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rdmaring.bench.data import DtypeError, dtype_named
from rdmaring.bench.sizes import SizesError, parse_sizes
from rdmaring.buffers import FLOAT_CODES, REDOP_CODE, dtype_code
from rdmaring.schedule import algorithms_of
from rdmaring.schedule.collectives import COLLECTIVES

OUT_OF_PLACE, IN_PLACE = "out_of_place", "in_place"
PLACES = (OUT_OF_PLACE, IN_PLACE)
IN_PLACE_ONLY = ("broadcast",)
OUT_OF_PLACE_ONLY = ("all_to_all",)
EQUAL_PARTS = ("all_to_all", "gather", "scatter")  # counts are rounded down to a multiple of the world size
PLANNED = ("all_reduce", "broadcast")  # collectives with persistent plans
AUTO = "auto"  # the library's choice of an algorithm

# Repeated calls in place must neither overflow nor sink into subnormals, which some CPUs add slowly.
NEUTRAL = {"sum": 0}
NEUTRAL_OTHERWISE = 1


class RequestError(ValueError):
    """``option`` cannot be served; the message says what it was and what is accepted."""

    def __init__(self, option: str, message: str) -> None:
        super().__init__(message)
        self.option = option


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure; equal on all ranks.

    sizes: bytes of the whole vector; of all_to_all, what each rank gives. places: of PLACES. registered: in memory
    from ``comm.empty()``. plan: by persistent plans. samples: of each cell. warmup: calls before them. batch: calls a
    sample; None: as many as take about a millisecond. check: compare results. channels: in which vectors travel, and
    links are made; None: as the environment says. tensors: so many arrays of each size, as one list beside a call for
    each; None: one array.
    """

    collectives: tuple[str, ...] = ("all_reduce",)
    algorithms: tuple[str, ...] = (AUTO,)
    dtypes: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    sizes: tuple[int, ...] = parse_sizes("8:256M")
    root: int = 0
    places: tuple[str, ...] = PLACES
    registered: bool = False
    plan: bool = False
    samples: int = 20
    warmup: int = 5
    batch: int | None = None
    check: bool = True
    channels: int | None = None
    tensors: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a collective on one vector. op and root are None where the collective has none."""

    collective: str
    algorithm: str | None  # None: the library's choice
    dtype: np.dtype[Any]
    op: str | None
    root: int | None
    count: int  # elements of the whole vector; of all_to_all, of each rank's
    places: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def neutral(self) -> int:
        """What repeated calls in place leave as it is."""
        return 0 if self.op is None else NEUTRAL.get(self.op, NEUTRAL_OTHERWISE)

    def __str__(self) -> str:
        words = (self.collective, self.algorithm, self.dtype.name, self.op, f"{self.nbytes} bytes")
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Cases:
    """Those that can be served, and in words which of the asked combinations cannot."""

    served: tuple[Case, ...]
    skipped: tuple[str, ...]


def make_request(**given: Any) -> Request:
    """A request from lists as text: collectives, algorithms, dtypes, ops and sizes; the rest as in Request.

    Raises:
        RequestError: a name or size that is not served, twice the same, or an empty list.
    """
    algorithms = dict.fromkeys(name for collective in COLLECTIVES for name in algorithms_of(collective))
    known = {
        "collectives": ("--collective", tuple(COLLECTIVES)),
        "algorithms": ("--algorithm", (AUTO, *algorithms)),
        "ops": ("--op", tuple(REDOP_CODE)),
    }
    for field, (option, accepted) in known.items():
        if field in given:
            given[field] = _names(option, given[field], accepted)
    if "dtypes" in given:
        given["dtypes"] = _unique("--dtype", given["dtypes"])
        for name in given["dtypes"]:
            try:
                dtype_named(name)
            except DtypeError as error:
                raise RequestError("--dtype", str(error)) from None
    if "sizes" in given:
        try:
            given["sizes"] = parse_sizes(given["sizes"])
        except SizesError as error:
            raise RequestError("--sizes", str(error)) from None
    return Request(**given)


def make_cases(request: Request, world: int) -> Cases:
    """The rows of ``request`` among ``world`` ranks, in the order in which they are measured.

    A combination that cannot be served is left out, as long as all that was named is in some other one.

    Raises:
        RequestError: something named can be served in no combination; or the root is no rank.
    """
    if not 0 <= request.root < world:
        raise RequestError("--root", f"{request.root} is no rank; accepted are 0..{world - 1}")
    served: list[Case] = []
    refused: dict[str, tuple[str, str]] = {}  # name -> why, for those that no combination has served yet
    skipped: dict[str, None] = {}
    used: set[str] = set()
    for collective, dtype, op, algorithm in _combinations(request):
        names = {collective, dtype.name, op or collective, algorithm}
        refusal = _refusal(request, collective, dtype, op, algorithm)
        if refusal is None:
            used |= names
            served += _of_sizes(request, collective, dtype, op, algorithm, world)
        else:
            skipped[refusal[1]] = None
            refused |= dict.fromkeys(names, refusal)
    for name, (option, why) in refused.items():
        if name not in used:
            raise RequestError(option, why)
    return Cases(tuple(sorted(served, key=_order(request, world))), tuple(skipped))


def _names(option: str, text: str, accepted: tuple[str, ...]) -> tuple[str, ...]:
    names = _unique(option, text)
    for name in names:
        if name not in accepted:
            raise RequestError(option, f"{name!r} is unknown; accepted are {', '.join(accepted)}")
    return names


def _unique(option: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if len(set(names)) != len(names):
        raise RequestError(option, f"{text!r} names one twice; accepted is each once")
    return names


def _combinations(request: Request) -> Iterator[tuple[str, np.dtype[Any], str | None, str]]:
    for collective in request.collectives:
        ops = request.ops if COLLECTIVES[collective].reduces else (None,)
        for name in request.dtypes:
            for op in ops:
                for algorithm in request.algorithms:
                    yield collective, dtype_named(name), op, algorithm


def _refusal(
    request: Request, collective: str, dtype: np.dtype[Any], op: str | None, algorithm: str
) -> tuple[str, str] | None:
    """Which option is why this combination is not served, and why; or None."""
    known = (AUTO, *algorithms_of(collective))
    if algorithm not in known:
        return "--algorithm", f"{algorithm!r} does not serve {collective}; accepted are {', '.join(known)}"
    if op == "avg" and dtype_code(dtype, "dtype") not in FLOAT_CODES:
        return "--op", f"'avg' is for floating dtypes; {dtype.name} accepts sum, prod, min, max"
    if request.plan and collective not in PLANNED:
        return "--plan", f"there are no plans of {collective}; accepted are {', '.join(PLANNED)}"
    if request.tensors is not None and collective != "all_reduce":
        return "--tensors", f"lists of arrays are measured by all_reduce; {collective} is not accepted here"
    if collective in IN_PLACE_ONLY and IN_PLACE not in request.places:
        return "--out-of-place", f"{collective} works in place only"
    if collective in OUT_OF_PLACE_ONLY and OUT_OF_PLACE not in request.places:
        return "--in-place", f"{collective} works out of place only"
    return None


def _of_sizes(
    request: Request, collective: str, dtype: np.dtype[Any], op: str | None, algorithm: str, world: int
) -> Iterator[Case]:
    only = {**dict.fromkeys(IN_PLACE_ONLY, (IN_PLACE,)), **dict.fromkeys(OUT_OF_PLACE_ONLY, (OUT_OF_PLACE,))}
    for count in _counts(request, dtype, _parts(collective, world)):
        yield Case(
            collective=collective,
            algorithm=None if algorithm == AUTO else algorithm,
            dtype=dtype,
            op=op,
            root=request.root if COLLECTIVES[collective].rooted else None,
            count=count,
            places=only.get(collective, request.places),
        )


def _parts(collective: str, world: int) -> int:
    return world if collective in EQUAL_PARTS else 1


def _counts(request: Request, dtype: np.dtype[Any], parts: int) -> list[int]:
    """Elements of each size, rounded down, at least one a part; small sizes may be the same count."""
    return list(dict.fromkeys(max(1, size // dtype.itemsize // parts) * parts for size in request.sizes))


def _order(request: Request, world: int) -> Any:
    """Rows that differ in the algorithm alone stand next to each other."""
    counts = {
        (name, parts): _counts(request, dtype_named(name), parts) for name in request.dtypes for parts in (1, world)
    }

    def key(case: Case) -> tuple[int, ...]:
        return (
            request.collectives.index(case.collective),
            request.dtypes.index(case.dtype.name),
            0 if case.op is None else request.ops.index(case.op),
            counts[case.dtype.name, _parts(case.collective, world)].index(case.count),
            request.algorithms.index(case.algorithm or AUTO),
        )

    return key
