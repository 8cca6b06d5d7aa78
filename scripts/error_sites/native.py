"""The places of the C sources: calls of rr_fail(), and the table of hints.c."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from error_sites.site import ROOT, VALUE, Site

SOURCES = ROOT / "native" / "src"
LITERAL = r'"(?:[^"\\]|\\.)*"'
TOKEN = re.compile(rf"{LITERAL}|'(?:[^'\\]|\\.)*'|/\*.*?\*/|//[^\n]*|[(),]|[^\"'(),/]+|.", re.DOTALL)
CONVERSION = re.compile(r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j)?[a-zA-Z]")
ROW = re.compile(rf"\{{(RR_ERR_\w+), ({LITERAL}), ({LITERAL})\}}")
ADVICE = re.compile(rf"\[-(RR_ERR_\w+)\] = ({LITERAL})")
HINT = re.compile(rf'hint\b[^;"]*?,((?:{LITERAL}|[^;"])*);')
MACRO = re.compile(rf"({LITERAL})\s+([A-Z_]+)\s+(?=\")")
STATUS = re.compile(r"\bRR_ERR_\w+")


def _unquoted(literal: str) -> str:
    return str(ast.literal_eval(literal))


def _joined(argument: str) -> str:
    """The literals of an argument as one text; a macro between two of them is a text that is not known here."""
    argument = MACRO.sub(rf'\1"{VALUE}"', argument)
    return CONVERSION.sub(VALUE, "".join(_unquoted(each) for each in re.findall(LITERAL, argument))).replace("%%", "%")


def _arguments(source: str, at: int) -> tuple[list[str], int]:
    """Of the call whose parenthesis opens at ``at``; and where it ends."""
    found: list[str] = []
    depth, part = 0, ""
    for token in TOKEN.finditer(source, at):
        text = token[0]
        if text == "(":
            depth += 1
            if depth == 1:
                continue
        if text == ")":
            depth -= 1
            if depth == 0:
                return [*found, part.strip()], token.end()
        if text == "," and depth == 1:
            found.append(part.strip())
            part = ""
        elif not text.startswith(("/*", "//")):
            part += text
    raise ValueError(f"a call that never ends: {source[at : at + 80]!r}")


def rows() -> list[tuple[str, str, str]]:
    """Of hints.c: status, how the format begins, the hint."""
    found = ROW.findall((SOURCES / "hints.c").read_text())
    return [(status, _unquoted(begins), _unquoted(hint)) for status, begins, hint in found]


def advice() -> dict[str, str]:
    """Of hints.c: what to do about any error of a status."""
    return {status: _unquoted(text) for status, text in ADVICE.findall((SOURCES / "hints.c").read_text())}


@cache
def statuses() -> dict[str, int]:
    """Of the public header: every status that is an error."""
    header = (ROOT / "native" / "include" / "rdmaring.h").read_text()
    return {name: int(number) for name, number in re.findall(r"(RR_ERR_\w+)\s*=\s*(-\d+)", header)}


def _own_hints(rest: str) -> tuple[str, ...]:
    """What the function says after the error is recorded."""
    found: list[str] = []
    for match in HINT.finditer(rest):
        literals = [_unquoted(each) for each in re.findall(LITERAL, match[1])]
        texts = [CONVERSION.sub(VALUE, each) for each in literals]
        found += texts or [VALUE]
    return tuple(dict.fromkeys(found))


def _of_file(path: Path, table: list[tuple[str, str, str]]) -> Iterator[Site]:
    source = path.read_text()
    for match in re.finditer(r"\brr_fail\(", source):
        if source[: match.start()].endswith(("rr_status ", " * ", "calls ")):
            continue  # its declaration, or a word about it
        arguments, end = _arguments(source, match.end() - 1)
        kinds = tuple(dict.fromkeys(STATUS.findall(arguments[0])))
        literals = re.findall(LITERAL, arguments[1])
        form = "".join(_unquoted(each) for each in literals)
        hints = tuple(hint for status, begins, hint in table if status in kinds and form.startswith(begins))[:1]
        if not hints and not source[: match.start()].rstrip().endswith("return"):
            hints = _own_hints(source[end : source.find("\n}", end)])
        yield Site(path, source.count("\n", 0, match.start()) + 1, kinds, _joined(arguments[1]), hints)


@cache
def sites() -> list[Site]:
    """Every call of rr_fail()."""
    table = rows()
    paths = sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")])
    return [site for path in paths if path.name not in ("status.c", "status.h") for site in _of_file(path, table)]
