"""Progress pages of other processes, read from outside: out of /proc, without the help of whom they belong to.

A rank's page lies in a memfd that its owner holds open and its node's ranks map. A living owner's is read through its
descriptor (the right to look at the process is enough); a dead owner's out of the memory of a neighbour that maps it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rdmaring._native import ffi, lib

SEGMENT = "/memfd:rdmaring-segment"
FIRST_NAMESPACE = 0xEFFFFFFC  # the inode of the pid namespace in which all processes of the machine are seen
WORLD_MAX = 1 << 16  # ranks that a page is believed to belong to: what is made of it is as large
MAPPING = re.compile(r"^([0-9a-f]+)-[0-9a-f]+ \S+ 0+ (\S+) (\d+) +" + re.escape(SEGMENT), re.MULTILINE)


@dataclass
class Segments:
    """What was found: ``pages`` by (device, inode) of the memfd, as ``rr_rank_seen``.

    mapped_by: which processes map each. refused: processes whose maps, descriptors or memory may not be read.
    unbelieved: processes whose pages claim what cannot be, and what. versions: those whose pages are of another version
    of rdmaring.
    """

    pages: dict[tuple[str, int], Any] = field(default_factory=dict)
    mapped_by: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    unbelieved: dict[int, str] = field(default_factory=dict)
    versions: set[int] = field(default_factory=set)


def find(proc: Path = Path("/proc")) -> Segments:
    """All pages that the processes of this machine map."""
    found = Segments()
    places: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        for address, device, inode in _mappings(entry, found):
            place = (device, inode)
            places.setdefault(place, []).append((int(entry.name), address))
            found.mapped_by.setdefault(place, set()).add(int(entry.name))
    for place, mappings in places.items():
        seen = _page(proc, place[1], mappings, found)
        if seen is not None:
            _find_owner(proc, seen, [pid for pid, _ in mappings])
            found.pages[place] = seen
    return found


def pid_namespace(process: Path) -> int:
    """Its inode; 0 where it may not be read."""
    try:
        return (process / "ns" / "pid").stat().st_ino
    except OSError:
        return 0


def _find_owner(proc: Path, seen: Any, mapped_by: list[int]) -> None:
    """Life, and the pid by which this process knows the owner: a page tells that of the owner's own pid namespace.

    A living owner maps its page.
    """
    if seen.pid_namespace in (0, pid_namespace(proc / "self")):
        return
    for pid in mapped_by:
        if pid_namespace(proc / str(pid)) != seen.pid_namespace or _innermost(proc / str(pid)) != seen.pid:
            continue
        life = lib.rr_process_life(pid, seen.start_time)
        if life != lib.RR_LIFE_ENDED:
            seen.pid, seen.life = pid, life
            return
    visible = pid_namespace(proc / "self") == FIRST_NAMESPACE or any(
        pid_namespace(each) == seen.pid_namespace for each in proc.iterdir() if each.name.isdigit()
    )
    seen.life = lib.RR_LIFE_ENDED if visible else lib.RR_LIFE_UNKNOWN


def _innermost(process: Path) -> int | None:
    """The process's pid in its own namespace."""
    with contextlib.suppress(OSError):
        found = re.search(r"^NSpid:.*\b(\d+)$", (process / "status").read_text(), re.MULTILINE)
        return int(found[1]) if found else None
    return None


def _mappings(entry: Path, found: Segments) -> list[tuple[int, str, int]]:
    """Of one process: address, device, inode of each segment's beginning."""
    try:
        text = (entry / "maps").read_text()
    except PermissionError as error:
        found.refused[int(entry.name)] = f"{entry / 'maps'}: {error.strerror}"
        return []
    except OSError:  # it has ended meanwhile
        return []
    return [(int(each[1], 16), each[2], int(each[3])) for each in MAPPING.finditer(text)]


def _page(proc: Path, inode: int, mappings: list[tuple[int, int]], found: Segments) -> Any | None:
    """The record of a page, by the first way that works."""
    for pid, _ in mappings:
        data = _through_descriptor(proc / str(pid), inode)
        if data is None:
            continue
        return record(data, pid, found)
    for pid, address in mappings:
        try:
            with open(proc / str(pid) / "mem", "rb", buffering=0) as memory:
                data = os.pread(memory.fileno(), lib.rr_page_bytes(), address)
        except OSError as error:
            found.refused.setdefault(pid, f"{proc / str(pid) / 'mem'}: {error.strerror}")
            continue
        return record(data, pid, found)
    return None


def _through_descriptor(process: Path, inode: int) -> bytes | None:
    with contextlib.suppress(OSError):
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if not os.readlink(entry).startswith(SEGMENT) or os.stat(entry).st_ino != inode:
                    continue
                with open(entry, "rb", buffering=0) as page:
                    return os.pread(page.fileno(), lib.rr_page_bytes(), 0)
    return None


def record(data: bytes, pid: int, found: Segments) -> Any | None:
    """``rr_rank_seen`` of a page's bytes, which nobody has to be believed; None where they are no page of ours."""
    seen = ffi.new("rr_rank_seen *")
    status = lib.rr_page_read(data, len(data), time.monotonic_ns(), seen)
    if status == -2:
        found.versions.add(pid)
    if status < 0:
        return None
    if seen.world > WORLD_MAX:
        found.unbelieved[pid] = (
            f"process {pid}: its page claims a world of {seen.world} ranks; up to {WORLD_MAX} are believed"
        )
        return None
    seen.life = lib.rr_process_life(seen.pid, seen.start_time)
    return seen
