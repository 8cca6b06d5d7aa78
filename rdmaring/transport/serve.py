"""Python objects as the table of functions of rdmaring_link.h, by callbacks."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rdmaring._native import ffi, keep_interrupt, lib
from rdmaring.errors import ArgumentError, ArgumentTypeError
from rdmaring.single import Single
from rdmaring.transport.contract import HEAD_BYTES, Edge, Factory, Head, Transport

NEVER = 2**64 - 1
log = logging.getLogger("rdmaring.transport")


def name_of(factory: Factory) -> str:
    """As comm.links and errors show it: at most 15 letters."""
    given = getattr(factory, "name", "") or getattr(factory, "__name__", "") or type(factory).__name__
    return re.sub(r"[^A-Za-z0-9_.-]", "_", str(given))[: lib.RR_MESSAGE_NAME_BYTES - 1]


class MessageTransport(Single):
    """The table of a factory, for rr_options.link_transport; must live until the communicator is closed."""

    def __init__(self, factory: Factory) -> None:
        if not callable(factory):
            raise ArgumentTypeError(
                f"transport is {factory!r}; accepted are 'tcp', 'verbs', the path of a shared library, and a class or "
                "function that makes a rdmaring.transport.Transport from an Edge"
            )
        self.factory = factory
        self.name = name_of(factory)
        self.edges: set[_ServedEdge] = set()  # open ones: C holds their handles
        self._name = ffi.new("char[]", self.name.encode())
        self._handle = ffi.new_handle(self)
        self.table = ffi.new("rr_message_transport *")
        self.table.version = lib.RR_MESSAGE_VERSION
        self.table.size = ffi.sizeof("rr_message_transport")
        self.table.name = self._name
        self.table.user = self._handle
        self.table.open = lib.rr_py_link_open
        self.table.send = lib.rr_py_link_send
        self.table.receive = lib.rr_py_link_receive
        self.table.progress = lib.rr_py_link_progress
        self.table.due_ns = lib.rr_py_link_due_ns
        self.table.close = lib.rr_py_link_close


class _ServedEdge:
    """One open edge: the transport's object, and the message that C is reading."""

    def __init__(self, owner: MessageTransport, record: Any) -> None:
        self.owner = owner
        self.record = record  # C's rr_message_edge, for the text of an error
        self.rest: memoryview | None = None  # of the message that is being read
        self.failed: BaseException | None = None  # in due_s()
        self.handle = ffi.new_handle(self)
        self.wire = wire = socket.socket(fileno=record.socket)
        _served.add(self)
        try:
            edge = Edge(record.rank, record.peer, record.world, wire, record.body_bytes_max)
            made = owner.factory(edge)
            if not isinstance(made, Transport):
                raise TypeError(f"{owner.factory!r} gave {made!r}; accepted is a rdmaring.transport.Transport")
            record.news = made.fileno()
        except BaseException:
            wire.close()
            raise
        self.transport = made

    def send(self, pieces: Any, count: int) -> int:
        """All bytes of the message, or 0: what is offered begins with a whole head."""
        head = bytes(ffi.buffer(pieces[0].address, pieces[0].bytes))
        views = [memoryview(ffi.buffer(pieces[i].address, pieces[i].bytes)) for i in range(1, count)]
        body = views[0].toreadonly() if len(views) == 1 else memoryview(b"".join(views))
        taken = self.transport.send(head, body)
        if not isinstance(taken, bool):
            raise TypeError(f"send() returned {taken!r}; accepted are True (all is sent) and False (offer it again)")
        return len(head) + len(body) if taken else 0

    def receive(self, into: Any, size: int) -> int:
        if not self.rest:
            message = self.transport.receive()
            if message is None:
                return 0
            self.rest = memoryview(message).cast("B")
            body_bytes = Head.parse(self.rest).body_bytes if len(self.rest) >= HEAD_BYTES else 0
            if len(self.rest) != HEAD_BYTES + body_bytes:
                raise ValueError(
                    f"receive() gave {len(self.rest)} bytes with a head that tells of {body_bytes}; accepted is a "
                    f"whole message as send() was given it: its head of {HEAD_BYTES} bytes, and its body"
                )
        part = self.rest[:size]
        ffi.memmove(into, part, len(part))
        self.rest = self.rest[len(part) :]
        return len(part)

    def progress(self) -> int:
        if self.failed is not None:
            raise self.failed
        self.transport.progress()
        return 0

    def due_ns(self) -> int:
        try:
            due = self.transport.due_s()
            return NEVER if due is None else max(0, int((due - time.monotonic()) * 1e9))
        except BaseException as error:  # C has no error here: the next call of progress() tells it
            self.failed = error
            return 0


_served: weakref.WeakSet[_ServedEdge] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """C has closed the copies of their sockets, whose numbers may be other files' soon."""
    for each in list(_served):
        each.wire.detach()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _told(record: Any, name: str, error: BaseException) -> int:
    """C's status for an exception, the text of which goes to the edge's record."""
    where = traceback.extract_tb(error.__traceback__)
    at = f" ({Path(where[-1].filename).name}:{where[-1].lineno})" if where else ""
    text = f"{name} raised {type(error).__name__}: {error}{at}".encode()[: lib.RR_MESSAGE_WHY_BYTES - 1]
    ffi.memmove(record.why, text + b"\0", len(text) + 1)
    if isinstance(error, ConnectionError | EOFError):
        return int(lib.RR_MESSAGE_ENDED)
    if isinstance(error, KeyboardInterrupt):
        keep_interrupt(error)
    else:
        log.error("the transport of the edge to rank %d failed", record.peer, exc_info=error)
    return int(lib.RR_MESSAGE_FAILED)


def _call(state: Any, work: Callable[[_ServedEdge], int]) -> int:
    served: _ServedEdge = ffi.from_handle(state)
    try:
        return work(served)
    except BaseException as error:  # C cannot carry it
        return _told(served.record, type(served.transport).__qualname__, error)


def _interrupted(kind: type[BaseException], error: BaseException, where: Any) -> None:
    """Ctrl-C before a callback's first line: the edge fails, and the caller gets it when C has returned."""
    if isinstance(error, KeyboardInterrupt):
        keep_interrupt(error)
    else:
        log.error("a callback failed", exc_info=error)


@ffi.def_extern(error=-2, onerror=_interrupted)  # type: ignore[untyped-decorator]
def rr_py_link_open(user: Any, record: Any, state: Any) -> int:
    owner: MessageTransport = ffi.from_handle(user)
    try:
        served = _ServedEdge(owner, record)
    except BaseException as error:
        return _told(record, getattr(owner.factory, "__qualname__", owner.name), error)
    owner.edges.add(served)
    state[0] = served.handle
    return 0


@ffi.def_extern(error=-2, onerror=_interrupted)  # type: ignore[untyped-decorator]
def rr_py_link_send(state: Any, pieces: Any, count: int) -> int:
    return _call(state, lambda served: served.send(pieces, count))


@ffi.def_extern(error=-2, onerror=_interrupted)  # type: ignore[untyped-decorator]
def rr_py_link_receive(state: Any, into: Any, size: int) -> int:
    return _call(state, lambda served: served.receive(into, size))


@ffi.def_extern(error=-2, onerror=_interrupted)  # type: ignore[untyped-decorator]
def rr_py_link_progress(state: Any) -> int:
    return _call(state, _ServedEdge.progress)


@ffi.def_extern(error=0, onerror=_interrupted)  # type: ignore[untyped-decorator]
def rr_py_link_due_ns(state: Any) -> int:
    return _call(state, _ServedEdge.due_ns)


@ffi.def_extern(onerror=_interrupted)  # type: ignore[untyped-decorator]
def rr_py_link_close(state: Any) -> None:
    served: _ServedEdge = ffi.from_handle(state)
    served.owner.edges.discard(served)
    try:
        served.transport.close()
    except Exception as error:  # the communicator is closed all the same
        log.error("closing the edge to rank %d failed", served.record.peer, exc_info=error)


def serve(factory: Factory) -> MessageTransport:
    """What :func:`rdmaring.init` hands to C for ``transport=factory``.

    Raises:
        ArgumentError, ArgumentTypeError: it is no factory of transports.
    """
    served = MessageTransport(factory)
    if not served.name:
        raise ArgumentError(f"the transport {factory!r} has no name; give it an attribute `name`")
    return served
