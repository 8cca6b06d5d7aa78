"""Numbers and lists as the kernel and people write them."""

from __future__ import annotations

from collections.abc import Iterable

UNLIMITED = 1 << 62  # what limits and cgroups call infinity lies at or above


def bytes_text(count: int) -> str:
    """``64 KiB``, ``1.5 GiB``."""
    if count >= UNLIMITED:
        return "unlimited"
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def count_text(count: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def parse_cpu_list(text: str) -> set[int]:
    """``0-3,8`` as the kernel lists CPUs and nodes; what does not parse counts for nothing."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() if dash else True):
            found.update(range(int(first), int(last if dash else first) + 1))
    return found


def cpu_list(cpus: Iterable[int]) -> str:
    """The reverse of :func:`parse_cpu_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def listing(words: Iterable[str], shown_max: int = 6) -> str:
    """``a, b and 3 more``."""
    every = list(words)
    shown = ", ".join(every[:shown_max])
    return shown if len(every) <= shown_max else f"{shown} and {len(every) - shown_max} more"
