"""DLPack of GPU memory, both ways, without a driver: what travels are addresses, and nothing here looks behind one."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rdmaring.cuda import dlpack
from rdmaring.errors import ArgumentTypeError

ADDRESS = 0x7F00_1234_5600


class Memory:
    """What an export keeps alive."""


class Producer:
    """An array library's object; ``old``: from before max_version."""

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: Any, old: bool) -> None:
        self.memory, self.shape, self.dtype, self.old = memory, shape, np.dtype(dtype), old
        self.streams: list[int] = []

    def __dlpack__(self, **given: Any) -> Any:
        if self.old and set(given) != {"stream"}:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(given["stream"])
        return dlpack.give(ADDRESS, self.shape, self.dtype, 3, self.memory, versioned=not self.old)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (), (0, 4)])
def test_what_is_given_is_taken(shape: tuple[int, ...], old: bool) -> None:
    producer = Producer(Memory(), shape, np.float64, old)
    got = dlpack.take(producer, "x", 77)
    assert producer.streams == [77]
    assert (got.address, got.shape, got.dtype) == (ADDRESS, shape, np.float64)
    assert (got.device_type, got.device_id, got.readonly) == (dlpack.CUDA, 3, False)
    assert got.strides == tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "bfloat16"])
def test_elements_come_through(dtype: str) -> None:
    wanted = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    assert dlpack.take(Producer(Memory(), (7,), wanted, False), "x", -1).dtype == wanted


ODD = [(6, 8, 1), (5, 64, 1), (2, 4, 1), (2, 32, 4), (2, 24, 1), (4, 64, 1)]


@pytest.mark.parametrize(("code", "bits", "lanes"), ODD)
def test_other_elements_are_refused_by_name(code: int, bits: int, lanes: int) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^grad\[1\] has "):
        dlpack.dtype_of(code, bits, lanes, "grad[1]")


@pytest.mark.parametrize("old", [False, True])
def test_memory_lives_until_the_consumer_lets_go(old: bool) -> None:
    memory = Memory()
    alive = weakref.ref(memory)
    producer = Producer(memory, (4,), np.float32, old)
    got = dlpack.take(producer, "x", -1)
    del memory, producer
    gc.collect()
    assert alive() is not None
    del got
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_that_nobody_takes_lets_go(versioned: bool) -> None:
    memory = Memory()
    alive = weakref.ref(memory)
    capsule = dlpack.give(ADDRESS, (4,), np.dtype(np.float32), 0, memory, versioned)
    del memory
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_a_capsule_is_taken_once() -> None:
    capsule = dlpack.give(ADDRESS, (4,), np.dtype(np.float32), 0, Memory(), True)

    class Again:
        def __dlpack__(self, **_: Any) -> Any:
            return capsule

    keep = dlpack.take(Again(), "x", -1)
    with pytest.raises(ArgumentTypeError, match="x exports no DLPack tensor"):
        dlpack.take(Again(), "x", -1)
    assert keep.shape == (4,)


def test_what_the_producer_raises_comes_through() -> None:
    class Grad:
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("can't export a tensor that requires gradient")

    with pytest.raises(BufferError, match="requires gradient"):
        dlpack.take(Grad(), "x", -1)
