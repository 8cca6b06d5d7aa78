"""The collectives of a communicator: arguments checked, a plan found by shape, run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rdmaring import memory
from rdmaring._native import ffi
from rdmaring.buffers import Vector, as_vector, check_overlap, check_together, of_torch
from rdmaring.chunks import by_pair, even
from rdmaring.chunks import given as given_offsets
from rdmaring.errors import ArgumentError
from rdmaring.plan import Plan, check_reduction
from rdmaring.running import Known, Runner, plain_key, run_here, run_plan
from rdmaring.schedule import Algorithm
from rdmaring.work import Work

ndarray, NULL = np.ndarray, ffi.NULL  # looked up once, for the fast paths
BARRIER = ("barrier",)


class Collectives(Runner):
    """What ranks call together. Arguments that they share, errors and memory: see :class:`rdmaring.Communicator`."""

    def all_reduce(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        scale: float | None = None,
        algorithm: Algorithm | None = None,
        order: str | None = None,
        channels: int | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        wire: str | None = None,
        stream: Any = None,
    ) -> Any:
        """Combine every rank's ``x`` elementwise; every rank gets the result, with the same bits.

        x: any shape; equal dtype and element count on all ranks. Overwritten by the result unless ``out`` is given.
        out: array of x's dtype and count; x is then left alone.
        op: "sum", "prod", "min", "max", "avg" (sum divided by the world size; floating dtypes).
        scale: the result is multiplied by it (in float32 for small floats; floating dtypes).
        order: "rank" adds in rank order, so that bits do not depend on the vector's size.

        The others: see :class:`rdmaring.Communicator`. Pass all but x by name. Returns ``out`` or ``x``, or a Work.
        """
        # Nothing is keyword-only here: filling their defaults would cost a tenth of a call on 8 bytes.
        plain_but_out = scale is None and order is None and wire is None and channels is None and stream is None
        if out is None and plain_but_out and timeout_s is None and not async_op:
            if op == "sum" and algorithm is None:
                known = self._small.get(id(x))
                if known is not None and known.dtype is x.dtype and x.flags.writeable:
                    status = run_here(known.plan, known.pointer)
                    if status:
                        self._finish(status)
                    return x
            array = x if type(x) is ndarray else of_torch(x)
            if array is not None:
                plan = self._fast.get((array.size, array.dtype, op, algorithm))
                if plan is not None:
                    return self._in_place(plan, array, x, op, algorithm)
        key = None
        if plain_but_out and timeout_s is None and not async_op:
            key = plain_key("all_reduce", x, out, op, algorithm)
            if key is not None and self._repeat(key, x, out):
                return out
        given, result = self._in_out(x, out)
        factor = check_reduction(op, scale, given.code)
        native = self._native(
            "all_reduce",
            given,
            given.count,
            op=op,
            scale=factor,
            algorithm=self._ordered(algorithm, order),
            wire=wire,
            channels=channels,
        )
        if key is not None:
            self._remember(key, native, given, 0, 0)
        fixed = factor == 1.0 and order is None and channels is None and wire is None
        if fixed and self._gpu is None and len(given.pieces) == 1:
            # ml_dtypes' arrays have no buffer protocol: they take the long way
            if given.dtype.kind in "fiu" and not self._finite:
                self._fast[(given.count, given.dtype, op, algorithm)] = native.handle
        return self._run(native, given, result, async_op, timeout_s, stream=stream)

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        scale: float | None = None,
        algorithm: Algorithm | None = None,
        wire: str | None = None,
        channels: int | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Combine every rank's ``x`` elementwise; rank r gets part r of the result.

        x: the whole vector, equal count on all ranks; left alone unless ``out`` is its own part of it.
        out: this rank's part; default: a new array. It may be the slice of x that it belongs to.
        counts: default: as ``numpy.array_split`` cuts.

        Returns ``out``, or a Work.
        """
        key = None
        usual = counts is None and scale is None and wire is None and channels is None
        if usual and timeout_s is None and stream is None and not async_op:
            key = plain_key("reduce_scatter", x, out, op, algorithm)
            if key is not None and self._repeat(key, x, out):
                return out
        given = as_vector(x, "x", writable=False)
        offsets = even(given.count, self.size) if counts is None else given_offsets(counts, self.size, given.count)
        begin, end = offsets[self.rank], offsets[self.rank + 1]
        if out is None:
            out = self._new(end - begin, given)
        result = self._part(out, "out", end - begin, given, writable=True)
        self._own_part_or_apart(result, given, begin)
        factor = check_reduction(op, scale, given.code)
        native = self._native(
            "reduce_scatter",
            given,
            given.count,
            op=op,
            scale=factor,
            algorithm=algorithm,
            channels=channels,
            offsets=offsets,
            wire=wire,
        )
        if key is not None:
            self._remember(key, native, given, 0, begin * given.dtype.itemsize)
        return self._run(native, given, result, async_op, timeout_s, stream=stream)

    def all_gather(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm | None = None,
        channels: int | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Every rank gets all ranks' parts, in rank order.

        x: this rank's part. It may be the slice of ``out`` that it belongs to.
        out: the whole vector; default: a new array.
        counts: default: as ``numpy.array_split`` cuts ``out``;
            without ``out`` every part has as many elements as x.

        Returns ``out``, or a Work.
        """
        key = None
        if counts is None and channels is None and timeout_s is None and stream is None and not async_op:
            key = plain_key("all_gather", x, out, "", algorithm)
            if key is not None and self._repeat(key, x, out):
                return out
        part = as_vector(x, "x", writable=False)
        if counts is not None:
            offsets = given_offsets(counts, self.size, None)
        else:
            total = part.count * self.size if out is None else as_vector(out, "out", writable=True).count
            offsets = even(total, self.size)
        mine = offsets[self.rank + 1] - offsets[self.rank]
        if part.count != mine:
            raise ArgumentError(f"x has {part.count} elements; rank {self.rank}'s part has {mine}", hint="pass counts=")
        if out is None:
            out = self._new(offsets[-1], part)
        result = self._part(out, "out", offsets[-1], part, writable=True)
        self._own_part_or_apart(part, result, offsets[self.rank])
        native = self._native("all_gather", part, offsets[-1], algorithm=algorithm, channels=channels, offsets=offsets)
        if key is not None:
            self._remember(key, native, part, offsets[self.rank] * part.dtype.itemsize, 0)
        return self._run(native, part, result, async_op, timeout_s, stream=stream)

    def broadcast(
        self,
        x: Any,
        root: int = 0,
        *,
        algorithm: Algorithm | None = None,
        channels: int | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Every rank's ``x`` becomes the root's. Returns ``x``, or a Work."""
        root = self._check_root(root)
        vector = as_vector(x, "x", writable=self.rank != root)
        native = self._native("broadcast", vector, vector.count, root=root, algorithm=algorithm, channels=channels)
        return self._run(native, vector, vector, async_op, timeout_s, stream=stream)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        op: str = "sum",
        *,
        scale: float | None = None,
        algorithm: Algorithm | None = None,
        channels: int | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Combine every rank's ``x`` elementwise; the root gets the result in ``out``, or in x without it.

        On the other ranks x is left alone and ``out`` is not looked at. Returns ``out`` or ``x``, or a Work.
        """
        root = self._check_root(root)
        if self.rank == root:
            given, result = self._in_out(x, out)
        else:
            given = as_vector(x, "x", writable=False)
            result = given
        factor = check_reduction(op, scale, given.code)
        native = self._native(
            "reduce", given, given.count, op=op, scale=factor, root=root, algorithm=algorithm, channels=channels
        )
        written = result if self.rank == root else None
        return self._run(native, given, written, async_op, timeout_s, returns=result, stream=stream)

    def all_to_all(
        self,
        x: Any,
        out: Any = None,
        *,
        counts: tuple[Sequence[int], Sequence[int]] | None = None,
        algorithm: Algorithm | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Part d of every rank's ``x`` goes to rank d, which gets all ranks' parts in rank order.

        x: this rank's parts for all ranks, in rank order; left alone.
        out: what this rank gets; shares no memory with x; default: a new array.
        counts: (elements to each rank, elements from each rank). Each rank knows its own two lists only: what a gives
            as its count to b, b must give as its count from a, or both ranks raise ``MismatchError``. All ranks pass
            counts, or none does. Default: N equal parts of x, the same count on all ranks.

        Equal parts are read in place by the peers where x is registered (``comm.empty()``); parts by counts go through
        slots. With counts an algorithm of one's own sends each part directly. Returns ``out``, or a Work.
        """
        given = as_vector(x, "x", writable=False)
        offsets = None
        if counts is None:
            if given.count % self.size:
                hint = "pass counts=(to each rank, from each rank)"
                raise ArgumentError(f"x has {given.count} elements; accepted are multiples of {self.size}", hint=hint)
            whole, got = given.count * self.size, given.count
        else:
            give, get = self._check_counts(counts, given.count)
            offsets = by_pair(give, get, self.rank)
            whole, got = offsets[-1], sum(get)
        if out is None:
            out = self._new(got, given)
        result = self._part(out, "out", got, given, writable=True)
        check_overlap(given, result, same_allowed=False)
        native = self._native(
            "all_to_all", given, whole, algorithm=algorithm, offsets=offsets, paired=counts is not None
        )
        return self._run(native, given, result, async_op, timeout_s, stream=stream)

    def gather(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        stream: Any = None,
    ) -> Any:
        """The root gets all ranks' parts, in rank order.

        x: this rank's part. On the root it may be the slice of ``out`` that it belongs to.
        out: on the root the whole vector (default: a new array); on other ranks not looked at.
        counts: default: every part has as many as x.

        Returns ``out`` on the root and ``x`` elsewhere, or a Work.
        """
        root = self._check_root(root)
        part = as_vector(x, "x", writable=False)
        offsets = self._offsets_of_parts(counts, part.count)
        mine = offsets[self.rank + 1] - offsets[self.rank]
        if part.count != mine:
            raise ArgumentError(f"x has {part.count} elements; counts give rank {self.rank} {mine}")
        result = None
        if self.rank == root:
            out = self._new(offsets[-1], part) if out is None else out
            result = self._part(out, "out", offsets[-1], part, writable=True)
            self._own_part_or_apart(part, result, offsets[root])
        native = self._native("gather", part, offsets[-1], root=root, algorithm=algorithm, offsets=offsets)
        return self._run(native, part, result, async_op, timeout_s, stream=stream)

    def scatter(
        self,
        x: Any = None,
        root: int = 0,
        out: Any = None,
        *,
        counts: Sequence[int] | None = None,
        algorithm: Algorithm | None = None,
        async_op: bool = False,
        timeout_s: float | None = None,
        stream: Any = None,
    ) -> Any:
        """Every rank gets its part of the root's ``x``.

        x: on the root the whole vector, left alone unless ``out`` is its own part of it; on other ranks not looked at.
        out: this rank's part. It tells the dtype and, without ``counts``, the count: only the root may leave it out.
        counts: default: N equal parts.

        Returns ``out``, or a Work.
        """
        root = self._check_root(root)
        given = as_vector(x, "x", writable=False) if self.rank == root else None
        if out is None:
            if given is None:
                raise ArgumentError(f"out is None on rank {self.rank}; accepted is that on the root, rank {root}, only")
            parts = self._offsets_of_parts(counts, given.count // self.size)
            out = self._new(parts[root + 1] - parts[root], given)
        result = as_vector(out, "out", writable=True)
        offsets = self._offsets_of_parts(counts, result.count)
        mine = offsets[self.rank + 1] - offsets[self.rank]
        if result.count != mine:
            raise ArgumentError(f"out has {result.count} elements; counts give rank {self.rank} {mine}")
        if given is not None:
            self._part(x, "x", offsets[-1], result, writable=False)
            self._own_part_or_apart(result, given, offsets[root])
        native = self._native("scatter", result, offsets[-1], root=root, algorithm=algorithm, offsets=offsets)
        return self._run(native, given, result, async_op, timeout_s, stream=stream, returns=result)

    def barrier(self, *, async_op: bool = False, timeout_s: float | None = None) -> Work | None:
        """Return when every rank has called it."""
        known = self._known.get(BARRIER)
        if known is not None and timeout_s is None and not async_op:
            status = run_plan(known.plan, NULL, NULL, 0)
            if status:
                self._finish(status)
            return None
        nothing = as_vector(np.empty(0, np.uint8), "x", writable=True)
        native = self._native("barrier", nothing, 0)
        if self._gpu is None:
            self._known[BARRIER] = Known(native.handle, nothing.dtype, 0, 0)
        work = self._run(native, nothing, nothing, async_op, timeout_s)
        return work if async_op else None

    # ---- persistent plans ----

    def plan_all_reduce(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        *,
        scale: float | None = None,
        algorithm: Algorithm | None = None,
        wire: str | None = None,
        channels: int | None = None,
    ) -> Plan:
        """An all-reduce on fixed arrays, or lists of them, to be called again and again. Local; as all_reduce's."""
        given, result = self._in_out(x, out)
        factor = check_reduction(op, scale, given.code)
        shape = self._shape(
            "all_reduce",
            given,
            given.count,
            op=op,
            scale=factor,
            algorithm=algorithm,
            channels=channels,
            wire=wire,
        )
        return self._plan(shape, given, result)

    def plan_broadcast(
        self, x: Any, root: int = 0, *, algorithm: Algorithm | None = None, channels: int | None = None
    ) -> Plan:
        """A broadcast on a fixed array. Local; arguments as broadcast's."""
        root = self._check_root(root)
        vector = as_vector(x, "x", writable=self.rank != root)
        return self._plan(
            self._shape("broadcast", vector, vector.count, root=root, algorithm=algorithm, channels=channels),
            vector,
            vector,
        )

    # ---- arguments ----

    def _check_root(self, given: Any) -> int:
        return self._check_rank(given, "root")

    def _ordered(self, algorithm: Algorithm | None, order: str | None) -> Algorithm | None:
        if order is None:
            return algorithm
        if order != "rank":
            raise ArgumentError(f"order is {order!r}; accepted are None and 'rank'")
        if algorithm not in (None, "direct", "direct1"):
            raise ArgumentError(f"order='rank' with algorithm={algorithm!r}; accepted are 'direct' and 'direct1'")
        return algorithm or "direct"

    def _check_counts(self, counts: Any, count: int) -> tuple[list[int], list[int]]:
        """all_to_all's two lists: elements to each rank, and from each."""
        try:
            give, get = counts
        except (TypeError, ValueError):
            raise ArgumentError(f"counts is {counts!r}; accepted are two lists: to each rank, from each rank") from None
        given_offsets(give, self.size, count, "counts[0]")
        given_offsets(get, self.size, None, "counts[1]")
        if int(give[self.rank]) != int(get[self.rank]):
            raise ArgumentError(
                f"counts give rank {self.rank} {give[self.rank]} elements to itself and {get[self.rank]} from itself"
            )
        return [int(each) for each in give], [int(each) for each in get]

    def _offsets_of_parts(self, counts: Sequence[int] | None, mine: int) -> list[int]:
        return even(mine * self.size, self.size) if counts is None else given_offsets(counts, self.size, None)

    def _new(self, count: int, like: Vector) -> Any:
        """An array for a result, where the input is."""
        if like.gpu is None:
            return np.empty(count, like.dtype)
        return memory.empty_on_gpu(count, like.dtype, like.gpu)

    def _in_out(self, x: Any, out: Any) -> tuple[Vector, Vector]:
        if out is None or out is x:
            several = type(x) in (list, tuple) and len(x) > 1
            vector = self._lists.vector(x, "x") if several else as_vector(x, "x", writable=True)
            return vector, vector
        given = as_vector(x, "x", writable=False)
        result = self._part(out, "out", given.count, given, writable=True)
        check_overlap(given, result, same_allowed=True)
        return given, result

    def _part(self, array: Any, name: str, count: int, like: Vector, *, writable: bool) -> Vector:
        vector = as_vector(array, name, writable=writable)
        if vector.gpu != like.gpu:
            check_together(vector, name, like, "x" if name == "out" else "out")
        if vector.dtype != like.dtype:
            raise ArgumentError(f"{name} has dtype {vector.dtype}, x has {like.dtype}; accepted is one dtype")
        if vector.count != count:
            raise ArgumentError(f"{name} has {vector.count} elements; accepted are {count}")
        return vector

    def _own_part_or_apart(self, part: Vector, whole: Vector, begin: int) -> None:
        if len(part.pieces) == len(whole.pieces) == 1:
            if part.address == whole.address + begin * whole.dtype.itemsize or not part.count:
                return
        check_overlap(part, whole, same_allowed=False)
