"""One run of a bed, seen from outside its hosts: starts the ranks, prints what they write, ends them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from beds.frames import Kind, Reader, pack

READ_BYTES = 1 << 18
KILL_AFTER_S = 2.0  # from SIGTERM, or a signal passed on, to SIGKILL
TIMED_OUT = 124  # as timeout(1) says it
BED_FAILED = 125
IMPATIENT = 2  # signals that came while we could not look
PREFER_SIGNALS_FROM = 128  # of failures seen at once one by a signal rather is the cause


class BedError(Exception):
    """The bed could not be made; the text says why. status: what the script exits with."""

    def __init__(self, text: str, status: int = BED_FAILED) -> None:
        super().__init__(text)
        self.status = status


class LackingError(BedError):
    """This machine lacks something, or does not allow it."""

    def __init__(self, text: str) -> None:
        super().__init__(text, status=2)


@dataclass
class Host:
    """A host of the bed and the channel to its agent.

    plan: see agent.py. last_words: what to print when the host ends before its ranks did.
    """

    name: str
    channel: socket.socket
    plan: dict[str, Any]
    last_words: Callable[[], str] = str
    frames: Reader = field(default_factory=Reader)
    ready: bool = False
    gone: bool = False


@dataclass(frozen=True)
class Rules:
    """grace_s: what others have after the first failure. timeout_s: for set-up and run together, None for ever."""

    grace_s: float
    timeout_s: float | None


class _Lines:
    """Whole lines of one stream of one rank, prefixed."""

    def __init__(self, rank: int, descriptor: int) -> None:
        self._prefix = f"[{rank}] ".encode()
        self._descriptor = descriptor
        self._begun = b""

    def feed(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        self._write(b"".join(self._prefix + line + b"\n" for line in lines))

    def finish(self) -> None:
        """A last line without its end gets one."""
        if self._begun:
            self.feed(b"\n")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


def signalled() -> Callable[[], list[int]]:
    """From now on SIGINT, SIGTERM and SIGHUP only wake sleeps; the function returned says which came since."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > IMPATIENT:  # whoever reads our output has stopped to; the kernel ends what we started
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, note)

    def take() -> list[int]:
        taken, came[:] = came[:], []
        return taken

    return take


class Job:
    """All hosts from their set-up to the exit status."""

    def __init__(self, hosts: Sequence[Host], rules: Rules, take_signals: Callable[[], list[int]]) -> None:
        self._hosts = hosts
        self._rules = rules
        self._take_signals = take_signals
        self._running = {rank["rank"]: host for host in hosts for rank in host.plan["ranks"]}
        self._lines = {
            (rank, kind): _Lines(rank, 1 if kind == Kind.OUT else 2)
            for rank in self._running
            for kind in (Kind.OUT, Kind.ERR)
        }
        self._status: int | None = None  # of the first failure
        self._fresh: list[tuple[int, str]] = []  # failures of this turn of the loop
        self._blows: list[tuple[float, int]] = []  # when to send which signal to all
        self._interrupted = False
        self._deadline = None if rules.timeout_s is None else time.monotonic() + rules.timeout_s

    def run(self) -> int:
        """Raises BedError: a host could not be set up."""
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        while self._running:
            self._turn(wake)
        signal.set_wakeup_fd(-1)
        return self._status or 0

    def _turn(self, wake: int) -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        channels = {host.channel.fileno(): host for host in self._hosts if not host.gone}
        for descriptor in channels:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(self._sleep_ms()):
            if descriptor == wake:
                os.read(wake, READ_BYTES)
            else:
                self._hear(channels[descriptor])
        self._note_failures()
        self._note_signals()
        self._strike()

    def _sleep_ms(self) -> float | None:
        times = [at for at, _ in self._blows] + ([] if self._deadline is None else [self._deadline])
        return 1000 * max(0.0, min(times) - time.monotonic()) if times else None

    def _tell(self, host: Host, kind: Kind, payload: bytes = b"") -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # _hear() notices
            host.channel.sendall(pack(kind, payload=payload))

    def _hear(self, host: Host) -> None:
        try:
            data = host.channel.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self._lost(host)
        for kind, rank, payload in host.frames.feed(data):
            if kind in (Kind.OUT, Kind.ERR):
                self._lines[rank, kind].feed(payload)
            elif kind == Kind.STATUS:
                self._ended(rank, int(payload))
            elif kind == Kind.HELLO:
                self._tell(host, Kind.PLAN, json.dumps(host.plan).encode())
            elif kind == Kind.FAILED:
                raise BedError(f"{host.name}: {payload.decode(errors='replace')}")
            elif kind == Kind.READY:
                host.ready = True
                if all(each.ready for each in self._hosts):
                    for each in self._hosts:
                        self._tell(each, Kind.START)

    def _ended(self, rank: int, status: int) -> None:
        del self._running[rank]
        for kind in (Kind.OUT, Kind.ERR):
            self._lines[rank, kind].finish()
        if status < 0:
            self._fresh.append((128 - status, f"rank {rank} was killed by {_signal_name(-status)}"))
        elif status > 0:
            self._fresh.append((status, f"rank {rank} ended with status {status}"))

    def _lost(self, host: Host) -> None:
        host.gone = True
        if not all(each.ready for each in self._hosts):
            raise BedError(f"{host.name} ended while it was set up\n{host.last_words()}")
        ranks = [rank for rank, where in self._running.items() if where is host]
        for rank in ranks:
            del self._running[rank]
        if ranks:
            text = f"{host.name} ended without a status of rank {', '.join(map(str, ranks))}"
            self._fresh.append((BED_FAILED, f"{text}\n{host.last_words()}".rstrip()))

    def _note_failures(self) -> None:
        fresh, self._fresh = self._fresh, []
        if not fresh or self._status is not None:
            return
        self._status, text = max(fresh, key=lambda failure: failure[0] >= PREFER_SIGNALS_FROM)
        self._say(text)
        if self._running:
            self._end_after(self._rules.grace_s)

    def _note_signals(self) -> None:
        for number in self._take_signals():
            if self._interrupted:  # a second one is impatience
                self._blows = [(0.0, signal.SIGKILL)]
            self._interrupted = True
            if self._status is None:
                self._status = 128 + number
            if not all(host.ready for host in self._hosts):
                raise BedError(f"ended by {_signal_name(number)} before all hosts were up", 128 + number)
            self._blows = self._blows or [(0.0, number)]
            self._blows.append((time.monotonic() + KILL_AFTER_S, signal.SIGKILL))
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._deadline = None
            still = ", ".join(map(str, sorted(self._running)))
            text = f"the time of {self._rules.timeout_s:g} s is over; still running: rank {still}"
            if not all(host.ready for host in self._hosts):
                words = "\n".join(f"{host.name}: {host.last_words()}" for host in self._hosts if not host.ready)
                raise BedError(
                    f"the time of {self._rules.timeout_s:g} s was over before all hosts were up\n{words}", TIMED_OUT
                )
            self._say(text)
            self._status = TIMED_OUT if self._status is None else self._status
            self._end_after(0.0)

    def _end_after(self, grace_s: float) -> None:
        at = time.monotonic() + grace_s
        self._blows = [(at, signal.SIGTERM), (at + KILL_AFTER_S, signal.SIGKILL)]

    def _strike(self) -> None:
        now = time.monotonic()
        due = [number for at, number in self._blows if at <= now]
        self._blows = [(at, number) for at, number in self._blows if at > now]
        for number in due:
            for host in self._hosts:
                if not host.gone:
                    self._tell(host, Kind.SIGNAL, b"%d" % number)

    def _say(self, text: str) -> None:
        print(f"{sys.argv[0]}: {text}", file=sys.stderr, flush=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal has no name
