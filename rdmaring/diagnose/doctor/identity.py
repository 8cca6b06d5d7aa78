"""Who this machine is to its peers: host id, secret, settings, clock."""

from __future__ import annotations

import difflib
import stat

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.roots import Look, Roots
from rdmaring.errors import ArgumentError
from rdmaring.rendezvous.secret import secret_path
from rdmaring.settings import VARIABLES, read

SECRET_CHARS_MIN = 16
WORLD_READABLE = stat.S_IRWXG | stat.S_IRWXO


def check_host_identity(roots: Roots) -> Finding:
    """What tells ranks that they share a host: the kernel's boot id, or RDMARING_HOST_ID."""
    look = Look("host-identity")
    given = roots.env.get("RDMARING_HOST_ID")
    boot_id = look.text(roots.procfs / "sys" / "kernel" / "random" / "boot_id")
    if given:
        look.note("RDMARING_HOST_ID", given)
        return look.ok(f"RDMARING_HOST_ID={given}, in place of the boot id (test beds set it)")
    if not boot_id:
        return look.failure(
            "no boot id, so ranks cannot tell whether they share a host",
            "/proc is not mounted, or hides sys/kernel/random/boot_id (a hardened container)",
            "mount /proc, or set RDMARING_HOST_ID to a name that is equal on this host and differs on every other",
        )
    return look.ok(f"boot id {boot_id}")


def check_variables(roots: Roots) -> Finding:
    """RDMARING_* variables: none misspelt, all values accepted."""
    look = Look("variables")
    own = {name: value for name, value in sorted(roots.env.items()) if name.startswith("RDMARING_")}
    for name, value in own.items():
        look.note(name, f"set, {len(value)} characters" if name == "RDMARING_SECRET" else value)
    unknown = [name for name in own if name not in VARIABLES]
    try:
        read({name: value for name, value in own.items() if name in VARIABLES}, None)
    except ArgumentError as error:
        return look.failure(str(error), "init() refuses this value on every rank", "correct or unset the variable")
    if unknown:
        near = {name: difflib.get_close_matches(name, VARIABLES, n=1) for name in unknown}
        return look.warning(
            f"unknown: {', '.join(unknown)}",
            "rdmaring reads no such variable, so it has no effect: "
            + ", ".join(f"{name} is near {match[0]}" if match else name for name, match in near.items()),
            "; ".join(
                f"write {match[0]} instead of {name}" if match else f"unset {name}" for name, match in near.items()
            ),
        )
    return look.ok(", ".join(own) or "none set")


def check_secret(roots: Roots) -> Finding:
    """The job's secret: RDMARING_SECRET, or a file that only its owner may read. It is never shown."""
    look = Look("secret")
    given = roots.env.get("RDMARING_SECRET")
    if given:
        look.note("RDMARING_SECRET", f"set, {len(given)} characters")
        if len(given) < SECRET_CHARS_MIN:
            return look.warning(
                f"RDMARING_SECRET has {len(given)} characters",
                "a short secret can be guessed by whoever reaches the rendezvous",
                f"use {SECRET_CHARS_MIN} or more random ones: RDMARING_SECRET=$(openssl rand -hex 32)",
            )
        return look.ok("RDMARING_SECRET is set")
    try:
        path = secret_path(roots.env)
        facts = path.lstat()
    except FileNotFoundError:
        look.note(str(path), "absent")
        return look.ok(f"none yet: {path} is made on first use; the hosts of a job must share it, or RDMARING_SECRET")
    except (OSError, RuntimeError) as error:
        look.note("secret file", str(error))
        return look.failure(
            "the user's secret file cannot be reached",
            f"the home folder is not there or not ours: {error}",
            "set RDMARING_SECRET to the same text on every rank, or HOME",
        )
    mode = stat.S_IMODE(facts.st_mode)
    look.note(str(path), f"mode {mode:04o}, user id {facts.st_uid}, {facts.st_size} bytes")
    if facts.st_uid != roots.system.user():
        return look.failure(
            f"{path} belongs to user id {facts.st_uid}",
            f"a secret that another user (not {roots.system.user()}) wrote is not used",
            f"rm {path} (a new one is made), or set RDMARING_SECRET",
        )
    if not stat.S_ISREG(facts.st_mode) or mode != 0o600:
        why = "others may have read it" if mode & WORLD_READABLE else "only a regular file of mode 0600 is accepted"
        return look.failure(
            f"{path} has mode {mode:04o}",
            f"{why}, and whoever has the secret can join a job",
            f"rm {path} (a new one is made), or chmod 600 if it was never readable by others",
        )
    if facts.st_size == 0:
        return look.failure(
            f"{path} is empty", "an earlier write failed (a full disk)", f"rm {path}: a new one is made"
        )
    return look.ok(f"{path}, mode 0600")


def check_clock(roots: Roots) -> Finding:
    """Whether the kernel's clock is kept right by NTP, PTP or the hypervisor."""
    look = Look("clock")
    try:
        clock = roots.system.clock()
    except OSError as error:
        look.note("adjtimex", error.strerror or str(error))
        return look.not_applicable("the kernel does not tell (a sandbox)")
    look.note("adjtimex", f"status {clock.status:#06x}, maximal error {clock.max_error_us} us")
    if clock.synchronized:
        return look.ok(f"synchronized, error below {clock.max_error_us / 1000:g} ms")
    return look.warning(
        "not synchronized",
        "no program keeps the clock right (STA_UNSYNC): log lines and traces of several hosts drift apart. Sums do not "
        "depend on it; rdmaring measures the offsets it needs",
        "run chrony or systemd-timesyncd: timedatectl set-ntp true; rdmaring doctor --peer HOST shows the offset",
    )
