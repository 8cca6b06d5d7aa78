"""Messages of two ranks: send and recv, outside the order of collectives."""

from __future__ import annotations

from typing import Any

from rdmaring._native import check, ffi, lib
from rdmaring.buffers import Vector, as_vector
from rdmaring.errors import ArgumentError
from rdmaring.running import Runner
from rdmaring.work import Work, own_work, timeout_ns


class Messages(Runner):
    """What two ranks tell each other. Arguments, errors and memory: see :class:`rdmaring.Communicator`."""

    def send(self, x: Any, peer: int, *, async_op: bool = False, timeout_s: float | None = None) -> Any:
        """Send ``x`` to rank ``peer``, which calls ``recv`` with an array of equal dtype and element count.

        Messages count per ordered pair of ranks: the k-th send of one to another meets the k-th recv there, whatever
        collectives run meanwhile. A send may return before the peer has called recv, or wait for that: two ranks that
        send to each other use ``async_op`` in one of the two, or in both. Other dtypes or counts than the receiver's
        are a ``MismatchError`` there, and here if the send still waits, else in this rank's next call.

        A message of an array in GPU memory goes through host memory. Returns ``x``, or a Work.
        """
        vector = self._one_piece(x, "x", writable=False)
        return self._exchange(lib.rr_send_start, vector, peer, async_op, timeout_s)

    def recv(self, x: Any, peer: int, *, async_op: bool = False, timeout_s: float | None = None) -> Any:
        """Receive into ``x`` what rank ``peer`` sends; see :meth:`send`. Returns ``x``, or a Work."""
        vector = self._one_piece(x, "x", writable=True)
        return self._exchange(lib.rr_recv_start, vector, peer, async_op, timeout_s)

    def _one_piece(self, x: Any, name: str, *, writable: bool) -> Vector:
        vector = as_vector(x, name, writable=writable)
        if len(vector.pieces) != 1:
            raise ArgumentError(f"{name} is a list of {len(vector.pieces)} arrays; a message is one array")
        return vector

    def _exchange(self, start: Any, vector: Vector, peer: int, async_op: bool, timeout_s: float | None) -> Any:
        peer = self._check_rank(peer, "peer")
        if peer == self.rank:
            raise ArgumentError(f"peer is {peer}, this rank; accepted are the others")
        self._settle_finished()
        then = None
        if vector.gpu is not None:
            from rdmaring import gpu

            vector, then = gpu.message(vector, sends=start is lib.rr_send_start)
        handle = ffi.new("rr_work **")
        limit_ns = timeout_ns(timeout_s)
        check(start(self._handle, peer, vector.pointer, vector.count, vector.code, limit_ns, async_op, handle))
        work = Work(self, own_work(handle), (vector,), vector.given, then)
        self._works.add(work)
        if async_op:
            return work
        try:
            return work.wait()
        except BaseException:  # as of a collective: the caller gets its array back now
            lib.rr_comm_abort(self._handle, b"interrupted")
            raise
