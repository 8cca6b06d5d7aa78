"""Edges between nodes served by a Python class, and the same wire in readable Python.

``rr.init(transport=MyTransport)``: an object of the class serves each edge, message by message. See
:class:`Transport` for the contract, ``sockets.py`` for the shortest whole one and ``delaying.py`` for one that
wraps another.
"""

from __future__ import annotations

from rdmaring.transport.contract import HEAD_BYTES, Edge, Factory, Head, Kind, Transport
from rdmaring.transport.delaying import Delaying
from rdmaring.transport.sockets import Sockets

__all__ = ["HEAD_BYTES", "Delaying", "Edge", "Factory", "Head", "Kind", "Sockets", "Transport"]
