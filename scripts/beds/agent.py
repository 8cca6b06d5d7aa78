"""Runs on each host of a bed, in a namespace or a guest: sets it up, starts its ranks, passes on what they write.

    python3 -m beds.agent CHANNEL

CHANNEL is the number of an inherited socket, or the path of a port to the machine outside. After HELLO the plan comes
over it, a JSON object:
    cwd      folder in which the ranks start
    setup    [{"argv": [...], "input": text}], run in this order before anything else
    limits   {name of a resource as in the module resource, lower case: number, -1 for none}
    ranks    [{"rank": number, "argv": [...], "env": {...}}]
When the channel ends, so does the agent. It is process 1 of its host, so the kernel ends all others then.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

from beds.frames import NO_RANK, Kind, Reader, pack

TYPE_CHECKING = False  # for type checkers; an emulated CPU would take a tenth of a second to import typing
if TYPE_CHECKING:
    from typing import Any

READ_BYTES = 1 << 16
DRAIN_S = 0.5  # for pipes that some child of a rank still holds open after the rank has ended
NOT_FOUND = 127
# Ignored here, and a child would inherit that.
DEFAULT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


class Rank:
    """One started rank: it leads a session of its own."""

    def __init__(self, rank: int, argv: list[str], env: dict[str, str]) -> None:
        self.rank = rank
        self.ended_at: float | None = None
        self.status: int | None = None
        outputs = [os.pipe(), os.pipe()]
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, outputs[0][1], 1), (os.POSIX_SPAWN_DUP2, outputs[1][1], 2)]
        path = _which(argv[0], env.get("PATH", os.defpath))
        self.pid = 0
        if path is None:
            os.write(outputs[1][1], f"{argv[0]}: no such command in {env.get('PATH')}\n".encode())
            self.status, self.ended_at = NOT_FOUND, time.monotonic()
        else:
            self.pid = os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigdef=DEFAULT_SIGNALS)
        for _, writer in outputs:
            os.close(writer)
        self.pipes = {outputs[0][0]: Kind.OUT, outputs[1][0]: Kind.ERR}

    def kill(self, number: int) -> None:
        if self.status is None:
            os.killpg(self.pid, number)


class Agent:
    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._frames = Reader()
        self._ranks: list[Rank] = []
        self._plan: dict[str, Any] = {}

    def say(self, kind: Kind, rank: int = NO_RANK, payload: bytes = b"") -> None:
        data = memoryview(pack(kind, rank, payload))
        while data:
            try:
                data = data[os.write(self._channel, data) :]
            except BlockingIOError:
                select.select([], [self._channel], [])

    def run(self) -> None:
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self.say(Kind.HELLO)
        while True:
            poll = select.poll()
            poll.register(self._channel, select.POLLIN)
            poll.register(wake, select.POLLIN)
            for rank in self._ranks:
                for pipe in rank.pipes:
                    poll.register(pipe, select.POLLIN)
            timeout_ms = 100 if any(rank.pipes and rank.ended_at for rank in self._ranks) else None
            ready = [descriptor for descriptor, _ in poll.poll(timeout_ms)]
            if wake in ready:
                os.read(wake, READ_BYTES)
                self._reap()
            self._pass_on(ready)
            self._finish()
            if self._channel in ready and not self._listen():
                return

    def _listen(self) -> bool:
        """False: the bed has gone."""
        data = os.read(self._channel, READ_BYTES)
        for kind, _, payload in self._frames.feed(data):
            if kind == Kind.PLAN:
                self._plan = json.loads(payload)
                self._set_up()
            elif kind == Kind.START:
                os.chdir(self._plan["cwd"])
                self._ranks = [Rank(**rank) for rank in self._plan["ranks"]]
            elif kind == Kind.SIGNAL:
                for rank in self._ranks:
                    rank.kill(int(payload))
        return bool(data)

    def _set_up(self) -> None:
        for step in self._plan["setup"]:
            done = subprocess.run(
                step["argv"],
                input=step.get("input", ""),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                text = f"{' '.join(step['argv'])}: status {done.returncode}\n{step.get('input', '')}{done.stdout}"
                self.say(Kind.FAILED, payload=text.encode())
                return
        for name, number in self._plan["limits"].items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (number, number))
        self.say(Kind.READY)

    def _reap(self) -> None:
        """As process 1 of its host the agent also inherits orphans."""
        living = {rank.pid: rank for rank in self._ranks if rank.status is None}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            rank = living.get(found.si_pid)
            if rank is not None:
                # Before the leader is reaped: its process group's id is its own until then.
                os.killpg(rank.pid, signal.SIGKILL)
            _, status = os.waitpid(found.si_pid, 0)
            if rank is not None:
                rank.status, rank.ended_at = os.waitstatus_to_exitcode(status), time.monotonic()

    def _pass_on(self, ready: list[int]) -> None:
        for rank in self._ranks:
            for pipe in [pipe for pipe in rank.pipes if pipe in ready]:
                data = os.read(pipe, READ_BYTES)
                if data:
                    self.say(rank.pipes[pipe], rank.rank, data)
                else:
                    os.close(pipe)
                    del rank.pipes[pipe]

    def _finish(self) -> None:
        """A rank's status is said after all that it wrote."""
        for rank in self._ranks:
            if rank.status is None or rank.ended_at is None:
                continue
            if rank.pipes and time.monotonic() < rank.ended_at + DRAIN_S:
                continue
            for pipe in rank.pipes:
                os.close(pipe)
            rank.pipes, rank.ended_at = {}, None
            self.say(Kind.STATUS, rank.rank, str(rank.status).encode())


def _which(command: str, path: str) -> str | None:
    """As shutil.which(), without all that it imports."""
    folders = [""] if "/" in command else path.split(":")
    for candidate in (os.path.join(folder, command) for folder in folders):
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def main() -> None:
    channel = sys.argv[1]
    descriptor = int(channel) if channel.isdigit() else os.open(channel, os.O_RDWR)
    os.set_inheritable(descriptor, False)
    # The terminal's signals are for the bed, which tells the agent.
    for number in DEFAULT_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    Agent(descriptor).run()


if __name__ == "__main__":
    main()
