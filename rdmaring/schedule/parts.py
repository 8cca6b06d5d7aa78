"""Parts that belong to one rank each: all_to_all, gather, scatter. Nothing is added on the way.

``direct`` has an edge between every two ranks that have something for each other: one step. ``binomial`` sends
what is for (or of) ranks far from the root through others, along the edges of a binomial tree: log2 N edges at
the root instead of N - 1.

Chunks of gather and scatter are numbered by the rank they belong to. In all_to_all chunk s * N + d goes from
rank s to rank d.
"""

from __future__ import annotations

from fractions import Fraction

from rdmaring.schedule.rows import WINDOW_MIN, Buffer, Flag, Op, Receive, Recipe, Row, Send


def _own(chunk: int) -> Row:
    return Row(0, Buffer.OUTPUT, chunk, chunk + 1, Op.COPY, operand=Buffer.INPUT, flags=Flag.FIRST)


def _give(step: int, chunk: int, peer: int, lands: Buffer | None) -> Row:
    return Row(step, Buffer.INPUT, chunk, chunk + 1, Op.NONE, sends=(Send(peer, lands),))


def _take(step: int, chunk: int, peer: int, source: Buffer) -> Row:
    return Row(step, Buffer.OUTPUT, chunk, chunk + 1, Op.COPY, receives=(Receive(peer, source),))


def _pass_on(step: int, chunk: int, cell: int, giver: int, source: Buffer, taker: int, lands: Buffer | None) -> Row:
    """From a peer to a peer. Through slots the bytes do not even stop here: TRANSIT."""
    return Row(
        step,
        Buffer.SCRATCH,
        chunk,
        chunk + 1,
        Op.COPY,
        cell=cell,
        receives=(Receive(giver, source),),
        sends=(Send(taker, lands),),
        flags=Flag.TRANSIT,
    )


def all_to_all(world: int, root: int | None) -> Recipe:
    """1 step; every rank sends (N - 1)/N of its part. Peers in rotated order: no rank is everybody's first."""

    def rows(rank: int) -> list[Row]:
        found = [_own(rank * world + rank)]
        for distance in range(1, world):
            to, source = (rank + distance) % world, (rank - distance) % world
            found.append(_give(0, rank * world + to, to, Buffer.OUTPUT))
            found.append(_take(0, source * world + rank, source, Buffer.INPUT))
        return found

    # All rows are open at once: a rank that is late holds up nothing that is not its own.
    window = max(WINDOW_MIN, 2 * world - 1)
    return Recipe(world * world, int(world > 1), window, 0, rows, lambda _: Fraction(world - 1, world * world))


def gather(world: int, root: int | None) -> Recipe:
    """Each sends its part to the root: 1 step, the root receives N - 1 parts."""
    assert root is not None

    def rows(rank: int) -> list[Row]:
        if rank != root:
            return [_give(0, rank, root, Buffer.OUTPUT)]
        peers = [(root + distance) % world for distance in range(1, world)]
        return [_own(root), *(_take(0, peer, peer, Buffer.INPUT) for peer in peers)]

    window = max(WINDOW_MIN, world)
    return Recipe(world, int(world > 1), window, 0, rows, lambda rank: Fraction(rank != root, world))


def scatter(world: int, root: int | None) -> Recipe:
    """The root sends each its part: 1 step, N - 1 parts sent by the root."""
    assert root is not None

    def rows(rank: int) -> list[Row]:
        if rank != root:
            return [_take(0, rank, root, Buffer.INPUT)]
        peers = [(root + distance) % world for distance in range(1, world)]
        return [*(_give(0, peer, peer, Buffer.OUTPUT) for peer in peers), _own(root)]

    window = max(WINDOW_MIN, world)
    return Recipe(world, int(world > 1), window, 0, rows, lambda rank: Fraction((world - 1) * (rank == root), world))


# ---- binomial ----
#
# Places are counted from the root: rank = (root + place) mod N. The parent of a place is the place without its
# lowest set bit, so the subtree of place v with lowest bit b is v .. v + b - 1, as far as there are ranks.


def _end(place: int, world: int) -> int:
    """The subtree of ``place`` is [place, this)."""
    return min(world, place + (place & -place)) if place else world


def _child(place: int, below: int) -> int:
    """The child of ``place`` in whose subtree ``below`` lies."""
    rest = below - place
    return place + (1 << rest.bit_length() - 1)


def _hops(place: int, below: int) -> int:
    return (below - place).bit_count()


def _binomial(world: int) -> tuple[int, int]:
    """Steps, and cells: every place below a passed-on subtree's head has its own."""
    steps = max(place.bit_count() for place in range(world))
    cells = max((_end(place, world) - place - 1 for place in range(1, world)), default=0)
    return steps, cells


def gather_binomial(world: int, root: int | None) -> Recipe:
    """Up a binomial tree: a part makes one hop a step; at most log2 N steps and edges a rank."""
    assert root is not None
    steps, cells = _binomial(world)

    def rows(rank: int) -> list[Row]:
        place = (rank - root) % world
        parent = (root + (place & place - 1)) % world
        found = [_give(0, rank, parent, Buffer.OUTPUT if place.bit_count() == 1 else None) if place else _own(rank)]
        for below in range(place + 1, _end(place, world)):
            chunk, child = (root + below) % world, _child(place, below)
            giver = (root + child) % world
            source = Buffer.INPUT if below == child else Buffer.SCRATCH
            step = _hops(place, below) - 1
            if not place:
                found.append(_take(step, chunk, giver, source))
                continue
            lands = Buffer.OUTPUT if place.bit_count() == 1 else None
            found.append(_pass_on(step, chunk, below - place - 1, giver, source, parent, lands))
        return found

    def sent(rank: int) -> Fraction:
        place = (rank - root) % world
        return Fraction(_end(place, world) - place if place else 0, world)

    return Recipe(world, steps, max(WINDOW_MIN, world), cells, rows, sent)


def scatter_binomial(world: int, root: int | None) -> Recipe:
    """Down a binomial tree, the parts with the longest way first."""
    assert root is not None
    steps, cells = _binomial(world)

    def rows(rank: int) -> list[Row]:
        place = (rank - root) % world
        parent = (root + (place & place - 1)) % world
        found = []
        source = Buffer.INPUT if place.bit_count() == 1 else Buffer.SCRATCH
        for below in reversed(range(place + 1, _end(place, world))):
            chunk, child = (root + below) % world, _child(place, below)
            taker = (root + child) % world
            lands = Buffer.OUTPUT if below == child else None
            if not place:
                found.append(_give(0, chunk, taker, lands))
            else:
                step = place.bit_count() - 1
                found.append(_pass_on(step, chunk, below - place - 1, parent, source, taker, lands))
        found.append(_take(place.bit_count() - 1, rank, parent, source) if place else _own(rank))
        return found

    def sent(rank: int) -> Fraction:
        place = (rank - root) % world
        return Fraction(_end(place, world) - place - 1, world)

    return Recipe(world, steps, max(WINDOW_MIN, world), cells, rows, sent)
