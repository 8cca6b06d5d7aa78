"""What people without a GPU, a driver or cuda-python see: nothing, until they ask for one; then what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from rdmaring.cuda import attach, blocks, context, ipc
from rdmaring.cuda.inputs import stream_handle
from rdmaring.errors import ArgumentError, ArgumentTypeError
from rdmaring.work import GPU_RECORD_BYTES

FAKE = """
class Fake:
    shape, dtype = (4,), "float32"
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}
"""


def child(source: str, tmp_path: Path, **env: str) -> dict[str, str]:
    """What a program prints as its last line, in JSON."""
    script = tmp_path / "child.py"
    script.write_text("import json, sys\nimport numpy as np\nimport rdmaring as rr\n" + textwrap.dedent(source))
    # A machine with a driver has it not in this child: an empty libcuda.so.1 is no library.
    (tmp_path / "libcuda.so.1").touch()
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_host_arrays_import_nothing_of_cuda(tmp_path: Path) -> None:
    said = child(
        """
        with rr.init() as comm:
            comm.all_reduce(np.ones(1 << 16, np.float32))
            comm.all_reduce([np.ones(4), np.ones(5)])
            comm.all_reduce(memoryview(bytearray(8)))
            comm.empty(4)
            comm.links
        print(json.dumps([name for name in sys.modules if "cuda" in name or name == "rdmaring.gpu"]))
        """,
        tmp_path,
    )
    assert said == []


CALLS = ["comm.all_reduce(Fake())", "comm.empty(4, device='cuda')", "rr.init(device='cuda:0')"]


@pytest.mark.parametrize("call", CALLS)
def test_no_driver_says_what_to_install(call: str, tmp_path: Path) -> None:
    said = child(
        FAKE
        + f"""
with rr.init() as comm:
    try:
        {call}
    except rr.CudaError as error:
        print(json.dumps({{"cause": error.cause, "hint": error.hint}}))
""",
        tmp_path,
    )
    assert said["cause"].startswith("the CUDA driver, libcuda.so.1, cannot be loaded")
    assert "NVIDIA's driver" in said["hint"] and "--gpus" in said["hint"]


def test_no_cuda_python_says_what_to_install(tmp_path: Path) -> None:
    said = child(
        FAKE
        + """
sys.modules["cuda"] = None
with rr.init() as comm:
    try:
        comm.all_reduce(Fake())
    except rr.CudaError as error:
        print(json.dumps({"cause": error.cause, "hint": error.hint}))
""",
        tmp_path,
    )
    assert said["cause"].startswith("cuda-python, which GPU memory needs, cannot be imported")
    assert "pip install 'rdmaring[cuda]'" in said["hint"]


def test_a_stream_with_host_arrays_is_refused(tmp_path: Path) -> None:
    said = child(
        """
        with rr.init() as comm:
            try:
                comm.all_reduce(np.ones(4), stream=7)
            except ValueError as error:
                print(json.dumps({"cause": str(error)}))
        """,
        tmp_path,
    )
    assert said["cause"].startswith("stream is given, and the arrays are in host memory")


@pytest.mark.parametrize(
    ("given", "wished", "ordinal"),
    [
        ("cuda:3", 1, 3),
        (2, 1, 2),
        ("cuda", 1, 1),
        (SimpleNamespace(type="cuda", index=5), None, 5),  # torch.device
        (SimpleNamespace(id=4), None, 4),  # cupy.cuda.Device
    ],
)
def test_names_of_devices(given: object, wished: int | None, ordinal: int) -> None:
    assert context.ordinal_of(given, 0, wished) == ordinal


@pytest.mark.parametrize("given", ["gpu", "cuda:", "cuda:-1", "cuda:x", "", "mps:0"])
def test_other_names_of_devices_are_refused(given: str) -> None:
    with pytest.raises(ArgumentError, match=r"device is .*accepted are 'cuda', 'cuda:0'"):
        context.ordinal_of(given, 0, 0)


@pytest.mark.parametrize("given", [None, True])
def test_what_is_no_device_is_refused(given: object) -> None:
    with pytest.raises(ArgumentTypeError, match="device is "):
        context.ordinal_of(given, 0, 0)


class CudaStream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x55


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0x1234, 0x1234),
        (SimpleNamespace(cuda_stream=0x77), 0x77),  # torch
        (SimpleNamespace(ptr=0x88), 0x88),  # cupy
        (SimpleNamespace(handle=SimpleNamespace(value=0x99)), 0x99),  # numba
        (SimpleNamespace(handle=SimpleNamespace(value=None)), 0),  # numba's default stream
        (CudaStream(), 0x55),  # cuda.core
    ],
)
def test_streams_of_others(stream: object, handle: int) -> None:
    assert stream_handle(stream, "stream") == handle


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="stream is a list; accepted are a stream of torch"):
        stream_handle([], "stream")


def record(**more: object) -> attach.Record:
    facts = {"name": "H100", "uuid": "00ff", "pid": 12, "start": 34, "namespace": "pid:[4026531836]", "ipc": True}
    return attach.Record(0, **{**facts, **more})  # type: ignore[arg-type]


def test_records_come_through() -> None:
    assert attach.RECORD_BYTES == GPU_RECORD_BYTES
    one = record()
    assert attach.Record.unpack(one.pack()) == one
    long = record(error="é" * 5000, reason="because " * 200)
    assert len(long.pack()) == attach.RECORD_BYTES
    back = attach.Record.unpack(long.pack())
    assert long.error.startswith(back.error) and len(back.error) > 20 and back.uuid == one.uuid
    with pytest.raises(ValueError, match="no record of a GPU"):
        attach.Record.unpack(b"[]")


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"ipc": False, "reason": "H100 is a MIG instance"}, {}, "rank 0: H100 is a MIG instance"),
        ({}, {"ipc": False, "reason": "integrated"}, "rank 1: integrated"),
        ({}, {"namespace": "pid:[1]"}, "ranks 0 and 1 are in different PID namespaces"),
        ({"namespace": ""}, {"namespace": ""}, "PID namespaces"),
        ({"sizes": "a"}, {"sizes": "b"}, "ranks 0 and 1 have slots of other sizes: a; b"),
        ({}, {}, ""),
    ],
)
def test_why_gpu_memory_is_staged(one: dict[str, object], other: dict[str, object], words: str) -> None:
    reason = attach.why_staged([record(**one), record(**other)], [0, 0])
    assert words in reason and bool(words) == bool(reason)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""),
        ({1: {"ipc": False}}, "rank 1: "),
        ({2: {"ipc": False, "namespace": ""}}, ""),  # alone on its node
        ({0: {"namespace": "pid:[1]"}, 1: {"namespace": "pid:[1]"}}, ""),
        ({1: {"namespace": "pid:[1]"}}, "ranks 0 and 1 are in different PID namespaces"),
        ({2: {"sizes": "b"}}, "ranks 0 and 2 have slots of other sizes"),
        ({2: {"between": "it wants to"}}, "between nodes: through pinned host memory, as rank 2 says: it wants to"),
    ],
)
def test_why_gpu_memory_of_two_nodes_is_staged(more: dict[int, dict[str, object]], words: str) -> None:
    reason = attach.why_staged([record(**more.get(rank, {})) for rank in range(3)], [0, 0, 1])
    assert words in reason and bool(words) == bool(reason)


def test_blocks_are_made_smaller_until_they_fit() -> None:
    wished = blocks.geometry(4, 1, 4, 512 << 10)
    assert (wished.slot_count, wished.slot_bytes) == (4, 512 << 10)
    many = blocks.geometry(64, 4, 8, 512 << 10)
    assert many.slot_count == 2 and many.slot_bytes == 64 << 10
    assert wished.nbytes == 4 * 4 * (512 << 10) + 4096


def test_places_come_through() -> None:
    place = ipc.Place(1 << 40, 2, 3, 1 << 47, 5, 6, bytes(range(64)))
    assert ipc.Place.unpack(place.pack()) == place
    with pytest.raises(ValueError, match="a place has 112 bytes, not 3"):
        ipc.Place.unpack(b"abc")


def test_a_process_knows_when_it_began() -> None:
    assert ipc.start_time() == ipc.start_time(os.getpid()) > 0
    assert ipc.pid_namespace().startswith("pid:[")
