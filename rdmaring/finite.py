"""``check="finite"``: the first NaN or infinity in any rank's input, agreed on before the operation runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rdmaring._native import check, ffi, lib
from rdmaring.buffers import CODE_BY_NAME, FLOAT_CODES, NAME_BY_CODE, Vector, as_vector
from rdmaring.errors import NonFiniteError, UnsupportedError
from rdmaring.plan import NativePlan, Shape

if TYPE_CHECKING:
    from rdmaring.running import Runner

INDEX_BITS = 48  # of what is agreed on: above them stands the rank
NOWHERE = int(np.iinfo(np.int64).max)
UNSEEN = -(1 << INDEX_BITS)  # and the rank: it holds a vector that is not looked at
AGREEMENT = Shape("all_reduce", 1, CODE_BY_NAME["int64"], 8, op="min")


def refuse(comm: Runner, collective: str, given: Vector) -> None:
    """Collective: every rank of the operation calls it.

    Raises:
        NonFiniteError: some rank's vector holds a NaN or an infinity; the same on every rank, which goes on.
        UnsupportedError: some rank's vector is in GPU memory; on every rank, too, whatever it gave.
    """
    if given.code not in FLOAT_CODES:
        return
    told = _least(comm, _place(comm.rank, given))
    if told == NOWHERE:
        return
    if told < 0:
        raise UnsupportedError(
            f"check='finite' in {collective}: rank {told - UNSEEN}'s vector is in GPU memory; accepted are vectors in "
            "host memory",
            hint="leave check= out for it, or look for what is not finite with the array's own library",
            rank=comm.rank,
            peer=told - UNSEEN,
            collective=collective,
        )
    rank, index = divmod(told, 1 << INDEX_BITS)
    error = NonFiniteError(
        f"{collective} of {given.count} {NAME_BY_CODE[given.code]} elements: element {index} of rank {rank}'s input is "
        "a NaN or an infinity",
        hint="nothing was changed; look at what that rank computed before this call",
        rank=comm.rank,
        peer=rank,
        collective=collective,
    )
    error.index = index
    raise error


def _place(rank: int, given: Vector) -> int:
    """What this rank has to tell: the least of all ranks' is raised."""
    if given.gpu is not None:
        return UNSEEN + rank
    found = _first(given)
    return NOWHERE if found is None else rank << INDEX_BITS | found


def _least(comm: Runner, mine: int) -> int:
    """Of all ranks', by host memory, wherever the communicator's vectors are."""
    place = np.array([mine])
    vector = as_vector(place, "place", writable=True)
    if comm._agreement is None:
        comm._agreement = NativePlan(comm, AGREEMENT, on_host=True)
    comm._run_here(comm._agreement, vector, vector, vector, False, None)
    return int(place[0])


def _first(given: Vector) -> int | None:
    """Counted over all pieces."""
    before, size = 0, given.dtype.itemsize
    index = ffi.new("int64_t *")
    for piece in given.pieces:
        count = len(piece) // size
        check(lib.rr_first_nonfinite(given.code, piece, count, index))
        if index[0] >= 0:
            return before + int(index[0])
        before += count
    return None
