"""rdmaring: ring all-reduce and its relatives between processes, without NCCL.

>>> import numpy as np, rdmaring as rr
>>> with rr.init() as comm:                  # under `rdmaring run -n 4 script.py`, torchrun, or by arguments
...     comm.all_reduce(grad)                # in place: every rank's grad becomes the sum
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rdmaring._version import __version__
from rdmaring.errors import (
    AbortedError,
    ArgumentError,
    ArgumentTypeError,
    CallError,
    ClosedError,
    CommunicatorError,
    CorruptError,
    CudaError,
    DeviceError,
    ForkedError,
    LeftOutError,
    LinkError,
    MismatchError,
    NonFiniteError,
    NoQuorumError,
    OperationTimeoutError,
    OutOfMemoryError,
    PeerClosedError,
    PeerDiedError,
    PeerFailedError,
    ProtocolError,
    RdmaringError,
    ScheduleFormatError,
    SetupError,
    SystemCallError,
    UnsupportedError,
)
from rdmaring.verdict import Verdict

logging.getLogger("rdmaring").addHandler(logging.NullHandler())  # silent unless the program, or RDMARING_LOG, says so

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rdmaring.communicator import Communicator
    from rdmaring.plan import Plan
    from rdmaring.recover import Recovery
    from rdmaring.topology import Link
    from rdmaring.transport import Factory
    from rdmaring.work import RunStats, Work

__all__ = [
    "AbortedError",
    "ArgumentError",
    "ArgumentTypeError",
    "CallError",
    "ClosedError",
    "Communicator",
    "CommunicatorError",
    "CorruptError",
    "CudaError",
    "DeviceError",
    "ForkedError",
    "LeftOutError",
    "Link",
    "LinkError",
    "MismatchError",
    "NoQuorumError",
    "NonFiniteError",
    "OperationTimeoutError",
    "OutOfMemoryError",
    "PeerClosedError",
    "PeerDiedError",
    "PeerFailedError",
    "Plan",
    "ProtocolError",
    "RdmaringError",
    "Recovery",
    "RunStats",
    "ScheduleFormatError",
    "SetupError",
    "SystemCallError",
    "UnsupportedError",
    "Verdict",
    "Work",
    "__version__",
    "init",
]

_LAZY = {
    "Communicator": "rdmaring.communicator",
    "Link": "rdmaring.topology",
    "Plan": "rdmaring.plan",
    "Recovery": "rdmaring.recover",
    "RunStats": "rdmaring.work",
    "Work": "rdmaring.work",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rdmaring' has no attribute {name!r}")


def init(
    rank: int | None = None,
    size: int | None = None,
    address: str | None = None,
    *,
    timeout_s: float | None = None,
    store: Any = None,
    mpi: Any = None,
    reorder: Sequence[int] | bool | None = None,
    transport: str | Factory | None = None,
    require: str | None = None,
    tcp_streams: int | None = None,
    channels: int | None = None,
    verbs: Mapping[str, Any] | None = None,
    tuning: str | os.PathLike[str] | None = None,
    probe: bool | None = None,
    device: Any = None,
    check: str | None = None,
    restore: bool | None = None,
) -> Communicator:
    """Join the job's other ranks; returns the :class:`Communicator` of all of them. Collective.

    rank, size: this process's rank and the number of ranks. Default: what the launcher has set (`rdmaring run`,
        torchrun, mpirun of Open MPI, mpiexec of MPICH or Intel MPI, srun); without any, a world of one.
    address: "host:port" where rank 0 listens; needed with rank and size. RDMARING_RENDEZVOUS says the same.
    timeout_s: seconds for the assembly, as many again for what the ranks then set up, and default of every operation.
        Default: RDMARING_TIMEOUT, else 300.
    store: in place of ``address``: an object with set(key, bytes) and get(key) -> bytes that waits for the key, such as
        torch.distributed's stores. Rank 0 puts there where it listens, and a secret for this job. A store serves one
        job: one that runs again needs another, or another prefix.
    mpi: in place of all of these: an mpi4py communicator; its ranks become ours.
    reorder: the ranks in the order in which rings visit them, equal on all ranks. Default: RDMARING_RING_ORDER,
        else the ranks of each node one after another; False: that, whatever the variable says. True: all edges are
        measured for some seconds, and the ring with the fastest slowest edge is taken.
    transport: what may serve edges between nodes: "tcp", "verbs", or both between commas. Default:
        RDMARING_TRANSPORT, else verbs where both ends have it, and TCP where not. Inside a node: shared memory.
        Or one of your own, the same on all ranks: the path of a shared library built on rdmaring_link.h (also
        RDMARING_LINK), or a class of :class:`rdmaring.transport.Transport`, which then serves those edges.
    require: "rdma": raise where an edge between nodes would go over TCP. Default: RDMARING_REQUIRE.
    tcp_streams: data sockets of a channel of a TCP edge, 1 to 16. Default: RDMARING_TCP_STREAMS, else 2.
    channels: parts of every vector, each with its own links between nodes, 1 to 16. Default: RDMARING_CHANNELS, else 1.
    verbs: of RDMA links, such as {"qps": 2, "service_level": 3}: qps, retry_timeout_s, retry_count, rnr_retry,
        service_level, traffic_class, hop_limit, gid_index, reconnect_s, devices. Default: RDMARING_VERBS_QPS and so on.
    tuning, probe: by which constants algorithms are chosen (docs/TUNING.md): a file of `rdmaring tune`, or True for a
        measurement now, of up to 200 ms. Default: RDMARING_TUNING, RDMARING_PROBE, else built in.
    check: "crc", "finite", or both between commas, equal on all ranks. crc: every slice of a collective carries two
        CRC32C, of what this hop's sender had and of what its origin had, compared before it is used; what differs
        raises CorruptError, which says whether the hop changed it or a rank's memory in between (docs/WIRE.md, "Two
        sums"). Tiny messages then go as slices. finite: a reduction of a NaN or an infinity of any rank is refused on
        all, before it runs: NonFiniteError names the first. It costs a look at the input and a tiny message.
        Default: RDMARING_CHECK.
    restore: True: an input in host memory that an operation overwrites is put back if that fails on this rank; it costs
        a copy (docs/RECOVERY.md). Ranks may differ. Default: RDMARING_RESTORE.
    device: "cuda", "cuda:0", a number: vectors are in that GPU's memory (docs/CUDA.md). Default: as the first array is.

    Raises:
        ArgumentError: arguments or variables that do not fit.
        CudaError: device is given, and on some rank the GPU cannot be used.
        SetupError: the world did not assemble in time; the message names the missing ranks.
    """
    from dataclasses import replace

    from rdmaring import group

    links = dict[str, Any](require=require, tcp_streams=tcp_streams, channels=channels, verbs=verbs, check=check)
    links["restore"] = restore
    chosen = _settings(timeout_s, reorder, transport=group.served(transport), tuning=tuning, probe=probe, **links)
    file = group.tuning_file(chosen)
    phases = _Phases()
    meeting = _meet(rank, size, address, chosen.timeout_s, store=store, mpi=mpi)
    phases.end("the ranks met")
    chosen = replace(chosen, key=meeting.key)
    return _made(meeting, chosen, file, reorder is True, device, phases)


def _made(meeting: Any, chosen: Any, file: Any, reorder: bool, device: Any, phases: _Phases) -> Communicator:
    """The communicator of the ranks that have met, ready for its first operation."""
    from rdmaring import group
    from rdmaring.shrink import stand

    comm = _create(meeting, chosen)
    phases.end("links")
    try:
        group.set_ring(comm)
        with _rendezvous_errors_as_ours():
            group.set_constants(comm, meeting.exchange, file)
        stand(comm, meeting)
        phases.end("agreement")
        _prepare(comm, chosen.probe, reorder, device)
        phases.end("probes and GPU")
    except BaseException:
        comm.close()
        raise
    phases.log(comm)
    _trace_program(comm)
    return comm


class _Phases:
    """How long each part of init() took: told at level info, for worlds whose set-up is slow."""

    def __init__(self) -> None:
        self._ends = [("", time.monotonic())]

    def end(self, name: str) -> None:
        self._ends.append((name, time.monotonic()))

    def log(self, comm: Communicator) -> None:
        parts = zip(self._ends, self._ends[1:], strict=False)
        told = ", ".join(f"{name} {end - begin:.3f} s" for (_, begin), (name, end) in parts)
        whole_s = self._ends[-1][1] - self._ends[0][1]
        message = "rank %d: set-up of %d ranks took %.3f s: %s"
        logging.getLogger("rdmaring").info(message, comm.rank, comm.size, whole_s, told)


def _create(meeting: Any, chosen: Any) -> Communicator:
    """The world's communicator, without what is agreed on later."""
    from rdmaring import group
    from rdmaring.communicator import Communicator

    try:
        with _rendezvous_errors_as_ours():
            handle = group.create(meeting.rank, meeting.world, meeting.exchange, chosen, meeting.left_s)
    except BaseException:
        meeting.close()
        raise
    return Communicator(handle, meeting.rank, meeting.world, "world", chosen, meeting)


def _settings(timeout_s: float | None, reorder: Sequence[int] | bool | None, **given: Any) -> Any:
    """Of init()'s arguments and the variables; the logger's level, too."""
    from rdmaring import settings

    chosen = settings.read(os.environ, timeout_s)
    if reorder is not None:
        chosen = settings.with_ring_order(chosen, reorder)
    chosen = settings.with_arguments(chosen, **given)
    settings.set_log_level(os.environ)
    return chosen


def _meet(*place: Any, **ways: Any) -> Any:
    """The rendezvous, with its errors as ours."""
    from rdmaring import rendezvous
    from rdmaring._native import ffi, lib

    try:
        with _rendezvous_errors_as_ours():
            return rendezvous.join(*place, **ways, wire=ffi.string(lib.rr_wire_name()).decode())
    except ValueError as error:
        raise ArgumentError(str(error)) from None


@contextmanager
def _rendezvous_errors_as_ours() -> Iterator[None]:
    """Also of the rounds in which the communicator is made: a rank leaves, or does not come."""
    from rdmaring import rendezvous

    try:
        yield
    except rendezvous.RendezvousError as error:
        raise SetupError(str(error), hint=error.hint) from error


def _prepare(comm: Communicator, probe: bool, reorder: bool, device: Any) -> None:
    """What init() was asked to measure before the first operation, and where vectors are."""
    if probe:
        from rdmaring.probe import probed

        comm._use_constants(probed(comm))
    if reorder:
        from rdmaring import group
        from rdmaring.diagnose.links.probe import measured_order

        group.use_ring(comm, measured_order(comm))
    if device is not None:
        comm._use_gpu(comm._ordinal(device))


def _trace_program(comm: Communicator) -> None:
    """RDMARING_TRACE: from here to the end."""
    path = os.environ.get("RDMARING_TRACE")
    if path:
        from importlib import import_module

        comm._program_trace = import_module("rdmaring.diagnose.trace").WholeProgram(comm, path)
