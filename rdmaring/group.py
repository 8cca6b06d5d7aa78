"""Communicators: made from a rendezvous, or split off another one."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rdmaring._native import ffi, lib, with_exchange
from rdmaring.errors import ArgumentError
from rdmaring.settings import Settings
from rdmaring.topology import order_within, ring_order
from rdmaring.tuning.constants import built_in
from rdmaring.tuning.file import TuningFile, load
from rdmaring.tuning.fingerprint import agree, own_record

if TYPE_CHECKING:
    from rdmaring.communicator import Communicator
    from rdmaring.transport import Factory
    from rdmaring.transport.serve import MessageTransport

TRANSPORT_BITS = {"tcp": lib.RR_TRANSPORT_TCP, "verbs": lib.RR_TRANSPORT_VERBS}
EXCHANGES = 3  # of rr_comm_create() in a world of two or more (native/src/shm_setup.c)
RECORD_BYTES = 8192  # one rank's part of a round over a parent communicator


def served(transport: str | Factory | None) -> str | MessageTransport | None:
    """What init() was given as ``transport``; a Python class as what C can call.

    Raises:
        ArgumentTypeError: it is none.
    """
    if transport is None or isinstance(transport, str):
        return transport
    from rdmaring.transport.serve import serve

    return serve(transport)


def create(
    rank: int, world: int, gather: Callable[[bytes], bytes], settings: Settings, left_s: float | None = None
) -> Any:
    """A native communicator; ``gather`` collects equal numbers of bytes from all ``world`` ranks.

    left_s: seconds that this may take; default: the settings' time-out.

    Raises:
        SetupError: it could not be made; all ranks fail alike.
    """
    options = ffi.new("rr_options *")
    options.timeout_ns = int(settings.timeout_s * 1e9)
    options.setup_ns = int(left_s * 1e9) if left_s else 0
    options.slot_bytes = settings.slot_bytes or 0
    options.slot_count = settings.slot_count or 0
    options.cma = 0 if settings.cma else 1
    options.memory_budget_bytes = settings.memory_budget_bytes or 0
    options.serial_start = settings.serial_start
    settings.verbs.fill(options.verbs)
    ffi.memmove(options.key, settings.key, len(settings.key))
    options.tcp_streams = settings.tcp_streams or 0
    options.channels = settings.channels or 0
    options.require_rdma = settings.require_rdma
    options.transports = sum(TRANSPORT_BITS[name] for name in settings.transports)
    options.restore = settings.restore
    library = ffi.new("char[]", os.fsencode(settings.link_library)) if settings.link_library else ffi.NULL
    options.link_library = library
    options.link_transport = settings.link_transport.table if settings.link_transport else ffi.NULL
    out = ffi.new("rr_comm **")
    with_exchange(gather, lambda exchange, user: lib.rr_comm_create(rank, world, exchange, user, options, out))
    lib.rr_comm_retain(out[0])  # close() gives its maker's reference back, and another thread may be inside
    return ffi.gc(out[0], lib.rr_comm_release)


def set_ring(comm: Communicator) -> None:
    """In which order rings visit the ranks: as the settings say; else the ranks of each node one after another.

    Raises:
        ArgumentError: the order is none of this communicator's ranks.
    """
    order = comm._settings.ring_order
    if order is None:
        order = ring_order(comm._nodes)
    elif sorted(order) != list(range(comm.size)):
        raise ArgumentError(
            f"the ring order (reorder= or RDMARING_RING_ORDER) is {','.join(map(str, order)) or 'empty'}; "
            f"accepted is each of the ranks 0..{comm.size - 1} once"
        )
    comm._order = None if order == tuple(range(comm.size)) else order


def use_ring(comm: Communicator, order: tuple[int, ...]) -> None:
    """From now on rings visit the ranks in this order, equal on all of them; in groups split off later, too."""
    comm._settings = replace(comm._settings, ring_order=order)
    set_ring(comm)
    comm._forget_plans()


def tuning_file(settings: Settings) -> TuningFile | None:
    """What the settings name, read and checked.

    Raises:
        ArgumentError: there is none, or it is none.
    """
    return load(settings.tuning, "tuning (or RDMARING_TUNING)") if settings.tuning else None


def set_constants(comm: Communicator, exchange: Callable[[bytes], bytes], file: TuningFile | None) -> None:
    """By which constants algorithms are chosen: the file's if it is for this job, else those built in. Collective.

    Raises:
        ArgumentError: the ranks have different files, or not all want a probe; on all ranks alike.
    """
    links = comm.links
    record = own_record(
        (link.transport for link in links),
        (link.device for link in links if link.device),
        file=file.digest if file else "",
        probe=comm._settings.probe,
    )
    facts = agree(exchange(record), comm._nodes)
    comm._facts = facts
    constants = built_in(facts.transport, facts.processors)
    if file is not None:
        differences = file.fingerprint.differences(facts.fingerprint)
        if not differences:
            constants = file.constants.on(facts.processors)
        elif comm.rank == 0:
            warnings.warn(
                f"the tuning file {file.path} is not used, as it is for another job: {'; '.join(differences)}. "
                "`rdmaring tune` makes one for this",
                stacklevel=3,
            )
    comm._use_constants(constants)


def _round(parent: Communicator, mine: bytes) -> list[bytes]:
    """Every parent rank's bytes, at most RECORD_BYTES of each."""
    part = np.zeros(RECORD_BYTES, np.uint8)
    framed = len(mine).to_bytes(4, "little") + mine
    if len(framed) > RECORD_BYTES:
        raise ValueError(f"{len(mine)} bytes do not fit a round of split()")
    part[: len(framed)] = np.frombuffer(framed, np.uint8)
    rows = parent.all_gather(part).reshape(parent.size, RECORD_BYTES)
    return [row[4 : 4 + int.from_bytes(row[:4].tobytes(), "little")].tobytes() for row in rows]


def split(parent: Communicator, color: int | None, key: int) -> Communicator | None:
    """See ``Communicator.split``. Every parent rank takes part in the same rounds, whatever its group does."""
    from rdmaring.communicator import Communicator

    told = _round(parent, json.dumps([color, key]).encode())
    chosen = [json.loads(record) for record in told]
    members = sorted((c[1], r) for r, c in enumerate(chosen) if c[0] == color and color is not None)
    ranks = [r for _, r in members]
    rounds = 0

    def gather(mine: bytes) -> bytes:
        nonlocal rounds
        rounds += 1
        everyone = _round(parent, mine)
        return b"".join(everyone[r] for r in ranks)

    handle = error = None
    if ranks:
        try:
            handle = create(ranks.index(parent.rank), len(ranks), gather, parent._settings)
        except Exception as caught:  # raised below, when the other groups' rounds are done
            error = caught
    while rounds < EXCHANGES:
        rounds += 1
        _round(parent, b"")
    if error is not None:
        raise error
    if handle is None:
        return None
    name = f"{parent.name}/{color}"
    settings = parent._settings
    if settings.ring_order is not None:
        settings = replace(settings, ring_order=order_within(settings.ring_order, ranks))
    comm = Communicator(handle, ranks.index(parent.rank), len(ranks), name, settings)
    set_ring(comm)
    comm._facts = parent._facts
    comm._use_constants(parent._chooser.constants)
    if parent._gpu is not None:
        comm._use_gpu(parent._gpu.device.ordinal)
    return comm
