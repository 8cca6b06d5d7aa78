"""Going on after a failure: survivors agree on who they are, and meet again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a communicator that ``shrink()`` returned came from.

    old_ranks: of each of its ranks, the rank in the communicator that was lost.
    last_common_op: the number of the last operation of that one that had ended on all of these ranks; the caller
        replays from there. A rank may have finished later ones: compare with its ``comm.last.op``.
    lost: ranks of the old communicator that are not in this one.
    """

    old_ranks: tuple[int, ...]
    last_common_op: int
    lost: tuple[int, ...]
