"""What the beds need of the machine: installed by apt where that can be done, and named exactly where not."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from beds.job import LackingError

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
LIBRARIES = "/usr/lib/*-linux-gnu"

# Debian's package and what of it must be found: a command in PATH, or a file.
HOSTS = {
    "iproute2": ("ip", "tc"),
    "util-linux": ("unshare", "nsenter", "setpriv", "mount"),
}
GUESTS = {
    "qemu-system-x86": ("qemu-system-x86_64",),
    "busybox-static": ("busybox",),
    "kmod": ("modprobe", "depmod"),
    "iproute2": ("ip", "tc", "rdma"),
    "util-linux": ("setpriv", "mount"),
    "ibverbs-providers": (f"{LIBRARIES}/libibverbs/librxe-rdmav*.so",),
    "libibverbs-dev": ("/usr/include/infiniband/verbs.h",),
}
# For those who measure and test in guests.
GUEST_TOOLS = {
    "rdma-core": ("/usr/share/doc/rdma-core",),
    "ibverbs-utils": ("ibv_devinfo",),
    "perftest": ("ib_write_bw",),
    "python3-pyverbs": ("/usr/lib/python3/dist-packages/pyverbs",),
    "python3-numpy": ("/usr/lib/python3/dist-packages/numpy",),
    "iperf3": ("iperf3",),
    "iputils-ping": ("ping",),
}
HOST_TOOLS = {name: GUEST_TOOLS[name] for name in ("iperf3", "iputils-ping")}


def command(name: str) -> str | None:
    """Its path; root's folders are looked at too where PATH lacks them."""
    return shutil.which(name, path=PATH)


def missing(wanted: dict[str, tuple[str, ...]]) -> dict[str, list[str]]:
    """Packages of which something is not there, and what."""
    found: dict[str, list[str]] = {}
    for package, probes in wanted.items():
        absent = [probe for probe in probes if not (glob.glob(probe) if probe.startswith("/") else command(probe))]
        if absent:
            found[package] = absent
    return found


def need(wanted: dict[str, tuple[str, ...]]) -> None:
    """Install what is missing.

    Raises:
        LackingError: it cannot be installed here; the text names the packages and what of them is missing.
    """
    absent = missing(wanted)
    if not absent:
        return
    listed = "; ".join(f"{', '.join(probes)} (Debian's {package})" for package, probes in absent.items())
    if command("apt-get") is None:
        raise LackingError(f"missing: {listed}. There is no apt-get here: install them with this system's own tool")
    if os.geteuid() != 0:
        raise LackingError(f"missing: {listed}. Run: sudo apt-get install {' '.join(absent)}")
    _install(list(absent))
    absent = missing(wanted)
    if absent:
        raise LackingError(f"apt-get installed {', '.join(absent)}, but these are still missing: {listed}")


def _install(packages: Sequence[str]) -> None:
    print(f"{sys.argv[0]}: installing {' '.join(packages)}", file=sys.stderr, flush=True)
    options = ["-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=600"]
    for line in (["apt-get", "update", "-qq"], ["apt-get", "install", *options, *packages]):
        done = subprocess.run(
            line,
            env={**os.environ, "PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise LackingError(f"{' '.join(line)}: status {done.returncode}\n{done.stdout}")
