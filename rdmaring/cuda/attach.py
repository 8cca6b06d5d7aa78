"""What the communicator calls: its ranks tell each other of their GPUs, and C gets a device."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from rdmaring._native import check, ffi, lib
from rdmaring.cuda import kernels
from rdmaring.cuda.blocks import Block, Geometry, choose_flags_place, told_flags_place
from rdmaring.cuda.context import Device, PerDevice, device
from rdmaring.cuda.driver import addresses, call, is_loaded
from rdmaring.cuda.ipc import pid_namespace, start_time
from rdmaring.cuda.lists import Lists, is_proven, meet, suits
from rdmaring.cuda.memory import Allocation, Capability, device_capability
from rdmaring.errors import CudaError, RdmaringError
from rdmaring.schedule import SHAPED, Schedule
from rdmaring.single import Single

RECORD_BYTES = 1021  # what a rank tells, once; running.told() knows this size
BETWEEN = "between nodes"


@dataclass(frozen=True, slots=True)
class Record:
    """What a rank tells of its GPU. error: why it cannot be used; then the rest does not count."""

    ordinal: int
    name: str = ""
    uuid: str = ""
    pid: int = 0
    start: int = 0
    namespace: str = ""
    ipc: bool = False
    reason: str = ""
    error: str = ""
    sizes: str = ""  # of its block: ranks of a node, channels, slots of a link, bytes of a slot
    block: str = ""  # what the others open it by
    between: str = ""  # why the host runs what goes between nodes; "": streams may

    def pack(self) -> bytes:
        """RECORD_BYTES; the texts are cut where they are too long."""
        facts = asdict(self)
        while len(text := json.dumps(facts).encode()) > RECORD_BYTES:
            longest = max(("name", "reason", "error", "between"), key=lambda key: len(facts[key]))
            facts[longest] = facts[longest][: len(facts[longest]) * 3 // 4]
        return text.ljust(RECORD_BYTES)

    @classmethod
    def unpack(cls, raw: bytes) -> Record:
        """Raises ValueError: it is none."""
        facts = json.loads(raw)
        if not isinstance(facts, dict) or set(facts) != {field.name for field in fields(cls)}:
            raise ValueError(f"no record of a GPU: {raw[:80]!r}")
        return cls(**facts)


def own_record(native: NativeDevice, sizes: Geometry | None, alone: bool, between: str) -> tuple[Record, Block | None]:
    """Of this process, and its block. Raises CudaError, ArgumentError.

    sizes: of the block; None: this rank is the only one. alone: on its node: nobody opens a block of its.
    """
    where, block = native.device, None
    able = device_capability(where)
    told = {"sizes": str(sizes) if alone and sizes is not None else "", "block": "", "between": between}
    if able.ipc and sizes is not None and not alone and not between:
        flags_place = choose_flags_place(sizes.channels)
        try:
            block = Block(where, sizes, flags_place, native.table)
            told |= {"sizes": str(sizes), "block": block.told()}
        except RdmaringError as error:
            able = Capability(False, f"its block of GPU memory: {error}")
    record = Record(
        where.ordinal, where.name, where.uuid, os.getpid(), start_time(), pid_namespace(), able.ipc, able.reason, **told
    )
    return record, block


def why_staged(records: Sequence[Record], nodes: Sequence[int]) -> str:
    """Why the host runs all operations; "" if streams may. All ranks find the same. nodes: of each rank."""
    for number, record in enumerate(records):
        if record.between:
            return f"{BETWEEN}: through pinned host memory, as rank {number} says: {record.between}"
        first = nodes.index(nodes[number])
        alone = nodes.count(nodes[number]) == 1
        if not record.ipc and not alone:
            return f"rank {number}: {record.reason}"
        if not alone and (not record.namespace or record.namespace != records[first].namespace):
            return f"ranks {first} and {number} are in different PID namespaces, between which IPC handles do not pass"
        if record.sizes != records[0].sizes:
            return f"ranks 0 and {number} have slots of other sizes: {records[0].sizes}; {record.sizes}"
    return ""


# ---- the device as C has it ----


def _open_table() -> Any:
    """The driver's addresses, for C, which opens no driver of its own."""
    want = ffi.new("rr_cuda_want *")
    wanted = []
    for index in range(lib.rr_cuda_want_count()):
        check(lib.rr_cuda_want_at(index, want))
        wanted.append((ffi.string(want.name).decode(), int(want.version)))
    found = addresses(wanted)
    names = [ffi.new("char[]", name.encode()) for name, _ in found]
    entries = ffi.new("rr_cuda_entry[]", len(found))
    for entry, name, (_, address) in zip(entries, names, found, strict=True):
        entry.name = name
        entry.address = ffi.cast("void *", address)
    out = ffi.new("rr_cuda **")
    check(lib.rr_cuda_open(entries, len(found), out))
    return out[0]


def _close(handle: Any, table: Any) -> None:
    if is_loaded():  # not in a child of the process that has it
        lib.rr_device_close(handle)
        lib.rr_cuda_close(table)


class NativeDevice(Single):
    """One GPU as C has it, for all communicators of this process."""

    def __init__(self, where: Device) -> None:
        """Raises CudaError, UnsupportedError: a function of the driver is missing; DeviceError: it refused."""
        self.device = where
        self._kernels: set[int] = set()  # dtypes
        self._lock = threading.Lock()
        table = _open_table()
        spec = ffi.new("rr_cuda_spec *")
        spec.cuda = table
        spec.context = ffi.cast("void *", int(where.context))
        spec.ordinal = where.ordinal
        spec.blocks_max = 2 * where.attribute("MULTIPROCESSOR_COUNT")
        out = ffi.new("rr_device **")
        try:
            check(lib.rr_device_open_cuda(spec, out))
        except RdmaringError:
            lib.rr_cuda_close(table)
            raise
        self.handle = out[0]
        self.table = table
        weakref.finalize(self, _close, self.handle, table)

    def need(self, dtype: int) -> None:
        """Have the kernels of a dtype, by C's number of it: one module, compiled when it is first needed.

        Raises:
            CudaError: it cannot be compiled or loaded.
        """
        with self._lock:
            if dtype in self._kernels:
                return
            name = kernels.DTYPES[dtype]
            image = kernels.cubin(name, self.device.compute_capability)
            with self.device.current():
                module = call("cuModuleLoadData", image)
                for redop, op in enumerate(kernels.OPS):
                    function = call("cuModuleGetFunction", module, kernels.name(op, name).encode())
                    check(lib.rr_device_set_kernel(self.handle, dtype, redop, ffi.cast("void *", int(function))))
            self._kernels.add(dtype)

    def after(self, stream: int) -> None:
        """Operations started from now on run behind what the stream holds now."""
        check(lib.rr_device_after(self.handle, ffi.cast("void *", stream)))


native_device = PerDevice(NativeDevice)


# ---- the communicator's ----


class Attached(Single):
    """A communicator whose vectors are in the memory of one GPU. ranks: everyone's record.

    lists: where its operations run on streams; None: the host stages them, and staged_reason says why.
    """

    def __init__(self, native: NativeDevice, ranks: Sequence[Record], lists: Lists | None, staged_reason: str) -> None:
        self.device = native.device
        self.native = native
        self.ranks = tuple(ranks)
        self.lists = lists
        self.carries = lists is not None and lists.carries
        self.staged_reason = staged_reason
        self._scratch: dict[int, Allocation] = {}
        self.behind: deque[Any] = deque()  # works that streams are ordered behind and nobody waits for: gpu.py

    def oldest(self) -> Any:
        """The first of ``behind``, which another thread's close() may take meanwhile; None: there is none."""
        try:
            return self.behind[0]
        except IndexError:
            return None

    def forget(self, work: Any) -> None:
        """Take it out of ``behind``, unless another thread has."""
        with suppress(ValueError):
            self.behind.remove(work)

    def order(self) -> None:
        """What C launches from now on runs behind what our stream waits for: the producers' work on the arrays."""
        self.native.after(int(self.device.stream))

    def scratch(self, which: int, nbytes: int) -> Allocation:
        """Room for one blocking call at a time; grown on demand."""
        found = self._scratch.get(which)
        if found is None or found.nbytes < nbytes:
            self._scratch.pop(which, None)
            found = self._scratch[which] = Allocation(self.device, nbytes)
        return found

    def runs_lists(self, schedule: Schedule, *, built_in: bool, paired: bool) -> bool:
        """Whether streams run an operation by themselves; the same on all ranks. Otherwise the host stages it.

        paired: counts by pair, which no rank knows all of. built_in: the order of its slices has been proven, but for
            what follows nodes of different sizes.
        """
        if self.lists is None or paired or schedule.world < 2:
            return False
        known = built_in and (self.lists.even or schedule.algorithm not in SHAPED)
        return suits(schedule) and (known or is_proven(schedule, self.lists.sizes.channels))

    @property
    def runner(self) -> str:
        """Who runs operations, where nothing of theirs forbids it; for people."""
        if self.lists is None:
            return f"the host runs operations: {self.staged_reason}"
        return "streams run operations" + ("; the host carries what goes between nodes" if self.carries else "")

    def close(self) -> None:
        """Behind the communicator's end: nobody uses the memory any more."""
        if self.lists is not None:
            self.lists.close()
        self._scratch.clear()

    def link(self, rank: int, peer: int, *, near: bool) -> tuple[str, str]:
        """How GPU vectors go between the two, and why not better."""
        if self.lists is None:
            return "staged", self.staged_reason
        if not near:
            return "carried", f"{BETWEEN}: between streams and the link, by way of slots in pinned host memory"
        facts = ["on one GPU"] if self.ranks[rank].uuid == self.ranks[peer].uuid else []
        away = [str(each) for each in sorted((rank, peer)) if told_flags_place(self.ranks[each].block) == "host"]
        if away:
            facts.append(f"flags of {' and '.join(away)} in host memory")
        return "cuda_ipc", ", ".join(facts)


def join(
    comm: Any,
    rank: int,
    nodes: Sequence[int],
    ordinal: int,
    sizes: Geometry | None,
    why_host: Callable[[], str],
    gather: Callable[[bytes], list[bytes]],
) -> Attached:
    """Collective: every rank tells of its GPU. comm: C's. ``gather`` collects RECORD_BYTES of every rank.

    nodes: of each rank. sizes: of the blocks by which ranks of a node share GPU memory; None: there is one rank.
    why_host: why this rank lets the host run what goes between nodes; "": it does not, or there is one node.

    Raises:
        CudaError: on some rank the GPU cannot be used; all ranks raise.
    """
    native, failure, block = None, None, None
    try:
        native = native_device(device(ordinal))
        record, block = own_record(native, sizes, nodes.count(nodes[rank]) == 1, why_host())
    except RdmaringError as error:  # the others wait for our record
        failure, record = error, Record(ordinal, error=str(error))
    ranks = [Record.unpack(raw) for raw in gather(record.pack())]
    lost = next((number for number, each in enumerate(ranks) if each.error), None)
    reason = "this rank is alone" if sizes is None else why_staged(ranks, nodes)
    if block is not None and (lost is not None or reason):
        block.free()  # no other rank opens it: all find the same
    if failure is not None:
        raise failure
    if lost is not None:
        raise CudaError(
            f"rank {lost} cannot use its GPU {ranks[lost].ordinal}: {ranks[lost].error}",
            hint="see that rank's own output; on its host, rdmaring doctor looks at the GPU",
        )
    assert native is not None
    check(lib.rr_comm_use_device(comm, native.handle))
    lists = None
    if not reason:
        assert sizes is not None
        told = [each.block for each in ranks]
        lists, reason = meet(native, rank, nodes, sizes, block, told, gather, RECORD_BYTES)
    if lists is not None:
        check(lib.rr_comm_use_lists(comm, lists.handle))
    return Attached(native, ranks, lists, reason)
