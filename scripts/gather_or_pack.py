#!/usr/bin/env python3
"""Lists over TCP: from which size of array on is a slice better sent from where its pieces lie than packed first?

    scripts/hosts --hosts 2 -- python scripts/gather_or_pack.py
    rdmaring run -n 2 scripts/gather_or_pack.py --apart --json

A link sends a slice of up to 16 pieces from where they lie; more are copied side by side first (RR_PIECES_MAX in
native/src/link.h). So with slots of 16 E bytes a list of arrays of E bytes is gathered, and one of arrays a sixteenth
smaller is packed, though there is hardly a difference otherwise. For each E both are all-reduced in turn, by plans, on
a communicator with such slots; a time is the median of the slowest rank's. Results are checked.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import numpy as np

import rdmaring as rr
from rdmaring.bench.measure import batch_s, calls_of, largest
from rdmaring.bench.sizes import SizesError, parse_sizes

PIECES_MAX = 16  # RR_PIECES_MAX
SLICE_BYTES_MAX = 256 << 10
UNIT = 256  # slots are multiples of 4096 bytes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extents", default="256:16K", help="bytes of an array, multiples of 256 (default: 256:16K)")
    parser.add_argument("--bytes", default="4M", help="of the whole list, rounded up to whole slices (default: 4M)")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--apart", action="store_true", help="every rank a node of its own, on one machine")
    parser.add_argument("--json", action="store_true", help="one document a line")
    given = parser.parse_args()
    try:
        given.extents, (given.bytes,) = parse_sizes(given.extents), parse_sizes(given.bytes)
    except (SizesError, ValueError) as error:
        parser.error(str(error))
    for extent in given.extents:
        if extent % UNIT or extent * PIECES_MAX > SLICE_BYTES_MAX:
            most = SLICE_BYTES_MAX // PIECES_MAX
            parser.error(f"--extents: {extent}; accepted are multiples of {UNIT} up to {most}")
    return given


def arrays_of(nbytes: int, extent: int) -> list[np.ndarray[Any, Any]]:
    """Arrays of ``extent`` bytes, each an allocation of its own; the last one is the rest."""
    whole, rest = divmod(nbytes, extent)
    return [np.empty(size // 4, np.float32) for size in [extent] * whole + [rest] * (rest > 0)]


def plan_of(comm: rr.Communicator, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """A plan, after one call on data whose sum is known."""
    plan = comm.plan_all_reduce(arrays, algorithm="ring")
    for at, array in enumerate(arrays):
        array[:] = at % 1000 + comm.rank
    plan()
    for at, array in enumerate(arrays):
        if not (array == at % 1000 * comm.size + comm.size * (comm.size - 1) / 2).all():
            raise SystemExit("gather_or_pack: a sum is wrong")
        array[:] = 0
    return plan


def measured(extent: int, wanted: int, rounds: int) -> tuple[int, dict[str, Any]]:
    """This rank's number, and the times for arrays of ``extent`` bytes."""
    slot_bytes = extent * PIECES_MAX
    os.environ["RDMARING_SLOT_BYTES"] = str(slot_bytes)
    with rr.init() as comm:
        each = slot_bytes * comm.size  # every rank's chunk is whole slices
        nbytes = -(-wanted // each) * each
        smaller = slot_bytes // (PIECES_MAX + 1) // 4 * 4
        plans = {"gather": plan_of(comm, arrays_of(nbytes, extent)), "pack": plan_of(comm, arrays_of(nbytes, smaller))}
        calls = calls_of(comm, plans["gather"])
        times_s: dict[str, list[float]] = {way: [] for way in plans}
        for _ in range(rounds):
            for way, plan in plans.items():
                times_s[way].append(batch_s(comm, plan, calls))
        medians = {way: float(np.median(largest(comm, times))) * 1e6 for way, times in times_s.items()}
        return comm.rank, {
            "extent_bytes": extent,
            "slice_bytes": slot_bytes,
            "list_bytes": nbytes,
            "ranks": comm.size,
            "gather_us": round(medians["gather"], 1),
            "pack_us": round(medians["pack"], 1),
            "pack_over_gather": round(medians["pack"] / medians["gather"], 3),
            "transport": sorted({link.transport for link in comm.links}),
        }


def main() -> int:
    given = arguments()
    if given.apart:
        os.environ["RDMARING_HOST_ID"] = f"node-{os.environ.get('RDMARING_RANK', '0')}"
    for extent in given.extents:
        rank, found = measured(extent, given.bytes, given.rounds)
        if rank:
            continue
        if given.json:
            print(json.dumps(found), flush=True)
            continue
        if extent == given.extents[0]:
            where = f"{found['ranks']} ranks over {', '.join(found['transport'])}"
            print(f"# {where}; us a call; above 1 gathering is faster")
            print(f"#{'array (B)':>11}{'gather':>12}{'pack':>12}{'pack/gather':>14}")
        print(f"{extent:>12}{found['gather_us']:>12}{found['pack_us']:>12}{found['pack_over_gather']:>14}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
