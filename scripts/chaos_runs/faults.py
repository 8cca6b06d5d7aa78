"""What is done to a job, where that can be done, and what its ranks must say of it."""

from __future__ import annotations

import os
from dataclasses import dataclass

TRANSPORTS = ("shm", "tcp", "verbs", "sim", "softroce")
EVERYWHERE = frozenset(TRANSPORTS)
HERE = frozenset({"shm", "tcp", "verbs", "sim"})
# What a machine with other work needs: where ranks get no processor for seconds, time-outs of so few seconds are right.
PATIENCE = float(os.environ.get("CHAOS_PATIENCE", "1"))
OP_TIMEOUT_S = 2.0 * PATIENCE
PATIENT_S = 12.0 * PATIENCE  # time-out of operations where the cause shows by itself, and before
LATE_S = 3 * OP_TIMEOUT_S


@dataclass(frozen=True)
class Fault:
    """One kind of trouble.

    transports: on which it can be made.
    kinds: of verdicts, or classes of errors where an error says all by itself; the first is what docs/WHY.md promises.
        "none" is the word for a job that goes on with right sums.
    edge: what is at fault: "rank" (the victim), "edge" (victim and peer), "touching" (an edge of the victim: of two
        that have called different things neither is the odd one yet),
        "node" (any rank of the victim's host).
    within_s: from the fault, or from the call that meets it, to the error, as documented.
    namespaces: on tcp it needs hosts with devices of their own. op_timeout_s: of each operation.
    own: what the victim itself says is judged, too.
    """

    name: str
    what: str
    transports: frozenset[str]
    kinds: tuple[str, ...]
    edge: str
    within_s: float
    own: bool = False
    namespaces: bool = False
    op_timeout_s: float = OP_TIMEOUT_S


_ALL = (
    Fault("kill", "SIGKILL", EVERYWHERE, ("died",), "rank", 1.0),
    Fault("stop", "SIGSTOP", EVERYWHERE, ("stopped",), "rank", OP_TIMEOUT_S),
    Fault("late", "in user code for longer than the time-out", EVERYWHERE, ("never_entered",), "rank", OP_TIMEOUT_S),
    Fault("collective", "calls another collective", EVERYWHERE, ("mismatch",), "touching", 0.1, own=True),
    Fault("size", "one element more", EVERYWHERE, ("mismatch",), "touching", 0.1, own=True),
    Fault("dtype", "another dtype of equal size", EVERYWHERE, ("mismatch",), "touching", 0.1, own=True),
    Fault("order", "two communicators in the other order", HERE, ("order",), "touching", OP_TIMEOUT_S, own=True),
    Fault(
        "memory",
        "RLIMIT_AS at what is in use; it raises, and its program ends",
        frozenset({"shm", "tcp", "sim"}),
        ("never_entered", "died"),
        "rank",
        1.0,
    ),
    Fault(
        "descriptor",
        "close() of a descriptor of the library's by the program",
        frozenset({"tcp"}),
        ("link_down", "died", "host_gone", "none"),
        "touching",
        OP_TIMEOUT_S,
    ),
    Fault(
        "credits",
        "its transport takes nothing any more, and keeps it inside the call",
        frozenset({"sim"}),
        ("no_credit",),
        "rank",
        OP_TIMEOUT_S,
    ),
    Fault(
        "cut",
        "the link of one edge is cut",
        frozenset({"tcp", "sim", "verbs"}),
        ("link_down",),
        "edge",
        6.0,
        namespaces=True,
        own=True,
        op_timeout_s=PATIENT_S,
    ),
    Fault(
        "slow",
        "one edge is too slow for the time-out",
        frozenset({"tcp", "sim"}),
        ("slow",),
        "edge",
        OP_TIMEOUT_S,
        namespaces=True,
    ),
    Fault(
        "dropped",
        "one slice never arrives",
        frozenset({"sim"}),
        ("ProtocolError", "link_down"),
        "edge",
        OP_TIMEOUT_S,
        own=True,
    ),
    Fault("corrupted", "one bit of a slice is turned", frozenset({"sim"}), ("CorruptError",), "edge", 0.5, own=True),
    Fault(
        "host",
        "a host is off the network",
        frozenset({"tcp"}),
        ("host_gone",),
        "node",
        4.0,
        namespaces=True,
        op_timeout_s=PATIENT_S,
    ),
    Fault(
        "flushed",
        "all queue pairs go to ERR, once",
        frozenset({"verbs"}),
        ("none",),
        "edge",
        0.0,
        own=True,
        op_timeout_s=PATIENT_S,
    ),
)
FAULTS = {fault.name: fault for fault in _ALL}
