"""What the progress page costs: at most two stores a tiny operation and one a slice, counted by the processor."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest
from worlds import run_world

HERE = Path(__file__).parent
# Lines of the page, as page.h pictures them: 1 bell and sleep, 2 position, 3-4 entries, 5-20 OPENs, 21-22 waiting.
COUNTED = """
import ctypes, re
comm = rr.init(timeout_s=60)
watch = ctypes.CDLL(os.environ["PAGE_STORES"])
maps = open("/proc/self/maps").read()
begins = [int(m[1], 16) for m in re.finditer("^([0-9a-f]+)-.* 0+ .*memfd:rdmaring-segment", maps, re.M)]
page = next(at for at in begins if int.from_bytes(ctypes.string_at(at + 16, 4), "little") == comm.rank)
def counted(call, times):
    for _ in range(20):
        call()
    lines = (ctypes.c_uint64 * 64)()
    watch.watch_begin(ctypes.c_void_p(page))
    for _ in range(times):
        call()
    watch.watch_end(lines)
    return list(lines)
tiny, large = np.ones(2), comm.empty(1 << 19, np.float32)
say(tiny=counted(lambda: comm.all_reduce(tiny), 200))
say(large=counted(lambda: comm.all_reduce(large, algorithm="ring"), 20))
comm.barrier()
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="no single step by a flag on this processor")
def test_two_stores_a_tiny_operation_and_one_a_slice(tmp_path: Path) -> None:
    library = tmp_path / "page_stores.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(HERE / "page_stores.c")], check=True)
    ran = run_world(2, COUNTED, tmp_path, env={"PAGE_STORES": str(library)})
    assert ran.code == 0, ran.output
    for rank in range(2):
        tiny, large = ran.of(rank, "tiny"), ran.of(rank, "large")
        # entry and end, whatever else happens: 400 stores of 200 operations
        assert sum(tiny[2:21]) == 2 * 200, tiny
        # 2 MiB in two chunks, each of 4 slices of 256 KiB: reduced, then landed
        slices = 20 * 8
        assert large[2] - 20 <= slices, large  # position by slice, end by operation
        assert sum(large[3:5]) == 20, large
        assert sum(large[5:21]) <= 20 * 8, large  # one OPEN an operation: op, hash and three places
        # what it waits in is written when it looks around, not by slice
        assert sum(large[21:23]) <= slices, large
