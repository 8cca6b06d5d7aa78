"""Lines of many ranks on one terminal or file: prefixed, never mixed, any bytes."""

from __future__ import annotations

import errno
import os
import stat

LINE_BYTES_MAX = 16 << 20  # a longer line is broken, so that memory stays bounded
PENDING_BYTES_MAX = 1 << 20  # beyond it no more is read from ranks until the reader catches up
# poll() promises room for this many bytes in a pipe, so a write of them does not block.
PIPE_WRITE_BYTES = 4096
FILE_WRITE_BYTES = 1 << 16

_COLOURS = (36, 33, 32, 35, 34, 31)  # ANSI foregrounds: cyan, yellow, green, magenta, blue, red


def rank_prefix(rank: int, colour: bool) -> bytes:
    """``[3] ``, coloured or not."""
    text = f"[{rank}]"
    if colour:
        text = f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{text}\x1b[0m"
    return text.encode() + b" "


class LinePrefixer:
    """Cuts one stream into lines and puts a prefix before each."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._begun: list[bytes] = []  # pieces of a line whose end has not come
        self._begun_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """The lines that are whole now, prefixed."""
        end = data.rfind(b"\n") + 1
        lines = b""
        if end:
            whole = b"".join(self._begun) + data[:end]
            lines = self._prefix + whole[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"
            self._begun, self._begun_bytes = [], 0
        if end < len(data):
            self._begun.append(data[end:])
            self._begun_bytes += len(data) - end
            if self._begun_bytes > LINE_BYTES_MAX:
                lines += self.finish()
        return lines

    def finish(self) -> bytes:
        """The last line, if the stream ended inside one; it gets the newline that it lacks."""
        if not self._begun:
            return b""
        line = self._prefix + b"".join(self._begun) + b"\n"
        self._begun, self._begun_bytes = [], 0
        return line


class Sink:
    """What is to be written to a descriptor whose reader may be slow or gone."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.broken = False  # the reader has left; what comes is dropped
        self._pending = bytearray()
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._write_bytes = FILE_WRITE_BYTES if is_file else PIPE_WRITE_BYTES

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    @property
    def full(self) -> bool:
        return len(self._pending) > PENDING_BYTES_MAX

    def put(self, data: bytes) -> None:
        if not self.broken:
            self._pending += data

    def write_some(self) -> None:
        """One write; call it when poll() says that the descriptor takes bytes."""
        try:
            written = os.write(self.descriptor, self._pending[: self._write_bytes])
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO, errno.ENXIO):
                raise
            self.broken = True
            self._pending.clear()
            return
        del self._pending[:written]


def is_same_file(one: int, other: int) -> bool:
    """Whether two descriptors lead to one terminal, pipe or file, where their lines could mix."""
    a, b = os.fstat(one), os.fstat(other)
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
