"""The launcher's key-value space of MPICH's and Intel MPI's mpiexec: PMI-1, lines of text over the socket PMI_FD.

    cmd=init pmi_version=1 pmi_subversion=1   ->  cmd=response_to_init rc=0 ...
    cmd=get_my_kvsname                        ->  cmd=my_kvsname kvsname=...
    cmd=put kvsname=K key=... value=...       ->  cmd=put_result rc=0
    cmd=barrier_in                            ->  cmd=barrier_out, once all ranks have come
    cmd=get kvsname=K key=...                 ->  cmd=get_result rc=0 value=...
    cmd=finalize                              ->  cmd=finalize_ack

Whoever has said a word there and goes without finalize counts as crashed, and mpiexec ends the job; after
finalize MPI_Init cannot be called any more. So finalize is said when the process exits, and only if there is no
MPI library in it by then, which would do so itself.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from rdmaring.rendezvous.place import number
from rdmaring.rendezvous.protocol import RendezvousError

LINE_BYTES_MAX = 8192  # more than any value that is passed on
VALUE_CHARS_MAX = 1023  # Hydra's; a byte of its 1024 ends the text


class _Talk:
    """The conversation of this process, begun once. One thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._pid = os.getpid()
        self._unread = b""
        self.rounds = 0
        deadline = time.monotonic() + 10.0
        self.ask("init pmi_version=1 pmi_subversion=1", "response_to_init", deadline)
        atexit.register(self._finalize)
        self.space = self.ask("get_my_kvsname", "my_kvsname", deadline).get("kvsname", "")

    def ask(self, command: str, answer: str, deadline: float) -> dict[str, str]:
        """One line, and the fields of the line that answers it. Raises RendezvousError, OSError."""
        try:
            line = self._line(f"cmd={command}\n".encode(), deadline)
        finally:
            # The descriptor's state is shared with an MPI library that comes later: it wants to block there.
            self._socket.settimeout(None)
        fields = dict(word.partition("=")[::2] for word in line.decode("latin-1").split())
        if fields.get("cmd") != answer or fields.get("rc", "0") != "0":
            raise RendezvousError(
                f"mpiexec answered PMI's {command.split()[0]} with {line[:100].decode('latin-1')!r}",
                hint=_OTHERWISE,
            )
        return fields

    def _line(self, question: bytes, deadline: float) -> bytes:
        self._socket.settimeout(max(1e-3, deadline - time.monotonic()))
        self._socket.sendall(question)
        while b"\n" not in self._unread:
            self._socket.settimeout(max(1e-3, deadline - time.monotonic()))
            more = self._socket.recv(LINE_BYTES_MAX)
            if not more or len(self._unread) + len(more) > LINE_BYTES_MAX:
                raise RendezvousError("mpiexec has closed its PMI, or answers without end", hint=_OTHERWISE)
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _finalize(self) -> None:
        if os.getpid() != self._pid or mpi_is_loaded():
            return
        with contextlib.suppress(OSError, RendezvousError):  # mpiexec may have gone first
            self.ask("finalize", "finalize_ack", time.monotonic() + 2.0)


_OTHERWISE = "set RDMARING_RENDEZVOUS=host:port on all ranks, a free port of rank 0's host"
_talk: _Talk | None = None


def mpi_is_loaded() -> bool:
    """Whether an MPI library is in this process: then PMI_FD is in its use."""
    return "/libmpi" in Path("/proc/self/maps").read_text()


class PmiBoard:
    """Passes rank 0's record on to all ranks of this mpiexec, also over several hosts. Collective."""

    trusted = False
    record_bytes_max = VALUE_CHARS_MAX // 4 * 3

    def __init__(self, env: Mapping[str, str]) -> None:
        self._descriptor = number(env, "PMI_FD")

    def pass_on(self, record: bytes | None, timeout_s: float) -> bytes:
        """Rank 0 gives the record, the others None; all get it. Raises RendezvousError."""
        global _talk
        if mpi_is_loaded():
            raise RendezvousError(
                "ranks on several hosts would tell each other addresses by mpiexec's PMI, but an MPI library is in "
                "this process and uses that itself",
                hint=f"rdmaring.init(mpi=MPI.COMM_WORLD) with mpi4py; or {_OTHERWISE}",
            )
        deadline = time.monotonic() + timeout_s
        try:
            if _talk is None:
                _talk = _Talk(self._descriptor)
            _talk.rounds += 1
            where = f"kvsname={_talk.space} key=rdmaring-{_talk.rounds}"
            if record is not None:
                # No "=" and no blank: they would end the value.
                value = base64.urlsafe_b64encode(record).rstrip(b"=").decode()
                _talk.ask(f"put {where} value={value}", "put_result", deadline)
            _talk.ask("barrier_in", "barrier_out", deadline)
            value = _talk.ask(f"get {where}", "get_result", deadline).get("value", "")
            return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
        except TimeoutError:
            raise RendezvousError(
                f"not all ranks of this mpiexec came to PMI's barrier within {timeout_s:.3g} s",
                hint="look at the output of the others: not started, dead, or without rdmaring.init()?",
                timed_out=True,
            ) from None
        except OSError as error:
            raise RendezvousError(
                f"mpiexec's PMI_FD={self._descriptor} does not work: {error.strerror or error}", hint=_OTHERWISE
            ) from error
        except binascii.Error as error:
            raise RendezvousError(f"what PMI passed on is damaged: {error}", hint=_OTHERWISE) from None
