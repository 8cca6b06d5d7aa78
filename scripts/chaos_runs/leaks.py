"""What a run left behind: processes, guests, namespaces, entries of /dev/shm. Descriptors are told by the ranks."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from chaos_runs.worlds import MARK, Ran

SETTLE_S = 2.0
HELPERS = ("sh", "sleep")  # that send a victim its signals


def marked(mark: str) -> dict[int, str]:
    """Processes of the run, by what their environment says: pid -> name."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "comm").read_text().strip()
        except OSError:  # it has ended, or is another user's
            continue
    return found


def in_namespaces(names: set[str]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns/net") in names:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def find(ran: Ran) -> list[str]:
    """In words, after a moment to settle. Processes that are left are ended: they are the run's own."""
    until = time.monotonic() + SETTLE_S
    left = _helpers_ended(marked(ran.mark))
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left = _helpers_ended(marked(ran.mark))
    leaks = []
    for pid, name in left.items():
        leaks.append(f"{'guest' if name.startswith('qemu') else 'process'} {pid} ({name})")
        _end(pid)
    spaces = {each["net"] for each in ran.ranks.values() if "net" in each} - {os.readlink("/proc/self/ns/net")}
    if spaces and (inside := in_namespaces(spaces)):
        leaks.append(f"network namespace with processes {inside}")
    for rank, said in sorted(ran.ranks.items()):
        leaks += [f"descriptor of rank {rank}: {where}" for where in said.get("left", [])]
        leaks += [f"{path} of rank {rank}" for path in said.get("shm", []) if Path(path).exists()]
    return leaks


def _helpers_ended(found: dict[int, str]) -> dict[int, str]:
    """Without those, which are ended."""
    kept = {}
    for pid, name in found.items():
        if name in HELPERS:
            _end(pid)
        else:
            kept[pid] = name
    return kept


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
