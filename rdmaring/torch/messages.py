"""Messages with tags, from one rank or any, on the engine's messages in order; see docs/decisions/0007-torch.md."""

from __future__ import annotations

import struct
import threading
import time
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch

from rdmaring._native import AGAIN, error_here, lib
from rdmaring.buffers import Vector, as_vector
from rdmaring.errors import ArgumentError, MismatchError, OperationTimeoutError, RdmaringError
from rdmaring.torch import futures
from rdmaring.torch.errors import as_torch_error
from rdmaring.torch.group import Group
from rdmaring.torch.reductions import NUMBERS
from rdmaring.torch.tensors import as_bytes, check_dense, plain
from rdmaring.torch.work import DEFAULT, BaseWork, RingWork, Step

HEAD = struct.Struct("<qqq")  # tag, bytes, dtype
HEAD_BYTES = 1024
PAYLOAD_AT = 64
INLINE_BYTES = HEAD_BYTES - PAYLOAD_AT
DTYPES = [*NUMBERS, torch.bool, torch.complex64, torch.complex128]
STEP_NS = 2_000_000


def _dtype_number(dtype: torch.dtype) -> int:
    """What a head says of it; 100 and more: of a dtype that is known by its width alone."""
    return DTYPES.index(dtype) if dtype in DTYPES else 100 + dtype.itemsize


def _dtype_name(number: int) -> str:
    return str(DTYPES[number]) if number < len(DTYPES) else f"a dtype of {number - 100} bytes"


def _bytes(array: np.ndarray[Any, Any], *, writable: bool) -> Vector:
    return as_vector(array, "tensor", writable=writable)


class Received(NamedTuple):
    """A message that came before its recv."""

    tag: int
    dtype: int
    payload: np.ndarray[Any, Any]


class Sender:
    """How a peer's messages come in; under the pump's lock."""

    def __init__(self) -> None:
        self.buffer = np.empty(HEAD_BYTES, np.uint8)
        self.head: Step | None = None  # its receive is under way
        self.payload: Step | None = None
        self.coming: Received | None = None  # whose payload is under way
        self.target: RecvWork | None = None  # who waits for it
        self.early: list[Received] = []

    @property
    def step(self) -> Step | None:
        return self.payload or self.head


class RecvWork(BaseWork):
    """A receive; the pump ends it."""

    def __init__(self, pump: Messages, tensor: torch.Tensor, source: int | None, tag: int) -> None:
        super().__init__([tensor])
        self._pump = pump
        self._ended = False
        self._begin_s = time.monotonic()
        self.source = source
        self.tag = tag
        self.into = plain(tensor)  # where the bytes go: the tensor's own memory, or staging

    def poll(self) -> bool:
        if not self._ended:
            self._pump.advance()
        return self._ended

    def complete(self) -> None:
        """Of the leader, which watches every receive; the Future, if there is one, is completed there."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.set_result(None)

    def get_future(self) -> Any:
        with self._lock:
            if self._future is None:
                self._own = torch.futures.Future()
                self._future = self._own.then(lambda _: self._value())
        if self.poll():
            self.complete()
        return self._future

    def _value(self) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._result

    def end(self, error: Exception | None, source: int) -> None:
        """Under the pump's lock."""
        if error is None and self.into.data_ptr() != self._result[0].data_ptr():
            with torch.no_grad():
                self._result[0].detach().copy_(self.into)
        self._error = error
        self._source = source
        self._ended = True

    def wait(self, timeout: timedelta = DEFAULT) -> bool:
        limit_s = timeout.total_seconds() if timeout else 0.0
        limit_s = limit_s if limit_s > 0 else self._pump.group.timeout_s
        while not self.poll():
            if time.monotonic() - self._begin_s > limit_s:
                whom = "any rank" if self.source is None else f"rank {self.source}"
                raise as_torch_error(
                    OperationTimeoutError(
                        f"no message with tag {self.tag} came from {whom} in {limit_s} s",
                        hint="every recv needs a send of the same tag there; raise the timeout if it is only late",
                        rank=self._pump.group.rank,
                        peer=self.source,
                    )
                )
            self._pump.drive(self.source)
        return super().wait()


class Messages:
    """All messages of a group: sends start at once; receives are matched here."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._lock = threading.RLock()
        self._senders = [Sender() for _ in range(group.size)]
        self._posted: list[RecvWork] = []  # not matched yet, in the order of their calls

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> RingWork:
        self._check(tensor, peer, tag)
        payload = as_bytes(plain(tensor))
        head = np.zeros(HEAD_BYTES, np.uint8)
        HEAD.pack_into(head.data, 0, tag, payload.nbytes, _dtype_number(tensor.dtype))
        small = payload.nbytes <= INLINE_BYTES
        if small:
            head[PAYLOAD_AT : PAYLOAD_AT + payload.nbytes] = payload
        steps = [self._start(lib.rr_send_start, head, peer)]
        if not small:
            steps.append(self._start(lib.rr_send_start, payload, peer))
        return self.group.work(steps, [tensor], None)

    def recv(self, tensor: torch.Tensor, peer: int | None, tag: int) -> RecvWork:
        """peer: None: any."""
        self._check(tensor, peer, tag)
        work = RecvWork(self, tensor, peer, tag)
        with self._lock:
            if not self._take_early(work):
                self._posted.append(work)
            self._advance()
        if not work._ended:
            futures.watch(work)  # it goes on while the caller is elsewhere
        return work

    def _check(self, tensor: torch.Tensor, peer: int | None, tag: int) -> None:
        check_dense(tensor, "tensor")
        if tensor.device.type != "cpu":
            raise ArgumentError(f"tensor is on {tensor.device}; accepted for messages is cpu", hint="send a copy")
        if peer is not None and (not 0 <= peer < self.group.size or peer == self.group.rank):
            raise ArgumentError(
                f"peer is {peer}; accepted are ranks 0..{self.group.size - 1} but {self.group.rank}, this one"
            )
        if not 0 <= tag < 1 << 62:
            raise ArgumentError(f"tag is {tag}; accepted are 0 to 2^62 - 1")

    def _start(self, start: Any, array: np.ndarray[Any, Any], peer: int) -> Step:
        try:
            return self.group.message(start, _bytes(array, writable=start is lib.rr_recv_start), peer, None)
        except RdmaringError as error:
            raise as_torch_error(error) from error

    # ---- receiving ----

    def drive(self, source: int | None) -> None:
        """Wait a moment for what comes from ``source``, making progress."""
        with self._lock:
            steps = [each.step for each in self._senders] if source is None else [self._senders[source].step]
        waiting = [step for step in steps if step is not None]
        if len(waiting) == 1:
            self.group.drive(waiting[0].handle, STEP_NS)
        elif waiting:
            time.sleep(STEP_NS / 2e10)

    def advance(self) -> None:
        """Move all that has come to where it belongs."""
        with self._lock:
            self._advance()

    def _advance(self) -> None:
        for peer in range(self.group.size):
            if peer == self.group.rank:
                continue
            try:
                while self._moved(peer):
                    pass
            except Exception as error:  # the group is lost: each receive says so
                self._end_all(error, peer)

    def _end_all(self, error: Exception, peer: int) -> None:
        sender = self._senders[peer]
        lost = [work for work in self._posted if work.source in (None, peer)]
        if sender.target is not None:
            lost.append(sender.target)
        self._posted = [work for work in self._posted if work not in lost]
        sender.head = sender.payload = sender.coming = sender.target = None
        for work in lost:
            work.end(error, peer)

    def _moved(self, peer: int) -> bool:
        """One thing done for what comes from ``peer``."""
        sender = self._senders[peer]
        if sender.step is None:
            if not any(work.source in (None, peer) for work in self._posted):
                return False
            sender.head = self._start(lib.rr_recv_start, sender.buffer, peer)
        step = sender.step
        assert step is not None
        status = lib.rr_work_wait(step.handle, 0)
        if status == AGAIN:
            return False
        if status < 0:
            raise as_torch_error(error_here())
        if sender.payload is not None:
            sender.payload = None
            self._deliver(peer, sender)
        else:
            sender.head = None
            self._take_head(peer, sender)
        return True

    def _take_head(self, peer: int, sender: Sender) -> None:
        tag, nbytes, dtype = HEAD.unpack_from(sender.buffer.data, 0)
        match = next((work for work in self._posted if work.tag == tag and work.source in (None, peer)), None)
        if match is not None:
            self._posted.remove(match)
        into = self._room(match, nbytes, dtype)
        sender.coming = Received(tag, dtype, into)
        sender.target = match
        if nbytes <= INLINE_BYTES:
            into[:] = sender.buffer[PAYLOAD_AT : PAYLOAD_AT + nbytes]
            self._deliver(peer, sender)
        else:
            sender.payload = self._start(lib.rr_recv_start, into, peer)

    def _room(self, match: RecvWork | None, nbytes: int, dtype: int) -> np.ndarray[Any, Any]:
        """The receiver's own memory if the message fits it."""
        if match is not None and self._fits(match, nbytes, dtype):
            return as_bytes(match.into)
        return np.empty(nbytes, np.uint8)

    def _fits(self, work: RecvWork, nbytes: int, dtype: int) -> bool:
        return work.into.nbytes == nbytes and _dtype_number(work.into.dtype) == dtype

    def _deliver(self, peer: int, sender: Sender) -> None:
        message, work = sender.coming, sender.target
        assert message is not None
        sender.coming = sender.target = None
        if work is not None:
            self._finish(work, message, peer)
            return
        sender.early.append(message)
        late = next((each for each in self._posted if each.tag == message.tag and each.source in (None, peer)), None)
        if late is not None and self._take_early(late):  # its recv was called while the payload was under way
            self._posted.remove(late)

    def _finish(self, work: RecvWork, message: Received, peer: int) -> None:
        nbytes = message.payload.nbytes
        if self._fits(work, nbytes, message.dtype):
            work.end(None, peer)
            return
        error = MismatchError(
            f"rank {peer} sent {nbytes} bytes of {_dtype_name(message.dtype)} with tag {message.tag}, and rank "
            f"{self.group.rank} receives {work.into.nbytes} bytes of {work.into.dtype}",
            hint="give both tensors one dtype and shape",
            rank=self.group.rank,
            peer=peer,
        )
        work.end(as_torch_error(error), peer)

    def _take_early(self, work: RecvWork) -> bool:
        """A message that is here already."""
        sources = range(self.group.size) if work.source is None else [work.source]
        for peer in sources:
            early = self._senders[peer].early
            for index, message in enumerate(early):
                if message.tag != work.tag:
                    continue
                del early[index]
                if self._fits(work, message.payload.nbytes, message.dtype):
                    as_bytes(work.into)[:] = message.payload
                self._finish(work, message, peer)
                return True
        return False
