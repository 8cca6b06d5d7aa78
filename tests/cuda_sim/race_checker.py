"""Finds accesses to the same memory of which one writes and neither comes before the other: from a race log.

    python -m cuda_sim.race_checker FOLDER

race.c says what the log holds. Each operation of a stream and each waiting call of a host thread is a node; what comes
before what follows from streams, host threads, events, flags and marks, over all processes, by vector clocks. So a
missing wait is found whether or not it did harm in that run.

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
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
        self._records: dict[tuple[str, int], int] = {}
        self._sets: dict[Range, list[tuple[int, int, int]]] = defaultdict(list)  # time, value, node
        self._stores: list[tuple[int, Range, int]] = []  # by copies and fills: time, range, node
        self._waits: list[tuple[int, list[Any], int]] = []  # node, edge, process: looked up when all is read
        self._marks: dict[str, list[int]] = defaultdict(list)
        self._posts: dict[tuple[int, int], int] = {}  # process and number of a request: node
        self._adapters: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)  # number, node
        for lines in processes:
            self._read(lines)
        for node, edge, process in self._waits:
            self._look_up(node, edge, process)
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
            self._waits.append((node, edge, process))
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
        node = self._node(name, place, process, line["begin"], before)
        for edge in line["edges"]:
            if edge[0] == "records":
                self._records[edge[1], edge[2]] = node
                continue
            node = self._node(name, place, process, line["begin"], [node])
            if edge[0] == "sets":
                flag = as_range(*edge[1])
                self._sets[flag].append((edge[3], edge[2], node))
                self.accesses.append(Access(node, flag, True, flag=True))
            else:
                self._waits.append((node, edge, process))
                if edge[0] == "polls":
                    self.accesses.append(Access(node, as_range(*edge[1]), False, flag=True))
        if kind != "memop":
            self.accesses += [Access(node, as_range(*each), False) for each in line["reads"]]
            for each in line["writes"]:
                self.accesses.append(Access(node, as_range(*each), True))
                if kind in ("copy", "fill"):
                    self._stores.append((line["begin"], as_range(*each), node))
        earlier.append((number, node))

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
        elif edge[0] == "polls":
            flag, value, seen_ns = as_range(*edge[1]), edge[2], edge[3]
            stores = [(at, store) for at, left, store in self._sets[flag] if left == value and at <= seen_ns]
            stores += [(at, store) for at, where, store in self._stores if at <= seen_ns and covers(where, flag)]
            if stores:
                before.append(max(stores)[1])
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
        behind: list[list[int]] = [[] for _ in self.nodes]
        open_before = [len(node.before) for node in self.nodes]
        for index, node in enumerate(self.nodes):
            for earlier in node.before:
                behind[earlier].append(index)
        ready = [index for index, count in enumerate(open_before) if count == 0]
        done = 0
        while ready:
            index = ready.pop()
            done += 1
            for earlier in self.nodes[index].before:
                np.maximum(clocks[index], clocks[earlier], out=clocks[index])
            clocks[index][self._line_of[index]] = place[index]
            for later in behind[index]:
                open_before[later] -= 1
                if open_before[later] == 0:
                    ready.append(later)
        if done != len(self.nodes):
            stuck = next(node.name for node, count in zip(self.nodes, open_before, strict=True) if count)
            raise ValueError(f"the log has a circle of waits, {stuck} in it")
        return clocks, place

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
