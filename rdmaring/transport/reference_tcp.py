"""Reference: a link over TCP, frame by frame (docs/WIRE.md, TCP)."""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace

from rdmaring.transport import wire
from rdmaring.transport.contract import MAGIC, Kind
from rdmaring.transport.reference_edges import Edge, Meeting, WireError

STREAMS_DEFAULT = 2
FRAME_BYTES_MAX = 16 << 20  # of a slice: whoever announces more is no rank


class TcpLink:
    """Both directions to one peer. What is sent waits in queues here until the kernel takes it."""

    def __init__(self, meeting: Meeting, peer: int, streams: int, deadline: float) -> None:
        self.peer = peer
        self.edge: Edge = meeting.join(peer, streams, deadline)
        self._streams = [self.edge.streams[number] for number in range(streams)]
        self._unsent: list[deque[bytes]] = [deque() for _ in self._streams]
        self._input = [bytearray() for _ in self._streams]
        self._frames: list[deque[tuple[SimpleNamespace, bytes]]] = [deque() for _ in self._streams]
        self._sent = 0  # transfers, counted since the beginning
        self._received = 0

    # ---- sending ----

    def _post(self, stream: int, body: bytes, **head: int) -> None:
        self._unsent[stream].append(wire.FRAME.pack(head, magic=MAGIC, bytes=len(body)) + body)
        self.progress()

    def open(self, op: int, descriptor: bytes, grant: dict[int, bytes]) -> None:
        """``grant`` is of no use to TCP: nobody writes our memory."""
        body = wire.OPEN.pack(op=op, descriptor=int.from_bytes(descriptor[:8], "little")) + descriptor
        self._post(0, body, kind=Kind.OPEN, op=op)

    def tiny(self, tag: int, payload: bytes) -> None:
        self._post(0, payload, kind=Kind.TINY, serial=tag)

    def send(self, op: int, order: int, number: int, payload: bytes, lands: int | None, coordinate: int) -> None:
        """One slice: ``order`` of its row on this link, ``number`` in the row. Where it lands, the receiver knows."""
        stream = self._sent % len(self._streams)
        self._post(stream, payload, kind=Kind.DATA, op=op, order=order, slice=number, serial=self._sent)
        self._sent += 1

    @property
    def idle(self) -> bool:
        """Whether all that was sent is out of our hands."""
        return not any(self._unsent)

    # ---- receiving ----

    def _front(self, stream: int, kind: Kind) -> tuple[SimpleNamespace, bytes] | None:
        self.progress()
        frames = self._frames[stream]
        return frames.popleft() if frames and frames[0][0].kind == kind else None

    def take_open(self) -> tuple[SimpleNamespace, bytes] | None:
        """The peer's OPEN and descriptor, once it is there."""
        found = self._front(0, Kind.OPEN)
        if found is None:
            return None
        if len(found[1]) != wire.OPEN.size + wire.DESCRIPTOR.size:
            raise WireError(f"rank {self.peer} sent an OPEN of {len(found[1])} bytes")
        return wire.OPEN.unpack(found[1]), found[1][wire.OPEN.size :]

    def take_tiny(self) -> tuple[int, bytes] | None:
        found = self._front(0, Kind.TINY)
        return None if found is None else (found[0].serial, found[1])

    def take(self, op: int, order: int, number: int, size: int, granted: object = None) -> bytes | None:
        """The next transfer, which must be this one."""
        found = self._front(self._received % len(self._streams), Kind.DATA)
        if found is None:
            return None
        head, payload = found
        got = (head.op, head.order, head.slice, head.bytes, head.serial)
        if got != (op, order, number, size, self._received):
            raise WireError(f"rank {self.peer} sent {got}; expected was {(op, order, number, size, self._received)}")
        self._received += 1
        return payload

    # ---- both ----

    def progress(self) -> None:
        for number, stream in enumerate(self._streams):
            unsent = self._unsent[number]
            while unsent:
                try:
                    taken = stream.send(unsent[0])
                except BlockingIOError:
                    break
                rest = unsent.popleft()[taken:]
                if rest:
                    unsent.appendleft(rest)
            self._read(number)

    def _read(self, number: int) -> None:
        data, head_bytes = self._input[number], wire.FRAME.size
        try:
            got = self._streams[number].recv(1 << 20)
        except BlockingIOError:
            return
        data += got
        while len(data) >= head_bytes:
            head = wire.FRAME.unpack(data)
            if head.magic != MAGIC:
                raise WireError(f"rank {self.peer} sent what is no frame (magic {head.magic:08x})")
            if head.bytes > FRAME_BYTES_MAX:
                raise WireError(f"rank {self.peer} announces a frame of {head.bytes} bytes")
            if len(data) < head_bytes + head.bytes:
                return
            self._frames[number].append((head, bytes(data[head_bytes : head_bytes + head.bytes])))
            del data[: head_bytes + head.bytes]

    def close(self) -> None:
        deadline = time.monotonic() + 5
        while not self.idle and time.monotonic() < deadline:
            self.progress()
