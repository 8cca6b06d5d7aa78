"""What a guest's kernel starts with: busybox and the few modules that reach the root file system of this machine."""

from __future__ import annotations

import shlex
import stat
import subprocess
from pathlib import Path

from beds import packages
from beds.job import LackingError
from beds.kernel import BOOT_MODULES, Kernel

FOLDERS = ("bin", "lib", "proc", "sys", "dev", "lower", "upper", "new")

# The machine's root file system, read-only, under a writable layer in the guest's memory.
INIT = """\
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev
for module in {modules}; do $b insmod /lib/$module; done
$b mount -t tmpfs tmpfs /upper
$b mkdir /upper/files /upper/work
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 root /lower
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new
for each in proc sys dev; do $b mkdir -p /new/$each; $b mount --move /$each /new/$each; done
exec $b switch_root /new /bin/sh -c {start}
"""
# The only port of a virtio console without a console has the number 1.
START = "cd {scripts} && exec {python} -S -E -m beds.agent /dev/vport*p1"


def build(kernel: Kernel, python: str, scripts: Path) -> bytes:
    """An archive for `qemu -initrd`. python, scripts: the agent's interpreter, and the folder that holds beds."""
    busybox = packages.command("busybox")
    if busybox is None or b"statically linked" not in _file_kind(busybox):
        raise LackingError(f"busybox is {busybox}, which needs libraries; install Debian's busybox-static")
    modules = kernel.modules_for(BOOT_MODULES)
    start = START.format(scripts=shlex.quote(str(scripts)), python=shlex.quote(python))
    init = INIT.format(modules=" ".join(path.name for path in modules), start=shlex.quote(start))
    archive = [_entry(folder, stat.S_IFDIR | 0o755, b"") for folder in FOLDERS]
    archive.append(_entry("bin/busybox", stat.S_IFREG | 0o755, Path(busybox).read_bytes()))
    archive += [_entry(f"lib/{path.name}", stat.S_IFREG | 0o644, path.read_bytes()) for path in modules]
    archive.append(_entry("init", stat.S_IFREG | 0o755, init.encode()))
    archive.append(_entry("TRAILER!!!", 0, b""))
    return b"".join(archive)


def _file_kind(path: str) -> bytes:
    """Whether the program names an interpreter, which loads its libraries."""
    done = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return b"dynamic" if done.returncode == 0 else b"statically linked"


def _entry(name: str, mode: int, data: bytes) -> bytes:
    """One file of a cpio archive of the kind `newc`: 13 numbers in 8 hexadecimal digits, name, data, padded to 4."""
    numbers = [0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
    head = "070701" + "".join(f"{number:08x}" for number in numbers)
    return _padded(head.encode() + name.encode() + b"\0") + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
