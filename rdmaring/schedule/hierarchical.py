"""Hierarchical all-reduce: inside every node, then between the nodes on every rail at once, then inside again.

Inside a node each rank owns an equal part of the vector: its neighbours send it that part of theirs, it adds them up,
and at the end it hands the result out. Between nodes, the ranks that own the same bytes all-reduce the sums of their
nodes. So the k-th rank of every node works with the k-th of the others, all rails are busy, and a node sends one sum
instead of one vector a rank.

Nodes of different sizes cut the vector at different places. The grid of chunks is the common refinement of all cuts: a
piece between two neighbouring cuts has one owner on every node, and these exchange it. Pieces are not all equally long;
the recipe's weights say how long. Where the nodes share the work on a piece, it is cut once more, in one part a node.

There are three ways between nodes. Two nodes: each sends the other its sum, one hop, and no more bytes than any other
way. Up to NODES_DIRECT_MAX nodes: part t of a piece goes to node t, which adds all up and sends the result to all, two
hops. More nodes: a ring of nodes.

Sums are added in the order of ranks inside the node, then in the order of nodes: the same for every element, so that
bits do not depend on where the vector is cut; but the ring of nodes begins part t at node t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from rdmaring.schedule.local import local_copy
from rdmaring.schedule.rows import NO_FLAGS, WINDOW_MIN, Buffer, Flag, Op, Receive, Recipe, Row, Send

NODES_DIRECT_MAX = 8  # beyond, each rank would have links to more nodes than pay for two hops


@dataclass(frozen=True, slots=True)
class _Shape:
    """Who is where, and where the vector is cut."""

    members: tuple[tuple[int, ...], ...]  # the ranks of each node, ascending
    seats: tuple[tuple[int, int], ...]  # of each rank: its node, and which of that node's ranks it is
    cuts: tuple[Fraction, ...]  # where pieces begin, and the end of the last
    owners: dict[int, tuple[int, ...]]  # by node size: for each piece, which of a node's ranks owns it
    owned: dict[int, tuple[tuple[int, ...], ...]]  # by node size: the pieces of each of a node's ranks
    parts: int  # of each piece

    @property
    def node_count(self) -> int:
        return len(self.members)

    @property
    def inside(self) -> int:
        """1 if there is anything to do inside a node, else 0."""
        return int(len(self.seats) > len(self.members))

    def node(self, rank: int) -> int:
        return self.seats[rank][0]

    def size(self, rank: int) -> int:
        """Of the rank's node."""
        return len(self.members[self.node(rank)])

    def neighbours(self, rank: int) -> tuple[int, ...]:
        """The other ranks of its node, beginning with the next, so that not all begin with the same one."""
        node, place = self.seats[rank]
        return self.members[node][place + 1 :] + self.members[node][:place]

    def pieces(self, rank: int) -> tuple[int, ...]:
        """What it owns: pieces that follow each other."""
        return self.owned[self.size(rank)][self.seats[rank][1]]

    def owner(self, node: int, piece: int) -> int:
        """The rank of that node that owns the piece."""
        members = self.members[node]
        return members[self.owners[len(members)][piece]]

    @property
    def piece_count(self) -> int:
        return len(self.cuts) - 1

    @property
    def most(self) -> int:
        """Pieces that one rank owns, at most."""
        return max(len(pieces) for places in self.owned.values() for pieces in places)

    def chunk(self, piece: int, part: int) -> int:
        return piece * self.parts + part

    def weights(self) -> tuple[int, ...] | None:
        """How long the chunks are, relative to each other; None: all alike."""
        unit = lcm(*(cut.denominator for cut in self.cuts))
        lengths = [int((end - begin) * unit) for begin, end in zip(self.cuts, self.cuts[1:], strict=False)]
        if len(set(lengths)) == 1:
            return None
        return tuple(length for length in lengths for _ in range(self.parts))


def _shape(nodes: Sequence[int], parts: int) -> _Shape:
    members: dict[int, list[int]] = {}
    numbers: dict[int, int] = {}
    seats: list[tuple[int, int]] = []
    for rank, node in enumerate(nodes):
        number = numbers.setdefault(node, len(numbers))
        ranks = members.setdefault(number, [])
        seats.append((number, len(ranks)))
        ranks.append(rank)
    sizes = {len(ranks) for ranks in members.values()}
    cuts = sorted({Fraction(place, size) for size in sizes for place in range(size + 1)})
    owners = {size: tuple(int(cut * size) for cut in cuts[:-1]) for size in sizes}
    owned: dict[int, tuple[tuple[int, ...], ...]] = {}
    for size, places in owners.items():
        owned[size] = tuple(
            tuple(piece for piece, owner in enumerate(places) if owner == place) for place in range(size)
        )
    return _Shape(tuple(map(tuple, members.values())), tuple(seats), tuple(cuts), owners, owned, parts)


# ---- inside a node ----


def _spread(shape: _Shape, rank: int, part: int) -> list[Row]:
    """Send each neighbour this rank's contribution to what it owns, of one part."""
    return [
        Row(0, Buffer.INPUT, chunk, chunk + 1, Op.NONE, sends=(Send(peer, None),))
        for peer in shape.neighbours(rank)
        for chunk in (shape.chunk(piece, part) for piece in shape.pieces(peer))
    ]


def _node_sum(shape: _Shape, rank: int, chunk: int, sends: tuple[Send, ...], flags: Flag = NO_FLAGS) -> Row:
    """The sum of the node's contributions, in the order of its ranks, in OUTPUT."""
    return Row(
        0,
        Buffer.OUTPUT,
        chunk,
        chunk + 1,
        Op.REDUCE,
        operand=Buffer.INPUT,
        operand_at=shape.seats[rank][1],
        receives=tuple(Receive(peer, Buffer.INPUT) for peer in sorted(shape.neighbours(rank))),
        sends=sends,
        flags=Flag.FIRST | flags,
    )


def _to_neighbours(shape: _Shape, rank: int) -> tuple[Send, ...]:
    return tuple(Send(peer, Buffer.OUTPUT) for peer in shape.neighbours(rank))


def _gathered(shape: _Shape, rank: int, part: int, step: int) -> list[Row]:
    """Receive the result of one part of what the neighbours own."""
    return [
        Row(step, Buffer.OUTPUT, chunk, chunk + 1, Op.COPY, receives=(Receive(peer, Buffer.OUTPUT),))
        for peer in reversed(shape.neighbours(rank))
        for chunk in (shape.chunk(piece, part) for piece in shape.pieces(peer))
    ]


# ---- between nodes: what one rank does, with what it does inside its node ----


def _alone_rows(shape: _Shape, rank: int) -> list[Row]:
    """One node, nothing between: what each rank owns is summed there and handed out."""
    (piece,) = shape.pieces(rank)
    whole = _node_sum(shape, rank, piece, _to_neighbours(shape, rank), Flag.LAST)
    return [*_spread(shape, rank, 0), whole, *_gathered(shape, rank, 0, 1)]


def _one_hop_rows(shape: _Shape, rank: int) -> list[Row]:
    """The owners of a piece send each other their nodes' sums, and each adds them up.

    What is sent is a copy in SCRATCH: the result overwrites OUTPUT while a peer may still be reading it, and they would
    wait for each other.
    """
    step, own, single = shape.inside, shape.node(rank), shape.size(rank) == 1
    sums, results = [], []
    for cell, piece in enumerate(shape.pieces(rank)):
        peers = [shape.owner(node, piece) for node in range(shape.node_count) if node != own]
        sends = tuple(Send(peer, None) for peer in peers)
        made = _node_sum(shape, rank, piece, sends)
        if single:
            made = replace(made, step=step, op=Op.COPY, flags=made.flags | Flag.TRANSIT)
        sums.append(replace(made, buffer=Buffer.SCRATCH, cell=cell))
        results.append(
            Row(
                step,
                Buffer.OUTPUT,
                piece,
                piece + 1,
                Op.REDUCE,
                operand=Buffer.INPUT if single else Buffer.SCRATCH,
                operand_cell=0 if single else cell,
                operand_at=own,
                receives=tuple(Receive(peer, Buffer.SCRATCH) for peer in peers),
                sends=_to_neighbours(shape, rank),
                flags=Flag.LAST | (Flag.FIRST if single else NO_FLAGS),
            )
        )
    return [*_spread(shape, rank, 0), *sums, *results, *_gathered(shape, rank, 0, step + 1)]


def _sum_rows(shape: _Shape, rank: int, part: int, node: int | None) -> list[Row]:
    """Sum a part of all pieces inside the node; send it to that node's owners, or to none.

    A rank that has its node to itself sends its input, which is its node's sum.
    """
    rows = _spread(shape, rank, part)
    for piece in shape.pieces(rank):
        chunk = shape.chunk(piece, part)
        sends = () if node is None else (Send(shape.owner(node, piece), None),)
        if shape.size(rank) > 1:
            rows.append(_node_sum(shape, rank, chunk, sends, Flag.TRANSIT if sends else NO_FLAGS))
        elif sends:
            rows.append(Row(shape.inside, Buffer.INPUT, chunk, chunk + 1, Op.NONE, sends=sends))
    return rows


def _sum_buffer(shape: _Shape, rank: int) -> Buffer:
    """Where the rank has the sums of its node."""
    return Buffer.INPUT if shape.size(rank) == 1 else Buffer.OUTPUT


def _added(
    shape: _Shape, rank: int, chunk: int, step: int, at: int, receives: tuple[Receive, ...], sends: tuple[Send, ...]
) -> Row:
    """What came from other nodes and the sum of the own one, which stands at place ``at``."""
    operand = _sum_buffer(shape, rank)
    flags = Flag.FIRST if operand is Buffer.INPUT else NO_FLAGS
    return Row(
        step,
        Buffer.OUTPUT,
        chunk,
        chunk + 1,
        Op.REDUCE,
        operand=operand,
        operand_at=at,
        receives=receives,
        sends=sends,
        flags=flags,
    )


def _passed_on(chunk: int, step: int, peer: int, sends: tuple[Send, ...]) -> Row:
    """A result that comes from another node."""
    return Row(step, Buffer.OUTPUT, chunk, chunk + 1, Op.COPY, receives=(Receive(peer, Buffer.OUTPUT),), sends=sends)


def _two_hop_rows(shape: _Shape, rank: int) -> list[Row]:
    """Part t of a piece is summed by its owner on node t and sent back to the owners on the other nodes."""
    step, own = shape.inside, shape.node(rank)
    others = [(own + distance) % shape.node_count for distance in range(1, shape.node_count)]
    near = _to_neighbours(shape, rank)
    rows = [row for node in others for row in _sum_rows(shape, rank, node, node)]
    rows += _sum_rows(shape, rank, own, None)
    for piece in shape.pieces(rank):
        peers = [shape.owner(node, piece) for node in sorted(others)]
        receives = tuple(Receive(peer, _sum_buffer(shape, peer)) for peer in peers)
        far = tuple(Send(shape.owner(node, piece), Buffer.OUTPUT) for node in others)
        row = _added(shape, rank, shape.chunk(piece, own), step, own, receives, far + near)
        rows.append(replace(row, flags=row.flags | Flag.LAST))
    rows += _gathered(shape, rank, own, step + 1)
    for node in reversed(others):
        for piece in shape.pieces(rank):
            rows.append(_passed_on(shape.chunk(piece, node), step + 1, shape.owner(node, piece), near))
        rows += _gathered(shape, rank, node, step + 2)
    return rows


def _ring_rows(shape: _Shape, rank: int) -> list[Row]:
    """Part t of a piece goes round the nodes from t + 1 and is whole on node t; then the result goes round."""
    step, own, nodes = shape.inside, shape.node(rank), shape.node_count
    after, before = (own + 1) % nodes, (own - 1) % nodes
    near = _to_neighbours(shape, rank)
    rows = _sum_rows(shape, rank, before, after)
    for turn in range(nodes - 1):
        part, final = (before - turn - 1) % nodes, turn == nodes - 2
        rows += _sum_rows(shape, rank, part, None)
        for piece in shape.pieces(rank):
            peer = shape.owner(before, piece)
            receives = (Receive(peer, _sum_buffer(shape, peer) if turn == 0 else Buffer.OUTPUT),)
            sends = (Send(shape.owner(after, piece), Buffer.OUTPUT if final else None), *(near if final else ()))
            row = _added(shape, rank, shape.chunk(piece, part), step + turn, 1, receives, sends)
            rows.append(replace(row, flags=row.flags | (Flag.LAST if final else Flag.TRANSIT)))
    step += nodes - 1
    rows += _gathered(shape, rank, own, step)
    for turn in range(nodes - 1):
        part = (before - turn) % nodes
        for piece in shape.pieces(rank):
            onward = (Send(shape.owner(after, piece), Buffer.OUTPUT),) if turn < nodes - 2 else ()
            rows.append(_passed_on(shape.chunk(piece, part), step + turn, shape.owner(before, piece), (*onward, *near)))
        rows += _gathered(shape, rank, part, step + turn + 1)
    return rows


# ---- the algorithms ----


def _recipe(shape: _Shape, rows: Callable[[int], list[Row]], hops: int, window: int, cells: int = 0) -> Recipe:
    """hops: between nodes, one after another."""
    nodes = shape.node_count

    def sent(rank: int) -> Fraction:
        own = Fraction(1, shape.size(rank))
        far = own if hops == 1 else own * 2 * (nodes - 1) / nodes if hops else Fraction(0)
        return 2 * (1 - own) + far

    steps = hops + 2 * shape.inside
    chunks = shape.piece_count * shape.parts
    return Recipe(chunks, steps, max(WINDOW_MIN, window), cells, rows, sent, shape.weights())


def all_reduce(nodes: Sequence[int]) -> Recipe:
    """Directly between nodes: one hop between two, two hops between up to NODES_DIRECT_MAX, beyond that their ring.

    nodes: the node of each rank; any numbers, equal on equal nodes.

    The window holds every row that sends into the node, so that each rank consumes what its neighbours wait to send,
    and beside them what is to be received from other nodes.
    """
    count = len(set(nodes))
    if count > NODES_DIRECT_MAX:
        return all_reduce_ring(nodes)
    if len(nodes) == 1:
        return Recipe(1, 0, WINDOW_MIN, 0, lambda _: local_copy(1, Flag.LAST), lambda _: Fraction(0))
    shape = _shape(nodes, parts=count if count > 2 else 1)
    window = shape.piece_count * shape.parts + shape.most
    if count == 1:
        return _recipe(shape, lambda rank: _alone_rows(shape, rank), 0, window)
    if count == 2:
        return _recipe(shape, lambda rank: _one_hop_rows(shape, rank), 1, window, cells=shape.most)
    return _recipe(shape, lambda rank: _two_hop_rows(shape, rank), 2, window)


def all_reduce_ring(nodes: Sequence[int]) -> Recipe:
    """A ring between the nodes, of the ranks that own the same bytes; of few nodes, too. One node: as all_reduce.

    The window holds three turns of the ring: one is enough for progress (verified), the others begin meanwhile.
    """
    count = len(set(nodes))
    if count == 1:
        return all_reduce(nodes)
    shape = _shape(nodes, parts=count)
    window = 3 * (shape.piece_count + shape.most)
    return _recipe(shape, lambda rank: _ring_rows(shape, rank), 2 * (count - 1), window)
