"""What a wheel must be, read from its files alone, so that wheels for another machine are checked, too.

`python scripts/wheel_checks.py WHEEL MACHINE` needs pyelftools, which auditwheel brings.
"""

from __future__ import annotations

import io
import re
import sys
import zipfile
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

GLIBC_MAX = (2, 28)
ELF_MACHINE = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
# glibc's own parts (dlopen was in libdl until 2.34); the engine beside the extension. Never verbs or CUDA.
LIBRARIES = re.compile(r"lib(c|m|dl|pthread|rt)\.so\.\d+|ld-linux-(x86-64|aarch64)\.so\.\d|librdmaring\.so")
MEMBERS = ("rdmaring/_rdmaring.abi3.so", "rdmaring/lib/librdmaring.so", "rdmaring/include/rdmaring.h",
           "rdmaring/kernels/combine.cu", "rdmaring/py.typed")  # fmt: skip


def elf_faults(name: str, data: bytes, machine: str) -> list[str]:
    """What is wrong with one shared library."""
    faults = []
    elf = ELFFile(io.BytesIO(data))
    if elf["e_machine"] != ELF_MACHINE[machine]:
        faults.append(f"{name} is for {elf['e_machine']}, not {ELF_MACHINE[machine]}")
    for section in elf.iter_sections():
        if isinstance(section, DynamicSection):
            for tag in section.iter_tags():
                if tag.entry.d_tag == "DT_NEEDED" and not LIBRARIES.fullmatch(tag.needed):
                    faults.append(f"{name} needs {tag.needed}")
                if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                    path = getattr(tag, "rpath", "") or getattr(tag, "runpath", "")
                    if path != "$ORIGIN/lib":
                        faults.append(f"{name} looks for libraries in {path}")
        if isinstance(section, GNUVerNeedSection):
            for _, versions in section.iter_versions():
                for version in versions:
                    found = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", version.name)
                    if found and (int(found[1]), int(found[2])) > GLIBC_MAX:
                        faults.append(f"{name} needs {version.name}; accepted are versions to {GLIBC_MAX}")
    return faults


def tag_faults(wheel: Path, machine: str) -> list[str]:
    """The file's name says cp310-abi3, and a manylinux of 2.28 or older alone."""
    python, abi, platform = wheel.stem.split("-")[-3:]
    faults = [] if (python, abi) == ("cp310", "abi3") else [f"its tag is {python}-{abi}, not cp310-abi3"]
    for tag in platform.split("."):
        found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{machine}", tag)
        if not found or (int(found[1]), int(found[2])) > GLIBC_MAX:
            faults.append(f"its platform is {tag}; accepted is manylinux to {GLIBC_MAX}, of {machine}")
    return faults


def main() -> None:
    wheel, machine = Path(sys.argv[1]), sys.argv[2]
    faults = tag_faults(wheel, machine)
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        faults += [f"it has no {name}" for name in MEMBERS if name not in names]
        libraries = [name for name in names if re.search(r"\.so(\.\d+)*$", name)]
        for name in libraries:
            faults += elf_faults(name, files.read(name), machine)
    if faults:
        sys.exit("\n".join(f"{wheel.name}: {fault}" for fault in faults))
    print(f"{wheel.name}: {len(libraries)} libraries for {machine}, glibc alone")


if __name__ == "__main__":
    main()
