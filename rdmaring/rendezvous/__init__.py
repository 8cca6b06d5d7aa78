"""How ranks find each other, and gather small pieces of bytes until they have links of their own."""

from __future__ import annotations

from rdmaring.rendezvous.client import Rendezvous
from rdmaring.rendezvous.environment import detect
from rdmaring.rendezvous.join import join
from rdmaring.rendezvous.place import Place
from rdmaring.rendezvous.protocol import RendezvousError

__all__ = ["Place", "Rendezvous", "RendezvousError", "detect", "join"]
