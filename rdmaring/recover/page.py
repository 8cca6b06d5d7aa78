"""Records that outlive their ranks: one page of memory that the ranks of a node share, each with a part of its own.

A memfd, opened by the others through /proc: nothing in a file system that could go stale. A part holds two copies of
what its rank last stored; one is whole at any moment, and tells so by its checksum.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib

from rdmaring.recover.agreement import Record
from rdmaring.recover.messages import decode_record, encode_record
from rdmaring.rendezvous.protocol import ProtocolError, parse_object

EPOCHS_MAX = 3  # kept: whoever is behind by more learns it from the living
_HEADER = struct.Struct("<QII")  # serial, bytes of the body, its CRC-32 with the serial


def copy_bytes(world: int) -> int:
    """Room of one copy: for EPOCHS_MAX outcomes with all of ``world`` ranks in each."""
    need = _HEADER.size + EPOCHS_MAX * (512 + 8 * world)
    return -(-need // mmap.PAGESIZE) * mmap.PAGESIZE


class Page:
    """The node's records as one rank sees them. One descriptor, until close()."""

    def __init__(self, descriptor: int, world: int, index: int) -> None:
        """Takes the descriptor over. index: of this rank's part."""
        self._copy_bytes = copy_bytes(world)
        self._world = world
        self._index = index
        self._serial = 0
        try:
            size = os.fstat(descriptor).st_size
            self._memory = mmap.mmap(descriptor, size)  # it keeps a descriptor of its own
        finally:
            os.close(descriptor)

    @classmethod
    def make(cls, world: int, index: int, count: int) -> tuple[Page, int]:
        """A new one with parts for ``count`` ranks, and a descriptor for the others to open; the caller closes it."""
        descriptor = os.memfd_create("rdmaring-recover", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, 2 * copy_bytes(world) * count)
            return cls(os.dup(descriptor), world, index), descriptor
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, pid: int, descriptor: int, inode: int, world: int, index: int) -> Page:
        """What another process has made. Raises OSError: it cannot be reached, or is another file."""
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        facts = os.fstat(opened)
        if facts.st_ino != inode or facts.st_size < 2 * copy_bytes(world) * (index + 1):
            os.close(opened)
            raise FileNotFoundError(f"/proc/{pid}/fd/{descriptor} is another file")
        return cls(opened, world, index)

    def store(self, records: dict[int, Record]) -> None:
        """epoch -> record: this rank's last ones."""
        latest = sorted(records.items())[-EPOCHS_MAX:]
        body = json.dumps({str(epoch): encode_record(record) for epoch, record in latest}).encode()
        assert _HEADER.size + len(body) <= self._copy_bytes
        self._serial += 1
        at = (2 * self._index + self._serial % 2) * self._copy_bytes
        self._memory[at + _HEADER.size : at + _HEADER.size + len(body)] = body
        _HEADER.pack_into(self._memory, at, self._serial, len(body), _sum(self._serial, body))

    def load(self, index: int) -> dict[int, Record]:
        """What the rank of that part stored last; of a rank that stored nothing: nothing."""
        found: tuple[int, bytes] = (0, b"{}")
        for half in range(2):
            at = (2 * index + half) * self._copy_bytes
            serial, size, told = _HEADER.unpack_from(self._memory, at)
            body = bytes(self._memory[at + _HEADER.size : at + _HEADER.size + min(size, self._copy_bytes)])
            if serial > found[0] and told == _sum(serial, body):
                found = serial, body
        records = parse_object(found[1])
        try:
            return {int(epoch): decode_record(record, self._world) for epoch, record in records.items()}
        except ValueError as error:
            raise ProtocolError(f"a record's epoch: {error}") from None

    def close(self) -> None:
        self._memory.close()


def _sum(serial: int, body: bytes) -> int:
    return zlib.crc32(body, serial & 0xFFFFFFFF)
