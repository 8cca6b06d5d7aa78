"""docs/ERRORS.md is what the sources say, and each example on it is a message that some place can raise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

from error_sites import page  # noqa: E402
from error_sites.examples import EXAMPLES  # noqa: E402
from error_sites.python import CLASSES  # noqa: E402
from error_sites.site import Site  # noqa: E402

from rdmaring import errors  # noqa: E402

TAKEN_OVER = Site(ROOT / "native/src/watch_cause.c", 1, ("RR_ERR_PEER_FAILED",), "rank … failed (…): …", ())


def test_the_page_is_made_from_the_sources() -> None:
    assert page.PAGE.read_text() == page.text(), "run scripts/errors_doc"


def test_the_command_tells_a_page_that_differs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "errors_doc"), "--check"]
    assert subprocess.run(command, capture_output=True, timeout=100).returncode == 0
    assert subprocess.run([*command, "x"], capture_output=True, timeout=100).returncode == 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_message_that_is_raised(name: str) -> None:
    (kind,) = (each for each in CLASSES.values() if each.name == name)
    places = [*page.sites_of(kind), *([TAKEN_OVER] if name == "PeerFailedError" else [])]
    assert any(site.says(EXAMPLES[name].cause) for site in places if site.text.strip("… :")), EXAMPLES[name].cause


def test_what_is_taken_over_is_written_so() -> None:
    assert '"rank %d failed (%s): %.900s"' in TAKEN_OVER.path.read_text()


def test_every_class_that_is_raised_is_on_the_page() -> None:
    groups = {"RdmaringError", "CallError", "CommunicatorError"}  # to catch, not to raise
    assert {name for name in vars(errors) if name.endswith("Error")} - groups == EXAMPLES.keys()
