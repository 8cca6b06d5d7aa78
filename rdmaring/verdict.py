"""Why a communicator is stuck or lost: one class, one place, in one line that is equal on all ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Kind = Literal[
    "died",
    "host_gone",
    "link_down",
    "mismatch",
    "order",
    "never_entered",
    "stopped",
    "no_credit",
    "slow",
]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Verdict:
    """The first stuck edge, and what is the matter there. ``None`` where one does not apply.

    Attributes:
        kind: the class; docs/WHY.md tells what each says.
        rank: the rank at fault; of an edge, the sender (the lower rank, where an error of the link names no direction).
        peer: a rank that waits for it; of an edge, the receiver.
        transport: of the edge between them: "shm", "tcp", "verbs" or one of the program's own.
        op, collective: the operation in which they wait: its number in the communicator (from 1) and its name.
        row: of the schedule, in which ``peer`` waits.
        text: one line for people.
        evidence: what it rests on, each a sentence without its full stop.
    """

    kind: str
    rank: int | None
    peer: int | None
    transport: str | None
    op: int | None
    collective: str | None
    row: int | None
    text: str
    evidence: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"evidence": list(self.evidence)}

    def __str__(self) -> str:
        return self.text
