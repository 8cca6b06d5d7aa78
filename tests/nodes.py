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
