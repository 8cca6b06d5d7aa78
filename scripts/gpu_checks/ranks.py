"""What one rank does for the collectives part: all dtypes and reductions against numpy; run by ``rdmaring run``.

Values are small integers: every sum, product, minimum and maximum is exact in every dtype and in any order, so any
difference is a fault. Fractions are added, too, for the float dtypes, against float64 with the bound of their epsilon.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import rdmaring as rr

REDUCTIONS = ("sum", "prod", "min", "max", "avg")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64", "float16", "bfloat16")
COUNTS = (1, 1003, 70_000)
SEED = 20


def dtype_of(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def expected(op: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """In float64; the values are small integers, or fractions for sums."""
    if op == "avg":
        return values.sum(0) / len(values)
    return {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}[op](values, axis=0)


def compare(comm: Any, name: str, op: str, count: int, fractions: bool) -> dict[str, Any]:
    """One all_reduce in place; wrong: elements that differ by more than the bound."""
    dtype = dtype_of(name)
    random = np.random.default_rng(SEED)
    every = random.random((comm.size, count)) if fractions else random.integers(1, 4, (comm.size, count))
    values = every.astype(dtype).astype(np.float64)
    array = comm.empty(count, dtype, device="cuda")
    array.copy_from_host(values[comm.rank].astype(dtype))
    comm.all_reduce(array, op=op)
    got = array.copy_to_host().astype(np.float64)
    wanted = expected(op, values)
    if op == "avg" or fractions:
        step = 2.0 ** -{"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[name]
        bad = np.abs(got - wanted) > comm.size * step * np.abs(wanted)
    else:
        bad = got != wanted.astype(dtype).astype(np.float64)
    return {"dtype": name, "op": op, "count": count, "fractions": fractions, "wrong": int(bad.sum())}


def main() -> None:
    dtypes = sys.argv[1].split(",")
    rows = []
    with rr.init(device="cuda") as comm:
        for name in dtypes:
            for op in REDUCTIONS:
                if op == "avg" and name in INTEGERS:
                    continue
                for count in COUNTS:
                    rows.append(compare(comm, name, op, count, False))
            if name in FLOATS:
                rows.append(compare(comm, name, "sum", COUNTS[-1], True))
        links = [str(link) for link in comm.links]
        rank = comm.rank
    print("ROWS " + json.dumps({"rank": rank, "rows": rows, "links": links}), flush=True)


if __name__ == "__main__":
    main()
