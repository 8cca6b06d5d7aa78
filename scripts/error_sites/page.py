"""docs/ERRORS.md as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from error_sites import native, python
from error_sites.examples import EXAMPLES
from error_sites.python import BECOMES, CLASSES, ErrorClass, advice_of
from error_sites.site import ROOT, VALUE, Site

PAGE = ROOT / "docs" / "ERRORS.md"

HEAD = """\
# Errors

<!-- Made by scripts/errors_doc from rdmaring/errors.py, native/src/hints.c and the places that raise. Do not edit. -->

All are `rdmaring.RdmaringError`. Where Python has a word for the same thing (`ValueError`, `TimeoutError`,
`ConnectionError`, `MemoryError`), a class derives from that, too. In C the same are `rr_status` values;
`rr_last_error()` gives the record of this thread, `rr_status_advice()` what to do about any of a kind.

| attribute | what it holds; `None` where it does not apply |
|---|---|
| `cause` | a sentence: what happened, to whom |
| `hint` | what to do: of the place that raised it, and then part of the message; or else its class's. Never empty |
| `rank`, `peer` | this rank, and the rank at the other end of what failed |
| `link` | the edge, sender first, as "0->1": the verdict's; else from `peer` to `rank`, of `send()` the other way |
| `transport` | that serves the edge: "shm", "tcp", "verbs", "cuda_ipc" or one of the program's own |
| `collective`, `op`, `row` | the operation's name and its number in the communicator; the row of the schedule |
| `verdict` | of a lost communicator: the first stuck edge and its trouble's class ([WHY.md](WHY.md)) |

Three groups say what is left: after an error of *this call* nothing was changed, go on; after one of *this link* or
*this communicator* the communicator is lost: close it, or `shrink()` it ([RECOVERY.md](RECOVERY.md)).

Bounds: while an operation is in flight, a death is noticed within about 50 ms, a mismatch and another rank's error
within 100 ms, `abort()` returns at once and is seen by peers within 100 ms. `tests/fault` holds them (with room for a
loaded machine).

In the tables below "…" stands for what is known only when it is raised. Places that are not in a table say in their
message what is accepted; the advice of the class holds for them.
"""


def _classes() -> list[ErrorClass]:
    """The public ones that are raised, in the order of errors.py."""
    return [each for each in CLASSES.values() if each.name in EXAMPLES]


def sites_of(kind: ErrorClass) -> list[Site]:
    """All places that raise it, C's first."""
    status = _status(kind.name)
    names = {kind.name, *(other for other, name in BECOMES.items() if name == kind.name)}
    names |= {each.name for each in CLASSES.values() if names & set(each.bases) and each.module != kind.module}
    return [
        *(site for site in native.sites() if status in site.kinds),
        *(site for site in python.sites() if site.kinds[0] in names),
    ]


def _status(name: str) -> str:
    """Of a class: "" where C has none of the kind."""
    source = (python.PACKAGE / "errors.py").read_text()
    found = re.search(rf"^    (-\d+): {name},$", source, re.MULTILINE)
    numbers = {number: status for status, number in native.statuses().items()}
    return numbers[int(found[1])] if found else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _table(sites: list[Site]) -> Iterator[str]:
    said = {
        (site.text, tuple(hint for hint in site.hints if hint != VALUE))
        for site in sites
        if site.text.replace(VALUE, "").strip() and any(hint != VALUE for hint in site.hints)
    }
    if not said:
        return
    yield "| it says | what to do |"
    yield "|---|---|"
    for text, hints in sorted(said, key=lambda pair: (pair[0].startswith(VALUE), pair)):
        yield f"| {_cell(text)} | {'; or: '.join(_cell(hint) for hint in hints)} |"
    yield ""


def _section(kind: ErrorClass) -> Iterator[str]:
    example, status = EXAMPLES[kind.name], _status(kind.name)
    also = [base for base in kind.bases if not base.endswith(("CallError", "CommunicatorError", "RdmaringError"))]
    facts = [f"also {'an' if base[0] in 'AEIOU' else 'a'} `{base}`" for base in also]
    if status:
        facts.append(f"in C `{status}` ({native.statuses()[status]})")
    yield f"### {kind.name}"
    yield ""
    if facts:
        yield f"{', '.join(facts)[0].upper()}{', '.join(facts)[1:]}."
        yield ""
    yield kind.summary.replace("``", "`")
    yield ""
    sites = sites_of(kind)
    advice = advice_of(kind.name)
    yield f"- *for example* `{example.cause}`"
    yield f"- *what to do* {advice or 'each place says it'}"
    yield f"- *carries* {example.carries or '`rank` where it is known'}"
    yield ""
    yield from _table(sites)


def text() -> str:
    """The whole page."""
    lines, group = [HEAD], ""
    for kind in _classes():
        if kind.group != group:
            group = kind.group
            lines += [f"## {group[0].upper()}{group[1:]}", ""]
        lines += _section(kind)
    return "\n".join(lines).rstrip() + "\n"
