"""Write the table of the driver's entries: every (name, version) of cudaTypedefs.h, with ours or with NULL.

cuGetProcAddress gives a caller the newest signature that is not newer than the version it asks for. A signature that
the header knows and the simulator lacks must therefore stand in the table as NULL, or the caller would be given an
older function and call it with other arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

KNOWN = re.compile(r"\*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\)")
RESULT = re.compile(r"^\s*(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+)", re.MULTILINE)
OURS = re.compile(r"^CS_API\((\w+), (\d+)\)\(", re.MULTILINE)


def known_entries(typedefs: str) -> list[tuple[str, int, bool]]:
    """(name, version, whether for per-thread default streams) of each signature, sorted."""
    return sorted({(name, int(version), bool(suffix)) for name, version, suffix in KNOWN.findall(typedefs)})


def our_entries(sources: Iterable[Path]) -> set[tuple[str, int]]:
    """(name, version) of each CS_API in the sources."""
    found: set[tuple[str, int]] = set()
    for path in sources:
        for name, version in OURS.findall(path.read_text()):
            entry = (name, int(version))
            if entry in found:
                raise ValueError(f"{path}: CS_API({name}, {version}) exists twice")
            found.add(entry)
    return found


def results(cuda_h: str) -> str:
    """C text that errors.c includes: number and name of each CUresult."""
    return "".join(f'\t{{ {number}, "{name}" }},\n' for name, number in RESULT.findall(cuda_h))


def declarations(typedefs: str, sources: Iterable[Path]) -> str:
    """C text that cs.h includes: each CS_API declared with the header's type, so that the compiler compares them."""
    ours = our_entries(sources)
    strange = ours - {(name, version) for name, version, _ in known_entries(typedefs)}
    if strange:
        raise ValueError(f"cudaTypedefs.h has no signature of these versions: {sorted(strange)}")
    return "".join(
        f"extern __typeof__(*(PFN_{name}_v{version})0) cs_{name}_v{version};\n" for name, version in sorted(ours)
    )


def table(typedefs: str, sources: Iterable[Path]) -> str:
    """C text that table.c includes: name, version, whether for per-thread default streams, address or NULL."""
    ours = our_entries(sources)
    lines = []
    for name, version, per_thread in known_entries(typedefs):
        mine = (name, version) in ours and not per_thread
        address = f"(void *)cs_{name}_v{version}" if mine else "NULL"
        lines.append(f'\t{{ "{name}", {version}, {str(per_thread).lower()}, {address} }},\n')
    return "".join(lines)
