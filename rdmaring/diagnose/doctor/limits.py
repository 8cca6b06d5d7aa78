"""Limits of the process: locked memory, open files, CPUs."""

from __future__ import annotations

from rdmaring.diagnose.doctor.cgroups import cpu_quota
from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.ports import device_names
from rdmaring.diagnose.doctor.roots import Look, Roots, has_capability, status_fields
from rdmaring.diagnose.doctor.texts import UNLIMITED, bytes_text, count_text, cpu_list

MIB = 1 << 20
# A rank's verbs links pin their slots and queues: 4 slots of 256 KiB, both ways, to two neighbours, on up to
# 4 channels are 16 MiB; queues and completion channels add less than as much again.
MEMLOCK_BYTES_MIN = 32 * MIB
MEMLOCK_FIX = (
    "ulimit -l unlimited in the shell that starts the ranks; for good: '* - memlock unlimited' in "
    "/etc/security/limits.d/rdma.conf; for a systemd service (sshd and slurmd too): LimitMEMLOCK=infinity; in a "
    "container: docker run --ulimit memlock=-1"
)
CAP_IPC_LOCK = 14

# Measured: a rank holds two descriptors for each other rank of its node and a few of its own; the rest is room
# for sockets to other hosts and for what the program itself opens.
NOFILE_BASE = 64
NOFILE_PER_RANK = 4


def check_memlock(roots: Roots) -> Finding:
    """RLIMIT_MEMLOCK against what RDMA pins: links' slots and queues, and every registered array."""
    look = Look("memlock")
    soft, hard = roots.system.rlimit("RLIMIT_MEMLOCK")
    look.note("RLIMIT_MEMLOCK soft", "unlimited" if soft >= UNLIMITED else soft)
    look.note("RLIMIT_MEMLOCK hard", "unlimited" if hard >= UNLIMITED else hard)
    devices = device_names(roots)
    look.note(str(roots.sysfs / "class" / "infiniband"), " ".join(devices) or "no device")
    if soft >= UNLIMITED:
        return look.ok("unlimited")
    if not devices:
        return look.not_applicable(f"{bytes_text(soft)}: enough, as there is no RDMA device; nothing else pins memory")
    if has_capability(roots, CAP_IPC_LOCK):
        look.note(str(roots.procfs / "self" / "status"), f"CapEff: {status_fields(roots).get('CapEff')}")
        return look.ok(f"{bytes_text(soft)}, but CAP_IPC_LOCK lifts it")
    raised = f" (the hard limit, {bytes_text(hard)}, is low too: only root can raise it)" if hard < UNLIMITED else ""
    if soft < MEMLOCK_BYTES_MIN:
        return look.failure(
            f"RLIMIT_MEMLOCK is {soft} ({bytes_text(soft)}); RDMA needs {bytes_text(MEMLOCK_BYTES_MIN)} or more",
            f"memory that an RDMA device reads or writes is pinned, and RLIMIT_MEMLOCK bounds what a process may pin: "
            f"registering fails with 'Cannot allocate memory'{raised}",
            MEMLOCK_FIX,
        )
    return look.warning(
        f"RLIMIT_MEMLOCK is {bytes_text(soft)}: links fit, registered arrays beyond it do not",
        f"every array of comm.empty() and comm.register() is pinned for RDMA and counts against RLIMIT_MEMLOCK{raised}",
        MEMLOCK_FIX,
    )


def check_nofile(roots: Roots) -> Finding:
    """RLIMIT_NOFILE against the descriptors that a rank holds among that many ranks."""
    look = Look("nofile")
    soft, hard = roots.system.rlimit("RLIMIT_NOFILE")
    need = NOFILE_BASE + NOFILE_PER_RANK * roots.ranks
    look.note("RLIMIT_NOFILE soft", "unlimited" if soft >= UNLIMITED else soft)
    look.note("RLIMIT_NOFILE hard", "unlimited" if hard >= UNLIMITED else hard)
    look.note("needed", f"{NOFILE_BASE} + {NOFILE_PER_RANK} x {count_text(roots.ranks, 'rank')} = {need}")
    if soft >= need:
        return look.ok(
            f"{'unlimited' if soft >= UNLIMITED else soft}; set-up of {count_text(roots.ranks, 'rank')} "
            f"takes about {need}"
        )
    how = (
        f"ulimit -n {need} in the shell that starts the ranks"
        if hard >= need
        else f"as root: '* - nofile {need}' in /etc/security/limits.d/, or LimitNOFILE={need} for the service"
    )
    return look.failure(
        f"RLIMIT_NOFILE is {soft}; set-up of {count_text(roots.ranks, 'rank')} takes about {need}",
        "a rank holds sockets and descriptors for every other rank: beyond RLIMIT_NOFILE the set-up fails with "
        "'Too many open files'",
        f"{how}; in a container: docker run --ulimit nofile={need}",
    )


def check_cpus(roots: Roots) -> Finding:
    """CPUs that the process may run on, and the cgroup's quota of their time, against the ranks."""
    look = Look("cpus")
    allowed = roots.system.affinity()
    look.note("sched_getaffinity", cpu_list(allowed))
    quota = cpu_quota(roots, look)
    usable = len(allowed) if quota is None else min(float(len(allowed)), quota)
    look.note("ranks", roots.ranks)
    found = f"{len(allowed)} allowed (CPUs {cpu_list(allowed)}), " + (
        "no quota" if quota is None else f"a quota of {quota:g} CPUs"
    )
    if quota is not None and quota < min(len(allowed), roots.ranks):
        return look.warning(
            f"{found}, {count_text(roots.ranks, 'rank')}",
            "the cgroup's CPU quota is less than the ranks use: all of them are stopped for the rest of each period, "
            "and a ring waits for the one that is stopped",
            f"docker run --cpus={roots.ranks} (or a pod's CPU limit) at least as many as ranks; or start {usable:g} "
            "ranks at most",
        )
    if roots.ranks > usable:
        return look.warning(
            f"{found}, {count_text(roots.ranks, 'rank')}",
            "more ranks than CPUs: ranks that wait for each other take turns on one CPU; correct, but slow",
            f"start {usable:g} ranks at most, or widen the affinity: taskset, docker run --cpuset-cpus, "
            "srun --cpus-per-task",
        )
    return look.ok(f"{found}, {count_text(roots.ranks, 'rank')}")
