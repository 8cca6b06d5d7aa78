"""How long a schedule takes on a described cluster: events for any schedule, arrays for thousands of ranks.

    schedule = generate("all_reduce", "ring", 64)
    simulate(schedule, 1 << 20, Cluster.even(costs, 64, 8)).seconds

docs/SIMULATE.md states the model. ``rdmaring.schedule.cost`` has the same times in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rdmaring.schedule.cluster import Cluster
from rdmaring.schedule.rows import Schedule, ScheduleError
from rdmaring.schedule.simulate_arrays import ArrayRun
from rdmaring.schedule.simulate_events import EventRun, Outcome, slice_count, slice_counts
from rdmaring.schedule.simulate_fold import CHECKED_ALL, Folder
from rdmaring.schedule.simulate_pattern import Irregular, Pattern, find_pattern
from rdmaring.schedule.simulate_table import Table, bounds, tabulate

__all__ = ["Cluster", "Outcome", "Simulator", "simulate"]

EVENTS_MAX = 200_000  # slices of all rows that are simulated one by one
MULTIPLE = 16  # of slices in vectors that stand for longer ones, of which half are simulated, too
LONGEST_MAX = 128  # slices of one row: what is beyond follows from the line through two shorter vectors
EVENT_ROWS_MAX = 250_000
FOLD_ROWS_MAX = 100_000  # of ranks that stand for all, where arrays can do it, too
PERIOD_MAX = 256  # ranks that may differ before the same ones come again
ARRAY_SLICES_MAX = 20_000  # rows of one rank times their slices


class Simulator:
    """A schedule ready to be simulated, on several clusters of equal shape and for several sizes."""

    def __init__(self, schedule: Schedule, sizes: tuple[int, ...], checked_all: int = CHECKED_ALL) -> None:
        """sizes: the number of ranks of each node. checked_all: as in ``simulate_fold.folded``.

        Raises:
            ScheduleError: sizes do not add up to the schedule's world.
        """
        if sum(sizes) != schedule.world:
            raise ScheduleError(f"nodes have {sum(sizes)} ranks, the schedule {schedule.world}")
        self.schedule, self.sizes, self.checked_all = schedule, sizes, checked_all
        self._table: Table | None = None
        self._folders: dict[int, Folder] = {}  # by period
        self._pattern: Pattern | None = None
        self._irregular: str | None = None
        self._runs: dict[float, Outcome] = {}  # by events, on one regular cluster
        self._runs_on: Cluster | None = None

    def pattern(self) -> Pattern | None:
        """What all ranks do alike; None if they do not."""
        if self._pattern is None and self._irregular is None:
            for period in dict.fromkeys((1, min(self.sizes[0], PERIOD_MAX))):
                try:
                    self._pattern = find_pattern(self.schedule, period)
                    return self._pattern
                except Irregular as error:
                    self._irregular = str(error)
        return self._pattern

    def table(self) -> Table:
        """All ranks' rows."""
        if self._table is None:
            self._table = tabulate(self.schedule)
        return self._table

    def effort(self, nbytes: float, cluster: Cluster, most: int) -> int:
        """Slices that ``run`` with ``slices_max=most`` would take one by one; if that is far more, less than that."""
        nbytes = self._grid_bytes(nbytes)
        world = self.schedule.world
        first, others = (self._fewest(rank, nbytes, cluster) for rank in (0, world - 1))
        if first * self._period(cluster) > most:
            return first * self._period(cluster)
        table = self.fold(nbytes, cluster)
        if table is None and first + (world - 1) * others > most:
            return first + (world - 1) * others
        counts = slice_counts(table or self.table(), nbytes, cluster.costs.slice_bytes)
        longest, fewer = max(counts), _fewer(counts, most)
        return sum(counts) if fewer == longest else int(sum(counts) * fewer * 1.5 / longest)

    def _fewest(self, rank: int, nbytes: float, cluster: Cluster) -> int:
        """Slices of a rank's rows in a vector that stands for a longer one, or fewer."""
        cuts, slice_bytes = bounds(self.schedule), cluster.costs.slice_bytes
        sizes = (nbytes * (cuts[row.chunk_end] - cuts[row.chunk_begin]) for row in self.schedule.rows(rank))
        return sum(min(slice_count(size, slice_bytes), MULTIPLE) for size in sizes)

    def busiest(self, nbytes: float, cluster: Cluster) -> float:
        """Seconds for which the busiest port or processor is held: ``run`` finds no less."""
        nbytes = self._grid_bytes(nbytes)
        table, standing = self._standing(nbytes, cluster)
        return EventRun(table, nbytes, standing).busiest()

    def run(
        self, nbytes: float, cluster: Cluster, *, arrays: bool | None = None, slices_max: int = EVENTS_MAX
    ) -> Outcome:
        """Simulate a vector of ``nbytes``, counted as in ``cost.predict``.

        arrays: all ranks at once (True), event by event (False), or whichever suits the size (None).
        slices_max: of those simulated event by event, where rows have several: the time for more follows from fewer.

        Raises:
            ScheduleError: the cluster has other nodes; too large for events, and not regular enough for arrays.
        """
        nbytes = self._grid_bytes(nbytes)
        if tuple(cluster.sizes) != self.sizes:
            raise ScheduleError(f"the schedule is for nodes of {self.sizes[:8]} ranks, not {tuple(cluster.sizes)[:8]}")
        if arrays is None:
            arrays = self._suit_arrays(nbytes, cluster)
        if not arrays:
            return self._events(nbytes, cluster, slices_max)
        pattern = self.pattern()
        if pattern is None:
            raise ScheduleError(
                f"{self.schedule.algorithm} of {self.schedule.world} ranks is too large to be simulated one by one, "
                f"and not regular: {self._irregular}; take fewer ranks, or the closed form"
            )
        return _by_slices(
            nbytes,
            lambda part: list(map(ArrayRun(pattern, part, cluster).slices, pattern.steps)),
            ARRAY_SLICES_MAX,
            lambda part: ArrayRun(pattern, part, cluster).run(),
        )

    def _grid_bytes(self, nbytes: float) -> float:
        """Of the grid of chunks: that of all_to_all holds what all ranks have."""
        return nbytes * self.schedule.world if self.schedule.collective == "all_to_all" else nbytes

    def fold(self, nbytes: float, cluster: Cluster) -> Table | None:
        """The rows of those ranks that stand for all; None if ranks differ, or something on the cluster."""
        if not cluster.regular:
            return None
        period = self._period(cluster)
        if period not in self._folders:
            self._folders[period] = Folder(self.schedule, self.sizes, period, self.checked_all)
        return self._folders[period].table(cluster.costs.slice_bytes * (1 + 1e-9) / nbytes if nbytes else 1.0)

    def _period(self, cluster: Cluster) -> int:
        """Of so many ranks one could stand for all others, if ranks are alike."""
        processors = cluster.costs.processors_per_node
        alone = processors is None or processors >= max(self.sizes)
        return 1 if alone and (len(self.sizes) == 1 or max(self.sizes) == 1) else self.sizes[0]

    def _events(self, nbytes: float, cluster: Cluster, slices_max: int) -> Outcome:
        """Of a fold if there is one."""
        table, _ = self._standing(nbytes, cluster)
        if cluster is not self._runs_on:
            self._runs, self._runs_on = {}, cluster

        def slices(part: float) -> list[int]:
            return slice_counts(table, part, cluster.costs.slice_bytes)

        def run(part: float) -> Outcome:
            if part not in self._runs or not cluster.regular:
                self._runs[part] = self._run_events(part, cluster)
            return self._runs[part]

        return _by_slices(nbytes, slices, slices_max, run)

    def _run_events(self, nbytes: float, cluster: Cluster) -> Outcome:
        table, standing = self._standing(nbytes, cluster)
        found = EventRun(table, nbytes, standing).run()
        times = self.schedule.world // table.world
        return replace(found, finished=found.finished * times, work=found.work * times, sent=found.sent * times)

    def _standing(self, nbytes: float, cluster: Cluster) -> tuple[Table, Cluster]:
        """The rows to simulate, with what they run on: a fold if there is one."""
        table = self.fold(nbytes, cluster)
        if table is None:
            return self.table(), cluster
        per_node = min(self.sizes[0], table.world)
        return table, replace(cluster, sizes=(per_node,) * (table.world // per_node))

    def _suit_arrays(self, nbytes: float, cluster: Cluster) -> bool:
        """Too many rows for events, or so many that arrays, which serve rails less exactly, are worth it."""
        if self._rows() <= EVENT_ROWS_MAX:
            return False
        table = self.fold(nbytes, cluster)
        if table is None:
            return True
        rows = len(table.nodes)
        return rows > FOLD_ROWS_MAX and (rows > EVENT_ROWS_MAX or self.pattern() is not None)

    def _rows(self) -> int:
        return len(self.schedule.make_rows(0)) * self.schedule.world


def _by_slices(
    nbytes: float, slices_of: Callable[[float], Sequence[int]], most: int, run: Callable[[float], Outcome]
) -> Outcome:
    """All of it, or where that would be too many slices, by the line through two smaller vectors.

    In a long pipeline every further slice takes the same time. The smaller vectors have slices of the same size.
    """
    counts = slices_of(nbytes)
    longest = max(counts)
    fewer = _fewer(counts, most)
    if fewer == longest:
        return run(nbytes)
    large, small = run(nbytes * fewer / longest), run(nbytes * fewer / 2 / longest)
    times = (longest - fewer) / (fewer / 2)

    def beyond(more: float, less: float) -> float:
        return more + (more - less) * times

    return Outcome(
        beyond(large.seconds, small.seconds),
        tuple(map(beyond, large.finished, small.finished)),
        tuple(map(beyond, large.work, small.work)),
        tuple(map(beyond, large.sent, small.sent)),
        extrapolated=True,
    )


def _fewer(counts: Sequence[int], most: int) -> int:
    """Slices of the longest row in a vector that stands for a longer one; every row keeps some."""
    longest = max(counts)
    least = MULTIPLE * -(-longest // min(counts))
    wanted = min(LONGEST_MAX, int(longest * most / sum(counts))) // MULTIPLE * MULTIPLE
    return min(longest, max(least, wanted))


def simulate(schedule: Schedule, nbytes: float, cluster: Cluster, *, arrays: bool | None = None) -> Outcome:
    """The time ``schedule`` takes for a vector of ``nbytes`` on ``cluster``, if all ranks enter at once.

    For several sizes a Simulator writes the rows down once.

    Raises:
        ScheduleError: the cluster has another number of ranks; or too large, see Simulator.run.
    """
    return Simulator(schedule, tuple(cluster.sizes)).run(nbytes, cluster, arrays=arrays)
