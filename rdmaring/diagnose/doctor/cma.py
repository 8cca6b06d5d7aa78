"""CMA: reading another rank's ordinary memory, and which policy forbids it."""

from __future__ import annotations

import errno
import os

from rdmaring.diagnose.doctor.cross_memory import CrossMemory
from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.roots import Look, Roots, has_capability, in_first_user_namespace, status_fields

CAP_SYS_PTRACE = 19
NAMESPACES = ("pid", "user")
YAMA_MEANING = {
    "0": "any process of the same user",
    "1": "children only",
    "2": "only with CAP_SYS_PTRACE",
    "3": "nobody",
}
SLOTS = "ordinary arrays then travel through slots (two copies instead of one); results are the same"


def check_cma(roots: Roots) -> Finding:
    """process_vm_readv between unrelated processes, tried; if it fails, the policies that may forbid it."""
    look = Look("cma")
    if roots.env.get("RDMARING_CMA") == "0":
        look.note("RDMARING_CMA", "0")
        return look.not_applicable("switched off by RDMARING_CMA=0")
    try:
        probe = roots.system.cross_memory()
    except OSError as error:
        look.note("probe", error.strerror or str(error))
        return look.warning(
            "CMA could not be tried",
            f"the probe starts a Python process, and that failed: {error.strerror or error}",
            "run the doctor by the Python that runs the ranks",
        )
    look.note("process_vm_readv of an unrelated process", _name(probe.unrelated_errno))
    look.note("process_vm_readv of a child", _name(probe.child_errno))
    if probe.unrelated_errno == 0 and not probe.wrong:
        return look.ok("a process may read another's memory: large ordinary arrays are copied once")
    yama = look.text(roots.procfs / "sys" / "kernel" / "yama" / "ptrace_scope")
    status = status_fields(roots)
    look.note(str(roots.procfs / "self" / "status"), f"Seccomp: {status.get('Seccomp', 'not shown')}")
    ptrace = has_capability(roots, CAP_SYS_PTRACE)
    look.note("CAP_SYS_PTRACE", "held" if ptrace else f"not held (CapEff: {status.get('CapEff', 'not shown')})")
    _note_namespaces(roots, look)
    cause, fix = _policy(roots, probe, yama, status.get("Seccomp", ""), ptrace)
    return look.warning(
        f"CMA is forbidden: {_name(probe.unrelated_errno)}",
        f"{cause}; {SLOTS}",
        f"{fix}; or RDMARING_CMA=0 to say that it is meant so; or arrays of comm.empty(), which need no CMA",
    )


def _note_namespaces(roots: Roots, look: Look) -> None:
    for kind in NAMESPACES:
        path = roots.procfs / "self" / "ns" / kind
        try:
            look.note(str(path), os.readlink(path))
        except OSError as error:
            look.note(str(path), f"unreadable: {error.strerror}")


def _name(number: int) -> str:
    return "allowed" if number == 0 else f"{errno.errorcode.get(number, '?')} {os.strerror(number)}"


def _policy(roots: Roots, probe: CrossMemory, yama: str | None, seccomp: str, ptrace: bool) -> tuple[str, str]:
    """Cause and fix: the first policy that explains what was seen."""
    if probe.wrong:
        return "the kernel says that it copied, but the bytes differ", "report it to this kernel's maker"
    if probe.unrelated_errno == errno.ENOSYS:
        return (
            "the kernel has no process_vm_readv (CONFIG_CROSS_MEMORY_ATTACH, or a sandbox such as gVisor)",
            "use a kernel that has it",
        )
    if yama in ("1", "2", "3") and (yama == "3" or not ptrace) and (yama != "1" or probe.child_errno == 0):
        return (
            f"Yama's kernel.yama.ptrace_scope is {yama} ({YAMA_MEANING[yama]})",
            "sysctl kernel.yama.ptrace_scope=0 (3 can only be lowered by a reboot), or give the ranks CAP_SYS_PTRACE: "
            "docker run --cap-add=SYS_PTRACE",
        )
    if seccomp == "2":
        return (
            "a seccomp filter (Seccomp: 2, the container's profile) refuses process_vm_readv",
            "docker run --cap-add=SYS_PTRACE (its profile then allows the call), or --security-opt seccomp=PROFILE",
        )
    if not roots.system.is_dumpable():
        return (
            "this process is not dumpable (a set-user-id program, or prctl(PR_SET_DUMPABLE, 0)), so none may read it",
            "start the ranks by a plain program",
        )
    if not in_first_user_namespace(roots):
        return (
            "the process is in a user namespace (rootless container) whose policy forbids it",
            "run all ranks of a node in one container",
        )
    return "a security module forbids it (SELinux's deny_ptrace, AppArmor)", "setsebool deny_ptrace 0"
