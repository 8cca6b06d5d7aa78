"""Memory of ours and of others, on the simulated driver: allocations, pinned slices, handles between processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from cuda_sim.child import child_environment

IPC_OWNER = """
import sys
import numpy as np
from rdmaring.cuda.array import DeviceArray
from rdmaring.cuda.context import device
from rdmaring.cuda import ipc
where = device(0)
array = DeviceArray(where, (1 << 20,), np.dtype(np.float32)).copy_from_host(np.arange(1 << 20))
while line := sys.stdin.readline().split():
    if line[0] == "export":
        offset = int(line[1])
        print(ipc.export(where, array.address + offset, array.nbytes - offset).pack().hex(), flush=True)
    if line[0] == "again":
        before = array.address
        del array
        array = DeviceArray(where, (1 << 20,), np.dtype(np.float32)).copy_from_host(-np.arange(1 << 20))
        print(array.address == before, flush=True)
"""


def child(source: str, tmp_path: Path, *arguments: str, **settings: Any) -> None:
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(source))
    line = [sys.executable, str(script), *arguments]
    done = subprocess.run(line, env=child_environment(**settings), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_slices_of_pinned_memory_are_not_used_too_early(tmp_path: Path) -> None:
    """Sizes around the slice and the number of slices; the copies are late on purpose."""
    child(
        """
        import numpy as np
        from rdmaring.cuda.context import device
        from rdmaring.cuda.memory import STAGE_BYTES, STAGE_COUNT, Allocation, staging
        where, rng = device(0), np.random.default_rng(1)
        for nbytes in (1, STAGE_BYTES - 1, STAGE_BYTES, STAGE_BYTES + 1, (STAGE_COUNT + 2) * STAGE_BYTES + 17):
            memory = Allocation(where, nbytes)
            source = rng.integers(0, 256, nbytes).astype(np.uint8)
            expected = source.copy()
            staging(where).upload(memory.address, source)
            source[:] = 0  # it may be changed when upload() has returned
            got = np.zeros(nbytes, np.uint8)
            staging(where).download(got, memory.address)
            assert np.array_equal(got, expected), nbytes
        """,
        tmp_path,
        seed=3,
        delay_us=3000,
    )


def test_allocations_are_whole_blocks_and_zeroed(tmp_path: Path) -> None:
    child(
        """
        import numpy as np
        from rdmaring.cuda.context import device
        from rdmaring.cuda.driver import call
        from rdmaring.cuda.memory import BLOCK_BYTES, Allocation, memory_capability, range_of, staging
        where = device(0)
        for nbytes in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1):
            memory = Allocation(where, nbytes)
            base, held = range_of(where, memory.address + max(0, nbytes - 1))
            assert base == memory.address and held == max(1, -(-nbytes // BLOCK_BYTES)) * BLOCK_BYTES
            assert memory_capability(where, memory.address, nbytes).ipc
            got = np.ones(nbytes, np.uint8)
            if nbytes:
                staging(where).download(got, memory.address)
            assert not got.any()
            assert int(call("cuCtxGetCurrent")) == 0, "the thread's context is left alone"
        """,
        tmp_path,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"variables": {"RDMARING_CUDA_IPC": "0"}}, "RDMARING_CUDA_IPC=0"),
        ({"attributes": {"INTEGRATED": 1}}, "is integrated"),
        ({"others": {"MIG": 1}}, "is a MIG instance"),
        ({}, ""),
    ],
)
def test_why_a_device_has_no_ipc(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    child(
        """
        import sys
        from rdmaring.cuda.context import device
        from rdmaring.cuda.memory import device_capability
        able = device_capability(device(0))
        assert able.ipc == (not sys.argv[1]) and sys.argv[1] in able.reason, able
        """,
        tmp_path,
        words,
        **settings,
    )


def test_handles_between_processes(tmp_path: Path) -> None:
    """Base and offset; opened once; the same address again after the owner has freed it; the process's own."""
    (tmp_path / "owner.py").write_text(IPC_OWNER)
    child(
        """
        import subprocess, sys
        import numpy as np
        from rdmaring.cuda import ipc
        from rdmaring.cuda.context import device
        from rdmaring.cuda.memory import staging
        pipe = subprocess.PIPE
        owner = subprocess.Popen([sys.executable, sys.argv[1]], stdin=pipe, stdout=pipe, text=True)

        def ask(line):
            owner.stdin.write(line + chr(10))
            owner.stdin.flush()
            return owner.stdout.readline().strip()

        where = device(0)
        opened = ipc.Opened(where)
        first, second = (ipc.Place.unpack(bytes.fromhex(ask(f"export {offset}"))) for offset in (0, 4096))
        assert first.base == second.base and second.offset == 4096 and first.buffer_id == second.buffer_id
        got = np.zeros(1024, np.float32)
        at = opened.address_of(second)
        staging(where).download(got.view(np.uint8), at)
        assert np.array_equal(got, np.arange(1024, 2048)), got
        assert opened.address_of(first) == at - 4096 and len(opened) == 1
        opened.close_process(first.pid, first.start)  # the owner may free it now
        assert len(opened) == 0
        ask("again")
        third = ipc.Place.unpack(bytes.fromhex(ask("export 0")))
        assert third.buffer_id != first.buffer_id
        staging(where).download(got.view(np.uint8), opened.address_of(third))
        assert np.array_equal(got, -np.arange(1024)), got
        stale = ipc.Place(third.pid, third.start, third.buffer_id + 1000, third.base, 0, 4096, third.handle)
        opened.address_of(stale)  # another buffer id at the base: the old mapping is closed first
        assert len(opened) == 1
        opened.close()
        owner.stdin.close()
        assert owner.wait() == 0
        """,
        tmp_path,
        str(tmp_path / "owner.py"),
    )


def test_a_place_of_this_process_is_not_opened(tmp_path: Path) -> None:
    child(
        """
        from rdmaring.cuda import ipc
        from rdmaring.cuda.context import device
        from rdmaring.cuda.memory import Allocation
        where = device(0)
        memory = Allocation(where, 100)
        opened = ipc.Opened(where)
        assert opened.address_of(ipc.export(where, memory.address + 8, 50)) == memory.address + 8
        assert len(opened) == 0
        try:
            ipc.export(where, memory.address, 3 << 20)
        except ipc.CudaError as error:
            assert "span several allocations" in str(error)
        else:
            raise AssertionError
        """,
        tmp_path,
    )


def test_a_forked_child_is_told(tmp_path: Path) -> None:
    child(
        """
        import os
        from rdmaring.cuda.context import device
        from rdmaring.cuda.memory import Allocation
        from rdmaring.errors import CudaError
        memory = Allocation(device(0), 100)
        pid = os.fork()
        if not pid:
            del memory  # no call of the driver, no warning
            try:
                Allocation(device(0), 1)
            except CudaError as error:
                os._exit(0 if "before this process was forked" in str(error) and "spawn" in error.hint else 1)
            os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        tmp_path,
    )
