"""Every error says what happened and what to do: all statuses, all classes, and all places of the sources that raise.

The places are read from the sources by scripts/error_sites, of which docs/ERRORS.md is made, too.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

from error_sites import native, python  # noqa: E402
from error_sites.site import VALUE, Site  # noqa: E402

from rdmaring import errors  # noqa: E402
from rdmaring._native import ffi, lib  # noqa: E402

ROWS = native.rows()
NATIVE = native.sites()
PYTHON = python.sites()
STATUSES = native.statuses()
TEXT_CHARS_MIN = 12  # of what is said without what is filled in

# Say what they were handed: a reason that another place worded. Each looks whether it has one.
HANDED_ON = {
    "native/src/api_reduce.c": "… is NULL",
    "native/src/verbs_api.c": VALUE,
    "rdmaring/__init__.py": VALUE,
    "rdmaring/plan.py": VALUE,
    "rdmaring/rendezvous/protocol.py": VALUE,
    "rdmaring/work.py": VALUE,
}


def is_advised(site: Site) -> bool:
    """Has each kind of error that it may raise advice that holds for all of the kind?"""
    if site.path.suffix == ".py":
        return bool(python.advice_of(site.kinds[0]))
    return bool(site.kinds) and all(native.advice().get(status) for status in site.kinds)


def test_the_sources_are_read_whole() -> None:
    text = "".join(path.read_text() for path in native.SOURCES.glob("*.[ch]") if path.stem != "status")
    calls = len(re.findall(r"\brr_fail\(", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)))
    assert len(NATIVE) == calls > 300
    assert len(ROWS) == (native.SOURCES / "hints.c").read_text().count("{RR_ERR_")
    assert len(PYTHON) > 180
    assert {"ArgumentError", "SetupError", "RendezvousError", "NoQuorumError"} <= {site.kinds[0] for site in PYTHON}
    assert {status for site in NATIVE for status in site.kinds} | {"RR_ERR_PEER_FAILED"} == STATUSES.keys()


def complaints(site: Site) -> list[str]:
    """What a place lacks."""
    found = []
    known = len(site.text.replace(VALUE, "").strip())
    handed_on = HANDED_ON.get(str(site.path.relative_to(ROOT))) == site.text
    if known < TEXT_CHARS_MIN and not handed_on and not site.hints:
        found.append(f"{site.place} says no more than {site.text!r}")
    if site.text.endswith((".", "\n")):
        found.append(f"{site.place}: {site.text!r} ends a sentence: a hint may follow, after a full stop of its own")
    if not site.hints and not is_advised(site):
        found.append(f"{site.place} has no hint, and its kind no advice: {site.text!r}")
    if any(not hint.strip() or hint[-1] in ".!" for hint in site.hints):
        found.append(f"{site.place}: {site.hints} become the end of a sentence")
    return found


def test_every_place_says_what_happened_and_what_to_do() -> None:
    assert [text for site in [*NATIVE, *PYTHON] for text in complaints(site)] == []


@pytest.mark.parametrize(
    ("kinds", "text", "hints"),
    [
        (("RR_ERR_LINK",), "the edge to rank … failed", ()),
        ((), "the edge to rank … failed", ()),
        (("RR_ERR_ARGUMENT", "RR_ERR_LINK"), "the edge to rank … failed", ()),
        (("RR_ERR_ARGUMENT",), "…: …", ()),
        (("RR_ERR_ARGUMENT",), "count is negative.", ()),
        (("RR_ERR_LINK",), "the edge to rank … failed", ("",)),
        (("RR_ERR_LINK",), "the edge to rank … failed", ("look at the cable.",)),
    ],
)
def test_a_place_that_lacks_something_is_refused(kinds: tuple[str, ...], text: str, hints: tuple[str, ...]) -> None:
    assert complaints(Site(native.SOURCES / "made_up.c", 1, kinds, text, hints))


def test_every_row_serves_some_place() -> None:
    for status, begins, hint in ROWS:
        said = native.CONVERSION.sub(VALUE, begins)
        served = (site for site in NATIVE if status in site.kinds and site.text.startswith(said))
        assert any(hint in site.hints for site in served), f"no place raises {status} with {begins!r}"


def test_every_status_has_a_name_and_a_class() -> None:
    assert errors.BY_STATUS.keys() == set(STATUSES.values())
    assert len(set(errors.BY_STATUS.values())) == len(STATUSES)
    names = {ffi.string(lib.rr_status_name(number)).decode() for number in STATUSES.values()}
    assert len(names) == len(STATUSES) and "invalid" not in names


def test_advice_is_the_same_in_c_and_python() -> None:
    for name, number in STATUSES.items():
        assert ffi.string(lib.rr_status_advice(number)).decode() == errors.BY_STATUS[number].advice
        assert errors.BY_STATUS[number].advice == native.advice().get(name, "")


def test_no_advice_for_what_is_no_error() -> None:
    for number in (0, 1, -5, -19, -60, -(2**31), 2**31 - 1):
        assert ffi.string(lib.rr_status_advice(number)) == b""


def test_classes_are_found_as_python_has_them() -> None:
    for (module, name), found in python.CLASSES.items():
        if module.startswith("rdmaring.torch"):
            continue  # torch is not everywhere
        kind = getattr(importlib.import_module(module), name)
        assert found.summary and found.summary in " ".join(kind.__doc__.split())
        if issubclass(kind, errors.RdmaringError):
            assert python.advice_of(name) == kind.advice
    public = {name for name in vars(errors) if name.endswith("Error")}
    assert {name for _, name in python.CLASSES} - python.BECOMES.keys() - {"NotOurServerError"} == public
