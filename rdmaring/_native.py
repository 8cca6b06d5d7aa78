"""The only module that touches the extension."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any

try:
    from rdmaring._rdmaring import ffi, lib
except ModuleNotFoundError as error:
    raise ImportError(
        "rdmaring's extension is not built here: this is the source tree, found before an installed rdmaring. "
        "Run `pip install .`, and start Python in another folder."
    ) from error
from rdmaring.errors import BY_STATUS, RdmaringError
from rdmaring.verdict import Verdict

log = logging.getLogger("rdmaring")

__all__ = ["AGAIN", "OK", "check", "error_here", "ffi", "keep_interrupt", "lib", "raise_interrupt", "with_exchange"]

OK = 0
AGAIN = 1


_interrupts: list[KeyboardInterrupt] = []


def keep_interrupt(error: KeyboardInterrupt) -> None:
    """Of a callback, which C cannot carry: it is raised when the call has come back."""
    _interrupts.append(error)


def raise_interrupt() -> None:
    """Raise what a callback kept, in the main thread.

    Raises:
        KeyboardInterrupt: Ctrl-C came while a callback ran.
    """
    if _interrupts and threading.current_thread() is threading.main_thread():
        error = _interrupts[-1]
        _interrupts.clear()
        raise error


def error_here() -> RdmaringError:
    """The exception that belongs to this thread's last native error; text and places come from C.

    Raises:
        KeyboardInterrupt: Ctrl-C came while a callback ran in the main thread.
    """
    raise_interrupt()
    record = ffi.new("rr_error *")
    lib.rr_last_error(record)

    verdict = verdict_of(record.verdict)
    if verdict is not None:
        _log_once(record.rank, verdict)
    return BY_STATUS.get(record.status, RdmaringError)(
        _text(record.message),
        hint=_text(record.hint),
        rank=_place(record.rank),
        peer=_place(record.peer),
        transport=_text(record.transport) or None,
        collective=_text(record.collective) or None,
        op=_place(record.op),
        row=_place(record.row),
        verdict=verdict,
    )


def _place(value: int) -> int | None:
    return None if value < 0 else int(value)


def _text(value: Any) -> str:
    return str(ffi.string(value).decode("utf-8", "replace"))


def verdict_of(record: Any) -> Verdict | None:
    """Of an ``rr_verdict``; None where it holds none."""
    if record.kind == lib.RR_VERDICT_NONE:
        return None
    evidence = _text(record.evidence)
    return Verdict(
        kind=str(ffi.string(lib.rr_verdict_name(record.kind)).decode()),
        rank=_place(record.rank),
        peer=_place(record.peer),
        transport=_text(record.transport) or None,
        op=_place(record.op),
        collective=str(ffi.string(lib.rr_collective_name(record.collective)).decode())
        if record.collective >= 0
        else None,
        row=_place(record.row),
        text=_text(record.text),
        evidence=tuple(evidence.split("; ")) if evidence else (),
    )


_logged: list[tuple[int, str]] = []  # what was logged last: a lost communicator raises its error at each call
LOGGED_MAX = 64


def _log_once(rank: int, verdict: Verdict) -> None:
    if (rank, verdict.text) in _logged:
        return
    _logged.append((rank, verdict.text))
    del _logged[:-LOGGED_MAX]
    log.error("rank %d: %s", rank, verdict.text, extra={"verdict": verdict})


def check(status: int) -> int:
    """Raise the exception of a negative status; give back the others."""
    if status < 0:
        raise error_here()
    return status


class _Exchange:
    """What C's exchange callback calls; keeps an exception until C has returned."""

    def __init__(self, gather: Callable[[bytes], bytes]) -> None:
        self.gather = gather
        self.error: BaseException | None = None


@ffi.def_extern()  # type: ignore[untyped-decorator]
def rr_py_exchange(user: Any, mine: Any, size: int, everyone: Any) -> int:
    exchange: _Exchange = ffi.from_handle(user)
    try:
        gathered = exchange.gather(bytes(ffi.buffer(mine, size)))
        ffi.memmove(everyone, gathered, len(gathered))
    except BaseException as error:  # C cannot carry it: with_exchange() raises it again
        exchange.error = error
        traceback.clear_frames(error.__traceback__)
        return -1
    return 0


def with_exchange(gather: Callable[[bytes], bytes], create: Callable[[Any, Any], int]) -> None:
    """Run ``create(exchange, user)``, in which C gathers bytes among the ranks by ``gather``.

    Raises what ``gather`` raised, or the native error.
    """
    exchange = _Exchange(gather)
    handle = ffi.new_handle(exchange)
    status = create(lib.rr_py_exchange, handle)
    if exchange.error is not None:
        raise exchange.error
    check(status)
