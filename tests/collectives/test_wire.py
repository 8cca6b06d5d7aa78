"""wire="float32": 16-bit sums whose partial sums travel wide. Expected values: numpy, in the ring's order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nodes import FAR
from worlds import run_world

EXPECTED = """
import ml_dtypes
from rdmaring.chunks import aligned, even, intervals

def vectors(n, count, dtype, seed):
    # Magnitudes far apart, so that each rounding to 16 bits shows.
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(count) * 2.0 ** rng.integers(-6, 7, count)).astype(dtype) for _ in range(n)]

def right(given, offsets, factor):
    # Chunk c is added in the order c + 1, c + 2, ..., c; float32, then one rounding.
    n = len(given)
    out = np.empty_like(given[0])
    for c in range(n):
        part = slice(offsets[c], offsets[c + 1])
        total = given[(c + 1) % n][part].astype(np.float32)
        for k in range(2, n + 1):
            total = total + given[(c + k) % n][part].astype(np.float32)
        out[part] = (total * np.float32(factor) if factor != 1 else total).astype(out.dtype)
    return out

def bits(array):
    return array.view(np.uint16)

"""

WIDE = (
    EXPECTED
    + """
def check(comm, counts, kinds=(np.float16, ml_dtypes.bfloat16)):
    r, n = comm.rank, comm.size
    for count in counts:
        for dtype in kinds:
            given = vectors(n, count, dtype, count)
            for op, factor in (("sum", 1.0), ("avg", 1.0 / n)):
                want = right(given, aligned(count, n, 2), factor)
                for registered in (False, True):
                    x = comm.empty(count, dtype) if registered else np.empty(count, dtype)
                    x[:] = given[r]
                    comm.all_reduce(x, op=op, wire="float32")
                    assert np.array_equal(bits(x), bits(want)), (count, dtype, op, registered)
                out = np.zeros(count, dtype)
                comm.all_reduce(given[r], out=out, op=op, wire="float32")
                assert np.array_equal(bits(out), bits(want)), (count, dtype, op, "out")
            if count > 64 * n:
                sent = sum(comm.last_links[peer][0] for peer in comm.last_links)
                assert abs(sent - 2 * count * max(3 * n - 4, 0) / n) <= 64 * 3 * n, (sent, count)
            cut = even(count, n)
            want = right(given, cut, 1.0)
            part = comm.reduce_scatter(given[r], wire="float32")
            assert np.array_equal(bits(part), bits(want[cut[r] : cut[r + 1]]))

with rr.init(timeout_s=60) as comm:
    check(comm, COUNTS)
    pieces = [np.ones(k, np.float16) for k in (3, 700, 1, 0, 90_001)]
    step = comm.plan_all_reduce(pieces, wire="float32")
    step()
    assert step.algorithm == "ring"
    assert all((piece == comm.size).all() for piece in pieces)
    say(transports=sorted({link.transport for link in comm.links}))
"""
)

# Each channel is an interval of the vector with a ring of its own.
CHANNELS = (
    EXPECTED
    + """
channels = int(os.environ["CHANNELS"])
with rr.init(timeout_s=60, channels=channels) as comm:
    r, n = comm.rank, comm.size
    for count in (5, 4097, 150_003):
        for dtype in (np.float16, ml_dtypes.bfloat16):
            given = vectors(n, count, dtype, count)
            offsets = intervals(count, channels, n, 2)
            for op, factor in (("sum", 1.0), ("avg", 1.0 / n)):
                parts = [offsets[k * n : (k + 1) * n + 1] for k in range(channels)]
                cut = [([x[part[0] : part[-1]] for x in given], [at - part[0] for at in part]) for part in parts]
                want = np.concatenate([right(*each, factor) for each in cut])
                for registered in (False, True):
                    x = comm.empty(count, dtype) if registered else np.empty(count, dtype)
                    x[:] = given[r]
                    comm.all_reduce(x, op=op, wire="float32")
                    assert np.array_equal(bits(x), bits(want)), (count, dtype, op, registered)
                    if count > 4097:
                        widest = sum(comm.last_links[peer][0] for peer in comm.last_links)
                        assert abs(widest - 2 * count * (3 * n - 4) / n) <= 64 * 3 * n * channels, (widest, count)
                x = given[r].copy()
                comm.plan_all_reduce(x, op=op, wire="float32", channels=channels)()
                assert np.array_equal(bits(x), bits(want)), (count, dtype, op, "plan")
            # A part is added in its own ring's order, however it is cut into channels.
            cut = even(count, n)
            want = right(given, cut, 1.0)[cut[r] : cut[r + 1]]
            assert np.array_equal(bits(comm.reduce_scatter(given[r], wire="float32")), bits(want)), (count, dtype)
    say(links=[[link.channels, link.transport] for link in comm.links])
"""
)


@pytest.mark.parametrize(("world", "channels", "far"), [(3, 2, False), (4, 3, False), (2, 2, True), (3, 3, True)])
def test_bits_in_channels(world: int, channels: int, far: bool, tmp_path: Path) -> None:
    source = FAR + CHANNELS if far else CHANNELS
    ran = run_world(world, source, tmp_path, env={"CHANNELS": str(channels)}, timeout_s=110)
    assert ran.code == 0, ran.output
    for rank in range(world):
        assert ran.of(rank, "links") == [[channels, "tcp"] if far else [1, "shm"]] * (world - 1)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_bits_on_shared_memory(world: int, tmp_path: Path) -> None:
    counts = "COUNTS = (0, 1, 5, 4097, 70_001)\n" if world > 4 else "COUNTS = (0, 1, 5, 4097, 1_000_003)\n"
    ran = run_world(world, counts + WIDE, tmp_path)
    assert ran.code == 0, ran.output


def test_bits_over_tcp(tmp_path: Path) -> None:
    ran = run_world(3, FAR + "COUNTS = (1, 5, 4097, 600_001)\n" + WIDE, tmp_path)
    assert ran.code == 0, ran.output
    assert ran.of(0, "transports") == ["tcp"]


@pytest.mark.parametrize(
    ("count", "slot_bytes"),
    [(3_000_001, 262_144), (60_001, 8192)],
    ids=["chunks of two rounds", "slices of half a small slot"],
)
def test_bits_in_rounds_and_small_slots(count: int, slot_bytes: int, tmp_path: Path) -> None:
    env = {"RDMARING_SLOT_BYTES": str(slot_bytes), "RDMARING_SLOT_COUNT": "2"}
    ran = run_world(3, f"COUNTS = ({count},)\n" + WIDE, tmp_path, env=env)
    assert ran.code == 0, ran.output


def test_ranks_that_differ_are_told(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=20)
x = np.ones(1 << 16, np.float16)
said_error(lambda: comm.all_reduce(x, algorithm="ring", wire="float32" if comm.rank else None))
"""
    ran = run_world(2, source, tmp_path)
    assert [ran.of(rank, "error") for rank in range(2)] == ["MismatchError"] * 2, ran.output


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=20)
half, single = np.ones(10, np.float16), np.ones(10, np.float32)
for x, more in (
    (single, {}), (np.ones(10, np.int16), {}), (half, {"op": "max"}), (half, {"algorithm": "direct"}),
    (half, {"order": "rank"}), (half, {"wire": "float64"}),
):
    try:
        comm.all_reduce(x, **{"wire": "float32", **more})
    except rr.ArgumentError as error:
        say(text=str(error))
"""
    ran = run_world(1, source, tmp_path)
    messages = [
        "op 'sum' of float32; accepted are sum and avg of float16 and bfloat16",
        "op 'sum' of int16; accepted are sum and avg",
        "op 'max' of float16; accepted are sum and avg",
        "algorithm='direct'; accepted for all_reduce are ring, or none named",
        "algorithm='direct'; accepted for all_reduce are ring",
        "wire is 'float64'; accepted are None and 'float32'",
    ]
    for what, message in zip(ran.said[0], messages, strict=True):
        assert re.search(re.escape(message), what["text"]), (what, message)


def test_a_cell_is_not_overwritten_behind_an_empty_chunk(tmp_path: Path) -> None:
    """With fewer elements than ranks a cell's users in between are empty; the one before may still be read."""
    source = """
with rr.init(timeout_s=60) as comm:
    r, n = comm.rank, comm.size
    for repeat in range(60):
        given = np.random.default_rng(repeat).integers(-99, 99, (n, 5)).astype(np.float64)
        counts = [1, 0, 1, 0, 2, 0, 1, 0] if repeat % 2 else None
        part = comm.reduce_scatter(given[r], algorithm="ring", counts=counts)
        edges = np.cumsum([0, *(counts or [1, 1, 1, 1, 1, 0, 0, 0])])
        assert np.array_equal(part, given.sum(axis=0)[edges[r] : edges[r + 1]]), repeat
"""
    ran = run_world(8, source, tmp_path)
    assert ran.code == 0, ran.output


def test_rank_order_gives_equal_bits_alone_and_in_a_list_and_rounds_once(tmp_path: Path) -> None:
    source = """
with rr.init(timeout_s=60) as comm:
    r, n = comm.rank, comm.size
    for dtype in (np.float16, np.float32):
        sizes = [1, 7, 300, 4097, 20_001, 3]
        drawn = lambda k, s: (np.random.default_rng([k, s]).standard_normal(s) * 9).astype(dtype)
        given = [[drawn(k, s) for s in sizes] for k in range(n)]
        alone = [comm.all_reduce(x.copy(), order="rank") for x in given[r]]
        listed = comm.all_reduce([x.copy() for x in given[r]], order="rank")
        whole = comm.all_reduce(np.concatenate(given[r]), order="rank")
        total = np.concatenate(given[0]).astype(np.float32)
        for k in range(1, n):
            total = total + np.concatenate(given[k]).astype(np.float32)
        want = total.astype(dtype).tobytes()          # float16: added in float32, rounded once
        assert np.concatenate(alone).tobytes() == want
        assert np.concatenate(listed).tobytes() == want
        assert whole.tobytes() == want
"""
    ran = run_world(3, source, tmp_path)
    assert ran.code == 0, ran.output
