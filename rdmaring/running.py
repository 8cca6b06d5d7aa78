"""What a communicator runs: plans by shape, blocking calls, works in flight. The collectives stand on it."""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rdmaring._native import AGAIN, check, error_here, ffi, lib
from rdmaring.buffers import BYTES, KnownLists, Vector, address_of, as_vector, extents, overlap
from rdmaring.choice import Chooser
from rdmaring.errors import ArgumentError, ArgumentTypeError, ClosedError, ForkedError, UnsupportedError
from rdmaring.plan import REDUCING, NativePlan, Plan, Shape, check_algorithm, check_wire
from rdmaring.schedule import Algorithm, algorithms_of
from rdmaring.schedule.channels import channels_of
from rdmaring.settings import Settings
from rdmaring.single import Single
from rdmaring.tuning.constants import Constants, built_in
from rdmaring.work import Work, own_work, timeout_ns, told

if TYPE_CHECKING:
    from rdmaring.cuda.attach import Attached

PLANS_MAX = 512  # cached; the oldest goes first
# Arrays that are remembered: what is checked once need not be checked again. They are kept alive: at most 4 MiB.
SMALL_BYTES = 65536
SMALL_MAX = 64

# The fast path of all_reduce: names looked up once.
from_buffer = ffi.from_buffer
run_here = lib.rr_plan_run_here
run_plan = lib.rr_plan_run

log = logging.getLogger("rdmaring")
NOTE_BYTES = 400
_all: weakref.WeakSet[Runner] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child: C has closed its copies of descriptors, and a thread of the parent's may have held a lock."""
    for runner in list(_all):
        runner._leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


class Small(NamedTuple):
    """A small array that was all-reduced before. Holding it keeps its id its own; the exported buffer, its memory."""

    array: np.ndarray[Any, Any]
    dtype: Any
    plan: Any
    pointer: Any


def plain_key(collective: str, x: Any, out: Any, op: str, algorithm: Algorithm | None) -> tuple[Any, ...] | None:
    """What tells a call from one plain array into another from calls that were checked before; None: it is no such."""
    if type(x) is not np.ndarray or type(out) is not np.ndarray:
        return None
    if type(op) is not str or (algorithm is not None and type(algorithm) is not str):
        return None
    return collective, x.size, out.size, x.dtype, op, algorithm


class Known(NamedTuple):
    """A call from one array into another that was checked before."""

    plan: Any
    dtype: Any
    x_at: int  # where the two begin in the whole vector, in bytes
    out_at: int


class Runner(Single):
    """A native communicator and what was planned for it. ``Communicator`` is the one class made of it.

    Another thread may close it at any time: the handle stays, and says so; what is read twice is read into a name.
    """

    _instead = "make another by dup() or split(), on all ranks; in another process by rdmaring.init()"

    def __init__(self, handle: Any, rank: int, size: int, name: str, settings: Settings) -> None:
        self._handle = handle
        self._closed = False
        self._forked = False  # in a child of the process that made it, where it counts as closed
        self._new_locks()
        _all.add(self)
        self.rank = rank
        self.size = size
        self.name = name
        self._settings = settings
        self._nodes: tuple[int, ...] = tuple(lib.rr_comm_node(handle, each) for each in range(size))
        self._chooser = Chooser(self._nodes, built_in("tcp" if self.node_count > 1 else "shm", None))
        self._order: tuple[int, ...] | None = None  # in which rings visit the ranks; None: 0, 1, ..., N - 1
        self._plans: dict[Shape, NativePlan] = {}
        self._fast: dict[tuple[int, Any, str, Algorithm | None], Any] = {}
        self._small: dict[int, Small] = {}
        self._known: dict[tuple[Any, ...], Known] = {}
        self._lists = KnownLists()
        self._works: set[Work] = set()
        self._finite = "finite" in settings.checks
        self._agreement: NativePlan | None = None  # on where the first NaN is
        self._gpu: Attached | None = None  # since its first array in GPU memory

    def _new_locks(self) -> None:
        self._settling = threading.RLock()  # a work ends in one thread: its waiter's, or that of close()
        self._ending = threading.RLock()  # of several that close, each returns when it is closed

    def _leave_to_parent(self) -> None:
        self._new_locks()
        if not self._closed:
            self._closed = self._forked = True

    @property
    def node_count(self) -> int:
        """On how many nodes the ranks are."""
        return max(self._nodes) + 1

    def _use_constants(self, constants: Constants) -> None:
        """From now on algorithms are chosen by these, equal on all ranks."""
        self._chooser = Chooser(self._nodes, constants)
        self._forget_plans()

    def _forget_plans(self) -> None:
        self._forget_calls()
        self._plans.clear()
        self._agreement = None

    def _forget_calls(self) -> None:
        self._fast.clear()
        self._small.clear()
        self._known.clear()

    def _check_open(self) -> None:
        if self._forked:
            raise ForkedError(
                f"rank {self.rank}'s communicator is used in a child process of the one that made it",
                hint="make a communicator in the child (rdmaring.init), or start workers by spawn instead of fork",
                rank=self.rank,
            )
        if self._closed:
            raise ClosedError(f"communicator {self.name!r} of rank {self.rank} is closed", rank=self.rank)

    def _shape(self, collective: str, like: Vector, count: int, **more: Any) -> Shape:
        self._check_open()
        if like.gpu is not None or self._gpu is not None:
            self._use_gpu(like.gpu)
        offsets = more.pop("offsets", None)
        check_algorithm(more.get("algorithm"))
        channels = more.pop("channels", None)
        more["channels"] = self._channels(collective, more.get("algorithm")) if channels is None else channels
        wished = self._settings.algorithm
        free = more.get("algorithm") is None and more.get("wire") is None
        if free and wished is not None and wished in algorithms_of(collective):
            more["algorithm"] = wished
        shape = Shape(
            collective,
            count,
            like.code,
            like.dtype.itemsize,
            offsets=None if offsets is None else tuple(offsets),
            **more,
        )
        check_wire(shape)
        return shape

    def _use_gpu(self, ordinal: int | None) -> None:
        """Vectors are in the memory of that GPU from now on. Collective, the first time; None: of the one there is."""
        from rdmaring import gpu  # whoever has none does not pay for it

        if self._settings.restore:
            raise UnsupportedError(
                "restore=True with arrays in GPU memory; it puts back arrays in host memory only",
                hint="pass out=, which leaves the input alone, and make the communicator without restore=",
                rank=self.rank,
            )
        gpu.use(self, ordinal)

    def _run_again(
        self,
        native: NativePlan,
        given: Vector | None,
        out: Vector | None,
        async_op: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """A plan on the arrays that it was made for."""
        from rdmaring import gpu

        self._check_open()
        return gpu.again(self, native, given, out, async_op, timeout_s)

    def _channels(self, collective: str, algorithm: Algorithm | None) -> int:
        """Where the call says nothing: rows of the caller's own run as they are."""
        if algorithm is not None and not isinstance(algorithm, str):
            return 1
        return channels_of(collective, self._settings.channels or 1)

    def _native(self, collective: str, like: Vector, count: int, **more: Any) -> NativePlan:
        shape = self._shape(collective, like, count, **more)
        native = self._plans.get(shape)
        if native is None:
            if len(self._plans) >= PLANS_MAX and not self._works:
                self._forget_calls()
                self._plans.pop(next(iter(list(self._plans)), shape), None)
            native = self._plans[shape] = NativePlan(self, shape)
        return native

    def _plan(self, shape: Shape, given: Vector, out: Vector) -> Plan:
        return Plan(self, NativePlan(self, shape), given, out)

    def _run(
        self,
        native: NativePlan,
        given: Vector | None,
        out: Vector | None,
        async_op: bool,
        timeout_s: float | None,
        *,
        returns: Vector | None = None,
        stream: Any = None,
    ) -> Any:
        """stream: of the caller, behind whose work the operation runs, too."""
        result = returns or out or given
        if self._finite:
            self._refuse_nonfinite(native, given)
        if self._gpu is not None or stream is not None:
            from rdmaring import gpu

            return gpu.run(self, native, given, out, result, async_op, timeout_s, stream)
        return self._run_here(native, given, out, result, async_op, timeout_s)

    def _refuse_nonfinite(self, native: NativePlan, given: Vector | None) -> None:
        if given is not None and native.shape.collective in REDUCING:
            from rdmaring import finite

            finite.refuse(self, native.shape.collective, given)

    def _run_here(
        self,
        native: NativePlan,
        given: Vector | None,
        out: Vector | None,
        result: Vector | None,
        async_op: bool,
        timeout_s: float | None,
        then: Callable[[], None] | None = None,
    ) -> Any:
        """then: is called once the operation has ended well, before its result is given out."""
        several = any(vector is not None and len(vector.pieces) != 1 for vector in (given, out))
        if async_op:
            return self._start(native, given, out, timeout_s, result, then)
        if several:
            status = lib.rr_plan_run_lists(native.handle, *extents(given), *extents(out), timeout_ns(timeout_s))
        else:
            status = native.run(
                native.handle,
                given.pointer if given else ffi.NULL,
                out.pointer if out else ffi.NULL,
                timeout_ns(timeout_s),
            )
        if status:
            self._finish(status)
        if then is not None:
            then()
        return result.given if result else None

    def _start(
        self,
        native: NativePlan,
        given: Vector | None,
        out: Vector | None,
        timeout_s: float | None,
        result: Vector | None = None,
        then: Callable[[], None] | None = None,
    ) -> Work:
        self._settle_finished()
        handle = ffi.new("rr_work **")
        check(lib.rr_plan_start(native.handle, *extents(given), *extents(out), timeout_ns(timeout_s), handle))
        shown = result or out or given
        work = Work(self, own_work(handle), (given, out, native), shown.given if shown else None, then)
        self._works.add(work)
        return work

    def _in_place(self, plan: Any, array: np.ndarray[Any, Any], x: Any, op: str, algorithm: Algorithm | None) -> Any:
        """array: x itself, or a torch tensor as numpy shares it."""
        try:
            pointer = from_buffer(BYTES, array, True)
        except (ValueError, BufferError):
            as_vector(x, "x", writable=True)  # says what is wrong
            raise
        # a tensor may be given other memory, an array keeps its own
        if array is x and x.nbytes <= SMALL_BYTES and op == "sum" and algorithm is None:
            if len(self._small) >= SMALL_MAX:
                self._small.clear()
            self._small[id(x)] = Small(x, x.dtype, plan, pointer)
        status = run_here(plan, pointer)
        if status:
            self._finish(status)
        return x

    def _repeat(self, key: tuple[Any, ...], x: np.ndarray[Any, Any], out: np.ndarray[Any, Any]) -> bool:
        """Run a blocking call whose like was checked before. False: it takes the long way, which says what is wrong.

        key: all that it was given beside the two arrays, with their dtype and counts.
        """
        known = self._known.get(key)
        if known is None or out.dtype != known.dtype:
            return False
        try:
            given, result = from_buffer(BYTES, x), from_buffer(BYTES, out, True)
        except (ValueError, BufferError):
            return False
        begin, other = address_of(given), address_of(result)
        if begin - known.x_at != other - known.out_at and overlap(begin, len(given), other, len(result), False):
            return False
        status = run_plan(known.plan, given, result, 0)
        if status:
            self._finish(status)
        return True

    def _remember(self, key: tuple[Any, ...], native: NativePlan, given: Vector, x_at: int, out_at: int) -> None:
        """A call from one plain array into another that is about to run. x_at, out_at: as of ``Known``."""
        # ml_dtypes' arrays have no buffer protocol: they take the long way
        if self._gpu is None and not self._finite and given.count and given.dtype.kind in "fiu":
            self._known[key] = Known(native.handle, given.dtype, x_at, out_at)

    def _settle_finished(self) -> None:
        """Let go of the arrays of works that ended well and were not waited for."""
        self._check_open()
        self._log_notes()
        for work in list(self._works):  # done() settles those that have something left to do, and takes them out
            work._settle_if_well()

    def _log_notes(self) -> None:
        """What befell links and is no error: an operation in which it does takes long enough to come by here."""
        if self._closed:
            return
        note = ffi.new("char[]", NOTE_BYTES)
        while lib.rr_comm_note(self._handle, note, NOTE_BYTES):
            log.warning("%s", ffi.string(note).decode("utf-8", "replace"))

    def _check_rank(self, given: Any, name: str) -> int:
        try:
            rank = operator.index(given)
        except TypeError:
            raise ArgumentTypeError(f"{name} is {given!r}; accepted are integers") from None
        if not 0 <= rank < self.size:
            raise ArgumentError(f"{name} is {rank}; accepted are ranks 0..{self.size - 1}")
        return rank

    def _finish(self, status: int) -> None:
        """Go on with a blocking call that is not done, looking at signals in between."""
        try:
            while status == AGAIN:
                status = lib.rr_comm_resume(self._handle)
            self._log_notes()
        except BaseException:
            # Ctrl-C, or a handler's exception: peers may still use the caller's arrays, which it gets back now.
            lib.rr_comm_abort(self._handle, b"interrupted")
            raise
        if status < 0:
            raise told(error_here(), self.size)
