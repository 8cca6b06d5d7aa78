"""Boards: by what the program already has, rank 0 tells the others where its own rendezvous listens.

A board passes one record of a few hundred bytes from rank 0 to all ranks. A store and an MPI communicator are
the caller's and trusted: by them the record carries a fresh secret for the job, unless RDMARING_SECRET gives one.
"""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from rdmaring.rendezvous.protocol import (
    PROTOCOL_VERSION,
    ProtocolError,
    RendezvousError,
    integer,
    job_key,
    parse_object,
    prove,
    proves,
    string,
)

RECORD_BYTES_MAX = 2048
HOSTS_MAX = 16


class Board(Protocol):
    """pass_on: rank 0 gives the record, the others None; every rank gets it. Collective.

    trusted: whether a secret may stand there. record_bytes_max: how much fits.
    """

    trusted: bool
    record_bytes_max: int

    def pass_on(self, record: bytes | None, timeout_s: float) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Record:
    """Where rank 0 listens, or why it does not.

    hosts: addresses and names of its host, those to be tried first in front. host: the identity of its node.
    job: a nonce. proof: of the secret, so that another secret is told at once. secret: "" where the board is not
    trusted, or where all ranks have it already.
    """

    hosts: tuple[str, ...]
    port: int
    host: str
    job: str
    proof: str
    secret: str = field(default="", repr=False)


def proof_of(secret: bytes, job: str) -> str:
    return prove(job_key(secret, job), "server", "", "", "record")


def encode_record(record: Record, bytes_max: int) -> bytes:
    """JSON; of the hosts as many as fit."""
    hosts = list(record.hosts[:HOSTS_MAX])
    while True:
        fields = {
            "rdmaring": PROTOCOL_VERSION,
            "hosts": hosts,
            "port": record.port,
            "host": record.host,
            "job": record.job,
            "proof": record.proof,
            "secret": record.secret,
        }
        text = json.dumps(fields, separators=(",", ":")).encode()
        if len(text) <= bytes_max or not hosts:
            return text
        hosts.pop()


def encode_failure(error: RendezvousError, bytes_max: int) -> bytes:
    text = str(error)
    while True:
        body = json.dumps({"rdmaring": PROTOCOL_VERSION, "failed": text}, separators=(",", ":")).encode()
        if len(body) <= bytes_max or not text:
            return body
        text = text[: len(text) // 2]


def decode_record(body: bytes, secret: bytes | None) -> tuple[Record, bytes]:
    """The record, and the job's secret: its own, else ``secret``.

    Raises RendezvousError: rank 0 failed, is of another version, or has another secret.
    """
    try:
        if len(body) > RECORD_BYTES_MAX:
            raise ProtocolError(f"{len(body)} bytes, at most {RECORD_BYTES_MAX} are allowed")
        fields = parse_object(body)
        version = integer(fields, "rdmaring", 0, 1 << 31)
        if version != PROTOCOL_VERSION:
            raise RendezvousError(
                f"rank 0's rendezvous speaks protocol version {version}, this rank's {PROTOCOL_VERSION}",
                hint="install the same version of rdmaring for every rank",
            )
        if "failed" in fields:
            raise RendezvousError(
                f"rank 0 failed: {string(fields, 'failed', RECORD_BYTES_MAX)}",
                hint="see rank 0's own output",
                missing_ranks=[0],
            )
        record = Record(
            hosts=_hosts(fields),
            port=integer(fields, "port", 1, 65535),
            host=string(fields, "host"),
            job=string(fields, "job"),
            proof=string(fields, "proof"),
            secret=string(fields, "secret"),
        )
    except ProtocolError as error:
        raise RendezvousError(
            f"the record of rank 0's rendezvous is damaged: {error}",
            hint="does another program write under the same name into the store, or the folder?",
        ) from None
    known = record.secret.encode() or secret or b""
    if not proves(record.proof, proof_of(known, record.job)):
        raise RendezvousError(
            "rank 0 has another secret than this rank",
            hint="set RDMARING_SECRET to the same text on every rank, or on none",
        )
    return record, known


def _hosts(fields: dict[str, Any]) -> tuple[str, ...]:
    hosts = fields.get("hosts")
    if not isinstance(hosts, list) or len(hosts) > HOSTS_MAX:
        raise ProtocolError(f"hosts is not a list of at most {HOSTS_MAX} names")
    return tuple(string({"host": each}, "host") for each in hosts)


# ---- an MPI communicator ----


class MpiBoard:
    """An mpi4py communicator, or what has its Get_rank, Get_size and Bcast (of a buffer: nothing is pickled)."""

    trusted = True
    record_bytes_max = RECORD_BYTES_MAX - 2

    def __init__(self, comm: Any) -> None:
        for name in ("Get_rank", "Get_size", "Bcast"):
            if not callable(getattr(comm, name, None)):
                raise ValueError(f"mpi is {comm!r}, expected an mpi4py communicator such as MPI.COMM_WORLD")
        self._comm = comm
        self.rank, self.world = int(comm.Get_rank()), int(comm.Get_size())

    def pass_on(self, record: bytes | None, timeout_s: float) -> bytes:
        buffer = bytearray(RECORD_BYTES_MAX)  # one size on all ranks, the record's own in front
        if record is not None:
            buffer[: 2 + len(record)] = len(record).to_bytes(2, "little") + record
        self._comm.Bcast(buffer, root=0)
        return bytes(buffer[2 : 2 + int.from_bytes(buffer[:2], "little")])


# ---- a store ----

_rounds: dict[int, int] = {}  # by id() of a store: how many records were passed on by it
_held: list[Any] = []  # stores that cannot tell when they go, so that their id stays theirs


class StoreBoard:
    """A torch-style store: ``set(key, value)``, and ``get(key)`` that waits for the key and returns bytes.

    A store's own ``wait(keys, timeout)`` is used where it has one. Its keys "rdmaring/1", "rdmaring/2", ... are taken
    in turn, so the ranks must join by one store in the same order; a job that runs again needs another store or prefix.
    """

    trusted = True
    record_bytes_max = RECORD_BYTES_MAX

    def __init__(self, store: Any) -> None:
        for name in ("set", "get"):
            if not callable(getattr(store, name, None)):
                raise ValueError(f"store is {store!r}, expected an object with set(key, bytes) and get(key)")
        self._store = store

    def pass_on(self, record: bytes | None, timeout_s: float) -> bytes:
        key = f"rdmaring/{_next_round(self._store)}"
        if record is not None:
            self._store.set(key, record)
            return record
        try:
            if callable(getattr(self._store, "wait", None)):
                self._store.wait([key], timedelta(seconds=timeout_s))
            value = self._store.get(key)
        except Exception as error:  # each store has its own
            raise RendezvousError(
                f"the given store did not give {key!r}, which rank 0 sets: {type(error).__name__}: {error}",
                missing_ranks=[0],
                hint="look at the output of rank 0; do all ranks share this store?",
            ) from error
        if not isinstance(value, bytes | bytearray | memoryview):
            raise ValueError(f"store.get({key!r}) returned {type(value).__name__}, expected bytes")
        return bytes(value)


def _next_round(store: Any) -> int:
    name = id(store)
    if name not in _rounds:
        _rounds[name] = 0
        try:
            weakref.finalize(store, _rounds.pop, name, None).atexit = False
        except TypeError:
            _held.append(store)
    _rounds[name] += 1
    return _rounds[name]
