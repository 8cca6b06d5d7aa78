"""Debian's own kernel, which has soft-RoCE, unpacked beside the system and not installed."""

from __future__ import annotations

import fcntl
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from beds import packages
from beds.job import LackingError

# What a guest needs before it sees the machine's files, and after.
BOOT_MODULES = ("virtio_pci", "virtio_net", "virtio_console", "9p", "9pnet_virtio", "overlay")
GUEST_MODULES = ("rdma_rxe", "ib_uverbs", "rdma_ucm")
MARK = "complete-2"  # counts up when what stands in the cache changes
XZ_MAGIC = b"\xfd7zXZ\0"
SIGNED = b"~Module signature appended~\n"
SIGNATURE_HEAD_BYTES = 12
META_PACKAGE = "linux-image-amd64"  # depends on the package of the newest kernel
# Drivers that no guest of ours has devices for; most of the package's 400 MB.
UNUSED = (
    "drivers/gpu", "drivers/media", "drivers/net/wireless", "drivers/net/ethernet", "drivers/usb", "drivers/scsi",
    "drivers/staging", "drivers/iio", "drivers/hwmon", "drivers/input", "drivers/mtd", "drivers/platform", "sound",
)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """root: what `modprobe -d` wants; lib/modules/VERSION lies below it."""

    version: str
    root: Path

    @property
    def packed(self) -> Path:
        return self.root / "boot" / f"vmlinuz-{self.version}"

    @property
    def image(self) -> Path:
        """What QEMU boots: unpacked where we could, as an emulated CPU takes long for that."""
        unpacked = self.root / "boot" / "vmlinux"
        return unpacked if unpacked.exists() else self.packed

    @property
    def modules(self) -> Path:
        return self.root / "lib" / "modules" / self.version

    def modules_for(self, names: tuple[str, ...]) -> list[Path]:
        """Files of modules and of what they need, in the order in which to load them."""
        paths: dict[Path, None] = {}
        for name in names:
            listing = _output("modprobe", "-d", str(self.root), "-S", self.version, "--show-depends", name)
            for line in listing.splitlines():
                if line.startswith("insmod "):
                    paths[Path(line.split()[1])] = None
        return list(paths)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rdmaring" / "softroce"


def get() -> Kernel:
    """The newest kernel in the cache; where there is none, the one that Debian has now.

    Raises:
        LackingError: it cannot be had here.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = [path for path in folder.iterdir() if (path / MARK).exists()]
        if not found:
            found = [_fetch(folder)]
    newest = max(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])
    return Kernel(newest.name, newest)


def _fetch(folder: Path) -> Path:
    """Download and unpack into the cache; what is half done there is never taken for whole."""
    package = _package()
    print(f"{sys.argv[0]}: fetching {package} into {folder}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="unpack-") as work:
        _output("apt-get", "download", "-qq", package, cwd=work)
        root = Path(work) / "root"
        for archive in Path(work).glob("*.deb"):
            _output("dpkg", "-x", str(archive), str(root))
        if not (root / "lib").exists():  # a package of a system whose /lib leads to /usr/lib
            (root / "lib").symlink_to("usr/lib")
        versions = [path.name for path in (root / "lib" / "modules").iterdir()]
        if len(versions) != 1 or not (root / "boot" / f"vmlinuz-{versions[0]}").exists():
            raise LackingError(f"{package} holds no kernel as expected: lib/modules has {versions}")
        for name in UNUSED:
            shutil.rmtree(root / "lib" / "modules" / versions[0] / "kernel" / name, ignore_errors=True)
        _output("depmod", "-b", str(root), versions[0])
        kernel = Kernel(versions[0], root)
        _unpack_image(kernel)
        _unpack_modules(kernel)
        (root / MARK).touch()
        shutil.rmtree(folder / versions[0], ignore_errors=True)  # what an older version of this script made of it
        return root.rename(folder / versions[0])


def _unpack_image(kernel: Kernel) -> None:
    """The kernel proper out of its self-extracting image, if it is compressed with xz, as Debian's are.

    The header's fields are those of the x86 boot protocol: setup_sects, payload_offset, payload_length.
    """
    image = kernel.packed.read_bytes()
    begin = (image[0x1F1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
    payload = image[begin : begin + struct.unpack_from("<I", image, 0x24C)[0]]
    if payload.startswith(XZ_MAGIC):
        (kernel.root / "boot" / "vmlinux").write_bytes(lzma.LZMADecompressor().decompress(payload))


def _unpack_modules(kernel: Kernel) -> None:
    """Those that guests load: not compressed, as busybox wants them, and without signatures, which take time."""
    for path in kernel.modules_for((*BOOT_MODULES, *GUEST_MODULES)):
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        if data.endswith(SIGNED):
            length = struct.unpack_from(">I", data, len(data) - len(SIGNED) - 4)[0]
            data = data[: -len(SIGNED) - SIGNATURE_HEAD_BYTES - length]
        path.unlink()
        path.with_suffix("" if path.suffix == ".xz" else path.suffix).write_bytes(data)
    _output("depmod", "-b", str(kernel.root), kernel.version)


def _package() -> str:
    for attempt in range(2):
        found = re.search(r"Depends: (linux-image-\S+)", _output("apt-cache", "depends", META_PACKAGE, check=False))
        if found:
            return found[1]
        if attempt == 0 and os.geteuid() == 0:
            _output("apt-get", "update", "-qq")
    raise LackingError(
        f"apt-cache knows no kernel by {META_PACKAGE}: is this Debian for amd64, and apt-get update done?"
    )


def _output(*line: str, cwd: str | None = None, check: bool = True) -> str:
    path = packages.command(line[0])
    if path is None:
        raise LackingError(f"there is no {line[0]}: Debian's kernel is fetched by apt and dpkg, as root or not")
    done = subprocess.run([path, *line[1:]], cwd=cwd, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise LackingError(f"{' '.join(line)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
