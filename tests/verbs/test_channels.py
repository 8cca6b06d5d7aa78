"""Channels over verbs: each has queue pairs of its own, and starts at another rail."""

from __future__ import annotations

from pathlib import Path

from verbs.simulated import run_verbs

SOURCE = """
from rdmaring.diagnose.trace.records import CHANNEL_SHIFT, SEND
with rr.init(timeout_s=50, channels=2) as comm:
    r, n = comm.rank, comm.size
    count = 16 * n * 2 * 500
    for make in (lambda: comm.empty(count, np.float32), lambda: np.empty(count, np.float32)):
        x = make()
        x[:] = np.arange(count) % 7 + r
        with comm.trace() as tracing:
            comm.all_reduce(x, algorithm="ring")
            sent = comm.last.sent_bytes
        assert np.array_equal(x.astype(np.float64), np.arange(count) % 7 * n + n * (n - 1) / 2)
        if r == 0:
            halves = []
            for rank in tracing.trace.ranks:
                records = rank.of(SEND)
                records = records[records["row"] >= 0]
                halves += [int(records[records["flags"] >> CHANNEL_SHIFT == c]["bytes"].sum()) for c in (0, 1)]
            say(halves=halves, sent=sent)
    say(links=[[link.channels, list(link.rails), link.streams] for link in comm.links])
"""


def test_each_of_two_rails_carries_half(tmp_path: Path) -> None:
    done = run_verbs(2, SOURCE, tmp_path, "devices=2", timeout_s=60)
    assert done.ran.code == 0, done.ran.output
    for rank in range(2):
        assert done.of(rank, "links") == [[2, [0, 1], 2]]
    assert done.of(0, "halves") == [done.of(0, "sent") // 2] * 4
    done.clean(2)
