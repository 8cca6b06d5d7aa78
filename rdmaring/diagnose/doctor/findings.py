"""What a check returns: a finding, with the evidence it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from rdmaring.rendezvous.protocol import ProtocolError

TEXT_CHARS_MAX = 4096  # of one text of a finding that a peer sent
EVIDENCE_MAX = 4096  # lines of evidence of one finding that a peer sent
FINDINGS_MAX = 256


class State(str, Enum):
    """How a check ended. FAILURE: it does not work, or is far from what it should be. WARNING: it works, worse."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    NOT_APPLICABLE = "not-applicable"


class Evidence(NamedTuple):
    """What was looked at (a file, a call, an option), and what was there, verbatim."""

    source: str
    value: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    id: kebab-case, stable: scripts may rely on it.
    found: what is so, in one line.
    cause, fix: why it is so and what to do; never empty for a warning or a failure.
    data: the same for programs, where a line of text is not enough (the GID table); JSON values.
    """

    id: str
    state: State
    found: str
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    fix: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.id):
            raise ValueError(f"id is {self.id!r}; accepted are kebab-case names such as 'gid-table'")
        if self.state in (State.WARNING, State.FAILURE) and not (self.cause and self.fix):
            raise ValueError(f"{self.id}: a {self.state.value} needs a cause and a fix")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.id,
            "state": self.state.value,
            "found": self.found,
            "evidence": [{"source": line.source, "value": line.value} for line in self.evidence],
            "cause": self.cause,
            "fix": self.fix,
            "data": dict(self.data),
        }


def from_dict(fields: Any) -> Finding:
    """A finding out of a document that came over the network.

    Raises ProtocolError: it is none, or larger than any of ours.
    """
    if not isinstance(fields, dict):
        raise ProtocolError("a finding is not a JSON object")
    lines, data = fields.get("evidence"), fields.get("data")
    if not isinstance(lines, list) or len(lines) > EVIDENCE_MAX or not isinstance(data, dict):
        raise ProtocolError("a finding's evidence is no list, or its data no object")
    try:
        return Finding(
            id=_text(fields, "id"),
            state=State(_text(fields, "state")),
            found=_text(fields, "found"),
            evidence=tuple(Evidence(_text(line, "source"), _text(line, "value")) for line in lines),
            cause=_text(fields, "cause"),
            fix=_text(fields, "fix"),
            data=data,
        )
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _text(fields: Any, name: str) -> str:
    value = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise ProtocolError(f"{name} of a finding is not text of at most {TEXT_CHARS_MAX} characters")
    # It will be shown on a terminal: control characters of a stranger must not drive it.
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in value)


def worst(findings: Iterable[Finding]) -> State:
    """FAILURE if there is one, else WARNING if there is one, else OK."""
    states = {finding.state for finding in findings}
    return next((state for state in (State.FAILURE, State.WARNING) if state in states), State.OK)
