"""Reference: a link over RC queue pairs, by pyverbs (docs/WIRE.md, Verbs). Needs the distribution's python3-pyverbs."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections import deque
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rdmaring.transport import wire
from rdmaring.transport.reference_edges import SETUP, Edge, Meeting, WireError

MAGIC = 0x53425256  # "VRBS"
PARAMETERS, READY = 1, 2

LINES = 64
LINE_BYTES = 256
OPENS = 4
OPEN_BYTES = 192
MAILBOX_BYTES = 16384
TINY_BYTES = MAILBOX_BYTES + 64
OPENS_AT = LINES * LINE_BYTES
TINIES_AT = OPENS_AT + OPENS * OPEN_BYTES
SLOTS_AT = -(-(TINIES_AT + 2 * TINY_BYTES) // 4096) * 4096
SLOT_UNIT = 64  # DATA's `slot` counts in these

RECEIVES = 136  # posted on queue pair 0: for all that can be outstanding
RECEIVES_MORE = 64  # on each other
SENDS_MAX = 64  # requests under way on a queue pair; C allows itself more

IMM_BITS = 29
IMM_MASK = (1 << IMM_BITS) - 1
IMM_DATA, IMM_OPEN, IMM_TINY, IMM_CREDIT, IMM_BELL = 1, 2, 3, 4, 5
BESIDE, WANTED = 1, 2  # flags of DATA, in its first reserved byte
BESIDE_BYTES = LINE_BYTES - wire.DATA.size

SLOT, WRITE = 0, 2  # modes
REACH_REGION = 1

TYPES = {"IB/RoCE v1": 1, "RoCE v2": 2}
IPV4, IPV6, LINK_LOCAL = 0, 1, 2
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}


def verbs() -> Any:
    """pyverbs' modules under short names; only a rank that speaks verbs needs them.

    Raises:
        WireError: they are not installed where this Python looks.
    """
    found = SimpleNamespace()
    try:
        for name in ("addr", "cq", "device", "mr", "pd", "qp", "wr"):
            setattr(found, name, import_module(f"pyverbs.{name}"))
        newer = find_spec("pyverbs.libibverbs_enums") is not None  # before rdma-core 55 all were in one module
        found.enums = import_module("pyverbs.libibverbs_enums" if newer else "pyverbs.enums")
    except ModuleNotFoundError as error:
        raise WireError(
            f"pyverbs cannot be imported ({error}): install python3-pyverbs, and use a virtual environment made of "
            "/usr/bin/python3 with --system-site-packages"
        ) from error
    return found


# ---- rails ----


def kind_of(gid: bytes) -> int:
    address = ipaddress.IPv6Address(gid)
    if address.ipv4_mapped:
        return IPV4
    return LINK_LOCAL if address.is_link_local else IPV6


def gids_of(device: str, port: int, sys: Path) -> list[dict[str, Any]]:
    """A RoCE port's GIDs, best first: v2 before v1, global before link-local, IPv4 before IPv6."""
    base = sys / "class" / "infiniband" / device / "ports" / str(port)
    found = []
    for entry in sorted((base / "gids").iterdir(), key=lambda path: int(path.name)):
        gid = ipaddress.IPv6Address(entry.read_text().strip()).packed
        try:
            kind = TYPES.get((base / "gid_attrs" / "types" / entry.name).read_text().strip(), 3)
        except OSError:
            continue  # an empty row
        if any(gid) and kind in (1, 2):
            found.append({"gid": gid, "index": int(entry.name), "type": kind, "kind": kind_of(gid)})
    return sorted(found, key=lambda row: (-row["type"], row["kind"] == LINK_LOCAL, row["kind"], row["index"]))


def find_rail(sys: Path | None = None) -> bytes:
    """This host's first active RoCE port, as a hello tells it.

    Raises:
        WireError: there is none.
    """
    v = verbs()
    root = sys or Path(os.environ.get("RDMARING_SYSFS") or "/sys")
    for each in sorted(v.device.get_device_list(), key=lambda device: device.name):
        name = each.name.decode()
        with v.device.Context(name=name) as context:
            port = context.query_port(1)
            if port.state != v.enums.IBV_PORT_ACTIVE or port.link_layer != v.enums.IBV_LINK_LAYER_ETHERNET:
                continue
            gids = gids_of(name, 1, root)[: wire.RAIL_GIDS_MAX]
            return wire.RAIL.pack(
                device=name.encode(),
                port=1,
                link_layer=port.link_layer,
                state=port.state,
                gid_count=len(gids),
                lid=port.lid,
                mtu_bytes=MTU_BYTES[port.active_mtu],
                gids=b"".join(wire.RAIL_GID.pack(gid) for gid in gids),
            )
    raise WireError("no active RoCE port here: the reference serves none but RoCE")


def _gids(rail: SimpleNamespace) -> list[SimpleNamespace]:
    return [wire.RAIL_GID.unpack(rail.gids, at * wire.RAIL_GID.size) for at in range(min(rail.gid_count, 4))]


def _common_bits(a: bytes, b: bytes) -> int:
    differ = int.from_bytes(a, "big") ^ int.from_bytes(b, "big")
    return 128 - differ.bit_length()


def _hash(gid: bytes) -> int:
    value = 2166136261
    for byte in gid:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def match(ours: SimpleNamespace, theirs: SimpleNamespace) -> tuple[SimpleNamespace, SimpleNamespace]:
    """The GIDs of both ends that serve the edge: the same pair, seen from either end.

    Raises:
        WireError: the two ports have none in common.
    """
    pairs = [(a, b) for a in _gids(ours) for b in _gids(theirs) if (a.type, a.kind) == (b.type, b.kind)]
    if not pairs or ours.link_layer != theirs.link_layer:
        raise WireError("the two ports have no GIDs of one RoCE version and address family")

    def rank(pair: tuple[SimpleNamespace, SimpleNamespace]) -> tuple[Any, ...]:
        a, b = pair
        local = a.kind == LINK_LOCAL
        far = 0 if local else 128 - _common_bits(a.gid, b.gid)
        identity = (_hash(a.gid) + _hash(b.gid)) & 0xFFFFFFFF
        return (a.type == 1, local, far, a.kind, max(a.index, b.index), min(a.index, b.index), identity)

    return min(pairs, key=rank)


# ---- a queue pair ----


class Queue:
    """One RC queue pair, every request of which reports its end."""

    def __init__(self, v: Any, pd: Any, cq: Any, port: int, receives: int) -> None:
        self._v = v
        caps = v.qp.QPCap(max_send_wr=SENDS_MAX, max_recv_wr=receives, max_send_sge=1, max_recv_sge=1)
        init = v.qp.QPInitAttr(qp_type=v.enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=caps, sq_sig_all=1)
        self.qp = v.qp.QP(pd, init)
        self.psn = int.from_bytes(os.urandom(3), "little")
        self.under_way = 0
        self._nothing = v.wr.SGE(0, 0, 0)
        e = v.enums
        self._modify(
            e.IBV_QPS_INIT,
            e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS,
            port_num=port,
            qp_access_flags=e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE,
        )
        for _ in range(receives):
            self.receive()

    def _modify(self, state: int, mask: int, **values: Any) -> None:
        attributes = self._v.qp.QPAttr()
        attributes.qp_state = state
        for name, value in values.items():
            setattr(attributes, name, value)
        self.qp.modify(attributes, mask | self._v.enums.IBV_QP_STATE)

    def connect(self, port: int, mtu: int, index: int, gid: bytes, number: int, psn: int) -> None:
        """To the peer's queue pair; afterwards it may be written to, once the peer has said READY."""
        e = self._v.enums
        dgid = self._v.addr.GID(wire.gid_text(gid))
        route = self._v.addr.GlobalRoute(dgid=dgid, sgid_index=index, hop_limit=64)
        path = self._v.addr.AHAttr(port_num=port, is_global=1, gr=route)
        self._modify(
            e.IBV_QPS_RTR,
            e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN | e.IBV_QP_MAX_DEST_RD_ATOMIC
            | e.IBV_QP_MIN_RNR_TIMER,
            ah_attr=path, path_mtu=mtu, dest_qp_num=number, rq_psn=psn, max_dest_rd_atomic=1, min_rnr_timer=12,
        )  # fmt: skip
        self._modify(
            e.IBV_QPS_RTS,
            e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY | e.IBV_QP_SQ_PSN | e.IBV_QP_MAX_QP_RD_ATOMIC,
            sq_psn=self.psn, timeout=17, retry_cnt=7, rnr_retry=7, max_rd_atomic=1,
        )  # fmt: skip

    def receive(self) -> None:
        request = self._v.wr.RecvWR(num_sge=1, sg=[self._nothing])
        request.num_sge = 0  # a WRITE WITH IMM brings its bytes elsewhere; pyverbs makes no request without a piece
        self.qp.post_recv(request)

    def write(self, queue: int, sge: Any, address: int, key: int, imm: int | None = None) -> None:
        """RDMA WRITE, or WRITE WITH IMM: imm goes in network order. sge: None writes no bytes."""
        e = self._v.enums
        request = self._v.wr.SendWR(
            wr_id=queue << 1 | 1,
            opcode=e.IBV_WR_RDMA_WRITE if imm is None else e.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=1,
            sg=[sge or self._nothing],
            imm_data=0 if imm is None else socket.htonl(imm),
            send_flags=e.IBV_SEND_SIGNALED,
        )
        if sge is None:
            request.num_sge = 0
        request.set_wr_rdma(key, address)
        self.under_way += 1
        self.qp.post_send(request)


class Memory:
    """An area that the device knows: of its own, or of an array of ours."""

    def __init__(self, v: Any, pd: Any, size: int, writable: bool, address: int | None = None) -> None:
        access = v.enums.IBV_ACCESS_LOCAL_WRITE | (v.enums.IBV_ACCESS_REMOTE_WRITE if writable else 0)
        self._v = v
        self.mr = v.mr.MR(pd, size, access) if address is None else v.mr.MR(pd, size, access, address=address)
        self.address = self.mr.buf if address is None else address

    def put(self, data: bytes, at: int) -> Any:
        """Write there; what a request names to send it."""
        self.mr.write(data, len(data), at)
        return self._v.wr.SGE(self.address + at, len(data), self.mr.lkey)

    def get(self, size: int, at: int) -> bytes:
        return bytes(self.mr.read(size, at)) if size else b""


class Rail:
    """The open device, shared by this rank's edges, and what was granted in the operation that runs."""

    def __init__(self, record: bytes) -> None:
        self.v = verbs()
        self.bytes = record
        self.record = wire.RAIL.unpack(record)
        self.context = self.v.device.Context(name=wire.text_of(self.record.device))
        self.pd = self.v.pd.PD(self.context)


class VerbsLink:
    """Both directions to one peer. What is sent waits in a queue here until there is credit for it."""

    def __init__(
        self, meeting: Meeting, peer: int, rail: Rail, qps: int, slot_bytes: int, slot_count: int, deadline: float
    ) -> None:
        v = rail.v
        self.peer = peer
        self.edge: Edge = meeting.join(peer, 0, deadline)
        self._meeting = meeting
        self._slot_bytes, self._slot_count = slot_bytes, slot_count
        size = SLOTS_AT + slot_bytes * slot_count
        self._inbound = Memory(v, rail.pd, size, writable=True)
        self._outbound = Memory(v, rail.pd, size, writable=False)
        self._v = v
        counts = [RECEIVES, *[RECEIVES_MORE] * (qps - 1)]
        self._cq = v.cq.CQ(rail.context, sum(counts) + qps * SENDS_MAX)
        self._queues = [Queue(v, rail.pd, self._cq, rail.record.port, count) for count in counts]
        self._by_number = {queue.qp.qp_num: number for number, queue in enumerate(self._queues)}
        self._waiting: deque[tuple[Any, ...]] = deque()  # sends without credit yet
        self._sent = self._credited = 0  # transfers
        self._received = self._credit_given = 0
        self._arrived: set[int] = set()
        self._opens_sent = 0
        self._opens: deque[int] = deque()  # places of OPENs that have come
        self._tinies: deque[tuple[int, int]] = deque()  # place and bytes
        self._tiny_serial = 0  # of the last that was sent
        self._places: list[SimpleNamespace] = []  # the peer's, of this operation
        self._connect(rail, qps, size, deadline)

    def _connect(self, rail: Rail, qps: int, size: int, deadline: float) -> None:
        theirs = wire.RAIL.unpack(self._meeting.hellos[self.peer].rails)
        our_gid, their_gid = match(rail.record, theirs)
        mine = {
            "magic": MAGIC, "qps": qps, "slot_count": self._slot_count, "slot_bytes": self._slot_bytes,
            "address": self._inbound.address, "bytes": size, "key": self._inbound.mr.rkey,
            "numbers": [queue.qp.qp_num for queue in self._queues] + [0] * (wire.QPS_MAX - qps),
            "psns": [queue.psn for queue in self._queues] + [0] * (wire.QPS_MAX - qps),
            "gid": our_gid.gid, "lid": rail.record.lid, "port": rail.record.port,
        }  # fmt: skip
        self.edge.say(SETUP, wire.PARAMETERS.pack(mine, kind=PARAMETERS))
        said = self._set_up(PARAMETERS, deadline)
        if (said.qps, said.slot_bytes, said.slot_count, said.bytes, said.serial) != (
            qps, self._slot_bytes, self._slot_count, size, 0,
        ):  # fmt: skip
            raise WireError(f"rank {self.peer} lays out its link in another way: {said}")
        if said.gid != their_gid.gid:
            raise WireError(f"rank {self.peer} uses another GID than it told in its hello")
        mtu = min(rail.record.mtu_bytes, theirs.mtu_bytes).bit_length() - 8  # 256 is 1
        for number, queue in enumerate(self._queues):
            queue.connect(rail.record.port, mtu, our_gid.index, said.gid, said.numbers[number], said.psns[number])
        self._address, self._key = said.address, said.key
        self.edge.say(SETUP, wire.PARAMETERS.pack(mine, kind=READY))
        self._set_up(READY, deadline)

    def _set_up(self, kind: int, deadline: float) -> SimpleNamespace:
        while not self.edge.set_up:
            if time.monotonic() > deadline:
                raise WireError(f"rank {self.peer} did not set up its link in time")
            self._meeting.look()
            time.sleep(0.001)
        message = wire.PARAMETERS.unpack(self.edge.set_up.pop(0))
        if (message.magic, message.kind) != (MAGIC, kind):
            raise WireError(f"rank {self.peer} sent what does not set up a link: {message}")
        return message

    # ---- sending ----

    def _line(self, queue: int, at: int, data: bytes, kind: int, low: int) -> None:
        """Write a line at its offset in the peer's area, with the imm that says what it is."""
        self._room(queue)
        sge = self._outbound.put(data, at) if data else None
        self._queues[queue].write(queue, sge, self._address + at, self._key, kind << IMM_BITS | low & IMM_MASK)

    def _room(self, queue: int) -> None:
        while self._queues[queue].under_way >= SENDS_MAX - 1:
            self._poll()

    def open(self, op: int, descriptor: bytes, grant: dict[int, bytes]) -> None:
        """``grant``: by buffer, the place where the peer may write in this operation."""
        empty = wire.PLACE.pack()
        places = b"".join(grant.get(buffer, empty) for buffer in range(3))
        body = wire.OPEN.pack(op=op, descriptor=int.from_bytes(descriptor[:8], "little"), place=places) + descriptor
        at = OPENS_AT + self._opens_sent % OPENS * OPEN_BYTES
        self._line(0, at, body, IMM_OPEN, self._opens_sent)
        self._opens_sent += 1

    def tiny(self, tag: int, payload: bytes) -> None:
        serial = self._tiny_serial = tag >> 32
        at = TINIES_AT + (serial & 1) * TINY_BYTES
        self._line(0, at, tag.to_bytes(8, "little") + payload, IMM_TINY, serial)

    def send(self, op: int, order: int, number: int, payload: bytes, lands: int | None, coordinate: int) -> None:
        """One slice. lands: the peer's buffer into which its row copies it, or None."""
        place = self._places[lands] if lands is not None else None
        self._waiting.append((op, order, number, payload, place, coordinate))
        self.progress()

    def _send_one(self, op: int, order: int, number: int, payload: bytes, place: Any, coordinate: int) -> None:
        """There is credit for it. One slot a transfer: no more than slot_count are under way."""
        queue = self._sent % len(self._queues)
        granted = place is not None and place.reach == REACH_REGION
        beside = not granted and len(payload) <= BESIDE_BYTES
        slot_at = self._sent % self._slot_count * self._slot_bytes
        if not beside:
            self._room(queue)
            target = place.base + coordinate if granted else self._address + SLOTS_AT + slot_at
            sge = self._outbound.put(payload, SLOTS_AT + slot_at)
            self._queues[queue].write(queue, sge, target, place.region if granted else self._key)
        line = wire.DATA.pack(
            serial=self._sent + 1, op=op, order=order, slice=number, bytes=len(payload),
            mode=WRITE if granted else SLOT, slot=slot_at // SLOT_UNIT, coordinate=coordinate,
            reserved=bytes([WANTED | (BESIDE if beside else 0)]),
        )  # fmt: skip
        at = self._sent % LINES * LINE_BYTES
        self._line(queue, at, line + (payload if beside else b""), IMM_DATA, self._sent)
        self._sent += 1

    @property
    def idle(self) -> bool:
        """Whether all that was sent has reached the peer."""
        return not self._waiting and not any(queue.under_way for queue in self._queues)

    # ---- receiving ----

    def take_open(self) -> tuple[SimpleNamespace, bytes] | None:
        self.progress()
        if not self._opens:
            return None
        body = self._inbound.get(wire.OPEN.size + wire.DESCRIPTOR.size, OPENS_AT + self._opens.popleft() * OPEN_BYTES)
        found = wire.OPEN.unpack(body)
        self._places = [wire.PLACE.unpack(found.place, buffer * wire.PLACE.size) for buffer in range(3)]
        return found, body[wire.OPEN.size :]

    def take_tiny(self) -> tuple[int, bytes] | None:
        """The peer's message of the serial that was sent last."""
        self.progress()
        while self._tinies:
            which, size = self._tinies[0]
            data = self._inbound.get(size, TINIES_AT + which * TINY_BYTES)
            tag = int.from_bytes(data[:8], "little")
            if tag >> 32 > self._tiny_serial:
                break  # it is one ahead: what it sent before came in the short form
            self._tinies.popleft()
            if tag >> 32 == self._tiny_serial:
                return tag, data[8:]
        return self._short_tiny()

    def _short_tiny(self) -> tuple[int, bytes] | None:
        """A message in one line, for which no completion comes: its check says that it is here whole."""
        line = self._inbound.get(wire.TINY_SHORT.size, TINIES_AT + (self._tiny_serial & 1) * TINY_BYTES)
        found = wire.TINY_SHORT.unpack(line)
        if found.tag >> 32 != self._tiny_serial or found.check != wire.tiny_check(line):
            return None
        return found.tag, found.payload[: found.bytes]

    def take(self, op: int, order: int, number: int, size: int, granted: memoryview | None = None) -> bytes | None:
        """The next transfer, which must be this one. granted: our memory where it lies, if we granted that."""
        self.progress()
        if self._received not in self._arrived:
            return None
        at = self._received % LINES * LINE_BYTES
        line = wire.DATA.unpack(self._inbound.get(wire.DATA.size, at))
        got = (line.op, line.order, line.slice, line.bytes, line.serial, line.mode)
        expected = (op, order, number, size, self._received + 1, SLOT if granted is None else WRITE)
        if got != expected:
            raise WireError(f"rank {self.peer} sent {got}; expected was {expected}")
        if granted is not None:
            payload = bytes(granted)
        elif line.reserved[0] & BESIDE:
            payload = self._inbound.get(size, at + wire.DATA.size)
        else:
            payload = self._inbound.get(size, SLOTS_AT + line.slot * SLOT_UNIT)
        self._arrived.discard(self._received)
        self._received += 1
        if line.reserved[0] & WANTED or self._received - self._credit_given >= LINES // 2:
            self._credit_given = self._received
            self._line(0, 0, b"", IMM_CREDIT, self._received)
        return payload

    # ---- both ----

    def progress(self) -> None:
        self._poll()
        while self._waiting and self._sent - self._credited < self._slot_count:
            self._send_one(*self._waiting.popleft())

    def _poll(self) -> None:
        count, completions = self._cq.poll(16)
        for wc in completions[:count]:
            if wc.status != self._v.enums.IBV_WC_SUCCESS:
                why = self._v.cq.cqe_status_to_str(wc.status)
                raise WireError(f"a request on the edge to rank {self.peer} failed: {why} (code {wc.vendor_err})")
            queue = self._queues[self._by_number[wc.qp_num]]
            if wc.wr_id & 1:
                queue.under_way -= 1
                continue
            queue.receive()
            self._take(socket.ntohl(wc.imm_data), wc.byte_len)

    def _take(self, imm: int, size: int) -> None:
        kind, low = imm >> IMM_BITS, imm & IMM_MASK
        if kind == IMM_DATA:
            ahead = (low - self._received) & IMM_MASK
            if ahead >= LINES:
                raise WireError(f"rank {self.peer} sent DATA beyond its credit")
            self._arrived.add(self._received + ahead)
        elif kind == IMM_OPEN:
            self._opens.append(low % OPENS)
        elif kind == IMM_TINY:
            self._tinies.append((low & 1, size))
        elif kind == IMM_CREDIT:
            self._credited += (low - self._credited) & IMM_MASK
            if self._credited > self._sent:
                raise WireError(f"rank {self.peer} released more than it was sent")
        elif kind != IMM_BELL:  # that only wakes, and nothing here sleeps
            raise WireError(f"rank {self.peer} sent a message of no kind (imm {imm:08x})")

    def close(self) -> None:
        deadline = time.monotonic() + 5
        while not self.idle and time.monotonic() < deadline:
            self.progress()
