"""Arrays of every kind, in and out, without a copy: by address, and by what a call allocates."""

from __future__ import annotations

import array
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torches
from launchers import installed, packages_of
from worlds import run_world

import rdmaring as rr
from rdmaring.buffers import as_vector
from rdmaring.cuda import dlpack

COUNT = 1 << 20
COPY_BYTES_MAX = 64 << 10  # far below a vector: what a call allocates of Python objects


class Foreign:
    """An object of another library: DLPack alone, versioned or from before that."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data, self.dtype = data, data.dtype

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class ForeignBfloat16(Foreign):
    """numpy exports no bfloat16; the host's memory is described as a device's, then called the host's."""

    def __dlpack__(self, **options: Any) -> Any:
        if "max_version" not in options:
            raise BufferError("bfloat16 wants a version")
        data = self.data
        capsule = dlpack.give(data.ctypes.data, data.shape, data.dtype, 0, self, versioned=True)
        record = dlpack._Versioned.from_address(dlpack._pointer(capsule, dlpack.NEW))
        record.tensor.device_type = dlpack.CPU
        return capsule


def whole(given: Any) -> np.ndarray[Any, Any]:
    return given.data if isinstance(given, Foreign) else np.asarray(given)


KINDS = {
    "numpy": lambda: np.arange(COUNT, dtype=np.float32),
    "array.array": lambda: array.array("d", range(COUNT)),
    "bytearray": lambda: bytearray(COUNT),
    "memoryview": lambda: memoryview(bytearray(COUNT * 4)).cast("i"),
    "dlpack": lambda: Foreign(np.arange(COUNT, dtype=np.int64)),
    "bfloat16 by dlpack": lambda: ForeignBfloat16(np.ones(COUNT, ml_dtypes.bfloat16)),
    "bfloat16": lambda: np.ones(COUNT, ml_dtypes.bfloat16),
}


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_used_where_it_lies(kind: str) -> None:
    given = KINDS[kind]()
    data = whole(given)
    vector = as_vector(given, "x", writable=True)
    assert (vector.count, vector.dtype) == (data.size, data.dtype)
    assert vector.table.tolist() == [[data.ctypes.data, data.nbytes]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_makes_no_copy(kind: str) -> None:
    given = KINDS[kind]()
    before = whole(given).copy()
    with rr.init(0, 1) as comm:
        comm.all_reduce(given)  # plans are made once
        tracemalloc.start()
        try:
            assert comm.all_reduce(given) is given
            assert comm.all_reduce([given])[0] is given
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < COPY_BYTES_MAX < before.nbytes
    assert np.array_equal(whole(given), before)  # a sum over one rank


def test_the_count_of_copies_sees_a_copy() -> None:
    tracemalloc.start()
    try:
        held = np.ones(COUNT, np.float32).copy()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held.size and peak > COPY_BYTES_MAX


READ_ONLY = {
    "bytes": lambda: bytes(8),
    "memoryview": lambda: memoryview(bytes(8)),
    "numpy": lambda: np.broadcast_to(np.uint8(7), (8,)).copy(),
}


@pytest.mark.parametrize("kind", READ_ONLY)
def test_read_only_memory_is_input_with_out(kind: str) -> None:
    given = READ_ONLY[kind]()
    if isinstance(given, np.ndarray):
        given.flags.writeable = False
    with rr.init(0, 1) as comm:
        with pytest.raises(ValueError, match=r"x is read-only.*[Pp]ass out="):
            comm.all_reduce(given)
        out = bytearray(8)
        assert comm.all_reduce(given, out=out) is out
    assert bytes(out) == bytes(given)


GAPS = {
    "numpy": lambda: np.ones((4, 6))[:, ::2],
    "transposed": lambda: np.ones((4, 6)).T,
    "memoryview": lambda: memoryview(bytearray(8))[::2],
    "dlpack": lambda: Foreign(np.ones((4, 6))[:, :3]),
}


@pytest.mark.parametrize("kind", GAPS)
def test_gaps_are_refused_and_nothing_is_changed(kind: str) -> None:
    given = GAPS[kind]()
    with rr.init(0, 1) as comm:
        with pytest.raises(ValueError, match="x is not contiguous"):
            comm.all_reduce(given)
        with pytest.raises(ValueError, match="out is not contiguous"):
            comm.all_reduce(np.ascontiguousarray(whole(given)), out=given)


TORCH = """
import tracemalloc, torch
from rdmaring.buffers import as_vector
with rr.init() as comm:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.uint8):
        x = torch.ones(300_000, dtype=dtype)
        assert as_vector(x, "x", writable=True).table[0, 0] == x.data_ptr()
        assert comm.all_reduce(x) is x and bool((x == comm.size).all()), dtype
        out = torch.zeros_like(x)
        assert comm.all_reduce(x, out=out) is out and bool((out == comm.size ** 2).all()), dtype
        assert comm.all_reduce(x) is x and bool((x == comm.size ** 2).all()), dtype   # by the plan of the first call
    small = torch.ones(2)
    for times in range(1, 4):
        assert comm.all_reduce(small) is small and small.tolist() == [comm.size ** times] * 2
    other = torch.ones(2)
    small.set_(other.untyped_storage(), 0, (2,))     # the same tensor, on other memory
    comm.all_reduce(small)
    assert other.tolist() == [comm.size] * 2
    y = np.full(1000, 3.0, np.float32)
    z = torch.zeros(10, 100)
    comm.all_reduce(y, out=z)                        # one library in, another out
    assert bool((z == 3 * comm.size).all())
    held = comm.empty(64, np.float32)
    shared = torch.from_numpy(held)
    shared += comm.rank + 1
    comm.all_reduce(held)
    assert bool((shared == sum(range(1, comm.size + 1))).all())
    for wrong in (torch.ones(4, 6).t(), torch.ones(8, dtype=torch.bfloat16)[::2], torch.ones(2, requires_grad=True)):
        try: comm.all_reduce(wrong)
        except rr.CallError as error: say(text=str(error))
        else: say(text="accepted")
    say(done=True)
"""


@pytest.mark.timeout(900)  # torch is fetched
def test_torch_tensors_in_and_out(tmp_path: Path) -> None:
    ran = run_world(2, TORCH, tmp_path, env={"PYTHONPATH": torches.packages()}, timeout_s=110)
    assert ran.code == 0, ran.output
    texts = [what["text"] for what in ran.said[0] if "text" in what]
    assert ["not contiguous" in text for text in texts] == [True, True, False], texts
    assert "accepted" not in texts and "requires_grad" in texts[2].replace("require gradient", "requires_grad"), texts


JAX = """
import jax, jax.numpy as jnp
from rdmaring.buffers import as_vector
with rr.init() as comm:
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int32):
        x = jnp.full((300, 7), comm.rank + 1, dtype)
        assert as_vector(x, "x", writable=False).table[0, 0] == x.unsafe_buffer_pointer()
        out = np.zeros((300, 7), x.dtype)
        assert comm.all_reduce(x, out=out) is out and (out == sum(range(1, comm.size + 1))).all()
        assert (np.asarray(x) == comm.rank + 1).all()
        said_error(lambda: comm.all_reduce(x))
    back = jnp.asarray(out)
    assert int(back.sum()) == int(out.sum())
"""


@pytest.mark.long
def test_jax_arrays_in(tmp_path: Path) -> None:
    ran = run_world(2, JAX, tmp_path, env={"PYTHONPATH": packages_of(installed("jax", "jax"))}, timeout_s=110)
    assert ran.code == 0, ran.output
    errors = [what for what in ran.said[0] if "error" in what]
    assert [what["error"] for what in errors] == ["ArgumentError"] * 3, ran.output
    assert all("x is read-only" in what["text"] for what in errors)
