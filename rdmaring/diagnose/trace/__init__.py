"""What every rank did with each slice, and when: recorded, put on one time line, summed up.

``comm.trace(path)`` is the way in; RDMARING_TRACE=path traces a whole program. docs/TRACE.md says what the
figures mean.
"""

from __future__ import annotations

from rdmaring.diagnose.trace.overlap import Edge, RankTimes, Summary, summarize
from rdmaring.diagnose.trace.perfetto import read, write
from rdmaring.diagnose.trace.records import RankTrace, Trace
from rdmaring.diagnose.trace.tracing import Tracing, WholeProgram

__all__ = [
    "Edge",
    "RankTimes",
    "RankTrace",
    "Summary",
    "Trace",
    "Tracing",
    "WholeProgram",
    "read",
    "summarize",
    "write",
]
