"""Symbolic execution: what does every rank hold in the end, and how was it put together?

Chunks do not mix, so each is executed by itself, over the rows that contain it, in any order that the
dependencies and transfers allow. That the order does not matter is proven by ``hazards``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rdmaring.schedule.collectives import Collective
from rdmaring.schedule.links import Matching, Node, Tables, lands
from rdmaring.schedule.rows import Buffer, Flag, Kind, Op, Row, ScheduleError


class Value(NamedTuple):
    """What one chunk of memory holds: contributions in the order in which they were combined."""

    ranks: tuple[int, ...]
    order: int  # in Orders
    post: int  # how many post-operations it has seen
    wide: bool = False  # float32, where the vector has 16 bits


@dataclass(slots=True)
class Orders:
    """Expressions such as ((1 + 2) + 0), each kept once: equal numbers are equal expressions."""

    world: int
    numbers: dict[tuple[int, ...], int] = field(default_factory=dict)
    parts: list[tuple[int, ...]] = field(default_factory=list)

    def combined(self, sources: tuple[int, ...]) -> int:
        """The number of the expression that combines those; below ``world`` a number is a rank's input."""
        number = self.numbers.setdefault(sources, self.world + len(self.parts))
        if number == self.world + len(self.parts):
            self.parts.append(sources)
        return number

    def text(self, number: int) -> str:
        """The expression as text. Iterative: a ring's nesting is as deep as the world is large."""
        pieces: list[str] = []
        pending: list[int | str] = [number]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                pieces.append(item)
            elif item < self.world:
                pieces.append(str(item))
            else:
                inner: list[int | str] = ["("]
                for part in self.parts[item - self.world]:
                    inner += [part, " + "]
                inner[-1] = ")"
                pending += reversed(inner)
        return "".join(pieces)


@dataclass(slots=True)
class _Graph:
    """The rows that contain one chunk, each with those that must come before it."""

    chunk: int
    nodes: list[Node]  # in an order that can be executed
    before: list[int]  # for each: all that come before it, as bits of places in nodes
    place: dict[Node, int]


def chunk_nodes(tables: Tables, chunk_count: int) -> list[list[Node]]:
    """For each chunk the rows that contain it."""
    found: list[list[Node]] = [[] for _ in range(chunk_count)]
    for rank, rows in enumerate(tables):
        for index, row in enumerate(rows):
            for chunk in range(row.chunk_begin, row.chunk_end):
                found[chunk].append(Node(rank, index))
    return found


def check_dataflow(
    tables: Tables,
    matching: Matching,
    collective: Collective,
    chunk_count: int,
    root: int | None,
    in_place: Sequence[bool],
) -> tuple[Orders, list[int]]:
    """Execute; return the expression of each chunk's result, the same on all ranks that hold it.

    in_place: the modes to execute.

    Raises:
        ScheduleError: something is read before it is there, combined twice, missing at the end or not
            the same on all ranks; or a peer could write over bytes that are still needed.
    """
    orders = Orders(len(tables))
    results: list[int] = []
    for chunk, nodes in enumerate(chunk_nodes(tables, chunk_count)):
        graph = _sorted_graph(tables, matching, chunk, nodes)
        _check_landings(tables, matching, graph)
        found: dict[int, Node | int] = {}
        for mode in in_place:
            memory = _execute(tables, matching, graph, collective, chunk_count, root, orders, mode)
            for rank in range(len(tables)):
                if chunk in collective.output_chunks(rank, chunk_count, root):
                    value = memory.get((rank, Buffer.OUTPUT, 0))
                    _check_result(value, collective, rank, chunk, len(tables), root)
                    assert value is not None
                    found.setdefault(value.order, rank)
        if len(found) > 1:
            texts = ", ".join(f"{orders.text(order)} on rank {rank}" for order, rank in found.items())
            raise ScheduleError(f"is combined in different orders: {texts}", chunk=chunk)
        results += found
    return orders, results


def _sorted_graph(tables: Tables, matching: Matching, chunk: int, nodes: Sequence[Node]) -> _Graph:
    members = set(nodes)
    waits: dict[Node, set[Node]] = {}
    followers: dict[Node, list[Node]] = {node: [] for node in nodes}
    for node in nodes:
        row = tables[node.rank][node.row]
        wanted = {matching.sender[node, receive.peer] for receive in row.receives}
        for after in row.after:
            earlier = Node(node.rank, after.row)
            if earlier in members:
                wanted.add(earlier)
                if after.kind is Kind.RELEASED:
                    wanted.update(matching.receivers[earlier])
        waits[node] = wanted
        for other in wanted:
            followers[other].append(node)
    left = {node: len(waits[node]) for node in nodes}
    ready = [node for node in nodes if not left[node]]
    graph = _Graph(chunk, [], [], {})
    while ready:
        node = ready.pop()
        bits = 0
        for other in waits[node]:
            place = graph.place[other]
            bits |= graph.before[place] | 1 << place
        graph.place[node] = len(graph.nodes)
        graph.nodes.append(node)
        graph.before.append(bits)
        for follower in followers[node]:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    if len(graph.nodes) < len(nodes):
        stuck = next(node for node in nodes if left[node])
        others = ", ".join(f"row {other.row} of rank {other.rank}" for other in sorted(waits[stuck]) if left[other])
        raise ScheduleError(f"waits in a circle, for {others}", rank=stuck.rank, row=stuck.row, chunk=chunk)
    return graph


def _check_landings(tables: Tables, matching: Matching, graph: _Graph) -> None:
    """A peer that writes directly into a row's dst does not wait for that row's ``after``.

    So all of it must have happened before the peer's own row could run.
    """
    for node in graph.nodes:
        row = tables[node.rank][node.row]
        if lands(row) is None:
            continue
        writer = graph.place[matching.sender[node, row.receives[0].peer]]
        known = graph.before[writer] | 1 << writer
        for after in row.after:
            earlier = Node(node.rank, after.row)
            if earlier not in graph.place:
                continue
            wanted = [earlier, *(matching.receivers[earlier] if after.kind is Kind.RELEASED else ())]
            if not all(known >> graph.place[other] & 1 for other in wanted):
                raise ScheduleError(
                    f"rank {row.receives[0].peer} may write here before row {after.row} is through with it",
                    rank=node.rank,
                    row=node.row,
                    chunk=graph.chunk,
                )


_Memory = dict[tuple[int, Buffer, int], Value]  # by rank, buffer, cell


def _execute(
    tables: Tables,
    matching: Matching,
    graph: _Graph,
    collective: Collective,
    chunk_count: int,
    root: int | None,
    orders: Orders,
    in_place: bool,
) -> _Memory:
    source_buffer = Buffer.OUTPUT if in_place else Buffer.INPUT
    memory: _Memory = {}
    for rank in range(len(tables)):
        if graph.chunk in collective.input_chunks(rank, chunk_count, root):
            memory[rank, source_buffer, 0] = Value((rank,), rank, 0)
    sent: dict[Node, Value] = {}
    for node in graph.nodes:
        row = tables[node.rank][node.row]

        def load(buffer: Buffer, cell: int, node: Node = node) -> Value:
            memory_of = source_buffer if buffer is Buffer.INPUT else buffer
            value = memory.get((node.rank, memory_of, cell))
            if value is None:
                raise ScheduleError(
                    f"reads {buffer.name} before anything is there",
                    rank=node.rank,
                    row=node.row,
                    chunk=graph.chunk,
                )
            if value.wide:
                raise ScheduleError(
                    f"reads {buffer.name} as the vector's dtype, but float32 is there",
                    rank=node.rank,
                    row=node.row,
                    chunk=graph.chunk,
                )
            return value

        if row.op is Op.NONE:
            sent[node] = load(row.buffer, row.cell)
            continue
        values = [sent[matching.sender[node, receive.peer]] for receive in row.receives]
        if row.operand is not None:
            values.insert(row.operand_at, load(row.operand, row.operand_cell))
        value = _combine(row, values, node, graph.chunk, orders)._replace(wide=Flag.WIDE in row.flags)
        memory[node.rank, row.buffer, row.cell] = value
        sent[node] = value
    return memory


def _combine(row: Row, values: Sequence[Value], node: Node, chunk: int, orders: Orders) -> Value:
    if len(values) == 1:
        value = values[0]
    else:
        ranks = tuple(rank for source in values for rank in source.ranks)
        doubled = sorted(rank for rank, times in Counter(ranks).items() if times > 1)
        if doubled:
            raise ScheduleError(
                f"adds the contribution of rank {doubled[0]} twice", rank=node.rank, row=node.row, chunk=chunk
            )
        if any(source.post for source in values):
            raise ScheduleError("combines what has had its post-operation", rank=node.rank, row=node.row, chunk=chunk)
        value = Value(ranks, orders.combined(tuple(source.order for source in values)), 0)
    return value._replace(post=value.post + 1) if Flag.LAST in row.flags else value


def _check_result(
    value: Value | None, collective: Collective, rank: int, chunk: int, world: int, root: int | None
) -> None:
    wanted = collective.result(chunk, world, root)
    held = () if value is None else value.ranks
    for contributor in wanted:
        if contributor not in held:
            raise ScheduleError(
                f"ends without the contribution of rank {contributor} (holds {_ranks(held)})",
                rank=rank,
                chunk=chunk,
            )
    for contributor in held:
        if contributor not in wanted:
            raise ScheduleError(f"ends with a contribution of rank {contributor}", rank=rank, chunk=chunk)
    post = 0 if value is None else value.post
    if post != collective.reduces:
        raise ScheduleError(f"passes {post} rows marked LAST, not {int(collective.reduces)}", rank=rank, chunk=chunk)


def _ranks(ranks: Sequence[int]) -> str:
    return "those of ranks " + ", ".join(map(str, sorted(ranks))) if ranks else "nothing"
