"""Plans: a schedule bound to count, dtype and chunk table, ready to run on any buffers of that shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rdmaring import chunks
from rdmaring._native import check, ffi, lib
from rdmaring.buffers import FLOAT_CODES, HALF_CODES, NAME_BY_CODE, REDOP_CODE, Vector, extents
from rdmaring.choice import SCRATCH_CELL_BYTES, SLICE_BYTES, Choice, Chooser
from rdmaring.errors import ArgumentError, ArgumentTypeError
from rdmaring.schedule import (
    ORDERED,
    SHAPED,
    WIRES,
    Algorithm,
    Flag,
    Own,
    Row,
    Schedule,
    ScheduleError,
    algorithms_of,
    generate,
)
from rdmaring.schedule.bind import check_bound
from rdmaring.schedule.channels import check_channels
from rdmaring.schedule.collectives import collective_named
from rdmaring.schedule.encode import encode_rank
from rdmaring.schedule.own_rows import proven
from rdmaring.single import Single
from rdmaring.tuning.constants import in_mailbox

if TYPE_CHECKING:
    from rdmaring.running import Runner

COLLECTIVE_CODE = {
    "all_reduce": 0,
    "reduce_scatter": 1,
    "all_gather": 2,
    "broadcast": 3,
    "reduce": 4,
    "barrier": 5,
    "all_to_all": 6,
    "gather": 7,
    "scatter": 8,
}
ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
REDUCING = frozenset(("all_reduce", "reduce_scatter", "reduce"))


@lru_cache(maxsize=256)
def _schedule(
    collective: str,
    algorithm: str,
    world: int,
    root: int | None,
    rank: int,
    order: tuple[int, ...] | None,
    nodes: tuple[int, ...] | None,
    wire: str | None,
    channels: int,
) -> tuple[Any, Schedule]:
    """This rank's rows in native form, and the schedule they are of."""
    schedule = generate(collective, algorithm, world, root, order, nodes, wire, channels)
    return _native_rows(schedule, rank), schedule


def _native_rows(schedule: Schedule, rank: int) -> Any:
    encoded = encode_rank(schedule, rank)
    out = ffi.new("rr_schedule **")
    check(lib.rr_schedule_decode(encoded, len(encoded), rank, out))
    return ffi.gc(out[0], lib.rr_schedule_free)


@dataclass(frozen=True)
class Shape:
    """All that tells one plan from another; equal on all ranks, or the ranks do not run."""

    collective: str
    count: int  # of the whole vector
    code: int  # dtype
    element_bytes: int
    op: str = "sum"
    scale: float = 1.0
    root: int | None = None
    algorithm: Algorithm | None = None
    offsets: tuple[int, ...] | None = None  # the caller's cut, for uneven parts
    paired: bool = False  # all_to_all by counts: offsets are this rank's own view, and count their sum
    wire: str | None = None  # "float32": partial sums of 16-bit floats travel so
    channels: int = 1  # parts of the vector, each with its own instance of the rows


def check_reduction(op: str, scale: float | None, code: int) -> float:
    """The scale as a number.

    Raises:
        ArgumentError: no such op, or avg or scale with integers.
    """
    if op not in REDOP_CODE:
        raise ArgumentError(f"op is {op!r}; accepted are {', '.join(REDOP_CODE)}")
    if code not in FLOAT_CODES and (op == "avg" or scale is not None):
        what = "op='avg'" if op == "avg" else f"scale={scale!r}"
        raise ArgumentError(
            f"{what} with an integer dtype; accepted are floating dtypes", hint="use op='sum' and divide"
        )
    return 1.0 if scale is None else float(scale)


def check_wire(shape: Shape) -> None:
    """Raise ArgumentError unless partial sums of this operation can travel as ``shape.wire`` says."""
    if shape.wire is None:
        return
    if shape.wire != "float32":
        raise ArgumentError(f"wire is {shape.wire!r}; accepted are None and 'float32'")
    if shape.code not in HALF_CODES or shape.op not in ("sum", "avg"):
        raise ArgumentError(
            f"wire='float32' with op {shape.op!r} of {NAME_BY_CODE[shape.code]}; "
            "accepted are sum and avg of float16 and bfloat16"
        )
    served = [by for collective, by, wire in WIRES if (collective, wire) == (shape.collective, shape.wire)]
    if shape.algorithm is not None and shape.algorithm not in served:
        raise ArgumentError(
            f"wire='float32' with algorithm={shape.algorithm!r}; accepted for {shape.collective} are "
            f"{', '.join(served)}, or none named"
        )


def _forced(shape: Shape, world: int) -> Choice:
    algorithm = str(shape.algorithm)
    collective = "all_reduce" if shape.collective == "barrier" else shape.collective
    if algorithm not in algorithms_of(collective):
        raise ArgumentError(
            f"algorithm is {algorithm!r}; accepted for {collective} are {', '.join(algorithms_of(collective))}"
        )
    mailbox = in_mailbox(algorithm, shape.count * shape.element_bytes, world)
    return Choice(algorithm, mailbox, SLICE_BYTES, "forced")


def choice_of(shape: Shape, chooser: Chooser) -> Choice:
    """The forced algorithm, or the library's choice."""
    if shape.wire is not None:
        return Choice("ring", False, SLICE_BYTES, "wire='float32' is the ring's")
    if shape.algorithm is not None:
        return _forced(shape, chooser.world)
    return chooser.choose(shape.collective, shape.count * shape.element_bytes)


def _offsets(shape: Shape, schedule: Schedule, channels: int) -> Sequence[int]:
    """The chunk table. Where chunks belong to ranks each rank's count is cut over its chunks, however many it has."""
    chunk_count, world = schedule.chunk_count, schedule.world
    collective = collective_named(shape.collective)
    if collective.per_rank_chunks:
        bounds = chunks.even(shape.count, world) if shape.offsets is None else shape.offsets
        return bounds if chunk_count == world else chunks.pieces(bounds, chunk_count // world, shape.element_bytes)
    if collective.per_pair_chunks:
        return chunks.even(shape.count, chunk_count) if shape.offsets is None else shape.offsets
    return chunks.intervals(shape.count, channels, chunk_count // channels, shape.element_bytes, schedule.weights)


def _rounds(shape: Shape, schedule: Schedule, offsets: Sequence[int], *, built_in: bool) -> int:
    """How many rounds keep scratch small: by what all ranks know alone, and so alike on all of them.

    Rounds cut chunks; a row of several chunks lies in its cell as a whole. Of counts by pair no rank knows the largest.
    """
    if not schedule.scratch_cells or shape.paired:
        return 1
    if not built_in and _any_row(schedule, lambda row: row.chunk_end - row.chunk_begin > 1):
        return 1
    largest = max(after - before for before, after in pairwise(offsets))
    return max(1, -(-largest * shape.element_bytes // SCRATCH_CELL_BYTES))


def _any_row(schedule: Schedule, holds: Callable[[Row], bool]) -> bool:
    """Is it so of a row of any rank? All ranks find the same."""
    return any(holds(row) for rank in range(schedule.world) for row in schedule.rows(rank))


def _is_wide(row: Row) -> bool:
    return bool(row.flags & (Flag.WIDE | Flag.TAKES_WIDE))


def check_algorithm(algorithm: object) -> None:
    """Raise ArgumentTypeError unless it is what a collective takes as ``algorithm=``."""
    if algorithm is None or isinstance(algorithm, (str, Schedule, Own)):
        return
    if not callable(algorithm):
        raise ArgumentTypeError(
            f"algorithm is a {type(algorithm).__name__}; accepted are a name, a function that emits rows, "
            "a Schedule, or None"
        )


class NativePlan(Single):
    """Owns an ``rr_plan``, which may outlive its communicator and is of no use then."""

    __slots__ = ("channels", "choice", "handle", "listed", "offsets", "run", "shape")

    def __init__(self, comm: Runner, shape: Shape, schedule: Schedule | None = None, *, on_host: bool = False) -> None:
        """For collective and root of ``shape``.

        schedule: rows that are not proven here; None: as ``shape`` says.
        on_host: the vectors are in host memory, though the communicator's are in that of a GPU.
        """
        collective = "all_reduce" if shape.collective == "barrier" else shape.collective
        channels = shape.channels
        on_gpu = comm._gpu is not None and shape.collective != "barrier" and not on_host
        try:
            check_channels(channels, collective)
            if schedule is None and shape.algorithm is not None and not isinstance(shape.algorithm, str):
                schedule = proven(shape.algorithm, collective, comm.size, shape.root, shape.channels)
            built_in = schedule is None
            if schedule is None:
                choice = choice_of(shape, comm._chooser)
                if on_gpu:
                    choice = replace(choice, mailbox=False)  # mailboxes are host memory
                channels = 1 if choice.mailbox else channels  # a tiny message is whole
                order = comm._order if choice.algorithm in ORDERED else None
                nodes = comm._nodes if choice.algorithm in SHAPED else None
                rows, schedule = _schedule(
                    collective, choice.algorithm, comm.size, shape.root, comm.rank, order, nodes, shape.wire, channels
                )
            else:
                choice = Choice(schedule.algorithm, False, SLICE_BYTES, "the caller's schedule")
                rows = _native_rows(schedule, comm.rank)
            check_bound(schedule, paired=shape.paired, known=built_in)
        except ScheduleError as error:
            raise ArgumentError(str(error)) from None
        self.shape = shape
        self.choice = choice
        self.listed = False  # runs as a list on streams
        self.channels = channels
        self.offsets = list(_offsets(shape, schedule, channels))
        spec = ffi.new("rr_plan_spec *")
        table = ffi.new("uint64_t[]", self.offsets)
        spec.collective = COLLECTIVE_CODE[shape.collective]
        spec.dtype = shape.code
        spec.redop = REDOP_CODE[shape.op]
        spec.root = -1 if shape.root is None else shape.root
        spec.count = shape.count
        spec.scale = shape.scale
        spec.schedule = rows
        spec.chunk_offsets = table
        spec.paired = shape.paired
        spec.slice_bytes = choice.slice_bytes
        spec.check = "crc" in comm._settings.checks
        mailbox = choice.mailbox and (not spec.check or shape.collective == "barrier")
        spec.mailbox = mailbox
        spec.algorithm = choice.algorithm.encode()
        spec.costs = comm._chooser.constants.digest
        spec.wide = shape.wire is not None or (not built_in and _any_row(schedule, _is_wide))
        spec.round_count = 1 if mailbox else _rounds(shape, schedule, self.offsets, built_in=built_in)
        if comm._gpu is not None and on_gpu:
            comm._gpu.native.need(spec.dtype)
            spec.on_device = 1
            self.listed = comm._gpu.runs_lists(schedule, built_in=built_in, paired=shape.paired)
            spec.on_streams = self.listed
        out = ffi.new("rr_plan **")
        check(lib.rr_plan_create(comm._handle, spec, out))
        self.handle = ffi.gc(out[0], lib.rr_plan_free)
        self.run = lib.rr_plan_run


class Plan(Single, partial[Any]):
    """A persistent operation on fixed arrays or lists of arrays: call it again and again; all ranks do the same.

    Made by ``Communicator.plan_all_reduce`` and its relatives. Keeps its arrays alive. Calling it blocks and
    returns the output array; ``start()`` returns a :class:`rdmaring.Work`. (It is a partial of a closure because
    such an object is called in half the time of one with ``__call__``, which counts at 8 bytes.)
    """

    _instead = "make another by plan_all_reduce() or plan_broadcast(), on all ranks"
    _comm: Runner
    _native: NativePlan
    _buffers: tuple[Vector | None, Vector | None]

    def __new__(cls, comm: Runner, native: NativePlan, given: Vector | None, out: Vector | None) -> Plan:
        shown = out or given
        assert shown is not None
        handle, finish, result = native.handle, comm._finish, shown.given
        if comm._gpu is not None:
            self = super().__new__(cls, partial(comm._run_again, native, given, out))
            self._comm = comm
            self._native = native
            self._buffers = (given, out)
            return self
        if all(vector is None or len(vector.pieces) == 1 for vector in (given, out)):
            pointers = (vector.pointer if vector else ffi.NULL for vector in (given, out))
            check(lib.rr_plan_bind(handle, *pointers))
            call = lib.rr_plan_call
        else:
            lists = (*extents(given), *extents(out), 0)

            def call(plan: Any) -> Any:
                return lib.rr_plan_run_lists(plan, *lists)

        def run() -> Any:  # the shortest there is: among ranks that take turns each finds the caches cold
            status = call(handle)
            if status:
                finish(status)
            return result

        def looking() -> Any:
            comm._refuse_nonfinite(native, given)
            return run()

        self = super().__new__(cls, looking if comm._finite else run)
        self._comm = comm
        self._native = native
        self._buffers = (given, out)
        return self

    def start(self, timeout_s: float | None = None) -> Any:
        """Run it asynchronously.

        Raises what a call raises.
        """
        if self._comm._gpu is not None:
            return self._comm._run_again(self._native, *self._buffers, True, timeout_s)
        return self._comm._run(self._native, *self._buffers, True, timeout_s)

    @property
    def algorithm(self) -> str:
        return self._native.choice.algorithm

    @property
    def channels(self) -> int:
        """Parts of the vector, each with its own instance of the schedule."""
        return self._native.channels

    def __repr__(self) -> str:
        shape = self._native.shape
        return f"<rdmaring.Plan {shape.collective} of {shape.count} elements by {self.algorithm}>"
