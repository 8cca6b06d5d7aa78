"""What is wrong with this machine, or with this pair of machines: checks that return findings.

    examine(roots)                    this machine: a Document of facts and findings
    examine_pair(host, port, secret)  both ends and the path between; a Server listens at the other end
    over(comm)                        all ranks of a live communicator, and neighbours in pairs
    pair_findings(mine, theirs)       two documents compared, without a packet

Nothing here prints, and nothing of the machine is changed.
"""

from __future__ import annotations

from rdmaring.diagnose.doctor.findings import Evidence, Finding, State, worst
from rdmaring.diagnose.doctor.live import LiveReport, over
from rdmaring.diagnose.doctor.machine import Document, Machine, decode, examine
from rdmaring.diagnose.doctor.pair import pair_findings
from rdmaring.diagnose.doctor.peer import PairReport, examine_pair
from rdmaring.diagnose.doctor.registry import CHECKS, Check, run_checks
from rdmaring.diagnose.doctor.roots import Roots
from rdmaring.diagnose.doctor.serve import Server
from rdmaring.diagnose.doctor.system import System
from rdmaring.diagnose.doctor.talk import PORT_DEFAULT, DoctorError

__all__ = [
    "CHECKS",
    "PORT_DEFAULT",
    "Check",
    "DoctorError",
    "Document",
    "Evidence",
    "Finding",
    "LiveReport",
    "Machine",
    "PairReport",
    "Roots",
    "Server",
    "State",
    "System",
    "decode",
    "examine",
    "examine_pair",
    "over",
    "pair_findings",
    "run_checks",
    "worst",
]
