"""A barrier that tells who is missing, by the group's store: no rank needs another's links for it."""

from __future__ import annotations

import time
from datetime import timedelta

from rdmaring.errors import OperationTimeoutError
from rdmaring.torch.group import Group


def monitored(group: Group, limit_s: float, wait_all_ranks: bool) -> None:
    """Return when all ranks have called it. Rank 0 looks for the others; they wait for its word.

    wait_all_ranks: name all missing ranks in place of the first.

    Raises:
        OperationTimeoutError: on rank 0 with the missing ranks, on the others with rank 0's silence.
    """
    group.barriers += 1
    prefix = f"rdmaring-barrier/{group.barriers}"
    deadline = time.monotonic() + limit_s
    if group.rank:
        group.store.set(f"{prefix}/{group.rank}", b"1")
        if not _came(group, f"{prefix}/all", deadline):
            raise OperationTimeoutError(
                f"Rank {group.rank} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0: no word of it in {limit_s * 1000:.0f} ms",
                hint="see that rank's own output: it names whom it waits for, or it has not come here",
                rank=group.rank,
                peer=0,
            )
        return
    if limit_s <= 0:
        raise OperationTimeoutError(
            f"Rank 0 timed out in monitoredBarrier after {limit_s * 1000:.0f} ms: no time was left to wait for others",
            hint="give a timeout above 0",
            rank=0,
        )
    missing = []
    for rank in range(1, group.size):
        if not _came(group, f"{prefix}/{rank}", deadline):
            missing.append(rank)
            if not wait_all_ranks:
                break
    if missing:
        ranks = ", ".join(map(str, missing))
        noun = "Ranks" if len(missing) > 1 else "Rank"
        raise OperationTimeoutError(
            f"[Rank 0]: {noun} {ranks} failed to pass monitoredBarrier in {limit_s * 1000:.0f} ms",
            hint="see the output of the ranks named: they are late, or never come here",
            rank=0,
            peer=missing[0],
        )
    group.store.set(f"{prefix}/all", b"1")


def _came(group: Group, key: str, deadline: float) -> bool:
    left_s = max(0.001, deadline - time.monotonic())
    try:
        group.store.wait([key], timedelta(seconds=left_s))
    except Exception:  # each store has its own; it has no word for "not yet"
        return bool(group.store.check([key]))
    return True
