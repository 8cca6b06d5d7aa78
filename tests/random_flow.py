"""A random flow of values for a collective: which rank makes what of what, and how it gets there. See schedules_random.

Rows are drawn without an order of their own: each comes after those that it depends on.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from rdmaring.schedule import Buffer, Flag, Op
from rdmaring.schedule.channels import CUT
from rdmaring.schedule.collectives import Collective
from rdmaring.schedule.rows import NO_FLAGS

INPUT, OUTPUT, SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH


@dataclass(eq=False)
class Draft:
    """A row that is not placed yet; transfers are references to the row at the other end."""

    rank: int
    buffer: Buffer
    begin: int
    end: int
    op: Op
    operand: Buffer | None = None
    operand_at: int = 0
    receives: list[Draft] = field(default_factory=list)  # the rows that send here, in the order of the sources
    sends: list[Draft] = field(default_factory=list)
    reads: list[Draft] = field(default_factory=list)  # earlier rows of this rank that made what it reads
    flags: Flag = NO_FLAGS
    cell: int = 0
    operand_cell: int = 0
    channel: int = 0

    def overlaps(self, other: Draft) -> bool:
        return self.begin < other.end and other.begin < self.end

    def peers(self) -> set[int]:
        return {target.rank for target in self.sends}


class Value(NamedTuple):
    """What lies somewhere: nobody made an INPUT."""

    makers: tuple[Draft, ...]
    rank: int
    buffer: Buffer
    begin: int
    end: int


@dataclass
class Habits:
    """How likely a schedule does what; drawn once for each, so that some have much of one thing and none of another."""

    fuse: float  # send what a row makes at once
    gather: float  # one row that sends, for several receivers
    relay: float  # a hop through a rank that has no use for the value
    wide: float  # another source in the same row
    through_scratch: float  # where the output would serve
    replicate: float  # several ranks finish the same sum
    late_post: float  # the post-operation at each receiver
    collect: float  # results of several intervals are spread as one
    reuse: float  # of a cell
    transit: float
    hurry: float  # keep to the order in which rows were drawn
    second_channel: float

    @classmethod
    def drawn(cls, rng: random.Random, *, plain: bool) -> Habits:
        def some(*choices: float) -> float:
            return rng.choice(choices)

        return cls(
            fuse=some(0, 0.5, 1),
            gather=0 if plain else some(0, 0.5, 1),
            relay=0 if plain else some(0, 0, 0.15, 0.4),
            wide=some(0, 0.3, 0.7),
            through_scratch=some(0, 0.3, 1),
            replicate=0 if plain else some(0, 0.4, 1),
            late_post=0 if plain else some(0, 0, 0.5),
            collect=some(0, 0.4),
            reuse=some(0, 0.5, 1),
            transit=some(0, 0.5, 1),
            hurry=some(0, 0.5, 0.9),
            second_channel=some(0, 0, 0.5),
        )


class Flow:
    """Draws the rows of all ranks; every row comes after those that it depends on."""

    def __init__(
        self, rng: random.Random, habits: Habits, collective: Collective, world: int, chunk_count: int, root: int | None
    ) -> None:
        self.rng, self.habits, self.collective, self.world = rng, habits, collective, world
        self.chunk_count, self.root = chunk_count, root
        self.rows: list[Draft] = []
        self.senders: dict[Value, list[Draft]] = defaultdict(list)  # rows that only send it
        self.channel = 0
        self.finished = True  # the value has had its post-operation; else each receiver applies it

    def chance(self, likely: float) -> bool:
        return self.rng.random() < likely

    def draw(self) -> list[Draft]:
        for begin, end in self.intervals():
            self.channel = int(self.collective.name in CUT and self.chance(self.habits.second_channel))
            wanted = self.takers(begin)
            if end - begin > 1 and self.chance(self.habits.collect):
                self.collected(begin, end, wanted)
            else:
                self.spread(self.results(begin, end, wanted, None), wanted, begin, end)
        return self.rows

    # ---- what is wanted where ----

    def intervals(self) -> list[tuple[int, int]]:
        """The vector in intervals whose chunks are wanted by the same ranks, in a random order."""
        cuts = {0, self.chunk_count}
        for chunk in range(1, self.chunk_count):
            same = self.takers(chunk) == self.takers(chunk - 1) and self.givers(chunk) == self.givers(chunk - 1)
            if not same or self.chance(0.5):
                cuts.add(chunk)
        ordered = sorted(cuts)
        pairs = list(pairwise(ordered))
        self.rng.shuffle(pairs)
        return pairs

    def takers(self, chunk: int) -> tuple[int, ...]:
        return tuple(r for r in range(self.world) if chunk in self.output_of(r))

    def givers(self, chunk: int) -> tuple[int, ...]:
        return tuple(self.collective.result(chunk, self.world, self.root))

    def output_of(self, rank: int) -> range:
        return self.collective.output_chunks(rank, self.chunk_count, self.root)

    # ---- rows ----

    def add(self, rank: int, buffer: Buffer, begin: int, end: int, op: Op, sources: Sequence[Draft] = ()) -> Draft:
        row = Draft(rank, buffer, begin, end, op, channel=self.channel)
        for sender in sources:
            row.receives.append(sender)
            sender.sends.append(row)
        self.rows.append(row)
        return row

    def value(self, row: Draft) -> Value:
        return Value((row,), row.rank, row.buffer, row.begin, row.end)

    def sender(self, value: Value, target: int) -> Draft:
        """A row that can send ``value`` to ``target``: its maker, one that sends it already, or a new one."""
        maker = value.makers[0] if len(value.makers) == 1 else None
        whole = maker is not None and (maker.begin, maker.end) == (value.begin, value.end)
        if maker is not None and whole and target not in maker.peers() and self.chance(self.habits.fuse):
            return maker
        for row in self.senders[value]:
            if target not in row.peers() and self.chance(self.habits.gather):
                return row
        row = self.add(value.rank, value.buffer, value.begin, value.end, Op.NONE)
        row.reads = list(value.makers)
        self.senders[value].append(row)
        return row

    def copied(self, value: Value, buffer: Buffer) -> Value:
        """A copy on the same rank."""
        row = self.add(value.rank, buffer, value.begin, value.end, Op.COPY)
        row.operand, row.reads = value.buffer, list(value.makers)
        row.flags |= Flag.FIRST if value.buffer is INPUT else Flag(0)
        return self.value(row)

    def moved(self, value: Value, target: int, buffer: Buffer) -> Value:
        sender = self.sender(value, target)
        return self.value(self.add(target, buffer, value.begin, value.end, Op.COPY, [sender]))

    def relayed(self, value: Value, target: int) -> Value:
        """``value``, or a copy of it in the scratch of a rank that is neither here nor there."""
        others = [rank for rank in range(self.world) if rank not in (value.rank, target)]
        if others and self.chance(self.habits.relay):
            return self.moved(value, self.rng.choice(others), SCRATCH)
        return value

    # ---- from contributions to one value ----

    def results(self, begin: int, end: int, wanted: Sequence[int], at: int | None) -> list[Value]:
        """The result of the interval: one value, or the same on several ranks. at: in OUTPUT of that rank."""
        values = [Value((), giver, INPUT, begin, end) for giver in self.givers(begin)]
        if self.world == 1:
            found = self.copied(values[0], OUTPUT)
            found.makers[0].flags |= Flag.LAST if self.collective.reduces else Flag(0)
            return [found]
        if not self.collective.reduces:
            return [self.brought(values[0], at)]
        self.finished = True
        if at is None and len(wanted) > 1 and self.chance(self.habits.replicate):
            partial = self.rng.randint(2, len(values))
            while len(values) > partial:
                values = self.merged(values, (), None)
            if 1 < len({value.rank for value in values}) == len(values):
                return self.finished_by(values, self.rng.sample(list(wanted), self.rng.randint(2, len(wanted))))
        while len(values) > 1:
            values = self.merged(values, wanted, at)
        self.finished = at is not None or values[0].buffer is OUTPUT or not self.chance(self.habits.late_post)
        values[0].makers[0].flags |= Flag.LAST if self.finished else Flag(0)
        return values

    def brought(self, value: Value, at: int | None) -> Value:
        """A contribution that is not reduced, to OUTPUT of rank ``at`` if one is named."""
        self.finished = True
        if at is None:
            return self.copied(value, SCRATCH) if self.chance(self.habits.through_scratch / 3) else value
        if at == value.rank:
            return self.copied(value, OUTPUT)
        return self.moved(self.relayed(value, at), at, OUTPUT)

    def merged(self, values: list[Value], wanted: Sequence[int], at: int | None) -> list[Value]:
        """Combine some of ``values`` at one rank: one that lies there, and one of each rank that another is from."""
        count = 2
        while count < len(values) and self.chance(self.habits.wide):
            count += 1
        chosen = self.rng.sample(values, count)
        if count == len(values) and at is not None:
            target = at
        elif count == len(values) and wanted and self.chance(0.8):
            target = self.rng.choice(list(wanted))
        else:
            target = self.rng.choice([*(value.rank for value in chosen), self.rng.randrange(self.world)])
        by_rank = {value.rank: value for value in chosen}
        local = by_rank.pop(target, None)
        taken = [*by_rank.values(), *([] if local is None else [local])]
        if len(taken) < 2:  # both lie on one rank: one has to go
            other = self.rng.choice([rank for rank in range(self.world) if rank != taken[0].rank])
            return [self.moved(taken[0], other, SCRATCH), *(value for value in values if value is not taken[0])]
        rest = [value for value in values if value not in taken]
        used = {value.rank for value in rest if value.buffer is not SCRATCH}
        free = target in wanted and target not in used
        in_output = free and ((at is not None and not rest) or not self.chance(self.habits.through_scratch))
        row = self.combined(target, OUTPUT if in_output else SCRATCH, local, list(by_rank.values()))
        return [*rest, self.value(row)]

    def combined(self, rank: int, buffer: Buffer, local: Value | None, remote: Sequence[Value]) -> Draft:
        senders: list[Draft] = []
        for value in remote:
            near = self.relayed(value, rank)
            taken = {sender.rank for sender in senders} | {other.rank for other in remote}
            senders.append(self.sender(value if near.rank in taken else near, rank))
        self.rng.shuffle(senders)
        row = self.add(rank, buffer, remote[0].begin, remote[0].end, Op.REDUCE, senders)
        if local is not None:
            row.operand, row.reads = local.buffer, list(local.makers)
            row.operand_at = self.rng.randint(0, len(senders))
            row.flags |= Flag.FIRST if local.buffer is INPUT else Flag(0)
        return row

    def finished_by(self, values: list[Value], finishers: Sequence[int]) -> list[Value]:
        """Every finisher combines all values, in the same order; what they overwrite is copied before."""
        safe = [
            self.copied(value, SCRATCH) if value.buffer is not SCRATCH and value.rank in finishers else value
            for value in values
        ]
        self.rng.shuffle(safe)
        found = []
        for rank in finishers:
            senders = [self.sender(value, rank) for value in safe if value.rank != rank]
            row = self.add(rank, OUTPUT, safe[0].begin, safe[0].end, Op.REDUCE, senders)
            for place, value in enumerate(safe):
                if value.rank == rank:
                    row.operand, row.operand_at, row.reads = value.buffer, place, list(value.makers)
            row.flags |= Flag.LAST
            found.append(self.value(row))
        return found

    # ---- from values to everybody ----

    def collected(self, begin: int, end: int, wanted: Sequence[int]) -> None:
        """Several results end on one rank and are spread as one interval, or in other pieces than they came in."""
        at = self.rng.choice(list(wanted))
        makers: list[Draft] = []
        pieces = self.pieces(begin, end)
        for first, last in pieces:
            makers += self.results(first, last, wanted, at)[0].makers
        for first, last in self.pieces(begin, end):
            own = tuple(row for row in makers if row.begin < last and first < row.end)
            self.finished = True
            self.spread([Value(own, at, OUTPUT, first, last)], wanted, first, last)

    def pieces(self, begin: int, end: int) -> list[tuple[int, int]]:
        cuts = [begin, *(cut for cut in range(begin + 1, end) if self.chance(0.5)), end]
        return list(pairwise(cuts))

    def spread(self, holders: list[Value], wanted: Sequence[int], begin: int, end: int) -> None:
        """Along a random tree, until everybody who wants it has it in OUTPUT."""
        late = not self.finished
        have = {value.rank for value in holders}
        done = {value.rank for value in holders if value.buffer is OUTPUT}
        for value in list(holders):
            if value.rank in wanted and value.rank not in done:
                copied = self.copied(value, OUTPUT)
                done.add(value.rank)
                copied.makers[0].flags |= Flag.LAST if late else Flag(0)
                if not late and self.chance(0.5):
                    holders[holders.index(value)] = copied
        missing = [rank for rank in wanted if rank not in done]
        self.rng.shuffle(missing)
        while missing:
            value = self.rng.choice(holders)
            between = [rank for rank in range(self.world) if rank not in have and rank not in wanted]
            if between and self.chance(self.habits.relay):
                rank = self.rng.choice(between)
                have.add(rank)
                holders.append(self.moved(value, rank, SCRATCH))
                continue
            rank = missing.pop()
            have.add(rank)
            if self.chance(self.habits.through_scratch / 2):
                held = self.moved(value, rank, SCRATCH)
                holders.append(held)
                row = self.copied(held, OUTPUT).makers[0]
                row.flags |= Flag.LAST if late else Flag(0)
                continue
            held = self.moved(value, rank, OUTPUT)
            if late:
                held.makers[0].flags |= Flag.LAST
            else:
                holders.append(held)
