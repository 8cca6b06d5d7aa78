"""All ranks of a live communicator examined at once, and each pair of neighbours in its ring."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.machine import DOCUMENT_BYTES_MAX, Document, bounded_dict, decode, examine
from rdmaring.diagnose.doctor.pair import compare
from rdmaring.diagnose.doctor.roots import Roots
from rdmaring.rendezvous.environment import host_identity
from rdmaring.rendezvous.protocol import parse_object

if TYPE_CHECKING:
    from rdmaring.communicator import Communicator


@dataclass(frozen=True, slots=True)
class LiveReport:
    """documents: of each rank. pairs: findings of neighbours in rank order, keyed (rank, next rank)."""

    documents: tuple[Document, ...]
    pairs: dict[tuple[int, int], tuple[Finding, ...]]

    @property
    def every(self) -> list[Finding]:
        """Of all ranks and all pairs."""
        return [
            *(finding for document in self.documents for finding in document.findings),
            *(finding for findings in self.pairs.values() for finding in findings),
        ]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "ranks": [document.as_dict() for document in self.documents],
            "pairs": [
                {"ranks": list(ranks), "findings": [finding.as_dict() for finding in findings]}
                for ranks, findings in self.pairs.items()
            ],
        }


def over(comm: Communicator, roots: Roots | None = None) -> LiveReport:
    """Every rank runs the checks of its machine; every rank gets all findings. Collective.

    Pairs are compared by what both ends say; nothing is sent between them but the documents, by all_gather.

    roots: default: this machine, with as many ranks as the communicator has on it.

    Raises:
        CommunicatorError: a collective failed.
        ProtocolError: a rank of another version sent a document that this one does not read.
    """
    where = roots or Roots(ranks=_ranks_here(comm))
    mine = json.dumps(bounded_dict(examine(where))).encode()
    counts = comm.all_gather(np.array([len(mine)], np.int64)).tolist()
    if not all(0 < count <= 2 * DOCUMENT_BYTES_MAX for count in counts):
        raise AssertionError(f"documents of {counts} bytes")
    whole = comm.all_gather(np.frombuffer(mine, np.uint8), counts=counts).tobytes()
    documents: list[Document] = []
    begin = 0
    for count in counts:
        documents.append(decode(parse_object(whole[begin : begin + count])))
        begin += count
    return LiveReport(tuple(documents), _pairs(documents))


def _ranks_here(comm: Communicator) -> int:
    """How many ranks of the communicator call this host theirs."""
    digest = hashlib.blake2b(host_identity(os.environ).encode(), digest_size=8).digest()
    mine = np.frombuffer(digest, np.uint64)
    return int(np.count_nonzero(comm.all_gather(mine) == mine[0]))


def _pairs(documents: list[Document]) -> dict[tuple[int, int], tuple[Finding, ...]]:
    world = len(documents)
    ring = [(rank, (rank + 1) % world) for rank in range(world if world > 2 else world - 1)]
    return {(rank, after): tuple(compare(documents[rank].machine, documents[after].machine)) for rank, after in ring}
