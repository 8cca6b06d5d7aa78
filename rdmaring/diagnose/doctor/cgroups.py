"""Limits that a control group sets, of version 2 and 1, from this process's group up to the root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rdmaring.diagnose.doctor.roots import Look, Roots, peek
from rdmaring.diagnose.doctor.texts import UNLIMITED


def memory_left(roots: Roots, look: Look) -> int:
    """Bytes that the groups still allow; UNLIMITED where none limits."""
    left = UNLIMITED
    for folder in _folders(roots, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = peek(folder / limit_name), peek(folder / used_name)
            # Version 1 says "unlimited" by the largest multiple of a page.
            if limit.isdigit() and int(limit) < UNLIMITED:
                look.note(str(folder / limit_name), limit)
                look.note(str(folder / used_name), used)
                left = min(left, max(0, int(limit) - (int(used) if used.isdigit() else 0)))
    return left


def cpu_quota(roots: Roots, look: Look) -> float | None:
    """How many CPUs' time the groups allow; None where none limits."""
    quotas: list[float] = []
    for folder in _folders(roots, "cpu"):
        both = peek(folder / "cpu.max").split()
        source = "cpu.max"
        if not both:
            source = "cpu.cfs_quota_us"
            both = [peek(folder / "cpu.cfs_quota_us"), peek(folder / "cpu.cfs_period_us")]
        if all(part.isdigit() for part in both) and int(both[1]) > 0:
            look.note(str(folder / source), " ".join(both))
            quotas.append(int(both[0]) / int(both[1]))
    return min(quotas, default=None)


def _folders(roots: Roots, controller: str) -> Iterator[Path]:
    """Folders of the groups that count for a controller, the own first.

    Inside a container the path that /proc names may lie outside of what is mounted; then the mount's root is
    the container's group.
    """
    mount = roots.sysfs / "fs" / "cgroup"
    for line in peek(roots.procfs / "self" / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        tops = [mount, mount / "unified"] if not controllers else [mount / controllers, mount / controller]
        for top in dict.fromkeys(tops):
            own = top / path.lstrip("/")
            folder = own if own.is_dir() else top
            while folder != top:
                yield folder
                folder = folder.parent
            if top.is_dir():
                yield top
