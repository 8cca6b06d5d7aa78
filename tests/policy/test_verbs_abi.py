"""Our own declarations of libibverbs's binary interface against the distribution's header."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ABI = ROOT / "native" / "src" / "verbs_abi.h"
CC = os.environ.get("CC", "cc")

# Members that have another name, or none, in the distribution's header.
OTHER_NAMES = {
    ("rr_ibv_device", "reserved"): "_ops",
    ("rr_ibv_device_attr", "unused"): "max_ee_rd_atom",
    ("rr_ibv_send_wr", "remote_srqn"): "qp_type",
    ("rr_ibv_send_wr", "tail"): "bind_mw",
    ("rr_ibv_context_ops", "before_poll_cq"): "_compat_query_device",
    ("rr_ibv_context_ops", "before_post_send"): "_compat_cq_event",
    ("rr_ibv_context_ops", "after_post_recv"): "_compat_create_ah",
}
# The distribution's header adds members behind ours (rdma-core 56: active_speed_ex). The exported function, which we
# call, fills those of the first release; only the header's inline one passes a size.
GROWS = {"rr_ibv_port_attr"}
# Constants whose name there does not follow from ours.
VALUE_NAMES = {
    "RR_IBV_NAME_BYTES": "IBV_SYSFS_NAME_MAX",
    "RR_IBV_PATH_BYTES": "IBV_SYSFS_PATH_MAX",
    "RR_IBV_LAYER_UNSPECIFIED": "IBV_LINK_LAYER_UNSPECIFIED",
    "RR_IBV_LAYER_INFINIBAND": "IBV_LINK_LAYER_INFINIBAND",
    "RR_IBV_LAYER_ETHERNET": "IBV_LINK_LAYER_ETHERNET",
}


def code() -> str:
    return re.sub(r"/\*.*?\*/", " ", ABI.read_text(), flags=re.DOTALL)


def structures() -> dict[str, list[str]]:
    """Each structure's members, those of nested ones left out."""
    found: dict[str, list[str]] = {}
    for name, body in re.findall(r"^(?:struct|union) (rr_ibv_\w+) \{\n(.*?)^\};", code(), re.DOTALL | re.MULTILINE):
        flat = re.sub(r"(?:struct|union) \{.*?\n\t\} (\w+);", r"int \1;", body, flags=re.DOTALL)
        members = [
            re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?$", part.strip()) for part in flat.split(";") if part.strip()
        ]
        found[name] = [match[1] or match[2] for match in members if match]
    return found


def constants() -> list[str]:
    return re.findall(r"\b(RR_IBV_\w+) = ", re.sub(r"#.*", "", code()))


def test_sizes_offsets_and_values_are_those_of_libibverbs(tmp_path: Path) -> None:
    lines = ["#include <infiniband/verbs.h>", f'#include "{ABI}"']
    for name, members in structures().items():
        kind = "union" if name == "rr_ibv_gid" else "struct"
        ours, theirs = f"{kind} {name}", f"{kind} {name.removeprefix('rr_')}"
        relation = "<=" if name in GROWS else "=="
        lines.append(f'_Static_assert(sizeof({ours}) {relation} sizeof({theirs}), "size of {name}");')
        for member in members:
            other = OTHER_NAMES.get((name, member), member)
            equal = f"offsetof({ours}, {member}) == offsetof({theirs}, {other})"
            lines.append(f'_Static_assert({equal}, "{name}.{member}");')
    for value in constants():
        other = VALUE_NAMES.get(value, value.removeprefix("RR_"))
        lines.append(f'_Static_assert((long){value} == (long){other}, "{value}");')
    for member in ("rdma.remote_addr", "rdma.rkey"):
        equal = f"offsetof(struct rr_ibv_send_wr, wr.{member}) == offsetof(struct ibv_send_wr, wr.{member})"
        lines.append(f'_Static_assert({equal}, "{member}");')
    assert len(lines) > 250, "the header was not understood"
    source = tmp_path / "abi.c"
    source.write_text("\n".join([*lines, ""]))
    result = subprocess.run([CC, "-std=gnu11", "-fsyntax-only", str(source)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
