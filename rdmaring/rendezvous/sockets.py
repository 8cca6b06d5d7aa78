"""Addresses and sockets of the rendezvous, IPv4 and IPv6."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

BACKLOG = 1024
# As the engine's links: a lost host is noticed within about 4 s, by its kernel's silence.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 1, 1, 3


def parse_address(text: str) -> tuple[str, int]:
    """``host:port`` or ``[ipv6]:port``. Raises ValueError that says what is accepted."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {text!r}: an IPv6 host stands in brackets, as in [::1]:29400")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"address {text!r}: expected host:port with a port from 1 to 65535")
    return host, int(port)


def format_address(address: Any) -> str:
    """``host:port`` of a socket's name, with brackets around IPv6."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str, port: int) -> list[Any]:
    """``getaddrinfo`` of TCP: where a host's name leads. Raises OSError, also of what can be no name."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a part that is empty or longer than 63, or no text at all
        raise OSError(errno.EINVAL, f"{host!r} is no name of a host") from error


def own_address(listener: socket.socket) -> tuple[str, int]:
    """How a process of this host reaches a listening socket: by loopback, where it listens everywhere."""
    name = listener.getsockname()
    host, port = name[0], name[1]
    if host == "0.0.0.0":
        return "127.0.0.1", port
    if host == "::":
        return "::1", port
    if len(name) == 4 and name[3]:  # link-local: of no use without its interface
        host = f"{host}%{socket.if_indextoname(name[3])}"
    return host, port


def listen_everywhere(port: int) -> list[socket.socket]:
    """Listening sockets for all addresses of this host, IPv4 and IPv6. port 0 takes a free one. Raises OSError."""
    try:
        listeners = [_bound(socket.AF_INET, "0.0.0.0", port)]
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        return [_bound(socket.AF_INET6, "::", port)]  # a machine without IPv4
    with contextlib.suppress(OSError):  # a machine without IPv6
        listeners.append(_bound(socket.AF_INET6, "::", listeners[0].getsockname()[1]))
    return listeners


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for ``host``: on that address if it is one, on loopback for localhost, else on all.

    A host name may stand for an address that this machine has only inside (Debian maps its own name to
    127.0.1.1), so what a name resolves to is not what to listen on. port 0 takes a free one.

    Raises OSError: the port is taken, or the address is not this machine's.
    """
    if host == "localhost":
        return [_bound(socket.AF_INET, "127.0.0.1", port)]
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.split("%")[0])
        except (OSError, UnicodeError):
            continue
        return [_bound(family, host, port)]
    return listen_everywhere(port)


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # despite TIME_WAIT of an earlier job
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        target = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)[0][4]
        listener.bind(target)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def keep_alive(connection: socket.socket) -> None:
    """No delay for small frames, and notice a lost host though nothing is sent."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
