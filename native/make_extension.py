"""Write the C source of the extension ``rdmaring._rdmaring`` from the public header.

    python make_extension.py HEADER OUTPUT.c

What stands between the marks [cdef-begin] and [cdef-end] of the header is declared to cffi as it is,
so Python can see neither more nor less than a C program does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi

MODULE = "rdmaring._rdmaring"
# C calls Python here during rr_comm_create(); declared in the extension only.
CALLBACK = 'extern "Python" int rr_py_exchange(void *user, const void *mine, size_t bytes, void *all);\n'


def declarations(header: str) -> str:
    """The declarations of the public header in the form cffi parses: no comments, no attributes.

    Raises ValueError where a mark is missing.
    """
    begin, end = header.find("/* [cdef-begin]"), header.find("/* [cdef-end]")
    if not 0 <= begin < end:
        raise ValueError("the header lacks the marks [cdef-begin] and [cdef-end], in this order")
    text = re.sub(r"/\*.*?\*/", " ", header[begin:end], flags=re.DOTALL)
    return re.sub(r"\bRR_API\b\s*", "", text)


def write_source(header: Path, output: Path) -> None:
    """Emit the extension's C source; an unchanged file keeps its time stamp."""
    builder = cffi.FFI()
    builder.cdef(declarations(header.read_text(encoding="utf-8")) + CALLBACK)
    builder.set_source(MODULE, f'#include "{header.name}"')
    builder.emit_c_code(str(output))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: make_extension.py HEADER OUTPUT.c")
    write_source(Path(sys.argv[1]), Path(sys.argv[2]))
