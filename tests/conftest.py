"""What holds for all tests: which package is tested, and that CI skips nothing that can be installed."""

from __future__ import annotations

import importlib.util
import os
import re

import pytest

# The only reasons for a skip in CI: hardware that no installation brings. A skip says it in these words.
MISSING_HARDWARE = re.compile(r"(?i)\bno (gpu|rdma nic)\b")

_unexpected_skips: list[str] = []


def pytest_report_header() -> list[str]:
    package = importlib.util.find_spec("rdmaring")
    where = "not installed" if package is None else package.origin or str(package.submodule_search_locations)
    return [f"rdmaring: {where}"]


def pytest_sessionstart() -> None:
    """Under a sanitizer (scripts/test) nothing is proven by the package that is installed."""
    sanitizer = os.environ.get("RDMARING_SANITIZED")
    package = importlib.util.find_spec("rdmaring")
    if sanitizer and f"package-{sanitizer}" not in str(package and package.origin):
        raise pytest.UsageError(f"rdmaring comes from {package and package.origin}, expected was package-{sanitizer}")


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not MISSING_HARDWARE.search(reason):
        _unexpected_skips.append(f"{report.nodeid}: {reason}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)


def _forbidden_skips() -> list[str]:
    return _unexpected_skips if os.environ.get("CI") == "true" else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _forbidden_skips() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _forbidden_skips():
        return
    terminalreporter.section("skipped in CI for another reason than missing hardware: the run fails")
    for line in _forbidden_skips():
        terminalreporter.line(line)
