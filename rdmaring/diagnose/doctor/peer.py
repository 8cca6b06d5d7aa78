"""Both ends of a pair examined from one of them: `rdmaring doctor --peer HOST`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.machine import Document, bounded_dict, decode, examine
from rdmaring.diagnose.doctor.pair import compare
from rdmaring.diagnose.doctor.pair_probes import judge
from rdmaring.diagnose.doctor.probes import ClockOffset, Probes, decode_probes
from rdmaring.diagnose.doctor.roots import Roots
from rdmaring.diagnose.doctor.serve import Server, probe_towards
from rdmaring.diagnose.doctor.talk import PORT_DEFAULT, Conversation, DoctorError, dial, doctor_key, greet
from rdmaring.rendezvous.protocol import ProtocolError, integer

CONNECT_TIMEOUT_S = 5.0
DOCUMENT_TIMEOUT_S = 180.0  # the peer runs its checks meanwhile; an emulated guest takes its time
PROBE_TIMEOUT_S = 240.0
CLOCK_ROUNDS = 32


@dataclass(frozen=True, slots=True)
class PairReport:
    """Both documents, and what the edge between shows. there, back: measured from us to them, and back."""

    mine: Document
    theirs: Document
    there: Probes
    back: Probes
    findings: tuple[Finding, ...]

    @property
    def every(self) -> list[Finding]:
        """Of both ends and of the edge."""
        return [*self.mine.findings, *self.theirs.findings, *self.findings]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mine": self.mine.as_dict(),
            "theirs": self.theirs.as_dict(),
            "pair": [finding.as_dict() for finding in self.findings],
        }


def examine_pair(host: str, port: int, secret: bytes, roots: Roots | None = None) -> PairReport:
    """Examine this machine, the one at ``host`` where a :class:`Server` listens, and the edge between them.

    Takes a few seconds, more where packets are dropped.

    Raises:
        DoctorError: nobody listens there, or it is not a doctor with our secret, or it stops answering.
    """
    where = roots or Roots()
    address = f"{host}:{port}"
    key = doctor_key(secret)
    try:
        connection = dial(host, port, CONNECT_TIMEOUT_S)
    except OSError as error:
        raise DoctorError(
            f"no doctor answers at {address}: {error.strerror or error}",
            f"run there: rdmaring doctor --serve{'' if port == PORT_DEFAULT else f' --port {port}'}; "
            "if it runs, a firewall or the route is in the way",
        ) from error
    with connection, Server(0, secret, where) as listening:
        conversation = Conversation(connection)
        try:
            instance = greet(conversation, key, CONNECT_TIMEOUT_S)
            return _examine(conversation, (host, port, instance), listening, key, where)
        except ProtocolError as error:
            raise DoctorError(
                f"what listens at {address} is not a doctor of ours: {error}",
                "set RDMARING_SECRET to the same text on both ends, or copy the user's secret file; and install the "
                "same version of rdmaring on both",
            ) from error
        except OSError as error:
            raise DoctorError(
                f"the doctor at {address} stopped answering: {error.strerror or error}", "see its own output"
            ) from error


def _examine(
    conversation: Conversation, place: tuple[str, int, str], listening: Server, key: bytes, roots: Roots
) -> PairReport:
    mine = examine(roots)
    answer = conversation.ask({"ask": "documents", "document": bounded_dict(mine)}, DOCUMENT_TIMEOUT_S)
    theirs = decode(answer.get("document"))
    clock = _clock_offset(conversation)
    host, port, instance = place
    there = probe_towards(mine.machine, theirs.machine, host, port, key, instance)
    asked = {"ask": "probe", "port": listening.port, "instance": listening.instance}
    back = decode_probes(conversation.ask(asked, PROBE_TIMEOUT_S).get("probes"))
    findings = [
        *compare(mine.machine, theirs.machine),
        *judge(mine.machine, theirs.machine, there, back, clock),
    ]
    return PairReport(mine, theirs, there, back, tuple(findings))


def _clock_offset(conversation: Conversation) -> ClockOffset:
    """The fastest of many round trips bounds the error best."""
    best: ClockOffset | None = None
    for _ in range(CLOCK_ROUNDS):
        sent_ns = time.time_ns()
        began = time.monotonic_ns()
        theirs_ns = integer(conversation.ask({"ask": "time"}, CONNECT_TIMEOUT_S), "time_ns", 0, 1 << 63)
        half_ns = (time.monotonic_ns() - began) // 2
        offset = ClockOffset((theirs_ns - sent_ns - half_ns) // 1000, half_ns // 1000)
        if best is None or offset.error_us < best.error_us:
            best = offset
    assert best is not None
    return best
