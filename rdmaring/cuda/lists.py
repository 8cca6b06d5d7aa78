"""A communicator's lists: operations on GPU memory that streams run by themselves, inside a node."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rdmaring._native import check, ffi, lib
from rdmaring.cuda import blocks
from rdmaring.cuda.blocks import Block, Theirs
from rdmaring.errors import RdmaringError
from rdmaring.schedule import Schedule, ScheduleError
from rdmaring.schedule.enqueue_proof import verify_enqueue

if TYPE_CHECKING:
    from rdmaring.cuda.attach import NativeDevice

log = logging.getLogger("rdmaring")
SOURCES_MAX = 9  # of one kernel launch: cuda_kernel_abi.h


def suits(schedule: Schedule) -> bool:
    """Whether a launch takes the sources of each row of each rank."""
    if schedule.world <= SOURCES_MAX:
        return True
    return all(row.source_count <= SOURCES_MAX for rank in range(schedule.world) for row in schedule.rows(rank))


def is_proven(schedule: Schedule) -> bool:
    """Whether the caller's schedule runs as a list: all ranks prove it alike."""
    try:
        verify_enqueue(schedule)
    except ScheduleError as error:
        log.info("%s is staged by the host: %s", schedule.algorithm, error)
        return False
    return True


class Lists:
    """Owns rr_lists, this rank's block, and what it has open of the others'."""

    def __init__(self, native: NativeDevice, rank: int, block: Block, told: Sequence[str]) -> None:
        """told: every rank's block. Raises CudaError, OSError, ValueError, UnsupportedError: then all is given back."""
        self._native = native  # kept: C has it
        self.block = block
        self._theirs: dict[int, Theirs] = {}
        try:
            for peer, text in enumerate(told):
                if peer != rank:
                    self._theirs[peer] = Theirs(native.device, text, rank, block.sizes)
            self.handle = self._open(rank, len(told))
        except BaseException:
            self._give_back()
            raise

    def _open(self, rank: int, world: int) -> Any:
        spec = ffi.new("rr_lists_spec *")
        mapped = [self._theirs[peer].address if peer in self._theirs else self.block.address for peer in range(world)]
        pages = [self._theirs[peer].page if peer in self._theirs else self.block.page for peer in range(world)]
        flags = ffi.new("uint64_t[]", [page.address for page in pages])
        kept = self.block.sizes.native(), ffi.new("uint64_t[]", mapped), flags
        spec.device, spec.rank, spec.world = self._native.handle, rank, world
        spec.block, spec.blocks, spec.flags = kept
        spec.own_flags = ffi.cast("void *", self.block.page.flags)
        out = ffi.new("rr_lists **")
        check(lib.rr_lists_open(spec, out))
        return out[0]

    def facts(self) -> Any:
        """rr_lists_facts."""
        found = ffi.new("rr_lists_facts *")
        check(lib.rr_lists_facts_of(self.handle, found))
        return found

    def close(self) -> None:
        """Behind the communicator's end. What still runs keeps its memory."""
        try:
            check(lib.rr_lists_close(self.handle))
        except RdmaringError as error:
            log.warning("%s: its GPU memory is not freed", error)
            return
        self._give_back()

    def _give_back(self) -> None:
        others = {peer: (each.place.pid, each.place.start) for peer, each in self._theirs.items()}
        for each in self._theirs.values():
            each.close()
        blocks.bury(self.block, others)


def meet(
    native: NativeDevice,
    rank: int,
    block: Block,
    told: Sequence[str],
    gather: Callable[[bytes], list[bytes]],
    nbytes: int,
) -> tuple[Lists | None, str]:
    """Open everyone's block: on all ranks, or, with the reason, on none. Collective.

    gather: of ``nbytes`` of every rank.
    """
    lists, reason = None, ""
    try:
        lists = Lists(native, rank, block, told)
    except (RdmaringError, OSError, ValueError) as error:
        reason = str(error)
    answer = {"reason": reason[: nbytes // 8]}
    for number, raw in enumerate(gather(json.dumps(answer).encode().ljust(nbytes))):
        found = str(json.loads(raw)["reason"])
        if found:
            if lists is not None:
                lists.close()
            return None, f"rank {number} cannot use its peers' GPU memory: {found}"
    assert lists is not None
    return lists, ""
