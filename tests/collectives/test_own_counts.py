"""Own algorithms where parts have counts: what binds is right to the bit, what does not binds nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes import FAR
from worlds import run_world

ROWS = (Path(__file__).parents[1] / "own_algorithms.py").read_text()

# Arrays that end where memory ends, registered ones, and lists of both; results to the bit, inputs left alone.
MEMORY = """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
kept = []

def guarded(count, dtype):
    nbytes = count * np.dtype(dtype).itemsize
    room = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = mmap.mmap(-1, room + 2 * mmap.PAGESIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    for page in (at, at + mmap.PAGESIZE + room):  # nobody reads or writes beside the array
        assert libc.mprotect(page, mmap.PAGESIZE, 0) == 0
    kept.append(whole)
    return np.frombuffer(whole, dtype, count, mmap.PAGESIZE + room - nbytes)

def made(comm, kind, count, dtype):
    if kind == "lists":
        first = count // 3
        return [guarded(first, dtype), comm.empty(count - first, dtype)]
    return comm.empty(count, dtype) if kind == "registered" else guarded(count, dtype)

def fill(array, values):
    at = 0
    for piece in array if type(array) is list else [array]:
        piece[:] = values[at : at + piece.size]
        at += piece.size
    return array

def whole(array):
    return np.concatenate(array) if type(array) is list else array

def bits(rank, count, salt):
    return np.random.default_rng((rank, count, salt)).integers(-(2**63), 2**63, count, dtype=np.int64)

def same(got, want, *what):
    got = whole(got)
    bad = np.flatnonzero(got != want) if got.shape == want.shape else [0]
    assert not len(bad), f"rank {r}, {what}: {len(bad)} of {want.size} differ, first at {bad[0]}"

def filled(kind, values):
    return fill(made(comm, kind, values.size, values.dtype), values)
"""

RIGHT = """
comm = rr.init(timeout_s=60)
r, n = comm.rank, comm.size
big = 200_000  # int64: more than a cell of scratch holds in one round, and several slices
COUNTS = [[1] * n, [0, 2, 6, 5][:n], [3, 0, 0, 4][:n], [4097, 70_001, 5, 1][:n], [7, big, 3, big + 1][:n]]
KINDS = ("ordinary", "registered", "lists")
done = 0
for kind in KINDS:
    for salt, counts in enumerate(COUNTS):
        edges = np.cumsum([0, *counts])
        parts = [bits(s, counts[s], salt) for s in range(n)]
        joined = np.concatenate(parts)
        for root in (0, n - 1):
            for algorithm in (gather_direct, gather_copies, gather_chain):
                x = filled(kind, parts[r])
                out = filled(kind, np.full(joined.size, 77)) if r == root else None
                got = comm.gather(x, root, out, counts=counts, algorithm=algorithm)
                same(got, joined if r == root else parts[r], kind, counts, algorithm.__name__, root)
                same(x, parts[r], "input", algorithm.__name__)
            for algorithm in (scatter_direct, scatter_copies):
                x = filled(kind, joined) if r == root else None
                out = filled(kind, np.full(counts[r], 77))
                comm.scatter(x, root, out, counts=counts, algorithm=algorithm)
                same(out, parts[r], kind, counts, algorithm.__name__, root)
        for algorithm in (all_gather_direct, all_gather_copies):
            for channels in (None, 2) if algorithm is all_gather_direct else (None,):
                out = filled(kind, np.full(joined.size, 77))
                comm.all_gather(filled(kind, parts[r]), out, counts=counts, algorithm=algorithm, channels=channels)
                same(out, joined, kind, counts, algorithm.__name__, channels)
        vectors = [bits(s, joined.size, salt + 100) for s in range(n)]
        total = np.sum(vectors, axis=0)
        for algorithm in (reduce_scatter_direct, reduce_scatter_copies):
            for channels in (None, 2) if algorithm is reduce_scatter_direct else (None,):
                x, out = filled(kind, vectors[r]), filled(kind, np.full(counts[r], 77))
                comm.reduce_scatter(x, out, counts=counts, algorithm=algorithm, channels=channels)
                same(out, total[edges[r] : edges[r + 1]], kind, counts, algorithm.__name__, channels)
                same(x, vectors[r], "input", algorithm.__name__)
        table = [[counts[(s + 2 * d) % n] for d in range(n)] for s in range(n)]
        if salt == len(COUNTS) - 1:  # one pair's part alone is large: only these two know
            table = [[big * (s == 0 and d == n - 1) + s + d for d in range(n)] for s in range(n)]
        sent = [bits(s, sum(table[s]), salt + 200) for s in range(n)]
        cut = [np.split(sent[s], np.cumsum(table[s])[:-1]) for s in range(n)]
        want = np.concatenate([cut[s][r] for s in range(n)])
        for algorithm in (all_to_all_direct, all_to_all_copies, all_to_all_landing):
            out = filled(kind, np.full(want.size, 77))
            both = (table[r], [table[s][r] for s in range(n)])
            comm.all_to_all(filled(kind, sent[r]), out, counts=both, algorithm=algorithm)
            same(out, want, kind, table, algorithm.__name__)
        equal = counts[-1]
        sent = [bits(s, equal * n, salt + 300) for s in range(n)]
        want = np.concatenate([sent[s][equal * r : equal * (r + 1)] for s in range(n)])
        for algorithm in (all_to_all_direct, all_to_all_copies, all_to_all_landing, all_to_all_by_way_of):
            out = filled(kind, np.full(want.size, 77))
            comm.all_to_all(filled(kind, sent[r]), out, algorithm=algorithm)
            same(out, want, kind, equal, algorithm.__name__)
        done += 1
        comm.barrier()
        kept.clear()
say(done=done, transports=sorted({link.transport for link in comm.links}))
"""


@pytest.mark.parametrize(
    ("far", "env"),
    [
        ("", {"CHUNKS": "2"}),
        ("", {"CHUNKS": "3", "RDMARING_SLOT_BYTES": "16384"}),
        ("", {"CHUNKS": "2", "RDMARING_CHECK": "crc"}),
        (FAR, {"CHUNKS": "2", "PER": "1"}),
    ],
    ids=["shm", "shm-small-slots", "shm-crc", "tcp"],
)
def test_right_to_the_bit(far: str, env: dict[str, str], tmp_path: Path) -> None:
    ran = run_world(3, far + ROWS + MEMORY + RIGHT, tmp_path, env=env, timeout_s=110)
    assert ran.code == 0, ran.output
    for rank in range(3):
        assert ran.of(rank, "done") == 15
        assert ran.of(rank, "transports") == (["tcp"] if far else ["shm"])


@pytest.mark.long
def test_right_to_the_bit_on_two_nodes(tmp_path: Path) -> None:
    ran = run_world(4, FAR + ROWS + MEMORY + RIGHT, tmp_path, env={"CHUNKS": "2", "PER": "2"}, timeout_s=110)
    assert ran.code == 0, ran.output
    assert [ran.of(rank, "transports") for rank in range(4)] == [["shm", "tcp"]] * 4


REFUSED = """
comm = rr.init(timeout_s=20)
r, n = comm.rank, comm.size

def refused(call):
    begin = time.monotonic()
    try:
        call()
    except ValueError as error:
        say(text=str(error), name=type(error).__name__, hint=error.hint, seconds=time.monotonic() - begin)
        return
    say(text="ran", seconds=0)

for k in (0, 5, 300_000):
    x, even = np.arange(n * k), ([k] * n, [k] * n)
    refused(lambda: comm.all_to_all(x, counts=even, algorithm=all_to_all_by_way_of))
    want = np.concatenate([np.arange(k) + k * r] * n)
    assert np.array_equal(comm.all_to_all(x, algorithm=all_to_all_by_way_of), want)  # nothing is lost
    assert np.array_equal(comm.all_to_all(x, counts=even, algorithm=all_to_all_copies), want)
"""


@pytest.mark.parametrize("far", ["", FAR], ids=["shm", "tcp"])
def test_what_a_forwarder_cannot_know_is_refused_by_all(far: str, tmp_path: Path) -> None:
    ran = run_world(3, far + ROWS + REFUSED, tmp_path, env={"PER": "1"})
    assert ran.code == 0, ran.output
    text = r"rank 0 row 4 chunk 7: algorithm 'all_to_all_by_way_of' has this rank handle what rank 2 sends to rank 1"
    for rank in range(3):
        assert len(ran.said[rank]) == 3
        for told in ran.said[rank]:
            assert told["name"] == "ArgumentError" and text in told["text"], ran.output
            assert told["seconds"] < 2
