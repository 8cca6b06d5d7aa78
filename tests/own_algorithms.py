"""Algorithms of one's own, right ones: several chunks a rank, out of scratch, by way of others, in two channels.

Tests import them, or give this text to ranks. CHUNKS in the environment: how many a rank has where parts have
counts.
"""

import os

from rdmaring.schedule import Buffer, Flag, Op, Receive, Row, Send

I, O, S = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741
K = int(os.environ.get("CHUNKS", "2"))


def of(rank: int) -> range:
    """The chunks of a rank."""
    return range(K * rank, K * rank + K)


def others(rank: int, world: int) -> list[int]:
    return [(rank + distance) % world for distance in range(1, world)]


def keep(chunk: int, end: int = 0) -> Row:
    return Row(0, O, chunk, end or chunk + 1, Op.COPY, operand=I, flags=Flag.FIRST)


def give(chunk: int, peer: int, lands: Buffer | None = O, channel: int = 0) -> Row:
    return Row(0, I, chunk, chunk + 1, Op.NONE, sends=(Send(peer, lands),), channel=channel)


def give_copy(chunk: int, end: int, cell: int, *peers: int, lands: Buffer | None = O, channel: int = 0) -> Row:
    sends = tuple(Send(peer, lands) for peer in peers)
    return Row(0, S, chunk, end, Op.COPY, operand=I, cell=cell, sends=sends, flags=Flag.FIRST, channel=channel)


def take(chunk: int, peer: int, source: Buffer = I, step: int = 0, channel: int = 0) -> Row:
    return Row(step, O, chunk, chunk + 1, Op.COPY, receives=(Receive(peer, source),), channel=channel)


def pass_on(step: int, chunk: int, cell: int, peer: int, source: Buffer, to: int, lands: Buffer | None) -> Row:
    return Row(
        step, S, chunk, chunk + 1, Op.COPY, cell=cell, receives=(Receive(peer, source),), sends=(Send(to, lands),)
    )


def gather_direct(rank: int, world: int, root: int) -> list[Row]:
    if rank != root:
        return [give(c, root, channel=c % 2) for c in of(rank)]
    return [keep(c) for c in of(root)] + [take(c, p, channel=c % 2) for p in others(root, world) for c in of(p)]


def gather_copies(rank: int, world: int, root: int) -> list[Row]:
    """All chunks of a rank in one row."""
    if rank != root:
        return [give_copy(K * rank, K * rank + K, 0, root)]
    took = [Row(0, O, K * p, K * p + K, Op.COPY, receives=(Receive(p, S),)) for p in others(root, world)]
    return [keep(K * root, K * root + K), *took]


def gather_chain(rank: int, world: int, root: int) -> list[Row]:
    """Place p, counted from the root, hands on to place p - 1 what places above it gave."""
    place = (rank - root) % world
    down, up, lands = (rank - 1) % world, (rank + 1) % world, O if place == 1 else None
    rows = [give(c, down, lands) if place else keep(c) for c in of(rank)]
    for above in range(place + 1, world):
        step, source = above - place - 1, I if above == place + 1 else S
        for c in of((root + above) % world):
            rows.append(pass_on(step, c, c % 3, up, source, down, lands) if place else take(c, up, source, step))
    return rows


def scatter_direct(rank: int, world: int, root: int) -> list[Row]:
    if rank != root:
        return [take(c, root, channel=c % 2) for c in of(rank)]
    return [give(c, p, channel=c % 2) for p in others(root, world) for c in of(p)] + [keep(c) for c in of(root)]


def scatter_copies(rank: int, world: int, root: int) -> list[Row]:
    if rank != root:
        return [take(c, root, S) for c in of(rank)]
    return [give_copy(c, c + 1, c % 2, p) for p in others(root, world) for c in of(p)] + [keep(c) for c in of(root)]


def all_gather_direct(rank: int, world: int) -> list[Row]:
    sends = tuple(Send(p, O) for p in others(rank, world))
    mine = [Row(0, O, c, c + 1, Op.COPY, operand=I, sends=sends, flags=Flag.FIRST) for c in of(rank)]
    return mine + [take(c, p, O) for p in others(rank, world) for c in of(p)]


def all_gather_copies(rank: int, world: int) -> list[Row]:
    mine = [give_copy(c, c + 1, c % K, *others(rank, world), channel=c % 2) for c in of(rank)]
    took = [take(c, p, S, channel=c % 2) for p in others(rank, world) for c in of(p)]
    return [*mine, *(keep(c) for c in of(rank)), *took]


def _add(begin: int, end: int, rank: int, world: int, source: Buffer) -> Row:
    receives = tuple(Receive(p, source) for p in range(world) if p != rank)
    flags = Flag.FIRST | Flag.LAST
    return Row(0, O, begin, end, Op.REDUCE, operand=I, operand_at=rank, receives=receives, flags=flags)


def reduce_scatter_direct(rank: int, world: int) -> list[Row]:
    gives = [give(c, p, None) for p in others(rank, world) for c in of(p)]
    return gives + [_add(c, c + 1, rank, world, I) for c in of(rank)]


def reduce_scatter_copies(rank: int, world: int) -> list[Row]:
    """All chunks of a rank in one row."""
    gives = [give_copy(K * p, K * p + K, p, p, lands=None) for p in others(rank, world)]
    return [*gives, _add(K * rank, K * rank + K, rank, world, S)]


def all_to_all_direct(rank: int, world: int) -> list[Row]:
    gives = [give(rank * world + d, d, channel=d % 2) for d in others(rank, world)]
    took = [take(s * world + rank, s, channel=rank % 2) for s in others(rank, world)]
    return [keep(rank * world + rank), *gives, *took]


def all_to_all_copies(rank: int, world: int) -> list[Row]:
    """Out of two cells, used again and again."""
    gives = [give_copy(rank * world + d, rank * world + d + 1, d % 2, d) for d in others(rank, world)]
    return [keep(rank * world + rank), *gives, *(take(s * world + rank, s, S) for s in others(rank, world))]


def all_to_all_landing(rank: int, world: int) -> list[Row]:
    """What comes lies in scratch first."""
    rows = [keep(rank * world + rank), *(give(rank * world + d, d, None) for d in others(rank, world))]
    for s in others(rank, world):
        c = s * world + rank
        rows.append(Row(0, S, c, c + 1, Op.COPY, cell=s, receives=(Receive(s, I),)))
        rows.append(Row(1, O, c, c + 1, Op.COPY, operand=S, operand_cell=s))
    return rows


def all_to_all_by_way_of(rank: int, world: int) -> list[Row]:
    """By way of the rank after the sender: equal parts only, for of counts it would know nothing."""
    way, back = (rank + 1) % world, (rank - 1) % world
    rows = [keep(rank * world + rank)]
    rows += [give(rank * world + d, way, O if way == d else None) for d in others(rank, world)]
    for d in others(back, world):
        c = back * world + d
        rows.append(take(c, back) if d == rank else pass_on(0, c, d, back, I, d, O))
    for s in others(rank, world):
        if (s + 1) % world != rank:
            rows.append(take(s * world + rank, (s + 1) % world, S, step=1))
    return rows
