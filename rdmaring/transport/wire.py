"""The layouts of docs/WIRE.md in Python: what ranks on different nodes tell each other, byte by byte.

Little-endian, offsets as C lays the structures out; tests compare each with the header that it names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

WIRE_VERSION = 9
PAGE_VERSION = 9
ADDRESSES_MAX = 16
RAILS_MAX = 8
RAIL_GIDS_MAX = 4
QPS_MAX = 8


class Layout:
    """One structure: ``fields`` are (name, format); "pad" fields are zeros without a name of their own."""

    def __init__(self, c_name: str, header: str, *fields: tuple[str, str]) -> None:
        self.c_name = c_name
        self.header = header
        self.offsets: dict[str, int] = {}
        self._parts: dict[str, struct.Struct] = {}
        at = 0
        for name, form in fields:
            part = struct.Struct("<" + form)
            if not name.startswith("pad"):
                self.offsets[name] = at
                self._parts[name] = part
            at += part.size
        self.size = at

    def pack(self, values: Mapping[str, Any] | None = None, **more: Any) -> bytes:
        """Fields that are not given are zero; a field of several numbers takes a sequence.

        Raises:
            KeyError: no such field.
        """
        out = bytearray(self.size)
        for name, value in {**(values or {}), **more}.items():
            several = isinstance(value, tuple | list)
            self._parts[name].pack_into(out, self.offsets[name], *(value if several else (value,)))
        return bytes(out)

    def unpack(self, data: bytes | bytearray | memoryview, at: int = 0) -> SimpleNamespace:
        """Attributes by field name; a field of several numbers is a tuple."""
        found = SimpleNamespace()
        for name, part in self._parts.items():
            got = part.unpack_from(data, at + self.offsets[name])
            setattr(found, name, got[0] if len(got) == 1 else got)
        return found


def gid_text(gid: bytes) -> str:
    """As pyverbs takes it: eight groups of four digits. (Python 3.13 writes mapped IPv4 addresses in another form.)"""
    return ":".join(gid[at : at + 2].hex() for at in range(0, 16, 2))


def text_of(data: bytes) -> str:
    """Of a field of characters, which ends at its first zero."""
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


ADDRESS = Layout(
    "struct rr_net_address",
    "net.h",
    ("family", "B"),
    ("prefix_bits", "B"),
    ("scoped", "B"),
    ("loopback", "B"),
    ("bytes", "16s"),
)
RAIL_GID = Layout("struct rr_rail_gid", "verbs_device.h", ("gid", "16s"), ("index", "H"), ("type", "B"), ("kind", "B"))
RAIL = Layout(
    "struct rr_rail",
    "verbs_device.h",
    ("device", "32s"),
    ("port", "B"),
    ("link_layer", "B"),
    ("state", "B"),
    ("gid_count", "B"),
    ("lid", "H"),
    ("reserved", "H"),
    ("mtu_bytes", "I"),
    ("rate_mbit", "I"),
    ("gids", f"{RAIL_GIDS_MAX * RAIL_GID.size}s"),
)
HELLO = Layout(
    "struct rr_hello",
    "hello.h",
    ("wire_version", "I"),
    ("page_version", "I"),
    ("status", "i"),
    ("pid", "i"),
    ("slot_bytes", "Q"),
    ("budget_bytes", "Q"),
    ("left_bytes", "Q"),
    ("slot_count", "I"),
    ("cma_wanted", "I"),
    ("token_address", "Q"),
    ("network", "Q"),
    ("token", "16s"),
    ("host_id", "40s"),
    ("boot_id", "40s"),
    ("host_name", "40s"),
    ("socket_name", "40s"),
    ("transport", "16s"),
    ("message", "256s"),
    ("port", "H"),
    ("channels", "H"),
    ("address_count", "I"),
    ("addresses", f"{ADDRESSES_MAX * ADDRESS.size}s"),
    ("rail_reason", "192s"),
    ("rail_count", "I"),
    ("rails", f"{RAILS_MAX * RAIL.size}s"),
    ("pad", "4x"),
)
OUTCOME = Layout(  # of the second and third round; the world's bytes follow, one a rank: whose memory can be read
    "struct outcome", "shm_setup.c", ("status", "i"), ("unproven", "i"), ("message", "248s")
)
GREETING = Layout(
    "struct rr_greeting",
    "far_inside.h",
    ("magic", "I"),
    ("version", "H"),
    ("stream", "H"),
    ("from", "i"),
    ("to", "i"),
    ("token", "16s"),
    ("nonce", "16s"),
)
CHALLENGE = Layout("struct rr_challenge", "far_inside.h", ("nonce", "16s"), ("proof", "Q"))
MESSAGE_HEAD = Layout("struct rr_message_head", "far_inside.h", ("kind", "I"), ("bytes", "I"))
PLACE = Layout("struct rr_place", "wire.h", ("base", "Q"), ("region", "I"), ("reach", "I"))
OPEN = Layout("struct rr_open", "wire.h", ("op", "Q"), ("descriptor", "Q"), ("place", f"{3 * PLACE.size}s"))
DESCRIPTOR = Layout(
    "struct rr_descriptor",
    "wire.h",
    ("hash", "Q"),
    ("count", "Q"),
    ("schedule", "Q"),
    ("chunks", "Q"),
    ("slice_bytes", "Q"),
    ("scale", "d"),
    ("collective", "i"),
    ("dtype", "i"),
    ("redop", "i"),
    ("root", "i"),
    ("round_count", "I"),
    ("mailbox", "I"),
    ("algorithm", "24s"),
    ("costs", "I"),
    ("channels", "B"),
    ("device", "B"),
    ("check", "B"),
    ("listed", "B"),
)
STATE = Layout(
    "struct rr_state_message",
    "far_inside.h",
    ("op", "Q"),
    ("op_done", "Q"),
    ("position", "Q"),
    ("wait_op", "Q"),
    ("waits", "2Q"),
    ("waited_ns", "Q"),
    ("quiet_ns", "Q"),
    ("else_comm", "Q"),
    ("else_op", "Q"),
    ("else_wait", "Q"),
    ("else_process", "Q"),
    ("else_quiet_ns", "Q"),
    ("pace_word", "Q"),
    ("pace_span_ns", "Q"),
    ("pace_moved_ns", "Q"),
    ("pace_age_ns", "Q"),
    ("descriptor", f"{DESCRIPTOR.size}s"),
)
WITNESS = Layout(
    "struct rr_witness_message",
    "far_inside.h",
    ("about", "i"),
    ("asks", "I"),
    ("life", "i"),
    ("silent_ms", "I"),
    ("quiet_ms", "I"),
    ("pad", "I"),
    ("op_done", "Q"),
    ("op_entered", "Q"),
)
COUNTS = Layout("struct rr_counts_message", "far_inside.h", ("lacks", "Q"), ("sent", "64s"))
VERDICT = Layout(
    "rr_verdict",
    "rdmaring_verdict.h",
    ("kind", "i"),
    ("rank", "i"),
    ("peer", "i"),
    ("row", "i"),
    ("op", "q"),
    ("collective", "i"),
    ("found_by", "i"),
    ("transport", "16s"),
    ("text", "512s"),
    ("evidence", "768s"),
)
ERROR = Layout(
    "rr_error",
    "rdmaring.h",
    ("status", "i"),
    ("rank", "i"),
    ("peer", "i"),
    ("row", "i"),
    ("op", "q"),
    ("transport", "16s"),
    ("collective", "24s"),
    ("message", "1024s"),
    ("hint", "512s"),
    ("verdict", f"{VERDICT.size}s"),
)
FAILED = Layout("struct failed_message", "far.c", ("op_done", "Q"), ("error", f"{ERROR.size}s"))
FRAME = Layout(
    "struct rr_frame",
    "stream_edge.h",
    ("magic", "I"),
    ("kind", "H"),
    ("row_high", "H"),
    ("op", "Q"),
    ("order", "I"),
    ("slice", "I"),
    ("bytes", "I"),
    ("row_low", "I"),
    ("serial", "Q"),
    ("crc", "I"),
    ("origin", "I"),
)
DATA = Layout(
    "struct rr_data",
    "wire.h",
    ("serial", "Q"),
    ("op", "Q"),
    ("order", "I"),
    ("slice", "I"),
    ("bytes", "I"),
    ("released", "I"),
    ("mode", "I"),
    ("slot", "I"),
    ("coordinate", "Q"),
    ("reserved", "8s"),
    ("origin", "I"),
    ("crc", "I"),
)
PARAMETERS = Layout(
    "struct rr_verbs_parameters",
    "verbs_edge.h",
    ("magic", "I"),
    ("kind", "I"),
    ("qps", "I"),
    ("slot_count", "I"),
    ("slot_bytes", "Q"),
    ("address", "Q"),
    ("bytes", "Q"),
    ("key", "I"),
    ("serial", "I"),
    ("numbers", f"{QPS_MAX}I"),
    ("psns", f"{QPS_MAX}I"),
    ("gid", "16s"),
    ("lid", "H"),
    ("port", "B"),
    ("reserved", "5s"),
)
TINY_SHORT = Layout(
    "struct rr_tiny_short",
    "verbs_edge.h",
    ("tag", "Q"),
    ("payload", "40s"),
    ("bytes", "I"),
    ("zero", "I"),
    ("check", "Q"),
)
LAYOUTS = (
    ADDRESS,
    RAIL_GID,
    RAIL,
    HELLO,
    OUTCOME,
    GREETING,
    CHALLENGE,
    MESSAGE_HEAD,
    PLACE,
    OPEN,
    DESCRIPTOR,
    STATE,
    WITNESS,
    COUNTS,
    VERDICT,
    ERROR,
    FAILED,
    FRAME,
    DATA,
    PARAMETERS,
    TINY_SHORT,
)

MASK = 2**64 - 1


def tiny_check(line: bytes) -> int:
    """Of the first 56 bytes of a short tiny message: what its last 8 must be."""
    value = 0x243F6A8885A308D3
    for (word,) in struct.iter_unpack("<Q", line[:56]):
        value = (value ^ word) * 0x9E3779B97F4A7C15 & MASK
        value ^= value >> 32
    return value


def fnv(data: bytes) -> int:
    """FNV-1a of 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & MASK
    return value


def descriptor_hash(descriptor: bytes) -> int:
    """Of a descriptor's bytes after the hash; its low half depends on all of them, and it is never 0."""
    value = fnv(descriptor[8:])
    value ^= value >> 32 << 1
    return value or 1


def _turn(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & MASK


def siphash(key: bytes, message: bytes) -> int:
    """SipHash-2-4: the proof of a job's key."""
    low, high = struct.unpack("<2Q", key)
    a, b, c, d = (
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    )

    def rounds(a: int, b: int, c: int, d: int, count: int) -> tuple[int, int, int, int]:
        for _ in range(count):
            a, c = (a + b) & MASK, (c + d) & MASK
            b, d = _turn(b, 13) ^ a, _turn(d, 16) ^ c
            a = _turn(a, 32)
            c, a = (c + b) & MASK, (a + d) & MASK
            b, d = _turn(b, 17) ^ c, _turn(d, 21) ^ a
            c = _turn(c, 32)
        return a, b, c, d

    whole = len(message) // 8 * 8
    rest = message[whole:]
    words = [*struct.unpack(f"<{whole // 8}Q", message[:whole])]
    words.append(int.from_bytes(rest, "little") | (len(message) & 0xFF) << 56)
    for word in words:
        a, b, c, d = rounds(a, b, c, d ^ word, 2)
        a ^= word
    a, b, c, d = rounds(a, b, c ^ 0xFF, d, 4)
    return a ^ b ^ c ^ d
