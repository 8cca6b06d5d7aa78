"""An Ethernet switch between guests: frames over stream sockets, as `qemu -netdev stream` writes them.

    python3 -m beds.switch DESCRIPTOR DESCRIPTOR [...]

A frame is its length in 4 bytes, the most significant first, and its bytes. QEMU's own stream joins two guests only.
The switch ends when all guests have.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

READ_BYTES = 1 << 18
LENGTH = struct.Struct("!I")
ADDRESS_BYTES = 6
FRAME_BYTES_MIN = 2 * ADDRESS_BYTES
# A guest that reads no more must not stop the others: beyond this its frames are lost, as in any switch.
QUEUE_BYTES_MAX = 4 << 20


class Port:
    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.unsent = bytearray()
        self._received = bytearray()

    def receive(self) -> list[bytes] | None:
        """Whole frames, each with its length before it; None at the end of the stream."""
        try:
            data = self.connection.recv(READ_BYTES)
        except ConnectionResetError:
            return None
        if not data:
            return None
        self._received += data
        frames, at = [], 0
        while len(self._received) >= at + LENGTH.size:
            end = at + LENGTH.size + LENGTH.unpack_from(self._received, at)[0]
            if len(self._received) < end:
                break
            frames.append(bytes(self._received[at:end]))
            at = end
        del self._received[:at]
        return frames

    def send(self, frame: bytes) -> None:
        if len(self.unsent) + len(frame) <= QUEUE_BYTES_MAX:
            self.unsent += frame
            if len(self.unsent) == len(frame):
                self.flush()

    def flush(self) -> None:
        try:
            sent = self.connection.send(self.unsent)
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            sent = len(self.unsent)  # receive() notices
        del self.unsent[:sent]


class Switch:
    def __init__(self, ports: list[Port]) -> None:
        self._ports = ports
        self._port_of: dict[bytes, Port] = {}  # learned from what came in there

    def run(self) -> None:
        while self._ports:
            poll = select.poll()
            ports = {port.connection.fileno(): port for port in self._ports}
            for descriptor, port in ports.items():
                poll.register(descriptor, select.POLLIN | (select.POLLOUT if port.unsent else 0))
            for descriptor, events in poll.poll():
                if events & select.POLLOUT:
                    ports[descriptor].flush()
                if events & ~select.POLLOUT:
                    self._read(ports[descriptor])

    def _read(self, port: Port) -> None:
        frames = port.receive()
        if frames is None:
            self._ports.remove(port)
            return
        for frame in frames:
            self._forward(port, frame)

    def _forward(self, source: Port, frame: bytes) -> None:
        ethernet = memoryview(frame)[LENGTH.size :]
        if len(ethernet) < FRAME_BYTES_MIN:
            return
        to = bytes(ethernet[:ADDRESS_BYTES])
        self._port_of[bytes(ethernet[ADDRESS_BYTES:FRAME_BYTES_MIN])] = source
        known = None if to[0] & 1 else self._port_of.get(to)  # the lowest bit: for a group of hosts
        for port in self._ports if known is None else [known]:
            if port is not source:
                port.send(frame)


def main() -> None:
    Switch([Port(socket.socket(fileno=int(descriptor))) for descriptor in sys.argv[1:]]).run()


if __name__ == "__main__":
    main()
