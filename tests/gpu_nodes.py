"""Ranks with simulated GPUs on several nodes, between which the host carries what streams give it."""

from __future__ import annotations

from typing import Any

# PER ranks are neighbours on a node.
NODES = """
import os
os.environ["RDMARING_HOST_ID"] = f"host{int(os.environ['RDMARING_RANK']) // PER}"
"""
ONE_SLOT = {"RDMARING_SLOT_BYTES": "4096", "RDMARING_SLOT_COUNT": "1"}
SMALL_SLOTS = {"RDMARING_SLOT_BYTES": "8192", "RDMARING_SLOT_COUNT": "2"}
SMALL_SLOT = {"RDMARING_SLOT_BYTES": "8192", "RDMARING_SLOT_COUNT": "1"}  # float32 in place of 16 bits fits


def nodes(per: int = 1) -> str:
    return f"PER = {per}" + NODES


def of(ran: Any, world: int, key: str) -> list[Any]:
    assert ran.code == 0, ran.output
    return [ran.of(rank, key) for rank in range(world)]
