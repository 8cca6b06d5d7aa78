"""Vectors in several channels: right sums, halves of the bytes on each link, and a mismatch that names them."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes import FAR, SUMS
from worlds import run_world

# By formula: what each channel of a ring sends, and that no bit depends on how many links serve the channels.
COUNTED = """
from rdmaring.diagnose.trace.records import CHANNEL_SHIFT, SEND
channels = int(os.environ["CHANNELS"])
with rr.init(timeout_s=60, channels=channels) as comm:
    r, n = comm.rank, comm.size
    count = 16 * n * channels * 100  # cuts on cache lines
    rng = np.random.default_rng(7)
    every = rng.standard_normal((n, count)).astype(np.float32)
    x = every[r].copy()
    with comm.trace() as tracing:
        comm.all_reduce(x, algorithm="ring")
        last = comm.last
    exact = every.astype(np.float64).sum(axis=0)
    assert np.allclose(x, exact, rtol=0, atol=n * 2.0**-22 * np.abs(every).sum(axis=0).max())
    say(steps=last.steps, sent=last.sent_bytes, bits=x.tobytes().hex()[:64], total=float(x.astype(np.float64).sum()),
        links=[[link.channels, link.streams, link.transport] for link in comm.links])
    if r == 0:
        found = {}
        for rank in tracing.trace.ranks:
            records = rank.of(SEND)
            records = records[records["row"] >= 0]
            for channel in range(16):
                sent = records[records["flags"] >> CHANNEL_SHIFT == channel]["bytes"].sum()
                if sent:
                    found[f"{rank.rank}/{channel}"] = int(sent)
        say(by_channel=found)
    y = every[r].copy()
    comm.all_reduce(y, algorithm="ring", channels=1)
    assert comm.last.sent_bytes == last.sent_bytes
    z = every[r].copy()
    comm.plan_all_reduce(z, algorithm="ring", channels=channels)()
    assert np.array_equal(z, x)
    comm.all_reduce(z := every[r].copy(), algorithm="ring", channels=channels + 1)  # more than links: they share
    assert np.allclose(z, exact, rtol=0, atol=n * 2.0**-22 * np.abs(every).sum(axis=0).max())
"""


@pytest.mark.parametrize("channels", [2, 3])
def test_sums_in_shared_memory(channels: int, tmp_path: Path) -> None:
    ran = run_world(3, SUMS, tmp_path, env={"RDMARING_CHANNELS": str(channels)}, timeout_s=110)
    assert ran.code == 0, ran.output
    assert ran.of(0, "transports") == ["shm"]


@pytest.mark.parametrize(("world", "per", "channels"), [(2, 1, 2), (4, 2, 3)], ids=["2x1 in 2", "2x2 in 3"])
def test_sums_between_nodes(world: int, per: int, channels: int, tmp_path: Path) -> None:
    env = {"PER": str(per), "RDMARING_CHANNELS": str(channels), "RDMARING_TCP_STREAMS": "1"}
    ran = run_world(world, FAR + SUMS, tmp_path, env=env, timeout_s=110)
    assert ran.code == 0, ran.output


@pytest.mark.parametrize("channels", [2, 3])
def test_each_channel_carries_its_share(channels: int, tmp_path: Path) -> None:
    world = 3
    env = {"CHANNELS": str(channels)}
    near = run_world(world, COUNTED, tmp_path, env=env)
    far = run_world(world, FAR + COUNTED, tmp_path, env=env)
    vector_bytes = 16 * world * channels * 100 * 4
    share = 2 * (world - 1) * vector_bytes // world
    for ran, links in ((near, 1), (far, channels)):
        assert ran.code == 0, ran.output
        for rank in range(world):
            assert (ran.of(rank, "steps"), ran.of(rank, "sent")) == (2 * (world - 1), share), ran.output
            assert [line[0] for line in ran.of(rank, "links")] == [links] * (world - 1)
            assert (ran.of(rank, "bits"), ran.of(rank, "total")) == (near.of(0, "bits"), near.of(0, "total"))
        wanted = {f"{rank}/{channel}": share // links for rank in range(world) for channel in range(links)}
        assert ran.of(0, "by_channel") == wanted
    assert far.of(0, "links")[0] == [channels, 2 * channels, "tcp"]


@pytest.mark.parametrize("far", ["", FAR], ids=["shm", "tcp"])
def test_other_channels_on_one_rank_are_a_mismatch(far: str, tmp_path: Path) -> None:
    source = (
        far
        + """
comm = rr.init(timeout_s=30)
x = np.ones(100_000, np.float32)
said_error(lambda: comm.all_reduce(x, algorithm="ring", channels=2 + comm.rank))
"""
    )
    ran = run_world(2, source, tmp_path)
    for rank in range(2):
        assert ran.of(rank, "error") == "MismatchError", ran.output
        assert "in 2 channels" in ran.of(rank, "text") and "in 3 channels" in ran.of(rank, "text"), ran.output


def test_links_must_be_equal_on_all_ranks(tmp_path: Path) -> None:
    source = """
said_error(lambda: rr.init(timeout_s=30, channels=1 + int(os.environ["RDMARING_RANK"])))
"""
    ran = run_world(2, source, tmp_path)
    for rank in range(2):
        assert ran.of(rank, "error") == "SetupError", ran.output
        assert "channels=1" in ran.of(rank, "text") and "channels=2" in ran.of(rank, "text"), ran.output


def test_a_channels_argument_out_of_range_is_named(tmp_path: Path) -> None:
    source = """
for given in (0, 17, "2"):
    said_error(lambda: rr.init(channels=given))
comm = rr.init()
x = np.ones(10, np.float32)
said_error(lambda: comm.all_reduce(x, channels=17))
comm.all_reduce(x, channels=2)
"""
    ran = run_world(1, source, tmp_path)
    assert ran.code == 0, ran.output
    errors = [what for what in ran.said[0] if "error" in what]
    assert [what["error"] for what in errors] == ["ArgumentError"] * 4, ran.output
    assert all("channels" in what["text"] and "16" in what["text"] for what in errors), ran.output
