"""A schedule in several channels: disjoint parts of the vector, each with its own instance of the rows.

The rows are copied, row by row, over a grid that is as many times as fine; each copy names its channel. A channel has
links of its own where an edge between nodes has several (sockets, queue pairs, rails), else all share one: ``verify``
proves the schedule for one link a peer, which is the stricter case, so any mapping of channels to links is proven.

Where chunk r belongs to rank r (reduce_scatter, all_gather) each chunk is cut, and channel k is the k-th piece of every
chunk; else channel k is one interval of the vector, cut in as many chunks as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rdmaring.schedule.deps import with_after
from rdmaring.schedule.rows import CHANNELS_MAX, Buffer, Recipe, Row, Schedule, ScheduleError, identity_of

# Collectives whose parts are all cut alike: of the others a part belongs to a pair of ranks.
CUT = frozenset(("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"))
PER_RANK = frozenset(("reduce_scatter", "all_gather"))


def check_channels(channels: int, collective: str) -> None:
    """Raise ScheduleError unless ``collective`` can run in so many channels."""
    if isinstance(channels, bool) or not isinstance(channels, int) or not 1 <= channels <= CHANNELS_MAX:
        raise ScheduleError(f"channels must be in 1..{CHANNELS_MAX}, not {channels!r}")
    if channels > 1 and collective not in CUT:
        raise ScheduleError(f"{collective} is not cut into channels; channels must be 1, not {channels}")


def channels_of(collective: str, channels: int) -> int:
    """How many channels serve a collective where so many are the default."""
    return channels if collective in CUT else 1


def in_channels(recipe: Recipe, channels: int, *, per_rank: bool = False) -> Recipe:
    """``recipe`` in ``channels`` channels: chunks, cells and the window are so many times as many.

    per_rank: chunk r belongs to rank r. Rows of several chunks then become as many rows.
    """
    if channels == 1:
        return recipe
    wide = per_rank and any(row.chunk_end - row.chunk_begin > 1 for row in recipe.rows(0))
    copy = _pieces if per_rank else _intervals(recipe.chunk_count)
    return replace(
        recipe,
        chunk_count=recipe.chunk_count * channels,
        window=recipe.window * channels * (recipe.chunk_count if wide else 1),
        scratch_cells=recipe.scratch_cells * channels,
        weights=_weights(recipe.weights, channels, per_rank),
        rows=lambda rank: [copied for row in recipe.rows(rank) for copied in copy(row, channels)],
    )


def schedule_in_channels(schedule: Schedule, channels: int) -> Schedule:
    """A whole schedule in ``channels`` channels, with an identity of its own.

    Raises:
        ScheduleError: its rows name channels already, or cannot be cut.
    """
    check_channels(channels, schedule.collective)
    if channels == 1:
        return schedule

    def rows(rank: int) -> Sequence[Row]:
        found = schedule.rows(rank)
        if any(row.channel for row in found):
            raise ScheduleError("its rows name channels already: pass it without channels=", rank=rank)
        return found

    recipe = in_channels(
        Recipe(
            schedule.chunk_count,
            schedule.step_count,
            schedule.window,
            schedule.scratch_cells,
            rows,
            schedule.make_sent,
            schedule.weights,
        ),
        channels,
        per_rank=schedule.collective in PER_RANK,
    )
    return replace(
        schedule,
        chunk_count=recipe.chunk_count,
        window=recipe.window,
        scratch_cells=recipe.scratch_cells,
        weights=recipe.weights,
        identity=identity_of(f"{schedule.identity:016x}{identity_suffix(channels)}"),
        make_rows=lambda rank: with_after(recipe.rows(rank)),
        _cache={},
    )


def identity_suffix(channels: int) -> str:
    """What the text of an identity tells of channels; nothing of one, so that identities without channels stay."""
    return "" if channels == 1 else f"/channels={channels}"


def _weights(weights: tuple[int, ...] | None, channels: int, per_rank: bool) -> tuple[int, ...] | None:
    if weights is None:
        return None
    return tuple(weight for weight in weights for _ in range(channels)) if per_rank else weights * channels


def _copied(row: Row, channels: int, channel: int, begin: int, end: int) -> Row:
    return replace(
        row,
        chunk_begin=begin,
        chunk_end=end,
        cell=row.cell * channels + channel if row.buffer is Buffer.SCRATCH else 0,
        operand_cell=row.operand_cell * channels + channel if row.operand is Buffer.SCRATCH else 0,
        channel=channel,
        after=(),
    )


def _intervals(chunk_count: int) -> Callable[[Row, int], Iterator[Row]]:
    def copy(row: Row, channels: int) -> Iterator[Row]:
        for channel in range(channels):
            first = channel * chunk_count
            yield _copied(row, channels, channel, first + row.chunk_begin, first + row.chunk_end)

    return copy


def _pieces(row: Row, channels: int) -> Iterator[Row]:
    if row.chunk_end - row.chunk_begin > 1 and row.cells:
        raise ScheduleError("a row of several chunks in a cell of scratch is not cut into channels")
    for chunk in range(row.chunk_begin, row.chunk_end):
        for channel in range(channels):
            piece = chunk * channels + channel
            yield _copied(row, channels, channel, piece, piece + 1)
