"""How long a schedule takes on a described cluster: events for any schedule, arrays for thousands of ranks.

    schedule = generate("all_reduce", "ring", 64)
    simulate(schedule, 1 << 20, Cluster.even(costs, 64, 8)).seconds

docs/SIMULATE.md states the model. ``rdmaring.schedule.cost`` has the same times in closed form.
"""

from __future__ import annotations

from collections.abc import Callable

from rdmaring.schedule.cluster import Cluster
from rdmaring.schedule.rows import Schedule, ScheduleError
from rdmaring.schedule.simulate_arrays import ArrayRun
from rdmaring.schedule.simulate_events import EventRun, Outcome, slice_counts
from rdmaring.schedule.simulate_pattern import Irregular, Pattern, find_pattern
from rdmaring.schedule.simulate_table import Table, tabulate

__all__ = ["Cluster", "Outcome", "Simulator", "simulate"]

EVENTS_MAX = 200_000  # slices of all rows that are simulated one by one
EVENT_ROWS_MAX = 250_000
PERIOD_MAX = 256  # ranks that may differ before the same ones come again
ARRAY_SLICES_MAX = 20_000  # rows of one rank times their slices


class Simulator:
    """A schedule ready to be simulated, on several clusters of equal shape and for several sizes."""

    def __init__(self, schedule: Schedule, sizes: tuple[int, ...]) -> None:
        """sizes: the number of ranks of each node.

        Raises:
            ScheduleError: sizes do not add up to the schedule's world.
        """
        if sum(sizes) != schedule.world:
            raise ScheduleError(f"nodes have {sum(sizes)} ranks, the schedule {schedule.world}")
        self.schedule, self.sizes = schedule, sizes
        self._table: Table | None = None
        self._pattern: Pattern | None = None
        self._irregular: str | None = None

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

    def run(self, nbytes: float, cluster: Cluster, *, arrays: bool | None = None) -> Outcome:
        """Simulate a vector of ``nbytes``, counted as in ``cost.predict``.

        arrays: all ranks at once (True), event by event (False), or whichever suits the size (None).

        Raises:
            ScheduleError: the cluster has other nodes; too large for events, and not regular enough for arrays.
        """
        if self.schedule.collective == "all_to_all":  # its grid holds what all ranks have
            nbytes *= self.schedule.world
        if tuple(cluster.sizes) != self.sizes:
            raise ScheduleError(f"the schedule is for nodes of {self.sizes[:8]} ranks, not {tuple(cluster.sizes)[:8]}")
        if arrays is None:
            arrays = self._rows() > EVENT_ROWS_MAX
        if not arrays:
            table = self.table()
            return _by_slices(
                nbytes,
                lambda part: sum(slice_counts(table, part, cluster.costs.slice_bytes)),
                EVENTS_MAX,
                lambda part: EventRun(table, part, cluster).run(),
            )
        pattern = self.pattern()
        if pattern is None:
            raise ScheduleError(
                f"{self.schedule.algorithm} of {self.schedule.world} ranks is too large to be simulated one by one, "
                f"and not regular: {self._irregular}; take fewer ranks, or the closed form"
            )
        return _by_slices(
            nbytes,
            lambda part: sum(map(ArrayRun(pattern, part, cluster).slices, pattern.steps)),
            ARRAY_SLICES_MAX,
            lambda part: ArrayRun(pattern, part, cluster).run(),
        )

    def _rows(self) -> int:
        return len(self.schedule.make_rows(0)) * self.schedule.world


def _by_slices(nbytes: float, slices_of: Callable[[float], int], most: int, run: Callable[[float], Outcome]) -> Outcome:
    """All of it, or where that would be too many slices, by the line through two smaller vectors.

    In a long pipeline every further slice takes the same time.
    """
    slices = slices_of(nbytes)
    if slices <= most or slices == slices_of(nbytes / 2):
        return run(nbytes)
    part = nbytes * most / slices
    large, small = run(part), run(part / 2)
    times = (nbytes - part) / (part / 2)

    def beyond(more: float, less: float) -> float:
        return more + (more - less) * times

    return Outcome(
        beyond(large.seconds, small.seconds),
        tuple(map(beyond, large.finished, small.finished)),
        tuple(map(beyond, large.work, small.work)),
        tuple(map(beyond, large.sent, small.sent)),
        extrapolated=True,
    )


def simulate(schedule: Schedule, nbytes: float, cluster: Cluster, *, arrays: bool | None = None) -> Outcome:
    """The time ``schedule`` takes for a vector of ``nbytes`` on ``cluster``, if all ranks enter at once.

    For several sizes a Simulator writes the rows down once.

    Raises:
        ScheduleError: the cluster has another number of ranks; or too large, see Simulator.run.
    """
    return Simulator(schedule, tuple(cluster.sizes)).run(nbytes, cluster, arrays=arrays)
