"""The order in which a ring visits the ranks.

A ring's recipe counts places 0, 1, 2, ...; with an order, place p is rank ``order[p]``, and chunks p, N + p, ... belong
to that rank, too. So every statement about a ring holds for any order: bytes, steps, and that rank r ends with chunk r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rdmaring.schedule.rows import Receive, Recipe, Row, ScheduleError, Send


def check_order(order: Sequence[int], world: int) -> tuple[int, ...] | None:
    """The order as it is compared: turned so that rank 0 comes first, which changes no row. None: 0, 1, ..., N - 1.

    Raises:
        ScheduleError: it is not a permutation of the ranks.
    """
    if sorted(order) != list(range(world)):
        raise ScheduleError(f"order must name each rank 0..{world - 1} once, not {','.join(map(str, order)) or 'none'}")
    begin = list(order).index(0)
    turned = (*order[begin:], *order[:begin])
    return None if turned == tuple(range(world)) else turned


def in_order(recipe: Recipe, order: Sequence[int]) -> Recipe:
    """``recipe``, whose ranks and chunks are places, for the ranks that stand at those places."""
    place_of = {rank: place for place, rank in enumerate(order)}
    world = len(order)
    assert recipe.chunk_count == 1 or recipe.chunk_count % world == 0

    def moved(row: Row) -> Row:
        begin, end = row.chunk_begin, row.chunk_end
        if recipe.chunk_count > 1:  # else the vector is one chunk, which is nobody's
            assert end == begin + 1, "chunks of several ranks do not stay neighbours"
            begin = begin // world * world + order[begin % world]
            end = begin + 1
        return replace(
            row,
            chunk_begin=begin,
            chunk_end=end,
            receives=tuple(Receive(order[peer], source) for peer, source in row.receives),
            sends=tuple(Send(order[peer], lands) for peer, lands in row.sends),
        )

    return replace(
        recipe,
        rows=lambda rank: [moved(row) for row in recipe.rows(place_of[rank])],
        sent=lambda rank: recipe.sent(place_of[rank]),
    )
