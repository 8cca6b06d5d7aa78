"""Drawn bits, and memory in the middle of which arrays lie; see bits_world."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
from bits_expected import Array, is_float

KIB = 1 << 10
AROUND = 256  # bytes that stand before and behind an array
PERIOD = 3 * KIB * KIB - 8 * KIB  # bytes after which drawn bits come again: no multiple of slots or slices


class Pool:
    """Drawn bits, as elements of each dtype; those of reductions in floats are finite, half of them of like size."""

    def __init__(self, seed: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.drawn = np.frombuffer(np.random.default_rng(seed).bytes(PERIOD), np.uint8)
        self.bits = np.resize(self.drawn, nbytes)
        self.finite: dict[np.dtype[Any], Array] = {}

    def of(self, dtype: np.dtype[Any], *, reduced: bool) -> Array:
        if not (reduced and is_float(dtype)):
            return self.bits.view(dtype)
        if dtype not in self.finite:
            drawn = self._finite(dtype).view(np.uint8)
            self.finite[dtype] = np.resize(drawn, self.nbytes).view(dtype)
        return self.finite[dtype]

    def _finite(self, dtype: np.dtype[Any]) -> Array:
        unsigned = np.dtype(f"u{dtype.itemsize}").type
        every = (1 << 8 * dtype.itemsize) - 1
        fraction = ml_dtypes.finfo(dtype).nmant
        exponent = (every >> 1) >> fraction << fraction
        bits = self.drawn.view(f"u{dtype.itemsize}").copy()
        bits[(bits & unsigned(exponent)) == exponent] &= unsigned(every & ~(1 << fraction))
        like = bits.reshape(-1, KIB)[1::2]  # every other run: around 1, so that sums are rounded
        spread = (like >> unsigned(fraction)) & unsigned(3)
        like &= unsigned(every & ~exponent)
        like |= unsigned((exponent >> 1) & exponent) - (spread << unsigned(fraction))
        return bits.view(dtype)


class Arena:
    """Memory from which arrays are cut at drawn places, with a pattern around each."""

    def __init__(self, memory: Array) -> None:
        self.memory, self.at = memory, 0
        self.around: list[Array] = []

    def cut(self, rng: random.Random, count: int, dtype: np.dtype[Any]) -> Array:
        begin = self.at + AROUND + rng.randrange(0, 512, 8)
        end = begin + count * dtype.itemsize
        assert end + AROUND <= self.memory.size, "the arena is too small"
        for edge in (self.memory[begin - AROUND : begin], self.memory[end : end + AROUND]):
            edge[:] = 0xA5
            self.around.append(edge)
        self.at = -(-(end + AROUND) // 8) * 8
        return self.memory[begin:end].view(dtype)

    def reset(self) -> bool:
        """Is all that stands around the arrays still there?"""
        whole = all((edge == 0xA5).all() for edge in self.around)
        self.at, self.around = 0, []
        return whole
