"""The wire between nodes once more, in plain Python: a rank that takes part in all-reduces of C ranks.

Slow on purpose: it copies, it sends what a row makes when the row is done, it knows no channels and no shared
memory. It does what docs/WIRE.md says and shares no code with the C engine, so that a ring of both that gives right
sums shows that the document is true of both. ``python -m rdmaring.transport.reference --help``
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rdmaring import chunks, rendezvous
from rdmaring._version import __version__
from rdmaring.choice import Chooser
from rdmaring.recover.survivors import Survivors
from rdmaring.schedule import ORDERED, Buffer, Op, Row, Schedule, generate
from rdmaring.transport import wire
from rdmaring.transport.reference_edges import Meeting, WireError
from rdmaring.transport.reference_tcp import STREAMS_DEFAULT, TcpLink
from rdmaring.transport.reference_verbs import REACH_REGION, Memory, Rail, VerbsLink, find_rail
from rdmaring.tuning.constants import built_in
from rdmaring.tuning.fingerprint import agree, own_record

SLOT_BYTES = 256 << 10
SLOT_COUNT = 4
EDGE_SLOT_COUNT = 16  # of an edge over verbs, where a credit takes a trip
ALL_REDUCE, BARRIER = 0, 5
TINY_BYTES, DIRECT_BYTES = 4096, 1 << 20  # up to which main() leaves the choice to the library, and takes direct
SUM = 0
# numpy's names and the wire's codes; 16-bit floats are added in float32 and rounded once
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3, "int32": 6, "int64": 7}
WIRE_NAME = f"rdmaring {__version__} wire {wire.WIRE_VERSION} page {wire.PAGE_VERSION}"


def dtype_named(name: str) -> np.dtype[Any]:
    found: np.dtype[Any]
    if name == "bfloat16":
        import ml_dtypes

        found = np.dtype(ml_dtypes.bfloat16)
    else:
        found = np.dtype(name)
    return found


def total(sources: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """In their order; 16-bit floats in float32, rounded once."""
    dtype = sources[0].dtype
    wide = dtype if dtype.itemsize != 2 else np.dtype(np.float32)
    result = sources[0].astype(wide)
    for source in sources[1:]:
        result = result + source.astype(wide)
    return result.astype(dtype)


class Reference:
    """One rank. Operations are made by calling the methods in the same order as the other ranks do."""

    def __init__(
        self,
        rank: int,
        world: int,
        exchange: Callable[[bytes], bytes],
        key: bytes,
        *,
        rail: Rail | None = None,
        qps: int = 1,
        streams: int = STREAMS_DEFAULT,
        grant: bool = False,
        timeout_s: float = 60,
    ) -> None:
        self.rank = rank
        self.world = world
        self.op = 0
        self._timeout_s = timeout_s
        self._qps, self._streams, self._grant = qps, streams, grant
        self._rail = rail
        rails = [rail.bytes] if rail else []
        self._meeting = Meeting(rank, world, exchange, key, rails, slot_bytes=SLOT_BYTES, slot_count=SLOT_COUNT)
        facts = agree(exchange(own_record(["verbs" if rail else "tcp"], [])), self._meeting.nodes)
        self._chooser = Chooser(self._meeting.nodes, built_in(facts.transport, facts.processors))
        self._survivors = Survivors.join(rank, self._meeting.nodes, key, exchange)  # where it is found after a failure
        self._links: dict[int, TcpLink | VerbsLink] = {}
        self._tiny_serial = 0
        self._deadline = 0.0

    # ---- operations ----

    def all_reduce(self, x: np.ndarray[Any, Any], algorithm: str | None = None) -> np.ndarray[Any, Any]:
        """The sum over all ranks. x: one-dimensional, not changed.

        Raises:
            WireError: a peer failed, or did what docs/WIRE.md does not say.
        """
        nodes = self._meeting.nodes
        choice = self._chooser.choose("all_reduce", x.nbytes)
        name = algorithm or choice.algorithm
        order = tuple(sorted(range(self.world), key=lambda rank: (nodes[rank], rank)))
        turned = order if name in ORDERED and order != tuple(range(self.world)) else None
        schedule = generate("all_reduce", name, self.world, None, turned)
        if schedule.scratch_cells and not choice.mailbox:
            raise WireError(f"algorithm {name} runs in rounds over scratch memory, which the reference does not know")
        offsets = chunks.aligned(x.size, schedule.chunk_count, x.itemsize)
        mailbox = algorithm is None and choice.mailbox
        descriptor = self._describe(ALL_REDUCE, x, schedule, offsets, mailbox, choice.slice_bytes)
        if mailbox:
            payloads = self._exchange_tiny(descriptor, x.tobytes())
            return total([np.frombuffer(payload, x.dtype) for payload in payloads])
        return self._run(descriptor, schedule, offsets, x)

    def barrier(self) -> None:
        """Returns when all ranks have come."""
        schedule = generate("all_reduce", "direct1", self.world)
        nothing = np.zeros(0, np.uint8)
        offsets = chunks.aligned(0, schedule.chunk_count, 1)
        self._exchange_tiny(self._describe(BARRIER, nothing, schedule, offsets, True, SLOT_BYTES), b"")

    def _describe(
        self,
        collective: int,
        x: np.ndarray[Any, Any],
        schedule: Schedule,
        offsets: Sequence[int],
        mailbox: bool,
        slice_bytes: int,
    ) -> bytes:
        """All that ranks must agree on; their hashes are compared before a byte is believed."""
        self.op += 1
        self._deadline = time.monotonic() + self._timeout_s
        body = wire.DESCRIPTOR.pack(
            count=x.size,
            schedule=schedule.identity,
            chunks=wire.fnv(struct.pack(f"<{len(offsets)}Q", *offsets)),
            slice_bytes=min(slice_bytes, SLOT_BYTES),
            scale=1.0,
            collective=collective,
            dtype=DTYPES.get(x.dtype.name, 8),
            redop=SUM,
            root=-1,
            round_count=1,
            mailbox=int(mailbox),
            algorithm=schedule.algorithm.encode(),
            costs=self._chooser.constants.digest,
            channels=1,
        )
        return wire.descriptor_hash(body).to_bytes(8, "little") + body[8:]

    def _link(self, peer: int) -> TcpLink | VerbsLink:
        if peer not in self._links:
            if self._rail is None:
                self._links[peer] = TcpLink(self._meeting, peer, self._streams, self._deadline)
            else:
                self._links[peer] = VerbsLink(
                    self._meeting, peer, self._rail, self._qps, SLOT_BYTES, EDGE_SLOT_COUNT, self._deadline
                )
        return self._links[peer]

    def _until(self, ask: Callable[[], Any], what: str) -> Any:
        """What ``ask`` gives, once it gives something; meanwhile all links go on."""
        while True:
            found = ask()
            if found is not None and found is not False:
                return found
            for link in self._links.values():
                link.progress()
            self._meeting.look()
            if time.monotonic() > self._deadline:
                raise WireError(f"op {self.op}: waited {self._timeout_s:g} s for {what}")
            time.sleep(0.0002)

    # ---- tiny ----

    def _exchange_tiny(self, descriptor: bytes, payload: bytes) -> list[bytes]:
        """Every rank's payload, in rank order: one message to each, one from each."""
        self._tiny_serial += 1
        tag = self._tiny_serial << 32 | int.from_bytes(descriptor[:4], "little")
        others = [peer for peer in range(self.world) if peer != self.rank]
        for peer in others:
            self._link(peer).tiny(tag, payload)
        payloads = {self.rank: payload}
        for peer in others:
            got_tag, got = self._until(self._links[peer].take_tiny, f"rank {peer}'s tiny message")
            if (got_tag, len(got)) != (tag, len(payload)):
                raise WireError(f"rank {peer} called another operation (tag {got_tag:016x}, here {tag:016x})")
            payloads[peer] = got
        self._finish()
        return [payloads[peer] for peer in range(self.world)]

    def _finish(self) -> None:
        self._until(lambda: all(link.idle for link in self._links.values()), "what was sent to be taken")

    # ---- rows ----

    def _run(
        self, descriptor: bytes, schedule: Schedule, offsets: Sequence[int], x: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        rows = schedule.rows(self.rank)
        peers = sorted({e.peer for row in rows for e in row.sends} | {e.peer for row in rows for e in row.receives})
        output = np.zeros_like(x)
        grant = self._granted(output)
        for peer in peers:
            self._link(peer).open(self.op, descriptor, grant)
        for peer in peers:
            said, theirs = self._until(self._links[peer].take_open, f"rank {peer} to enter")
            if said.op != self.op or theirs != descriptor:
                raise WireError(f"rank {peer} called another operation: {wire.DESCRIPTOR.unpack(theirs)}")
        run = _Rows(self, {Buffer.INPUT: x, Buffer.OUTPUT: output}, offsets, bool(grant))
        for row in rows:
            run.row(row)
        self._finish()
        return output

    def _granted(self, output: np.ndarray[Any, Any]) -> dict[int, bytes]:
        """Our output, where peers may write in place; the memory stays registered while `output` lives."""
        if self._rail is None or not self._grant:
            return {}
        address = output.ctypes.data
        self._memory = Memory(self._rail.v, self._rail.pd, output.nbytes, writable=True, address=address)
        place = wire.PLACE.pack(base=address, region=self._memory.mr.rkey, reach=REACH_REGION)
        return {int(Buffer.OUTPUT): place}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._survivors.release()
        self._meeting.close(self.op)


class _Rows:
    """One operation's rows at work, one after the other, slice by slice."""

    def __init__(
        self, of: Reference, buffers: Mapping[Buffer, np.ndarray[Any, Any]], offsets: Sequence[int], granted: bool
    ) -> None:
        self._of = of
        self._buffers = buffers
        self._offsets = offsets
        self._granted = granted
        self._sent_rows: dict[int, int] = {}  # to each peer
        self._received_rows: dict[int, int] = {}

    def row(self, row: Row) -> None:
        of = self._of
        dst = self._buffers[row.buffer]
        each = SLOT_BYTES // dst.itemsize
        begin, end = self._offsets[row.chunk_begin], self._offsets[row.chunk_end]
        for number, first in enumerate(range(begin, end, each)):
            here = slice(first, min(first + each, end))
            if row.op is not Op.NONE:
                sources = [self._receive(row, at, number, here) for at in range(len(row.receives))]
                if row.operand is not None:
                    sources.insert(row.operand_at, self._buffers[row.operand][here])
                dst[here] = total(sources)
            for send in row.sends:
                lands = None if send.lands is None or send.lands is Buffer.SCRATCH else int(send.lands)
                order = self._sent_rows.get(send.peer, 0)
                of._links[send.peer].send(of.op, order, number, dst[here].tobytes(), lands, first * dst.itemsize)
        for send in row.sends:
            self._sent_rows[send.peer] = self._sent_rows.get(send.peer, 0) + 1
        for receive in row.receives:
            self._received_rows[receive.peer] = self._received_rows.get(receive.peer, 0) + 1

    def _receive(self, row: Row, at: int, number: int, here: slice) -> np.ndarray[Any, Any]:
        of, peer = self._of, row.receives[at].peer
        dst = self._buffers[row.buffer]
        size = (here.stop - here.start) * dst.itemsize
        in_place = self._granted and row.op is Op.COPY and row.buffer is Buffer.OUTPUT
        granted = dst[here].view(np.uint8).data if in_place else None
        order = self._received_rows.get(peer, 0)
        payload = of._until(
            lambda: of._links[peer].take(of.op, order, number, size, granted),
            f"rank {peer}, row {order} slice {number}",
        )
        return np.frombuffer(payload, dst.dtype)


def values(rank: int, round_: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """What rank gives in a round: small whole numbers, whose sums are exact in every dtype."""
    return ((np.arange(count) * 7 + rank * 3 + round_) % 11).astype(dtype)


def wrong_in(result: np.ndarray[Any, Any], round_: int, world: int) -> int:
    """How many elements of a round's result are not the sum of all ranks' values."""
    want = sum(values(rank, round_, result.size, np.dtype(np.float64)) for rank in range(world))
    return int(np.count_nonzero(result.astype(np.float64) != want))


def arguments_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command's line, by default this process's."""
    parser = argparse.ArgumentParser(
        prog="python -m rdmaring.transport.reference",
        description="A rank of the environment's job (RDMARING_*, torchrun, mpirun) that speaks the wire between nodes "
        "in Python: all-reduces of each count and dtype, whose sums it checks.",
    )
    parser.add_argument("--wire", choices=("tcp", "verbs"), default="verbs", help="what the edges are (default: verbs)")
    parser.add_argument("--count", type=int, nargs="+", default=[100_000], help="elements, one or several")
    parser.add_argument("--dtype", choices=tuple(DTYPES), nargs="+", default=["float32"])
    parser.add_argument("--rounds", type=int, default=3, help="all-reduces of each count and dtype")
    by_size = f"as tiny messages up to {TINY_BYTES} bytes, direct up to {DIRECT_BYTES}, then ring"
    parser.add_argument("--algorithm", choices=("ring", "direct"), help=f"default: {by_size}")
    parser.add_argument("--qps", type=int, default=1, help="queue pairs a link, as on all ranks")
    parser.add_argument("--streams", type=int, default=STREAMS_DEFAULT, help="data sockets of a TCP edge, likewise")
    parser.add_argument("--grant", action="store_true", help="let peers write results into this rank's memory")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for the assembly and each operation")
    return parser.parse_args(arguments)


def algorithm_for(nbytes: int) -> str | None:
    """One that this file runs, which knows no rounds over scratch memory; None: a tiny message."""
    return None if nbytes <= TINY_BYTES else "direct" if nbytes <= DIRECT_BYTES else "ring"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 where a sum is wrong."""
    given = arguments_of(arguments)
    rail = Rail(find_rail()) if given.wire == "verbs" else None  # first: pyverbs takes its time to load
    wrong = 0
    with rendezvous.join(timeout_s=given.timeout, wire=WIRE_NAME) as meeting:
        rank = Reference(
            meeting.rank,
            meeting.world,
            meeting.exchange,
            meeting.key,
            rail=rail,
            qps=given.qps,
            streams=given.streams,
            grant=given.grant,
            timeout_s=given.timeout,
        )
        for name in given.dtype:
            for count in given.count:
                for round_ in range(given.rounds):
                    x = values(rank.rank, round_, count, dtype_named(name))
                    result = rank.all_reduce(x, given.algorithm or algorithm_for(x.nbytes))
                    wrong += wrong_in(result, round_, rank.world)
                line = {"dtype": name, "count": count, "crc32": zlib.crc32(result.tobytes()), "wrong": wrong}
                print("SAY " + json.dumps({f"{name} {count}": line}), flush=True)
        rank.barrier()
        rank.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
