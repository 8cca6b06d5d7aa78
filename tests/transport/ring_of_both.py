"""One rank of a job in which rank 1 is the reference and the others are C: both make the same all-reduces.

Arguments are those of ``python -m rdmaring.transport.reference``. REFERENCE_PYTHON: which interpreter runs that, with
REFERENCE_PATH for what it imports.
"""

from __future__ import annotations

import json
import os
import sys
import zlib

if os.environ["RDMARING_RANK"] == "1" and "REFERENCE_PYTHON" in os.environ:
    interpreter = os.environ["REFERENCE_PYTHON"]
    found = {"PYTHONPATH": os.environ["REFERENCE_PATH"]}
    os.execve(interpreter, [interpreter, "-m", "rdmaring.transport.reference", *sys.argv[1:]], {**os.environ, **found})

import numpy as np

import rdmaring as rr
from rdmaring.transport import reference


def main() -> int:
    """The exit status: 1 where a sum is wrong."""
    rank = int(os.environ["RDMARING_RANK"])
    if rank == 1:
        return reference.main()
    given = reference.arguments_of(None)
    wrong = 0
    with rr.init(timeout_s=given.timeout) as comm:
        for name in given.dtype:
            for count in given.count:
                dtype = reference.dtype_named(name)
                for round_ in range(given.rounds):
                    x = comm.empty(count, dtype) if round_ % 2 else np.empty(count, dtype)
                    x[:] = reference.values(rank, round_, count, dtype)
                    comm.all_reduce(x, algorithm=given.algorithm or reference.algorithm_for(x.nbytes))
                    wrong += reference.wrong_in(x, round_, comm.size)
                line = {"dtype": name, "count": count, "crc32": zlib.crc32(x.tobytes()), "wrong": wrong}
                print("SAY " + json.dumps({f"{name} {count}": line}), flush=True)
        comm.barrier()
        print("SAY " + json.dumps({"transports": sorted({link.transport for link in comm.links})}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    if "RDMARING_HOST_ID" not in os.environ:
        os.environ["RDMARING_HOST_ID"] = f"node-{os.environ['RDMARING_RANK']}"
    sys.exit(main())
