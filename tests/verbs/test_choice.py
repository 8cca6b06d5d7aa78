"""Which ports and GIDs serve an edge, why others do not, and what is said where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verbs.simulated import NODES, run_verbs
from verbs_sim import build
from worlds import run_world

DESCRIBE = """
import sys
from rdmaring._native import ffi, lib
text = ffi.new("char[]", 1 << 16)
options = ffi.new("rr_verbs_options *")
options.gid_index_plus_1 = int(sys.argv[1])
assert lib.rr_verbs_describe(options, text, 1 << 16) == 0
assert lib.rr_verbs_describe(options, ffi.new("char[]", 10), 10) == lib.RR_ERR_ARGUMENT
print(ffi.string(text).decode())
"""


def describe(tmp_path: Path, spec: str, gid_index_plus_1: int = 0, **env: str) -> dict[str, Any]:
    values = build.environment(spec, fabric=str(tmp_path), sysfs_root=tmp_path / "sysfs", host="7")
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE, str(gid_index_plus_1)],
        env={**os.environ, **values, **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_gid_table_says_why(tmp_path: Path) -> None:
    spec = "gids=v1:fe80::7;v2:fe80::7;-;v1:10.0.0.7;v2:10.0.0.7;v2:fd00::7,corrupt_gid=3,devices=2"
    found = describe(tmp_path, spec)
    assert found["problem"] is None
    assert [device["name"] for device in found["devices"]] == ["sim0", "sim1"]
    port = found["devices"][0]["ports"][0]
    assert (port["state"], port["link_layer"], port["mtu_bytes"], port["rate_mbit"]) == (
        "active",
        "Ethernet",
        4096,
        100_000,
    )
    rows = {row["index"]: row for row in port["gids"]}
    assert sorted(rows) == [0, 1, 3, 4, 5]
    assert [rows[i]["type"] for i in (0, 1, 4, 5)] == ["RoCE v1", "RoCE v2", "RoCE v2", "RoCE v2"]
    assert [rows[i]["kind"] for i in (0, 1, 4, 5)] == ["link-local", "link-local", "IPv4", "IPv6"]
    assert rows[4]["gid"] == "10.0.0.7"
    assert rows[4]["netdev"] == "eth0"
    assert not rows[3]["kept"]
    assert "cannot be read" in rows[3]["reason"]
    assert "after RoCE v2" in rows[0]["reason"]
    assert "after global ones" in rows[1]["reason"]


def test_a_named_gid_is_the_only_one(tmp_path: Path) -> None:
    rows = describe(tmp_path, "", gid_index_plus_1=2)["devices"][0]["ports"][0]["gids"]
    assert [row["index"] for row in rows if row["kept"]] == [1]
    assert all("name GID index 1" in row["reason"] for row in rows if not row["kept"])


LINKS = "with rr.init(timeout_s=20) as comm: say(path=comm.links[0].path, device=comm.links[0].device)\n"
PREFERRED = {
    "v2 before v1": ("gids=v1:10.0.0.%r;v2:10.0.0.%r", "GID 1 10.0.0."),
    "global before link-local": ("gids=v2:fe80::%r;v2:fd00::%r", "GID 1 fd00::"),
    "v2 link-local before v1 global": ("gids=v1:10.0.0.%r;v2:fe80::%r", "GID 1 fe80::"),
    "IPv4 before IPv6": ("gids=v2:fd00::%r;v2:10.0.0.%r", "GID 1 10.0.0."),
    "link-local alone": ("gids=v1:fe80::%r", "GID 0 fe80::"),
}


@pytest.mark.parametrize("rule", PREFERRED)
def test_both_ends_choose_by_rule(rule: str, tmp_path: Path) -> None:
    spec, begin = PREFERRED[rule]
    done = run_verbs(2, LINKS, tmp_path, spec)
    assert done.ran.code == 0, done.ran.output
    for rank in (0, 1):
        assert done.of(rank, "path").startswith(begin)
    ours, theirs = (done.of(rank, "path").split(" (")[0].split(" ", 2)[2].split(" -> ") for rank in (0, 1))
    assert ours == theirs[::-1]


def test_the_peers_subnet_goes_first(tmp_path: Path) -> None:
    """Both ends have two addresses; only those of one subnet are near each other."""
    env = {
        "VERBS_SIM_RANK_0": "host=1,gids=v2:10.1.0.1;v2:192.168.7.1",
        "VERBS_SIM_RANK_1": "host=2,gids=v2:172.16.0.2;v2:192.168.7.2",
    }
    done = run_verbs(2, LINKS, tmp_path, "", env=env)
    assert done.ran.code == 0, done.ran.output
    assert done.of(0, "path").startswith("GID 1 192.168.7.1 -> 192.168.7.2 (RoCE v2)")


def test_the_smaller_mtu_is_used(tmp_path: Path) -> None:
    env = {"VERBS_SIM_RANK_1": "mtu=1024"}
    done = run_verbs(2, LINKS, tmp_path, "", env=env)
    assert done.ran.code == 0, done.ran.output
    assert all(done.of(rank, "path").endswith("MTU 1024") for rank in (0, 1))


def test_rails_are_taken_in_turn(tmp_path: Path) -> None:
    """Two ranks a node and two ports: local rank 0 uses the first, local rank 1 the second."""
    source = """
with rr.init(timeout_s=20) as comm:
    say(rails={link.peer: link.rail for link in comm.links}, devices={link.peer: link.device for link in comm.links})
"""
    done = run_verbs(4, source, tmp_path, "devices=2", env={"PER": "2"})
    assert done.ran.code == 0, done.ran.output
    assert done.of(0, "rails") == {"1": None, "2": 0, "3": 0}
    assert done.of(1, "rails") == {"0": None, "2": 1, "3": 1}
    assert done.of(3, "devices")["1"] == "sim1/1"


def test_named_devices_only(tmp_path: Path) -> None:
    done = run_verbs(2, LINKS, tmp_path, "devices=3", env={"RDMARING_VERBS_DEVICES": "sim2"})
    assert done.ran.code == 0, done.ran.output
    assert done.of(0, "device") == "sim2/1"


WITHOUT = {
    "no device": ("devices=0", {}, "this machine has no RDMA device"),
    "port down": ("port_state=1", {}, "sim0 port 1: is down"),
    "not opened": ("fail=ibv_open_device:1+:EACCES", {}, "sim0 port 1: cannot be opened: Permission denied"),
    "not asked": ("fail=ibv_query_port:1+:EIO", {}, "port 1 cannot be asked: Input/output error"),
    "no attributes": ("fail=ibv_query_device:1+:EIO", {}, "cannot be asked for its ports: Input/output error"),
    "no list": ("fail=ibv_get_device_list:1+:ENOSYS", {}, "libibverbs lists no devices"),
    "other device": ("", {"RDMARING_VERBS_DEVICES": "mlx5_0"}, "among those of the settings: mlx5_0"),
    "no usable gid": ("gids=v2:10.0.0.1,corrupt_gid=0", {}, "has no usable GID"),
    "one end": ("", {"VERBS_SIM_RANK_1": "devices=0"}, "rank 1: this machine has no RDMA device"),
    "link layers": ("", {"VERBS_SIM_RANK_1": "link_layer=infiniband"}, "sim0 is"),
    "families": ("gids=v2:10.0.0.1", {"VERBS_SIM_RANK_1": "gids=v2:fd00::1"}, "no GIDs of one RoCE version"),
    "library": ("", {"RDMARING_LIBIBVERBS": "/nowhere/libibverbs.so.1"}, "libibverbs cannot be opened: /nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("case", WITHOUT)
def test_why_there_is_no_rdma(case: str, tmp_path: Path) -> None:
    """TCP serves the edge and says why; with require="rdma" init() raises with the same reason."""
    spec, env, reason = WITHOUT[case]
    source = """
said_error(lambda: rr.init(timeout_s=20, transport="verbs,tcp", require="rdma").close())
with rr.init(timeout_s=20, transport="verbs,tcp") as comm:
    x = np.ones(1000, np.float32)
    comm.all_reduce(x)
    say(sum=float(x.sum()), transport=comm.links[0].transport, reason=comm.links[0].reason)
"""
    values = build.environment(spec, fabric=str(tmp_path), sysfs_root=tmp_path / "sysfs")
    done = run_world(2, NODES + source, tmp_path, env={**values, **env})
    assert done.code == 0, done.output
    for rank in (0, 1):
        assert (done.of(rank, "transport"), done.of(rank, "sum")) == ("tcp", 2000.0)
        assert reason in done.of(rank, "reason")
        assert "RDMA is required" in done.of(rank, "text")
        assert reason in done.of(rank, "text")


def test_an_old_library_is_named(tmp_path: Path) -> None:
    old = build.library(without=("ibv_create_comp_channel",))
    values = build.environment("", fabric=str(tmp_path), sysfs_root=tmp_path / "sysfs")
    source = 'with rr.init(timeout_s=20, transport="verbs,tcp") as comm: say(reason=comm.links[0].reason)\n'
    done = run_world(2, NODES + source, tmp_path, env={**values, "RDMARING_LIBIBVERBS": str(old)})
    assert done.code == 0, done.output
    assert "has no function ibv_create_comp_channel" in done.of(0, "reason")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"qps": 9}, "qps is 9; accepted are whole numbers from 1 to 8"),
        ({"retry_count": 0}, "retry_count is 0; accepted are whole numbers from 1 to 7"),
        ({"service_level": "high"}, "service_level is 'high'; accepted are whole numbers from 0 to 15"),
        ({"retry_timeout_s": 1e9}, "retry_timeout_s is 1000000000.0; accepted are seconds from"),
        ({"gid_idx": 1}, "verbs has no setting 'gid_idx'; did you mean gid_index?"),
        ({"devices": 3}, "devices is 3; accepted are device names"),
    ],
)
def test_settings_that_do_not_fit(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = f"said_error(lambda: rr.init(timeout_s=20, verbs={given!r}).close())\n"
    done = run_world(1, source, tmp_path)
    assert done.of(0, "error") == "ArgumentError"
    assert words in done.of(0, "text")


SETTINGS = """
from rdmaring._native import ffi, lib, with_exchange
for name, value in [("qps", 9), ("retry_count", 8), ("rnr_retry", 8), ("service_level", 16), ("traffic_class", 256),
                    ("hop_limit", 256), ("timeout_ns", 1 << 44)]:
    options = ffi.new("rr_options *")
    setattr(options.verbs, name, value)
    out = ffi.new("rr_comm **")
    create = lambda exchange, user: lib.rr_comm_create(0, 1, exchange, user, options, out)
    said_error(lambda: with_exchange(lambda mine: mine, create))
"""


def test_the_library_checks_settings_too(tmp_path: Path) -> None:
    done = run_world(1, SETTINGS, tmp_path)
    texts = [what["text"] for what in done.said[0]]
    assert len(texts) == 7, done.output
    assert "verbs.qps is 9: accepted are 1 to 8" in texts[0]
    assert all(text.startswith("verbs.") and ": accepted are" in text for text in texts), texts


def test_queue_pairs_must_be_equal(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=20, verbs={"qps": me + 1})
said_error(lambda: comm.all_reduce(np.ones(5)))
comm.close()
"""
    done = run_verbs(2, source, tmp_path)
    texts = [done.of(rank, "text") for rank in (0, 1)]
    assert all("verbs.qps is" in text and "it must be equal" in text for text in texts), texts
    done.clean(2)
