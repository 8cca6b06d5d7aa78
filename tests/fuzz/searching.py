"""Searching for what hurts the Python decoders: damaged bytes and documents, and the bounds that each run keeps."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

CPU_S_MAX = 5.0  # of one input, where a decoder takes some milliseconds
MEMORY_BYTES_MAX = 64 << 20

# Numbers that are looked at twice: signs, widths, what no float holds.
NUMBERS = (0, 1, -1, 2, 7, 255, 256, 65535, 65536, 1 << 31, (1 << 31) - 1, 1 << 32, (1 << 32) - 1, 1 << 62, 1 << 63,
           (1 << 64) - 1, -(1 << 31), 10**400, -(10**400))  # fmt: skip
TEXTS = ("", "0", "-1", "²", "٣", "1e999", "nan", "inf", "0x10", "9" * 5000, "\ud800", "\0", "\n", "a" * 5000,
         "[::1]:1", "host:99999", "node[1-999999999]", "node[1-2][1-2][1-2]", "../x", "%s%n", "🙂")  # fmt: skip


class Deep:
    """Stands for a document nested so deeply that a naive walk of it ends badly."""

    def __init__(self, depth: int, sign: str) -> None:
        self.text = sign[0] * depth + sign[1] * depth

    def __repr__(self) -> str:
        return f"Deep({len(self.text)} signs)"


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.sampled_from([None, True, False, 0.0, -0.5, 1e308, float("nan"), float("inf"), [], {}, [[]], {"rank": {}}]),
    st.sampled_from([Deep(300, "[]"), Deep(980, "[]"), Deep(20000, "[]"), Deep(90000, "[]")]),
    st.integers(),
    st.text(max_size=20),
    st.lists(st.integers(-2, 70000), max_size=5),
)


def _places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every value in a document the way to it."""
    inside: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        inside = list(document.items())
    elif isinstance(document, list):
        inside = list(enumerate(document))
    return [path, *(place for key, value in inside for place in _places(value, (*path, key)))]


def _with(document: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> None:
    for key in path[:-1]:
        document = document[key]
    change(document, path[-1])


@st.composite
def documents(draw: Any, valid: Any) -> Any:
    """``valid`` with up to three values in other places, of other kinds, twice, or gone."""
    document = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(0, 3))):
        places = _places(document)[1:]
        if not places or draw(st.integers(0, 30)) == 0:
            return draw(VALUES)
        path = draw(st.sampled_from(places))
        way = draw(st.integers(0, 3))
        if way == 0:
            _with(document, path, lambda inside, key: inside.pop(key))
        elif way == 1:
            other = draw(st.sampled_from(places))
            value = document
            for key in other:
                value = value[key]
            copied = json.loads(json.dumps(value, default=repr))
            _with(document, path, lambda inside, key, copied=copied: inside.__setitem__(key, copied))
        else:
            value = copy.deepcopy(draw(VALUES))  # drawn is one object each time; the next change may be inside
            _with(document, path, lambda inside, key, value=value: inside.__setitem__(key, value))
    return document


def as_json(document: Any) -> bytes:
    """Its bytes, with what Deep stands for, and numbers as they are: NaN and Infinity, which json reads."""
    deep: dict[str, str] = {}

    def name(value: Deep) -> str:
        key = f"deep-{len(deep)}"
        deep[key] = value.text
        return key

    text = json.dumps(document, default=name)
    for key, value in deep.items():
        text = text.replace(f'"{key}"', value)
    return text.encode()


@st.composite
def damaged(draw: Any, valid: list[bytes], bytes_max: int = 1 << 16) -> bytes:
    """One of ``valid`` cut, joined, with bytes turned and numbers written over."""
    data = bytearray(draw(st.sampled_from(valid)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        way = draw(st.integers(0, 5))
        if way == 0:
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif way == 1:
            form = draw(st.sampled_from("BHIQ"))
            number = draw(st.sampled_from(NUMBERS)) % (1 << 8 * struct.calcsize(form))
            data[at : at + struct.calcsize(form)] = struct.pack("<" + form, number)
        elif way == 2:
            del data[at : at + draw(st.integers(1, 64))]
        elif way == 3:
            data[at:at] = draw(st.binary(max_size=32))
        elif way == 4:
            data = data[:at]
        else:
            other = draw(st.sampled_from(valid))
            data[at:] = other[draw(st.integers(0, len(other))) :]
    return bytes(data[:bytes_max])


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """As a stream brings it: in pieces of these sizes, in turn."""
    pieces, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)] if sizes else len(data)
        pieces.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return pieces


def check(decode: Callable[[Any], object], given: Any, documented: tuple[type[BaseException], ...]) -> None:
    """Only documented errors come out, in bounded time and memory."""
    tracemalloc.start()
    begin_s = time.process_time()
    try:
        decode(given)
    except documented as error:
        assert str(error).strip(), f"{type(error).__name__} says nothing"
    finally:
        used_s = time.process_time() - begin_s
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert used_s < CPU_S_MAX, f"{used_s:.1f} s of a processor"
    assert peak_bytes < MEMORY_BYTES_MAX, f"{peak_bytes} bytes of memory"


def search(
    decode: Callable[[Any], object], inputs: st.SearchStrategy[Any], documented: tuple[type[BaseException], ...],
    examples: int, seed: int | None,
) -> None:  # fmt: skip
    """Run ``decode`` on so many inputs. seed: None: of FUZZ_SEED, or a new one; it is printed."""
    if seed is None:
        seed = int(os.environ.get("FUZZ_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"{examples} inputs of seed {seed}; again: FUZZ_SEED={seed}")

    def one(given: Any) -> None:
        check(decode, given, documented)

    quick = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    hypothesis.seed(seed)(quick(hypothesis.given(inputs)(one)))()


# How many inputs of which seed: in CI few, always the same; by hand many, of a new one.
PROFILES = [
    pytest.param(40, 1, id="quick"),
    pytest.param(4000, None, id="long", marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
]
