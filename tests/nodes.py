"""Pieces of ranks' programs for several nodes on one machine; each rank's RDMARING_HOST_ID tells which."""

from __future__ import annotations

# ``per`` ranks a node, as neighbours; INTERLEAVED: rank r on node r % nodes.
FAR = """
per = int(os.environ.get("PER", "1"))
me, world = int(os.environ["RDMARING_RANK"]), int(os.environ["RDMARING_WORLD_SIZE"])
node = me % (world // per) if os.environ.get("INTERLEAVED") else me // per
os.environ["RDMARING_HOST_ID"] = f"node-{node}"
"""

SUMS = """
with rr.init(timeout_s=60) as comm:
    r, n = comm.rank, comm.size
    import ml_dtypes
    for count in (1, 5, 4097, 300_000):
        for dtype in (np.float32, ml_dtypes.bfloat16):
            for registered in (False, True):
                def fresh(k):
                    return comm.empty(k, dtype) if registered else np.empty(k, dtype)
                want = np.arange(count) % 7 * n + n * (n - 1) / 2  # exact in bfloat16, too
                given = (np.arange(count) % 7 + r).astype(dtype)
                for algorithm in (None, "ring", "direct"):
                    x = fresh(count); x[:] = given
                    comm.all_reduce(x, algorithm=algorithm)
                    assert np.array_equal(x.astype(np.float64), want), (count, dtype, algorithm, x[:9], want[:9])
                edges = np.cumsum([0] + [len(part) for part in np.array_split(np.arange(count), n)])
                part = fresh(edges[r + 1] - edges[r])
                comm.reduce_scatter(given, out=part)
                assert np.array_equal(part.astype(np.float64), want[edges[r]:edges[r + 1]])
                whole = fresh(count)
                comm.all_gather(part, out=whole)
                assert np.array_equal(whole.astype(np.float64), want)
                for root in range(n):
                    x = fresh(count); x[:] = given
                    comm.broadcast(x, root=root)
                    assert np.array_equal(x.astype(np.float64), np.arange(count) % 7 + root)
                    x[:] = given
                    comm.reduce(x, root=root)
                    assert np.array_equal(x.astype(np.float64), want if r == root else given.astype(np.float64))
    pieces = [np.full(k, r + 1.0, np.float32) for k in [3] * 300 + [70_000, 1, 12_345]]
    comm.all_reduce(pieces)
    assert all((piece == n * (n + 1) / 2).all() for piece in pieces)
    comm.barrier()
    say(transports=sorted({link.transport for link in comm.links}), nodes=comm.node_count,
        order=comm._order, peers=[link.peer_node for link in comm.links])
"""

# all_to_all, gather, scatter against numpy: equal and uneven parts, lists, registered memory, asynchronous calls.
PARTS = """
comm = rr.init(timeout_s=60)
r, n = comm.rank, comm.size
seed = int(os.environ.get("SEED", "4"))

def vector(rank, count, dtype, salt=0):
    return np.random.default_rng((seed, rank, salt)).integers(-90, 90, count).astype(dtype)

def array(data, registered):
    if not registered:
        return data.copy()
    made = comm.empty(data.size, data.dtype)
    made[:] = data
    return made

def same(got, want, what):
    assert np.array_equal(got, want), f"seed {seed}, rank {r}, {what}: {got[:8]}... for {want[:8]}..."

def exchange():
    for each in (0, 1, 3, 1000, 70_001):
        for registered in (False, True):
            x = array(vector(r, each * n, "i4"), registered)
            out = array(np.full(each * n, 77, "i4"), registered)
            want = np.concatenate([vector(s, each * n, "i4")[each * r : each * (r + 1)] for s in range(n)])
            assert comm.all_to_all(x, out=out) is out
            same(out, want, f"all_to_all of {each}, registered={registered}")
            same(x, vector(r, each * n, "i4"), "input left alone")
            same(comm.all_to_all(x), want, "all_to_all makes its output")
            work = comm.all_to_all([x[: each // 2], x[each // 2 :]], out=[out[:1], out[1:]], async_op=True)
            assert np.array_equal(np.concatenate(work.wait()), want), "lists"
    for salt in range(4):
        table = np.random.default_rng((seed, salt)).integers(0, (3, 20, 5000, 90_000)[salt], (n, n))
        table[np.random.default_rng((seed, salt, 1)).random((n, n)) < 0.4] = 0
        give, get = table[r].tolist(), table[:, r].tolist()
        x = vector(r, sum(give), "f8", salt)
        parts = [np.split(vector(s, table[s].sum(), "f8", salt), np.cumsum(table[s])[:-1])[r] for s in range(n)]
        got = comm.all_to_all(x, counts=(give, get))
        same(got, np.concatenate(parts), f"all_to_all by counts {table.tolist()}")
        out = comm.empty(sum(get), "f8")
        comm.all_to_all(array(x, True), out=out, counts=(give, get), async_op=True).wait()
        same(out, np.concatenate(parts), f"all_to_all by counts {table.tolist()}, registered")
    comm.all_to_all(np.empty(0), counts=([0] * n, [0] * n))

def to_and_from_a_root():
    for algorithm in (None, "direct", "binomial"):
        for each in (0, 1, 1000, 70_001, 300_000):
            for registered in (False, True) if each < 100_000 else (False,):
                root = each % n
                what = f"{algorithm} root {root}, {each} each, registered={registered}"
                whole = np.concatenate([vector(s, each, "f4") for s in range(n)])
                mine = array(vector(r, each, "f4"), registered)
                out = array(np.full(each * n, 7, "f4"), registered) if r == root else None
                got = comm.gather(mine, root, out, algorithm=algorithm)
                same(got, whole if r == root else mine, "gather " + what)
                back = array(np.full(each, 5, "f4"), registered)
                comm.scatter(got if r == root else None, root, back, algorithm=algorithm)
                same(back, vector(r, each, "f4"), "scatter " + what)
                if r == root:  # the root's own part in place
                    out[each * r : each * (r + 1)] = vector(r, each, "f4")
                    own = out[each * r : each * (r + 1)]
                comm.gather(own if r == root else mine, root, out, algorithm=algorithm)
                if r == root:
                    same(out, whole, "gather in place " + what)
                comm.scatter(out, root, own if r == root else back, algorithm=algorithm)
                same(own if r == root else back, vector(r, each, "f4"), "scatter in place " + what)
        counts = [(7 * s + 1) % 5 * 1000 for s in range(n)]
        whole = np.concatenate([vector(s, counts[s], "i8") for s in range(n)])
        root = n - 1
        got = comm.gather(vector(r, counts[r], "i8"), root, counts=counts, algorithm=algorithm)
        same(got, whole if r == root else vector(r, counts[r], "i8"), f"gather by counts {counts}, {algorithm}")
        part = None if r == root else np.zeros(counts[r], "i8")
        work = comm.scatter(whole if r == root else None, root, part, counts=counts, algorithm=algorithm, async_op=True)
        same(work.wait(), vector(r, counts[r], "i8"), f"scatter by counts {counts}, {algorithm}")

exchange()
to_and_from_a_root()
x = np.arange(100.0) + r
comm.all_reduce(x)
same(x, n * np.arange(100.0) + n * (n - 1) / 2, "what comes after")
say(ok=True, steps=comm.last.steps)
"""
