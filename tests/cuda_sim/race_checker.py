"""Finds accesses to the same memory of which one writes and neither comes before the other: from a race log.

    python -m cuda_sim.race_checker FOLDER

race.c says what the log holds. Each operation of a stream and each waiting call of a host thread is a node; what comes
before what follows from streams, host threads, events, flags and marks, over all processes, by vector clocks. So a
missing wait is found whether or not it did harm in that run; race_flags.py says which store a wait for a flag has.

An adapter's write comes before what a host thread does after a flush, or, where the device needs none, after it has
polled a completion; its read comes after the request was posted, and before a completion that was polled.

Stores to flags and waits for them do not conflict with each other; two stores to one flag do. In host memory that
processes share only flags conflict between them, as what the host does there is not in the log. Not in the log is how
processes tell each other, on the host, that memory is ready to be used. So taking memory, giving it back, and the fill
that is the first access to a piece of memory conflict within their own process only.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda_sim.race_flags import Fill, Flag, Store, Wait

Range = tuple[str, int, int]  # memory, first byte, first byte behind


@dataclass
class Node:
    """Something that happened at one point of one line: a stream, or a host thread."""

    name: str
    line: tuple[Any, ...]
    process: int
    begin_ns: int = 0
    before: list[int] = field(default_factory=list)  # nodes


@dataclass(frozen=True)
class Access:
    node: int
    range: Range
    writes: bool
    flag: bool = False  # by an operation on a flag
    own: bool = False  # conflicts within its own process only

    def text(self, nodes: Sequence[Node]) -> str:
        memory, begin, end = self.range
        return f"{nodes[self.node].name} {'writes' if self.writes else 'reads'} {memory}[{begin}:{end}]"


@dataclass(frozen=True)
class Race:
    """Two accesses without an order."""

    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.first}; {self.second}: neither comes before the other"


def as_range(memory: str, offset: int, nbytes: int) -> Range:
    return memory, offset, offset + nbytes


def covers(outer: Range, inner: Range) -> bool:
    return outer[0] == inner[0] and outer[1] <= inner[1] and inner[2] <= outer[2]


class History:
    """All processes of one folder."""

    def __init__(self, processes: Iterable[Sequence[dict[str, Any]]]) -> None:
        """processes: the lines of each; the first names the process."""
        self.nodes: list[Node] = []
        self.accesses: list[Access] = []
        self._operations: dict[tuple[int, int], list[tuple[int, int]]] = {}  # of a stream: number, last node
        # Of a host thread, by its steps: first and last nodes of what that call put into streams.
        self._submitted: dict[tuple[int, int], dict[int, list[tuple[int, int]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._records: dict[tuple[str, int], int] = {}
        self._flags: dict[Range, Flag] = defaultdict(Flag)
        # By copies and fills: what, time, node, and of a fill its element, as Fill.of() takes it.
        self._writes: list[tuple[Range, int, int, tuple[int, int] | None]] = []
        self._waits: list[tuple[int, list[Any], int]] = []  # node, edge, process: looked up when all is read
        self._marks: dict[str, list[int]] = defaultdict(list)
        self._posts: dict[tuple[int, int], int] = {}  # process and number of a request: node
        self._adapters: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)  # number, node
        for lines in processes:
            self._read(lines)
        for node, edge, process in self._waits:
            self._look_up(node, edge, process)
        self._order_flags()
        self._find_first_fills()
        self.clocks, self.order = self._run()

    def _node(self, name: str, line: tuple[Any, ...], process: int, begin_ns: int, before: Iterable[int]) -> int:
        self.nodes.append(Node(name, line, process, begin_ns, list(before)))
        return len(self.nodes) - 1

    def _read(self, lines: Sequence[dict[str, Any]]) -> None:
        process = int(lines[0]["process"])
        threads: dict[int, list[tuple[int, int]]] = defaultdict(list)  # step, node
        for line in sorted((line for line in lines[1:] if "op" not in line), key=lambda line: line["host"]):
            thread, step = line["host"]
            self._read_call(line, process, threads[thread], step)
        operations = [line for line in lines[1:] if "op" in line]
        for line in sorted(operations, key=lambda line: (line["stream"], line["number"])):
            self._read_operation(line, process, threads)

    def _read_call(self, line: dict[str, Any], process: int, earlier: list[tuple[int, int]], step: int) -> None:
        thread = line["host"][0]
        name = f"{line.get('call', line.get('mark'))} of thread {thread} of process {process}"
        before = [earlier[-1][1]] if earlier else []
        node = self._node(name, ("host", process, thread), process, 0, before)
        for edge in line.get("edges", []):
            if edge[0] in ("sets", "polls"):  # of a carrier
                node = self._node(name, ("host", process, thread), process, edge[3], [node])
                self._read_edge(node, edge, process)
            else:
                self._waits.append((node, edge, process))
        if "touches" in line:
            self.accesses.append(Access(node, as_range(*line["touches"]), bool(line["writes"])))
        if "post" in line:
            self._posts[process, line["post"]] = node
        if "adapter" in line:  # on a line of its own: the adapter's thread is no thread of the application
            self._read_adapter(node, line, process)
        elif "range" in line:
            self.accesses.append(Access(node, as_range(*line["range"]), True, own=True))
        if "mark" in line:  # a second node comes behind everybody's first
            barrier = self._marks[line["mark"]]
            barrier.append(node)
            node = self._node(name, ("host", process, thread), process, 0, [node])
            self._waits.append((node, ["mark", line["mark"]], process))
        earlier.append((step, node))

    def _read_adapter(self, node: int, line: dict[str, Any], process: int) -> None:
        """An access of the adapter: a read after its request was posted, a write after what was posted until then."""
        self.accesses.append(Access(node, as_range(*line["range"]), bool(line["writes"])))
        self._adapters[process, bool(line["writes"])].append((line["adapter"], node))
        self._waits.append((node, ["posted", line["behind"]], process))

    def _read_operation(self, line: dict[str, Any], process: int, threads: dict[int, list[tuple[int, int]]]) -> None:
        stream, number, kind = line["stream"], line["number"], line["op"]
        thread, step = line["host"]
        name = f"{kind} {number} of stream {stream} of process {process}"
        place = ("stream", process, stream)
        earlier = self._operations.setdefault((process, stream), [])
        before = [earlier[-1][1]] if earlier else []
        before += [node for called, node in threads[thread] if called < step][-1:]
        first = node = self._node(name, place, process, line["begin"], before)
        filled = next(((edge[1], edge[2]) for edge in line["edges"] if edge[0] == "fills"), None)
        for edge in line["edges"]:
            if edge[0] == "records":
                self._records[edge[1], edge[2]] = node
            elif edge[0] != "fills":
                node = self._node(name, place, process, line["begin"], [node])
                self._read_edge(node, edge, process)
        if kind != "memop":
            self.accesses += [Access(node, as_range(*each), False) for each in line["reads"]]
            for each in line["writes"]:
                self.accesses.append(Access(node, as_range(*each), True))
                if kind in ("copy", "fill"):
                    self._writes.append((as_range(*each), line["begin"], node, filled))
        earlier.append((number, node))
        if thread:  # else it is the driver's own
            self._submitted[process, thread][step].append((first, node))

    def _read_edge(self, node: int, edge: list[Any], process: int) -> None:
        line = self.nodes[node].line
        if edge[0] == "sets":
            flag = as_range(*edge[1])
            self._flags[flag].stores.append(Store(edge[3], edge[2], node, line))
            self.accesses.append(Access(node, flag, True, flag=True))
        elif edge[0] == "polls":
            flag = as_range(*edge[1])
            self._flags[flag].waits.append(Wait(edge[3], edge[2], edge[4], edge[5], edge[1][2], node, line))
            self.accesses.append(Access(node, flag, False, flag=True))
        else:
            self._waits.append((node, edge, process))

    def _order_flags(self) -> None:
        """Give each wait for a flag the store that it came after."""
        waited = {flag: each for flag, each in self._flags.items() if each.waits}
        memories = defaultdict(list)
        for flag in waited:
            memories[flag[0]].append(flag)
        for written, at_ns, node, element in self._writes:
            for flag in memories[written[0]]:
                if written == flag and element is None:
                    waited[flag].stores.append(Store(at_ns, None, node, self.nodes[node].line))
                elif covers(written, flag):
                    waited[flag].fills.append(Fill.of(at_ns, node, flag[2] - flag[1], element))
        for each in waited.values():
            for wait, store in each.came_after():
                self.nodes[wait].before.append(store)

    def _look_up(self, node: int, edge: list[Any], process: int) -> None:
        """Give a node what it waited for."""
        before = self.nodes[node].before
        if edge[0] == "after":
            earlier = self._operations.get((process, edge[1]), [])
            before += [last for number, last in earlier if number <= edge[2]][-1:]
        elif edge[0] == "awaits":
            if (edge[1], edge[2]) in self._records:
                before.append(self._records[edge[1], edge[2]])
        elif edge[0] in ("writes", "reads"):
            earlier = self._adapters[process, edge[0] == "writes"]
            before += [last for number, last in earlier if number <= edge[1]][-1:]
        elif edge[0] == "posted":
            if (process, edge[1]) in self._posts:
                before.append(self._posts[process, edge[1]])
        elif edge[0] == "mark":
            before += self._marks[edge[1]]
        else:
            raise ValueError(f"{self.nodes[node].name}: unknown edge {edge}")

    def _find_first_fills(self) -> None:
        """Mark as `own` the writes of fills that are the first access to a piece of memory."""
        first: dict[str, int] = {}
        for access in self.accesses:
            node = self.nodes[access.node]
            if not access.own:
                first[access.range[0]] = min(first.get(access.range[0], node.begin_ns), node.begin_ns)
        polled = {access.range for access in self.accesses if access.flag and not access.writes}
        for index, access in enumerate(self.accesses):
            node = self.nodes[access.node]
            copied_flag = node.name.startswith("copy ") and access.writes and access.range in polled
            fills_first = node.name.startswith("fill ") and node.begin_ns == first[access.range[0]]
            if copied_flag or fills_first:
                self.accesses[index] = Access(access.node, access.range, access.writes, copied_flag, fills_first)

    def _run(self) -> tuple[npt.NDArray[np.int32], list[int]]:
        """The clock of each node, and its place on its line, from 1."""
        lines = {line: number for number, line in enumerate(dict.fromkeys(node.line for node in self.nodes))}
        clocks = np.zeros((len(self.nodes), len(lines)), np.int32)
        place = [0] * len(self.nodes)
        counts = [0] * len(lines)
        for index, node in enumerate(self.nodes):  # nodes of a line are in its order
            counts[lines[node.line]] += 1
            place[index] = counts[lines[node.line]]
        self._line_of = [lines[node.line] for node in self.nodes]
        order = in_order([node.before for node in self.nodes])
        for index in order:
            for earlier in self.nodes[index].before:
                np.maximum(clocks[index], clocks[earlier], out=clocks[index])
            clocks[index][self._line_of[index]] = place[index]
        if len(order) != len(self.nodes):
            stuck = " -> ".join(self._circle([node.before for node in self.nodes], set(order)))
            raise ValueError(f"the log has a circle of waits: {stuck}")
        return clocks, place

    def _circle(self, before: Sequence[Sequence[int]], done: set[int]) -> list[str]:
        """Names of nodes that wait for each other, each for the next one; done: all that come before no circle."""
        node = next(index for index in range(len(before)) if index not in done)
        seen: dict[int, None] = {}
        while node not in seen:
            seen[node] = None
            node = next(earlier for earlier in before[node] if earlier not in done)
        path = list(seen)
        return list(dict.fromkeys(self.nodes[index].name for index in path[path.index(node) :]))

    def standstill(self) -> list[str]:
        """
        Operations that would wait for each other if one queue served all streams of each process: each waits for the
        next one, and the last one for the first. Empty: there are none. It tells of runs with a queue a stream, too.
        """
        before = [list(node.before) for node in self.nodes]
        for steps in self._submitted.values():
            ordered = [steps[step] for step in sorted(steps)]
            for earlier, later in pairwise(ordered):
                for first, _ in later:
                    before[first] += [last for _, last in earlier]
        order = in_order(before)
        return [] if len(order) == len(before) else self._circle(before, set(order))

    def comes_before(self, first: int, second: int) -> bool:
        return bool(self.clocks[second][self._line_of[first]] >= self.order[first])

    def races(self) -> list[Race]:
        """All pairs, each once, in the order of the log."""
        found: dict[Race, None] = {}
        by_memory: dict[str, list[Access]] = defaultdict(list)
        for access in self.accesses:
            by_memory[access.range[0]].append(access)
        for accesses in by_memory.values():
            for first, second in overlapping(accesses):
                if self._conflict(first, second) and not (
                    self.comes_before(first.node, second.node) or self.comes_before(second.node, first.node)
                ):
                    one, other = sorted((first, second), key=lambda each: each.node)
                    found[Race(one.text(self.nodes), other.text(self.nodes))] = None
        return list(found)

    def _conflict(self, first: Access, second: Access) -> bool:
        if first.node == second.node or not (first.writes or second.writes):
            return False
        if first.flag and second.flag and not (first.writes and second.writes):
            return False
        if self.nodes[first.node].process == self.nodes[second.node].process:
            return True
        if first.range[0].startswith("s") and not (first.flag and second.flag):
            return False
        return not (first.own or second.own)


def in_order(before: Sequence[Sequence[int]]) -> list[int]:
    """Numbers of nodes, each behind those before it; without those of a circle, and what comes after one."""
    behind: list[list[int]] = [[] for _ in before]
    open_before = [len(earlier) for earlier in before]
    for index, those in enumerate(before):
        for earlier in those:
            behind[earlier].append(index)
    ready = [index for index, count in enumerate(open_before) if count == 0]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for later in behind[order[-1]]:
            open_before[later] -= 1
            if open_before[later] == 0:
                ready.append(later)
    return order


def overlapping(accesses: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """Pairs with bytes in common; all of one memory."""
    still: list[Access] = []
    for access in sorted(accesses, key=lambda each: each.range[1]):
        still = [each for each in still if each.range[2] > access.range[1]]
        for each in still:
            yield each, access
        still.append(access)


def read(folder: Path) -> History:
    """The history that the processes of a run wrote into a folder."""
    paths = sorted(folder.glob("*.jsonl"))
    return History([json.loads(line) for line in path.read_text().splitlines()] for path in paths)


def check(folder: Path) -> list[Race]:
    """The races of a run. Empty: every two accesses that conflict have an order."""
    return read(folder).races()


def main(arguments: Sequence[str]) -> int:
    races = check(Path(arguments[0]))
    for race in races:
        print(race)
    return 1 if races else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
