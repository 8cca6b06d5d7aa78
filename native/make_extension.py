"""Write the C source of the extension ``rdmaring._rdmaring`` from the public headers.

    python make_extension.py HEADER... OUTPUT.c

What stands between the marks [cdef-begin] and [cdef-end] of a header is declared to cffi as it is,
so Python can see neither more nor less than a C program does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi

MODULE = "rdmaring._rdmaring"
# In the extension only. C calls Python here: during rr_comm_create(), and for edges that a Python class serves.
# rr_py_run_at() takes an address as it is: a cast to a pointer before each call would take longer than the check.
EXTENSION = """
int32_t rr_py_run_at(rr_plan *plan, uintptr_t address);
extern "Python" {
    int rr_py_exchange(void *user, const void *mine, size_t bytes, void *all);
    int32_t rr_py_link_open(void *user, rr_message_edge *edge, void **state);
    int64_t rr_py_link_send(void *state, const rr_piece *pieces, uint32_t count);
    int64_t rr_py_link_receive(void *state, void *into, uint64_t bytes);
    int32_t rr_py_link_progress(void *state);
    uint64_t rr_py_link_due_ns(void *state);
    void rr_py_link_close(void *state);
}
"""
RUN_AT = """
static int32_t rr_py_run_at(rr_plan *plan, uintptr_t address)
{
\treturn rr_plan_run_here(plan, (void *)address);
}
"""


def declarations(header: str) -> str:
    """The declarations of the public header in the form cffi parses: no comments, no attributes.

    Raises ValueError where a mark is missing.
    """
    begin, end = header.find("/* [cdef-begin]"), header.find("/* [cdef-end]")
    if not 0 <= begin < end:
        raise ValueError("the header lacks the marks [cdef-begin] and [cdef-end], in this order")
    text = re.sub(r"/\*.*?\*/", " ", header[begin:end], flags=re.DOTALL)
    return re.sub(r"\bRR_API\b\s*", "", text)


def write_source(headers: list[Path], output: Path) -> None:
    """Emit the extension's C source; an unchanged file keeps its time stamp."""
    builder = cffi.FFI()
    builder.cdef("".join(declarations(header.read_text(encoding="utf-8")) for header in headers) + EXTENSION)
    builder.set_source(MODULE, "".join(f'#include "{header.name}"\n' for header in headers) + RUN_AT)
    builder.emit_c_code(str(output))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: make_extension.py HEADER... OUTPUT.c")
    write_source([Path(name) for name in sys.argv[1:-1]], Path(sys.argv[-1]))
