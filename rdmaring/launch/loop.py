"""The launcher's loop: one thread that pumps output, watches ranks and times their end."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rdmaring.launch.child import Child, exit_code
from rdmaring.launch.guard import Guard
from rdmaring.launch.output import LinePrefixer, Sink, is_same_file, rank_prefix
from rdmaring.launch.signals import Signals
from rdmaring.launch.verdict import verdict

KILL_AFTER_S = 2.0  # from SIGTERM to SIGKILL
INTERRUPT_GRACE_S = 2.0  # from a forwarded signal to SIGTERM
DRAIN_S = 0.5  # for pipes that a process outside the job holds open after the last rank has ended
READER_GRACE_S = 2.0  # for whoever reads our output to take the rest, once we are told to end
READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Rules:
    """What becomes of the others after the first rank has failed."""

    grace_s: float
    keep_going: bool


class _Stream:
    """One output pipe of one rank."""

    def __init__(self, descriptor: int, lines: LinePrefixer, sink: Sink | None) -> None:
        self.descriptor = descriptor
        self.open = True
        self._lines = lines
        self._sink = sink

    @property
    def readable(self) -> bool:
        return self.open and (self._sink is None or not self._sink.full)

    def read(self) -> None:
        data = os.read(self.descriptor, READ_BYTES)
        if not data:
            self.end()
        elif self._sink is not None:
            self._sink.put(self._lines.feed(data))

    def end(self) -> None:
        if self.open and self._sink is not None:
            self._sink.put(self._lines.finish())
        self.open = False


class Loop:
    """All ranks from their start to the verdict."""

    def __init__(self, rules: Rules, children: Sequence[Child], guard: Guard, signals: Signals) -> None:
        self._rules = rules
        self._children = children
        self._guard = guard
        self._signals = signals
        self._first: Child | None = None  # to fail
        self._interrupted: signal.Signals | None = None
        self._give_up_at: float | None = None
        self._next_blow: tuple[float, signal.Signals] | None = None
        self._out, self._err = _sinks()
        self._sinks = {id(sink): sink for sink in (self._out, self._err) if sink is not None}.values()
        self._streams = list(self._open_streams())

    def _open_streams(self) -> Iterator[_Stream]:
        for child in self._children:
            for descriptor, sink in ((child.stdout, self._out), (child.stderr, self._err)):
                if descriptor is None:
                    continue
                colour = sink is not None and _wants_colour(sink.descriptor)
                yield _Stream(descriptor, LinePrefixer(rank_prefix(child.rank, colour)), sink)

    def run(self) -> int:
        try:
            while self._living():
                self._wait(self._sleep_s())
                self._on_signals()
                self._look_at_children()
                self._on_time()
            self._drain()
        finally:
            self._end_all()
        text = verdict(self._children, self._first, self._interrupted)
        if text is not None and self._err is not None:
            self._err.put(text.encode() + b"\n")
        self._flush()
        return self._exit_code()

    def _exit_code(self) -> int:
        if self._first is not None and self._first.status is not None:
            return exit_code(self._first.status)
        return 0 if self._interrupted is None else 128 + self._interrupted

    def _living(self) -> list[Child]:
        return [child for child in self._children if child.status is None]

    def _sleep_s(self) -> float | None:
        return None if self._next_blow is None else max(0.0, self._next_blow[0] - time.monotonic())

    def _wait(self, timeout_s: float | None) -> None:
        """Sleep until something can be read or written, or a signal comes; do the reading and writing."""
        poll = select.poll()
        poll.register(self._signals.receiver, select.POLLIN)
        streams = {stream.descriptor: stream for stream in self._streams if stream.readable}
        sinks = {sink.descriptor: sink for sink in self._sinks if sink.pending}
        for descriptor in streams:
            poll.register(descriptor, select.POLLIN)
        for descriptor in sinks:
            poll.register(descriptor, select.POLLOUT)
        for descriptor, _ in poll.poll(None if timeout_s is None else 1000 * timeout_s):
            if descriptor in streams:
                streams[descriptor].read()
            elif descriptor in sinks:
                sinks[descriptor].write_some()
                if sinks[descriptor].broken and self._interrupted is None:
                    self._interrupt(signal.SIGPIPE, signal.SIGTERM)

    def _on_signals(self) -> None:
        for number in self._signals.take():
            if self._interrupted is None:
                self._interrupt(number, number)
            else:  # a second one is impatience
                self._strike(signal.SIGKILL)

    def _interrupt(self, cause: signal.Signals, forwarded: signal.Signals) -> None:
        self._interrupted = cause
        self._strike(forwarded)
        after, grace_s = signal.SIGTERM, INTERRUPT_GRACE_S
        if forwarded == signal.SIGTERM:
            after, grace_s = signal.SIGKILL, KILL_AFTER_S
        self._next_blow = (time.monotonic() + grace_s, after)

    def _look_at_children(self) -> None:
        ended = [child for child in self._living() if child.look()]
        for child in ended:
            self._guard.ended(child.pid)
        # Of those seen at once, one that a signal killed rather is the cause than one that exited.
        failed = [child for child in ended if child.failed]
        failed.sort(key=lambda child: exit_code(child.status or 0) < 128)
        if failed and self._first is None and self._interrupted is None:
            self._first = failed[0]
            if not self._rules.keep_going:
                self._next_blow = (time.monotonic() + self._rules.grace_s, signal.SIGTERM)

    def _on_time(self) -> None:
        if self._next_blow is None or time.monotonic() < self._next_blow[0]:
            return
        number = self._next_blow[1]
        self._next_blow = None
        self._strike(number)
        if number != signal.SIGKILL:
            self._next_blow = (time.monotonic() + KILL_AFTER_S, signal.SIGKILL)

    def _strike(self, number: signal.Signals) -> None:
        for child in self._living():
            child.send(number)

    def _drain(self) -> None:
        """Read what the ranks wrote before they ended."""
        deadline = time.monotonic() + DRAIN_S
        while any(stream.open for stream in self._streams):
            blocked = any(stream.open and not stream.readable for stream in self._streams)
            left_s = deadline - time.monotonic()
            if not (self._wait_for_reader() if blocked else left_s > 0):
                break
            if not blocked:
                self._wait(left_s)
        for stream in self._streams:
            stream.end()

    def _flush(self) -> None:
        while any(sink.pending for sink in self._sinks) and self._wait_for_reader():
            pass

    def _wait_for_reader(self) -> bool:
        """Write what the reader takes; False where we are to end and it has not kept up."""
        if self._signals.take() and self._interrupted is None:
            self._interrupt(signal.SIGTERM, signal.SIGTERM)
        if self._interrupted is None:
            self._wait(None)
            return True
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + READER_GRACE_S
        left_s = self._give_up_at - time.monotonic()
        if left_s > 0:
            self._wait(left_s)
        return left_s > 0

    def _end_all(self) -> None:
        """Also on an error of our own: no rank stays."""
        while self._living():
            self._strike(signal.SIGKILL)
            for child in self._living():
                child.look()
            time.sleep(0.005)
        self._guard.close()
        for child in self._children:
            child.close_pipes()


def _sinks() -> tuple[Sink | None, Sink | None]:
    """For standard output and error; one for both where their lines could mix."""
    out = None if sys.stdout is None else Sink(1)
    err = None if sys.stderr is None else Sink(2)
    if out is not None and err is not None and is_same_file(1, 2):
        err = out
    return out, err


def _wants_colour(descriptor: int) -> bool:
    return os.isatty(descriptor) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
