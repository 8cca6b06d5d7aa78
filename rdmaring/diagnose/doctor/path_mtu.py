"""The largest datagram that reaches the peer unfragmented: sent at full size, confirmed by the peer."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable

from rdmaring.diagnose.doctor.interfaces import Address
from rdmaring.diagnose.doctor.probes import PathMtu
from rdmaring.diagnose.doctor.reach import resolve, target_of

# <linux/in.h>, <linux/in6.h>: Python's socket module does not have all of them.
IP_MTU_DISCOVER, IP_RECVERR = 10, 11
IPV6_MTU_DISCOVER, IPV6_RECVERR, IPV6_DONTFRAG = 23, 25, 62
PMTUDISC_PROBE = 3  # do not fragment, and do not trust the MTU that is remembered for the path
MSG_ERRQUEUE = 0x2000

HEADER_BYTES = {4: 20 + 8, 6: 40 + 8}  # IP and UDP
MTU_MIN = {4: 576, 6: 1280}  # what every path must carry
MTU_MAX = 65535  # of IP; loopback's interface says one more
TOKEN_BYTES = 16
COPIES = 3  # of each size: one lost packet is no small MTU
SETTLE_S = 0.2  # for a datagram to arrive, after the round trip that asks for it
RECEIVE_BUFFER_BYTES = 1 << 20
_EXTENDED_ERROR = struct.Struct("=IBBBBII")  # errno, origin, type, code, pad, info, data


class Receiver:
    """The peer's end: a UDP socket that knows the token of the datagrams it waits for."""

    def __init__(self, address: str, family: socket.AddressFamily) -> None:
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.bind(resolve(address, 0, family))
            self._socket.setblocking(False)
        except BaseException:
            self._socket.close()
            raise
        self.token = os.urandom(TOKEN_BYTES)
        self._arrived: set[int] = set()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def has(self, payload_bytes: int, wait_s: float) -> bool:
        """Whether a datagram of that size has come, or comes within ``wait_s``."""
        deadline = time.monotonic() + wait_s
        while True:
            with contextlib.suppress(BlockingIOError):
                while True:
                    data = self._socket.recv(MTU_MAX)
                    if data[:TOKEN_BYTES] == self.token:
                        self._arrived.add(len(data))
            left = deadline - time.monotonic()
            if payload_bytes in self._arrived or left <= 0:
                return payload_bytes in self._arrived
            select.select([self._socket], [], [], left)

    def close(self) -> None:
        self._socket.close()


class Sender:
    """Our end: datagrams of any size that nobody may fragment."""

    def __init__(self, source: Address, target: Address, port: int, token: bytes) -> None:
        self.version = source.ip.version
        family = socket.AF_INET if self.version == 4 else socket.AF_INET6
        self._token = token
        self.reported, self.reporter = 0, ""
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._forbid_fragments()
            self._socket.bind(resolve(source.scoped, 0, family))
            self._socket.connect(resolve(target_of(source, target), port, family))
        except BaseException:
            self._socket.close()
            raise

    def _forbid_fragments(self) -> None:
        if self.version == 4:
            self._socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
            self._socket.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        else:
            self._socket.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
            self._socket.setsockopt(socket.IPPROTO_IPV6, IPV6_DONTFRAG, 1)
            self._socket.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVERR, 1)

    def send(self, mtu: int) -> bool:
        """One datagram that fills ``mtu``. False: this kernel does not send it, it is too large."""
        payload = self._token + bytes(mtu - HEADER_BYTES[self.version] - TOKEN_BYTES)
        for _ in range(2):  # an error that waits on the socket from an earlier datagram is reported once
            try:
                self._socket.send(payload)
                return True
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return True  # dropped behind the socket, without a word about sizes: the peer will miss it
                self.read_errors()
                if error.errno not in (errno.EMSGSIZE, errno.ECONNREFUSED, errno.EHOSTUNREACH):
                    raise
        return False

    def read_errors(self) -> None:
        """What this kernel or a router has said about the size."""
        with contextlib.suppress(BlockingIOError):
            while True:
                _, ancillary, _, _ = self._socket.recvmsg(1, 512, MSG_ERRQUEUE | socket.MSG_DONTWAIT)
                for _, _, data in ancillary:
                    self._note(data)

    def _note(self, data: bytes) -> None:
        if len(data) < _EXTENDED_ERROR.size:
            return
        number, origin, _, _, _, info, _ = _EXTENDED_ERROR.unpack_from(data)
        if number != errno.EMSGSIZE or not 0 < info < MTU_MAX:
            return
        if self.reported == 0 or info < self.reported:
            self.reported = info
            self.reporter = "this host's kernel" if origin == 1 else _offender(data[_EXTENDED_ERROR.size :])

    def close(self) -> None:
        self._socket.close()


def _offender(sockaddr: bytes) -> str:
    """The router that sent the ICMP message."""
    family = int.from_bytes(sockaddr[:2], "little") if len(sockaddr) >= 16 else 0
    if family == socket.AF_INET:
        return f"router {socket.inet_ntop(socket.AF_INET, sockaddr[4:8])}"
    if family == socket.AF_INET6 and len(sockaddr) >= 24:
        return f"router {socket.inet_ntop(socket.AF_INET6, sockaddr[8:24])}"
    return "a router"


def measure_path(
    source: tuple[Address, int], target: tuple[Address, int], sender: Sender, arrived: Callable[[int, float], bool]
) -> PathMtu:
    """Find the largest size between what every path carries and our interface's MTU.

    source, target: address and MTU of the interface. arrived(payload bytes, seconds): asks the peer.
    Full size is tried first: that is one round trip where all is well.
    """
    version = sender.version
    header = HEADER_BYTES[version]

    def passes(mtu: int) -> bool:
        for _ in range(COPIES):
            if not sender.send(mtu):
                return False
        here = arrived(mtu - header, SETTLE_S)
        sender.read_errors()
        return here

    most, least = min(source[1], MTU_MAX), MTU_MIN[version]
    best = 0
    if passes(most):
        best = most
    elif passes(least):
        best, too_large = least, most
        # The other end's MTU is the most likely answer: then two tries end the search.
        for guess in (target[1], target[1] + 1):
            if best < guess < too_large:
                best, too_large = (guess, too_large) if passes(guess) else (best, guess)
        while too_large - best > 1:
            middle = (best + too_large) // 2
            best, too_large = (middle, too_large) if passes(middle) else (best, middle)
    return PathMtu(
        source[0].scoped,
        target_of(source[0], target[0]),
        most,
        min(target[1], MTU_MAX),
        best,
        sender.reported,
        sender.reporter,
    )
