"""What torch's reductions are to the engine, by dtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from rdmaring.errors import ArgumentError, ArgumentTypeError

ReduceOp = dist.ReduceOp
NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.AVG: "avg",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
BITWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
BOOLEAN = {"sum": "max", "prod": "min", "min": "min", "max": "max", "band": "min", "bor": "max"}  # or is max


class Element(NamedTuple):
    """An element of a tensor as the engine takes it: ``width`` engine elements of a dtype."""

    dtype: np.dtype[Any]  # as a label: of 16-bit floats that numpy lacks it has the size alone
    code: int  # the engine's
    width: int = 1


def _own(name: str, code: int) -> Element:
    return Element(np.dtype(name), code)


# numpy's "V2": no dtype of numpy's own, so that nobody takes its plans for those of another
BFLOAT16 = Element(np.dtype("V2"), 3)
NUMBERS: dict[torch.dtype, Element] = {
    torch.float32: _own("f4", 0),
    torch.float64: _own("f8", 1),
    torch.float16: _own("f2", 2),
    torch.bfloat16: BFLOAT16,
    torch.int8: _own("i1", 4),
    torch.int16: _own("i2", 5),
    torch.int32: _own("i4", 6),
    torch.int64: _own("i8", 7),
    torch.uint8: _own("u1", 8),
    torch.uint16: _own("u2", 9),
    torch.uint32: _own("u4", 10),
    torch.uint64: _own("u8", 11),
}
PAIRS = {torch.complex64: Element(np.dtype("f4"), 0, 2), torch.complex128: Element(np.dtype("f8"), 1, 2)}
BYTES = _own("u1", 8)
BY_BYTES = {1: BYTES, 2: _own("u2", 9), 4: _own("u4", 10), 8: _own("u8", 11), 16: Element(np.dtype("u8"), 11, 2)}


class Reduction(NamedTuple):
    """How to reduce: by the engine, or, with ``here``, on each rank after all parts were gathered."""

    element: Element
    op: str
    here: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None


def moved(dtype: torch.dtype) -> Element:
    """Of a tensor that is only moved; any dtype."""
    return NUMBERS.get(dtype) or BY_BYTES[dtype.itemsize]


def _found(op: Any, dtype: torch.dtype) -> Reduction | None:
    name = NAMES.get(op)
    if dtype is torch.bool:
        if name == "bxor":
            return Reduction(BYTES, "bxor", torch.bitwise_xor)
        return Reduction(BYTES, BOOLEAN[name]) if name in BOOLEAN else None
    if dtype in PAIRS:
        return Reduction(PAIRS[dtype], name) if name in ("sum", "avg") else None
    number = NUMBERS.get(dtype)
    if name is None or number is None:
        return None
    if name in BITWISE:
        return None if dtype.is_floating_point else Reduction(number, name, BITWISE[name])
    return None if name == "avg" and not dtype.is_floating_point else Reduction(number, name)


_known: dict[tuple[Any, torch.dtype], Reduction] = {}


def kind_of(op: Any) -> Any:
    """``ReduceOp.SUM`` of what an options object holds."""
    return getattr(op, "op", op)


def reduction(op: Any, dtype: torch.dtype) -> Reduction:
    """How ``op`` is done on ``dtype``.

    op: torch's ReduceOp, or its kind.

    Raises:
        ArgumentError: it has no meaning, or no backend but NCCL serves it.
        ArgumentTypeError: a dtype that is only moved, such as float8.
    """
    kind = kind_of(op)
    found = _known.get((kind, dtype))
    if found is None:
        found = _found(kind, dtype)
        if found is None:
            raise _refusal(kind, dtype)
        _known[kind, dtype] = found
    return found


def _refusal(kind: Any, dtype: torch.dtype) -> Exception:
    shown = str(kind).rpartition(".")[2]
    if kind not in NAMES:
        return ArgumentError(
            f"the reduction is {shown}; accepted are {', '.join(NAMES[each].upper() for each in NAMES)}"
        )
    if dtype is not torch.bool and dtype not in NUMBERS and dtype not in PAIRS:
        return ArgumentTypeError(
            f"a reduction of {dtype}; such tensors are only moved", hint="convert them to bfloat16 or float32"
        )
    accepted = [NAMES[each].upper() for each in NAMES if _found(each, dtype) is not None]
    return ArgumentError(f"{shown} of {dtype}; accepted for it are {', '.join(accepted)}")


def reduce_here(how: Reduction, parts: list[torch.Tensor]) -> torch.Tensor:
    """The reduction of all ranks' tensors, in rank order."""
    assert how.here is not None
    return reduce(how.here, parts)
