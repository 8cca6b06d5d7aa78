"""A communicator's lists: operations on GPU memory that streams run by themselves.

Ranks of a node share blocks of GPU memory. What goes to another node the communicator's driver carries between slots
in pinned memory and the link.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rdmaring._native import check, ffi, lib
from rdmaring.cuda import blocks
from rdmaring.cuda.blocks import Block, Geometry, Theirs
from rdmaring.errors import RdmaringError
from rdmaring.schedule import Schedule, ScheduleError
from rdmaring.schedule.enqueue_proof import verify_enqueue
from rdmaring.single import Single

if TYPE_CHECKING:
    from rdmaring.cuda.attach import NativeDevice

log = logging.getLogger("rdmaring")
SOURCES_MAX = 9  # of one kernel launch: cuda_kernel_abi.h


def suits(schedule: Schedule) -> bool:
    """Whether a launch takes the sources of each row of each rank."""
    if schedule.world <= SOURCES_MAX:
        return True
    return all(row.source_count <= SOURCES_MAX for rank in range(schedule.world) for row in schedule.rows(rank))


def is_proven(schedule: Schedule, channels: int) -> bool:
    """Whether a schedule whose order nobody has proven runs as a list: all ranks prove it alike."""
    try:
        verify_enqueue(schedule, channels=channels)
    except ScheduleError as error:
        log.info("%s is staged by the host: %s", schedule.algorithm, error)
        return False
    return True


class Lists(Single):
    """Owns rr_lists, this rank's block, and what it has open of its neighbours'."""

    def __init__(
        self,
        native: NativeDevice,
        rank: int,
        nodes: Sequence[int],
        sizes: Geometry,
        block: Block | None,
        told: Sequence[str],
    ) -> None:
        """told: every rank's block. block: None: this rank is alone on its node.

        Raises CudaError, OSError, ValueError, UnsupportedError: then all is given back.
        """
        self._native = native  # kept: C has it
        self.sizes = sizes
        self.block = block
        self._theirs: dict[int, Theirs] = {}
        near = [peer for peer, node in enumerate(nodes) if node == nodes[rank]]
        self.carries = len(near) < len(nodes)
        self.even = len({nodes.count(node) for node in nodes}) == 1
        try:
            for peer in near:
                if peer != rank:
                    self._theirs[peer] = Theirs(native.device, told[peer], rank, sizes)
            self.handle = self._open(rank, [near.index(peer) if peer in near else -1 for peer in range(len(nodes))])
        except BaseException:
            self._give_back()
            raise

    def _open(self, rank: int, places: Sequence[int]) -> Any:
        spec = ffi.new("rr_lists_spec *")
        found: dict[int, Block | Theirs] = {**self._theirs}
        if self.block is not None:
            found[rank] = self.block
        mapped = [found[peer].address if peer in found else 0 for peer in range(len(places))]
        flags = [found[peer].page.address if peer in found else 0 for peer in range(len(places))]
        kept = (
            self.sizes.native(),
            ffi.new("uint64_t[]", mapped),
            ffi.new("uint64_t[]", flags),
            ffi.new("int32_t[]", places),
        )
        spec.device, spec.rank, spec.world = self._native.handle, rank, len(places)
        spec.block, spec.blocks, spec.flags, spec.places = kept
        spec.own_flags = ffi.cast("void *", self.block.page.flags if self.block is not None else 0)
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
        if self.block is not None:
            blocks.bury(self.block, others)


def meet(
    native: NativeDevice,
    rank: int,
    nodes: Sequence[int],
    sizes: Geometry,
    block: Block | None,
    told: Sequence[str],
    gather: Callable[[bytes], list[bytes]],
    nbytes: int,
) -> tuple[Lists | None, str]:
    """Open the neighbours' blocks: on all ranks, or, with the reason, on none. Collective.

    gather: of ``nbytes`` of every rank.
    """
    lists, reason = None, ""
    try:
        lists = Lists(native, rank, nodes, sizes, block, told)
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
