"""Where a check looks: the roots of the file systems, the environment, and the system's calls.

All of it is an argument, so that a test gives a folder of its own for /sys, and a machine that has no
InfiniBand can be examined as if it had.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rdmaring.diagnose.doctor.findings import Evidence, Finding, State
from rdmaring.diagnose.doctor.system import System

READ_BYTES_MAX = 1 << 20


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Roots:
    """What a check may look at.

    sysfs, procfs, dev: roots of the file systems; the engine's RDMARING_SYSFS moves the first here, too.
    env: the environment of the process that is to run.
    ranks: how many ranks of one job this machine is to hold; limits are held against it.
    system: calls of the operating system.
    """

    sysfs: Path = field(default_factory=lambda: Path(os.environ.get("RDMARING_SYSFS") or "/sys"))
    procfs: Path = Path("/proc")
    dev: Path = Path("/dev")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    ranks: int = field(default_factory=_cpus)
    system: System = field(default_factory=System)


class Look:
    """One examination: what is read through it becomes the finding's evidence."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._evidence: list[Evidence] = []

    def text(self, path: Path) -> str | None:
        """The content of a small file without white space around it, or None where it cannot be read."""
        try:
            with path.open("rb") as file:
                value = file.read(READ_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError as error:
            self.note(str(path), f"unreadable: {error.strerror or error}")
            return None
        self.note(str(path), value)
        return value

    def number(self, path: Path) -> int | None:
        """A file that holds one decimal number; None where it does not."""
        text = self.text(path)
        try:
            return None if text is None else int(text)
        except ValueError:
            return None

    def note(self, source: str, value: object) -> None:
        self._evidence.append(Evidence(source, str(value)))

    def ok(self, found: str, **data: object) -> Finding:
        return Finding(self.id, State.OK, found, tuple(self._evidence), data=data)

    def not_applicable(self, found: str, **data: object) -> Finding:
        return Finding(self.id, State.NOT_APPLICABLE, found, tuple(self._evidence), data=data)

    def warning(self, found: str, cause: str, fix: str, **data: object) -> Finding:
        return Finding(self.id, State.WARNING, found, tuple(self._evidence), cause, fix, data)

    def failure(self, found: str, cause: str, fix: str, **data: object) -> Finding:
        return Finding(self.id, State.FAILURE, found, tuple(self._evidence), cause, fix, data)


def peek(path: Path) -> str:
    """The content of a small file, "" where it cannot be read; for facts that are no evidence by themselves."""
    try:
        with path.open("rb") as file:
            return file.read(READ_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def names(folder: Path) -> list[str]:
    """What lies in a folder, numbers in their order; empty where there is none."""
    try:
        found = os.listdir(folder)
    except OSError:
        return []
    return sorted(found, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))


def status_fields(roots: Roots) -> dict[str, str]:
    """The lines of /proc/self/status."""
    lines = peek(roots.procfs / "self" / "status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def has_capability(roots: Roots, number: int) -> bool:
    """Whether the process holds a capability that counts: one held in a user namespace does not."""
    try:
        held = int(status_fields(roots).get("CapEff", "0"), 16) >> number & 1
    except ValueError:
        return False
    return bool(held) and in_first_user_namespace(roots)


def in_first_user_namespace(roots: Roots) -> bool:
    return peek(roots.procfs / "self" / "uid_map").split() in ([], ["0", "0", "4294967295"])
