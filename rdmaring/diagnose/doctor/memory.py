"""Shared memory, huge pages, NUMA placement of memory."""

from __future__ import annotations

import errno
import re

from rdmaring.diagnose.doctor.cgroups import memory_left
from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.roots import Look, Roots, names, peek, status_fields
from rdmaring.diagnose.doctor.texts import bytes_text, count_text, cpu_list, listing, parse_cpu_list

MIB = 1 << 20
PROBE_BYTES = 4 * MIB
# The library's default: 4 slots of 256 KiB for each ordered pair of ranks of a node.
BYTES_PER_PAIR = MIB
NUMA_LOCAL_DISTANCE = 10


def check_shared_memory(roots: Roots) -> Finding:
    """A memfd can be made and filled, and there is memory for the links. The size of /dev/shm does not matter."""
    look = Look("shared-memory")
    look.note("/dev/shm", "not looked at: rdmaring shares memfds, which need no file system and leave no file behind")
    try:
        roots.system.make_memfd(PROBE_BYTES)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "?")
        look.note(f"memfd_create and {PROBE_BYTES} bytes", f"{name}: {error.strerror}")
        return _no_memfd(roots, look, error)
    look.note(f"memfd_create and {PROBE_BYTES} bytes", "made and filled")
    need = BYTES_PER_PAIR * roots.ranks * max(1, roots.ranks - 1)
    look.note(
        "needed by links", f"{BYTES_PER_PAIR} x {count_text(roots.ranks, 'rank')} x {max(1, roots.ranks - 1)} = {need}"
    )
    available = _available(roots, look)
    group = memory_left(roots, look)
    left = min(available, group)
    if left < need:
        where = "the control group (a container's or job's memory limit)" if group < available else "this machine"
        return look.failure(
            f"{bytes_text(left)} left, links of {count_text(roots.ranks, 'rank')} take {bytes_text(need)}",
            f"{where} has no more memory: shared memory counts like any other, and a rank that exceeds the limit is "
            "killed",
            "raise the limit (docker run --memory, srun --mem), use fewer ranks, or lower RDMARING_MEMORY_BUDGET or "
            "RDMARING_SLOT_BYTES",
        )
    return look.ok(
        f"memfd works; {bytes_text(left)} left, links of {count_text(roots.ranks, 'rank')} take {bytes_text(need)}"
    )


def _no_memfd(roots: Roots, look: Look, error: OSError) -> Finding:
    noexec = look.text(roots.procfs / "sys" / "vm" / "memfd_noexec")
    seccomp = status_fields(roots).get("Seccomp", "")
    look.note(str(roots.procfs / "self" / "status"), f"Seccomp: {seccomp or 'not shown'}")
    if error.errno in (errno.ENOMEM, errno.ENOSPC):
        cause, fix = "there is no memory left", "end what uses it, or raise the container's memory limit"
    elif noexec == "2" and error.errno == errno.EACCES:
        cause = "vm.memfd_noexec=2 refuses memfds that are not sealed against execution"
        fix = "sysctl vm.memfd_noexec=1"
    elif seccomp == "2":
        cause = "a seccomp filter (the container's profile) refuses memfd_create"
        fix = "docker run --security-opt seccomp=PROFILE with memfd_create allowed (docker's own profile allows it)"
    else:
        cause, fix = "the kernel has no memfd_create", "Linux 3.17 or newer is needed; gVisor and the like may lack it"
    return look.failure(f"no shared memory: {error.strerror}", cause, fix)


def _available(roots: Roots, look: Look) -> int:
    text = peek(roots.procfs / "meminfo")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    if found is None:
        look.note(str(roots.procfs / "meminfo"), "no MemAvailable")
        return 1 << 62
    look.note(str(roots.procfs / "meminfo"), found[0])
    return int(found[1]) * 1024


def check_huge_pages(roots: Roots) -> Finding:
    """Transparent huge pages for shared memory."""
    look = Look("huge-pages")
    path = roots.sysfs / "kernel" / "mm" / "transparent_hugepage" / "shmem_enabled"
    text = look.text(path)
    if text is None:
        return look.not_applicable("the kernel has no transparent huge pages for shared memory")
    chosen = re.search(r"\[(\w+)\]", text)
    mode = chosen[1] if chosen else text
    if mode in ("advise", "always", "within_size", "force"):
        return look.ok(f"shmem_enabled is {mode}: links and registered arrays of 2 MiB and more get huge pages")
    return look.warning(
        f"shmem_enabled is {mode}: shared memory has 4 KiB pages",
        "the kernel's default gives shared memory no huge pages, so large transfers spend more on address translation",
        f"as root: echo advise > {path} (rdmaring asks for huge pages where they help)",
    )


def check_numa(roots: Roots) -> Finding:
    """NUMA nodes, their distances, and whether allowed CPUs and allowed memory lie together."""
    look = Look("numa")
    folder = roots.sysfs / "devices" / "system" / "node"
    nodes = [int(name[4:]) for name in names(folder) if re.fullmatch(r"node\d+", name)]
    if len(nodes) < 2:
        look.note(str(folder), " ".join(f"node{node}" for node in nodes) or "no nodes")
        return look.not_applicable("one NUMA node")
    allowed = roots.system.affinity()
    look.note("sched_getaffinity", cpu_list(allowed))
    memory = parse_cpu_list(status_fields(roots).get("Mems_allowed_list", cpu_list(nodes)))
    look.note("Mems_allowed_list", cpu_list(memory))
    cpus = {node: parse_cpu_list(look.text(folder / f"node{node}" / "cpulist") or "") for node in nodes}
    distances = {node: (look.text(folder / f"node{node}" / "distance") or "").split() for node in nodes}
    used = [node for node in nodes if cpus[node] & allowed]
    without = [node for node in used if node not in memory]
    if without:
        return look.warning(
            f"CPUs of node {listing(map(str, without))} are allowed, its memory is not",
            f"memory comes from node {cpu_list(memory)} alone: ranks on other nodes reach all their memory over the "
            "link between processors",
            "allow CPUs and memory of the same nodes: numactl --cpunodebind=N --membind=N, or cpuset.mems of the "
            "container",
        )
    farthest = max((int(text) for row in distances.values() for text in row if text.isdigit()), default=0)
    return look.ok(
        f"{len(nodes)} nodes, allowed CPUs on {listing(f'node {node}' for node in used)}; "
        f"largest distance {farthest} ({NUMA_LOCAL_DISTANCE} is local)"
    )
