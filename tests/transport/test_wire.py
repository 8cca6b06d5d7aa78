"""The reference's layouts are the C structures; docs/WIRE.md states the same offsets."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from rdmaring.transport import contract, reference_verbs, wire

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
DOCUMENT = (ROOT / "docs" / "WIRE.md").read_text()


def compiles(source: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    code = tmp_path / "layout.c"
    code.write_text(source)
    options = [
        "-std=gnu11",
        "-fsyntax-only",
        f"-I{NATIVE / 'include'}",
        f"-I{NATIVE / 'src'}",
        '-DRDMARING_VERSION="0"',
    ]
    return subprocess.run(
        [os.environ.get("CC", "cc"), *options, str(code)], capture_output=True, text=True, check=False
    )


def claims(layout: wire.Layout) -> list[str]:
    asserted = [f"sizeof({layout.c_name}) == {layout.size}"]
    asserted += [f"offsetof({layout.c_name}, {name}) == {at}" for name, at in layout.offsets.items()]
    return asserted


@pytest.mark.parametrize("layout", wire.LAYOUTS, ids=lambda layout: layout.c_name)
def test_layouts_are_the_structures_of_c(layout: wire.Layout, tmp_path: Path) -> None:
    lines = [f'#include "{layout.header}"', "#include <stddef.h>"]
    lines += [f'_Static_assert({claim}, "{claim}");' for claim in claims(layout)]
    done = compiles("\n".join(lines) + "\n", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_wrong_offset_would_be_seen(tmp_path: Path) -> None:
    done = compiles('#include "wire.h"\n_Static_assert(offsetof(struct rr_data, order) == 17, "");\n', tmp_path)
    assert done.returncode != 0
    assert "static assertion failed" in done.stderr


def test_constants_are_those_of_c(tmp_path: Path) -> None:
    same = {
        "RR_WIRE_VERSION": wire.WIRE_VERSION,
        "RR_PAGE_VERSION": wire.PAGE_VERSION,
        "RR_NET_ADDRESSES_MAX": wire.ADDRESSES_MAX,
        "RR_RAILS_MAX": wire.RAILS_MAX,
        "RR_RAIL_GIDS_MAX": wire.RAIL_GIDS_MAX,
        "RR_QPS_MAX": wire.QPS_MAX,
        "RR_FRAME_MAGIC": contract.MAGIC,
        "RR_RING_COUNT": reference_verbs.LINES,
        "RR_EDGE_LINE_BYTES": reference_verbs.LINE_BYTES,
        "RR_EDGE_OPENS": reference_verbs.OPENS,
        "RR_EDGE_OPEN_BYTES": reference_verbs.OPEN_BYTES,
        "RR_EDGE_TINY_BYTES": reference_verbs.TINY_BYTES,
        "RR_EDGE_RECEIVES": reference_verbs.RECEIVES,
        "RR_EDGE_RECEIVES_MORE": reference_verbs.RECEIVES_MORE,
        "RR_IMM_BITS": reference_verbs.IMM_BITS,
        "RR_VERBS_MAGIC": reference_verbs.MAGIC,
    }
    lines = ['#include "stream_edge.h"', '#include "verbs_edge.h"', '#include "hello.h"']
    lines += [f'_Static_assert({name} == {value}, "{name}");' for name, value in same.items()]
    done = compiles("\n".join(lines) + "\n", tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("layout", wire.LAYOUTS, ids=lambda layout: layout.c_name)
def test_the_document_states_the_offsets(layout: wire.Layout) -> None:
    name = layout.c_name.removeprefix("struct ")
    found = re.search(rf"^`{name}`, (\d+) bytes[^|]*?\n\n((?:\|.*\n)+)", DOCUMENT, re.MULTILINE)
    assert found, f"docs/WIRE.md has no table of {name}"
    assert int(found[1]) == layout.size
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", found[2], re.MULTILINE)
    assert {field: int(at) for at, field in rows} == layout.offsets


def test_the_proof_is_siphash() -> None:
    # the vector of the paper's appendix A
    assert wire.siphash(bytes(range(16)), bytes(range(15))) == 0xA129CA6149BE45E5


def test_what_is_packed_is_unpacked() -> None:
    seed = 20
    some = random.Random(seed)
    given = {"serial": 5, "op": some.getrandbits(64), "order": some.getrandbits(32), "reserved": bytes(range(8))}
    data = wire.DATA.pack(given)
    found = wire.DATA.unpack(b"before" + data, 6)
    assert {name: getattr(found, name) for name in given} == given, f"seed {seed}"
    assert found.slot == 0
    with pytest.raises(KeyError):
        wire.DATA.pack(colour=1)


def test_a_gid_of_an_ipv4_address_is_written_in_groups_of_digits() -> None:
    mapped = bytes(10) + b"\xff\xff" + bytes([10, 77, 0, 1])
    assert wire.gid_text(mapped) == "0000:0000:0000:0000:0000:ffff:0a4d:0001"
    assert wire.gid_text(bytes(range(16))) == "0001:0203:0405:0607:0809:0a0b:0c0d:0e0f"
