"""All ranks' rows: which send meets which receive, and do both ends agree?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rdmaring.schedule.rows import Buffer, Flag, Op, Row, ScheduleError

Tables = Sequence[Sequence[Row]]  # of all ranks


class Node(NamedTuple):
    """A row of some rank."""

    rank: int
    row: int


@dataclass(slots=True)
class Matching:
    """Who meets whom: first in, first out on every link, in the order of the rows."""

    sender: dict[tuple[Node, int], Node] = field(default_factory=dict)  # of (receiving row, peer)
    receivers: dict[Node, list[Node]] = field(default_factory=dict)  # of a sending row
    transfers: dict[tuple[int, int], list[tuple[Node, Node]]] = field(default_factory=dict)  # by link


def lands(row: Row) -> Buffer | None:
    """Where a row only puts what it receives, to be written there directly by its peer, if it may.

    Both ends decide that from their own rows, so the sender must have been told the same. Scratch is
    left out: peers do not know where this rank keeps its cells.
    """
    return row.buffer if row.op is Op.COPY and row.receives and row.buffer is Buffer.OUTPUT else None


def match(tables: Tables, only_rank: int | None = None) -> Matching:
    """Match all sends and receives, or those of the links at ``only_rank``.

    Raises:
        ScheduleError: a send or receive is left over, or its two ends do not agree.
    """
    sends: dict[tuple[int, int], list[Node]] = {}
    receives: dict[tuple[int, int], list[Node]] = {}
    for rank, rows in enumerate(tables):
        for index, row in enumerate(rows):
            node = Node(rank, index)
            for send in row.sends:
                if only_rank is None or only_rank in (rank, send.peer):
                    sends.setdefault((rank, send.peer), []).append(node)
            for receive in row.receives:
                if only_rank is None or only_rank in (rank, receive.peer):
                    receives.setdefault((receive.peer, rank), []).append(node)
    matching = Matching()
    for link in {**sends, **receives}:
        outgoing, incoming = sends.get(link, []), receives.get(link, [])
        pairs = list(zip(outgoing, incoming, strict=False))
        for sender, receiver in pairs:
            _check_pair(tables, sender, receiver)
            matching.sender[receiver, sender.rank] = sender
            matching.receivers.setdefault(sender, []).append(receiver)
        _check_counts(tables, link, outgoing, incoming)
        matching.transfers[link] = pairs
    return matching


def _check_counts(tables: Tables, link: tuple[int, int], outgoing: Sequence[Node], incoming: Sequence[Node]) -> None:
    if len(outgoing) == len(incoming):
        return
    counts = f"rank {link[0]} sends {len(outgoing)} times to rank {link[1]}, which receives {len(incoming)} times"
    node = (outgoing if len(outgoing) > len(incoming) else incoming)[min(len(outgoing), len(incoming))]
    raise ScheduleError(counts, rank=node.rank, row=node.row, chunk=tables[node.rank][node.row].chunk_begin)


def _check_pair(tables: Tables, sender: Node, receiver: Node) -> None:
    source, target = tables[sender.rank][sender.row], tables[receiver.rank][receiver.row]
    send = next(send for send in source.sends if send.peer == receiver.rank)
    receive = next(receive for receive in target.receives if receive.peer == sender.rank)
    place = {"rank": receiver.rank, "row": receiver.row, "chunk": target.chunk_begin}
    origin = f"row {sender.row} of rank {sender.rank}"
    if (source.chunk_begin, source.chunk_end) != (target.chunk_begin, target.chunk_end):
        raise ScheduleError(
            f"expects chunks {target.chunk_begin}..{target.chunk_end}, "
            f"but {origin} sends {source.chunk_begin}..{source.chunk_end}",
            **place,
        )
    if receive.source is not source.buffer:
        raise ScheduleError(
            f"expects bytes from {receive.source.name}, but {origin} sends {source.buffer.name}", **place
        )
    if send.lands is not lands(target):
        raise ScheduleError(
            f"{origin} takes them to land in {_buffer_name(send.lands)}, "
            f"but they land in {_buffer_name(lands(target))}",
            **place,
        )
    if (Flag.WIDE in source.flags) != (Flag.TAKES_WIDE in target.flags):
        raise ScheduleError(
            f"expects {_type_name(Flag.TAKES_WIDE in target.flags)}, "
            f"but {origin} sends {_type_name(Flag.WIDE in source.flags)}",
            **place,
        )
    if source.channel != target.channel:
        raise ScheduleError(
            f"receives in channel {target.channel} what {origin} sends in channel {source.channel}", **place
        )
    if source.send_step != target.step:
        raise ScheduleError(f"receives in step {target.step} what {origin} sends in step {source.send_step}", **place)


def _type_name(wide: bool) -> str:
    return "float32" if wide else "the vector's dtype"


def _buffer_name(buffer: Buffer | None) -> str:
    return "no buffer" if buffer is None else buffer.name
