"""What is said at the rendezvous: frames, members, proofs of the job's secret.

A frame is a little-endian u32 (the bytes that follow), one kind byte, and a body: a JSON object (kind ``J``)
or raw bytes (kind ``B``). The conversation, client (C) and server (S):

    C  J  {"hello": "rdmaring", "protocol", "version", "nonce"}
    S  J  {"nonce", "proof"}                      the server proves the secret first
    C  J  {"member", "proof"}                     member is JSON text, covered by the proof
    S  J  {"assembled": [member, ...]}            once all ranks have come
    C  B  what this rank gives                    a round, any number of times
    S  B  what all ranks gave, in rank order
    C  J  {"bye": true}

In place of any answer the server may say ``{"error", "hint", "missing_ranks", "timed_out"}``. Every length is
bounded before it is believed and nothing is unpickled; JSON is parsed only of bounded size.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

PROTOCOL_VERSION = 2

FRAME_BYTES_MAX_BEFORE_PROOF = 4096
ROUND_BYTES_MAX = 1 << 20  # of one rank
FRAME_BYTES_MAX = 1 + ROUND_BYTES_MAX  # from a proven rank
WORLD_MAX = 1 << 16
NONCE_BYTES = 16
LINK_KEY_BYTES = 16
TEXT_CHARS_MAX = 256

_LENGTH = struct.Struct("<I")

Kind = Literal["J", "B"]


class RendezvousError(RuntimeError):
    """The ranks did not find each other, or a round among them failed.

    missing_ranks: ranks that are known not to have come, or to have left; may be empty.
    hint: what to do about it; may be empty.
    timed_out: whether time ran out, as opposed to a refusal.
    """

    def __init__(
        self, message: str, *, missing_ranks: Iterable[int] = (), hint: str = "", timed_out: bool = False
    ) -> None:
        super().__init__(message)
        self.missing_ranks = tuple(missing_ranks)
        self.hint = hint
        self.timed_out = timed_out


class ProtocolError(Exception):
    """The other side sent what this protocol forbids: it is a stranger."""


@dataclass(frozen=True, slots=True)
class Member:
    """One rank as it introduces itself.

    version: of its package. wire: what its links speak, in the words of the build. Ranks that differ in either must
    not meet. host: the identity of its node, not a name to connect to.
    """

    rank: int
    world: int
    version: str
    wire: str
    host: str
    pid: int
    assembly_timeout_s: float  # how long it is ready to wait from now on for the others to come
    round_timeout_s: float  # and for all rounds that follow; each says what is left of it


def encode_member(member: Member) -> str:
    return json.dumps(asdict(member))


def decode_member(text: str) -> Member:
    """The member in ``text``, every field of the right type and within bounds.

    Raises ProtocolError.
    """
    fields = parse_object(text.encode())
    member = Member(
        rank=integer(fields, "rank", 0, WORLD_MAX - 1),
        world=integer(fields, "world", 1, WORLD_MAX),
        version=string(fields, "version"),
        wire=string(fields, "wire"),
        host=string(fields, "host"),
        pid=integer(fields, "pid", 0, 1 << 31),
        assembly_timeout_s=seconds(fields, "assembly_timeout_s"),
        round_timeout_s=seconds(fields, "round_timeout_s"),
    )
    if member.rank >= member.world:
        raise ProtocolError(f"rank {member.rank} in a world of {member.world}")
    return member


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises ProtocolError for anything else, however it is damaged."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProtocolError("not a JSON object")
    return value


def integer(fields: dict[str, Any], name: str, low: int, high: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"{name} is not an integer from {low} to {high}")
    return value


def string(fields: dict[str, Any], name: str, chars_max: int = TEXT_CHARS_MAX) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > chars_max or not value.isprintable():
        raise ProtocolError(f"{name} is not printable text of at most {chars_max} characters")
    return value


def seconds(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise ProtocolError(f"{name} is not a positive number of seconds")
    return float(value)


def new_nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


def _bytes_of(job: str) -> bytes:
    return job.encode(errors="surrogatepass")  # it comes from an environment, which may hold what is no text


def job_key(secret: bytes, job: str) -> bytes:
    """The key of one job, so that a server of another job with the same secret proves nothing here."""
    return hmac.new(secret, b"rdmaring job " + _bytes_of(job), hashlib.sha256).digest()


def link_key(secret: bytes, job: str) -> bytes:
    """What ranks of a job prove to each other with when they join links between nodes; tells nothing of the secret."""
    return hmac.new(secret, b"rdmaring links " + _bytes_of(job), hashlib.sha256).digest()[:LINK_KEY_BYTES]


def prove(key: bytes, role: Literal["client", "server"], client_nonce: str, server_nonce: str, text: str) -> str:
    """The proof that whoever plays ``role`` holds ``key`` and says ``text`` in this conversation."""
    parts = (role, client_nonce, server_nonce, text)
    message = b"".join(_LENGTH.pack(len(part.encode())) + part.encode() for part in parts)
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def proves(given: str, expected: str) -> bool:
    """Whether two proofs are equal, in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def frame(kind: Kind, body: bytes) -> bytes:
    return _LENGTH.pack(1 + len(body)) + kind.encode() + body


def object_frame(fields: dict[str, Any]) -> bytes:
    return frame("J", json.dumps(fields).encode())


def error_frame(error: RendezvousError) -> bytes:
    return object_frame(
        {
            "error": str(error),
            "hint": error.hint,
            "missing_ranks": list(error.missing_ranks),
            "timed_out": error.timed_out,
        }
    )


def decode_error(fields: dict[str, Any]) -> RendezvousError:
    """The error that an answer with the field ``error`` stands for. Raises ProtocolError."""
    missing = fields.get("missing_ranks", [])
    if not isinstance(missing, list) or not all(type(rank) is int for rank in missing):
        raise ProtocolError("missing_ranks is not a list of integers")
    return RendezvousError(
        string(fields, "error", 1 << 20),
        missing_ranks=missing,
        hint=string(fields, "hint", 4096),
        timed_out=fields.get("timed_out") is True,
    )


class FrameReader:
    """Cuts a stream into frames. ``bytes_max`` bounds a frame; raise it once the other side is known."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> tuple[Kind, bytes] | None:
        """The next whole frame, or None until more bytes are fed. Raises ProtocolError."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 1 <= length <= self.bytes_max:
            raise ProtocolError(f"a frame of {length} bytes, where at most {self.bytes_max} are allowed")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        kind = self._buffer[_LENGTH.size]
        body = bytes(self._buffer[_LENGTH.size + 1 : end])
        del self._buffer[:end]
        if kind == ord("J"):
            return "J", body
        if kind == ord("B"):
            return "B", body
        raise ProtocolError(f"a frame of unknown kind {kind}")


def rank_list(ranks: Iterable[int], shown_max: int = 16) -> str:
    """``rank 3`` or ``ranks 0-2, 5``: runs folded, cut after ``shown_max`` runs."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [_run_text(first, last) for first, last in runs[:shown_max]]
    more = "" if len(runs) <= shown_max else f" and {sum(b - a + 1 for a, b in runs[shown_max:])} more"
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(words) + more


def _run_text(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"
