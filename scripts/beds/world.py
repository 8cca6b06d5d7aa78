"""Which rank runs on which host, and in which environment."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RENDEZVOUS_PORT = 29477  # free: each host has its own ports, and no other service
# Of the outer job, if the bed itself runs in one.
OUTER = ("RDMARING_RENDEZVOUS_HOSTED", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """hosts * ranks_per_host ranks. addresses: of each host, the first is where rank 0 listens."""

    hosts: int
    ranks_per_host: int
    interleave: bool
    addresses: Sequence[str]

    @property
    def size(self) -> int:
        return self.hosts * self.ranks_per_host

    def host_of(self, rank: int) -> int:
        return rank % self.hosts if self.interleave else rank // self.ranks_per_host

    def local_rank_of(self, rank: int) -> int:
        return rank // self.hosts if self.interleave else rank % self.ranks_per_host

    @property
    def rendezvous(self) -> str:
        first = self.addresses[0]
        return f"[{first}]:{RENDEZVOUS_PORT}" if ":" in first else f"{first}:{RENDEZVOUS_PORT}"

    def ranks(self, argv: Sequence[str], base: Mapping[str, str] = os.environ) -> list[list[dict[str, Any]]]:
        """For each host what its agent starts."""
        secret, run = secrets.token_hex(16), secrets.token_hex(4)
        shared = {name: value for name, value in base.items() if name not in OUTER}
        plans: list[list[dict[str, Any]]] = [[] for _ in range(self.hosts)]
        for rank in range(self.size):
            host = self.host_of(rank)
            own = {
                "RDMARING_RANK": str(rank),
                "RDMARING_WORLD_SIZE": str(self.size),
                "RDMARING_LOCAL_RANK": str(self.local_rank_of(rank)),
                "RDMARING_RENDEZVOUS": self.rendezvous,
                "RDMARING_SECRET": secret,
                "RDMARING_HOST_ID": f"bed-{run}-host{host}",
                "BED_HOST": str(host),
                "BED_ADDRESSES": " ".join(self.addresses),
            }
            plans[host].append({"rank": rank, "argv": list(argv), "env": {**shared, **own}})
        return plans
