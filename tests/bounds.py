"""Calls in which not every rank needs every other, all under way when rank 1 fails: what the others are told."""

from __future__ import annotations

from typing import Any

from worlds import Ran

# FAULT: what rank 1 does. Each call has a communicator and a thread of its own.
SOURCE = """
comm = rr.init(timeout_s=60)
me, size = comm.rank, 40_000 + (FAULT == "mismatch" and comm.rank == 1)
pids = comm.all_gather(np.array([os.getpid()]))
limit = {"timeout_s": 2.0} if FAULT == "stopped" else {}
def scatter(c):
    x, out = (np.ones(3 * size), None) if me == 1 else (None, np.empty(size))
    return c.scatter(x, root=1, out=out, **limit)
def message(c):
    if me == 1:
        c.recv(np.empty(50 * size), 2)
    return c.recv(np.empty(size), 1, **limit) if me == 0 else c.send(np.ones(50 * 40_000), 1, **limit)
CALLS = {
    "all_to_all": lambda c: c.all_to_all(np.ones(3 * size), **limit),
    "gather": lambda c: c.gather(np.ones(size), root=0, **limit),
    "scatter": scatter,
    "message": message,
}
def one(name):
    told = {"error": None}
    try:
        CALLS[name](comms[name])
    except rr.RdmaringError as error:
        v = error.verdict
        told = {"error": type(error).__name__, "kind": v and v.kind, "edge": v and [v.rank, v.peer]}
    say(**{name: {**told, "at": time.time()}})
comms = {name: comm.dup() for name in CALLS}
for c in comms.values():
    c.barrier()
comm.barrier()
threads = [threading.Thread(target=one, args=(name,)) for name in CALLS]
if me != 1 or FAULT == "mismatch":
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
else:
    time.sleep(0.8)  # the others are in their calls
    say(failed_at=time.time())
    os.kill(os.getpid(), signal.SIGKILL if FAULT == "killed" else signal.SIGSTOP)
if me == 0 and FAULT == "stopped":
    time.sleep(3)  # rank 2 is through
    os.kill(int(pids[1]), signal.SIGKILL)
"""
NEEDED = {0: ("all_to_all", "gather", "scatter", "message"), 2: ("all_to_all", "scatter", "message")}  # rank 1's part


def check(ran: Ran, fault: str, within_s: float) -> None:
    """Ranks that need rank 1 name it, by class and in time."""
    kinds = {"killed": {"died"}, "stopped": {"stopped", "never_entered"}, "mismatch": {"mismatch"}}[fault]
    for rank, names in NEEDED.items():
        for name in names:
            told: dict[str, Any] = ran.of(rank, name)
            assert told["error"] and told["kind"] in kinds, (rank, name, told, ran.output)
            if fault == "mismatch":  # the first two that meet are told, before a majority can be
                assert told["error"] == "MismatchError" and 1 in told["edge"], (rank, name, told, ran.output)
            else:
                assert told["edge"][0] == 1, (rank, name, told, ran.output)
                assert told["at"] - ran.of(1, "failed_at") < within_s, (rank, name, told)
