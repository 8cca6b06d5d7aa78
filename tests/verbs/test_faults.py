"""Every error path over verbs: a clean error with cause and hint on both ranks, no hang, nothing left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verbs import simulated
from verbs.simulated import Verbs

# Rounds of all sizes until something goes wrong, then close.
ROUNDS = """
def work():
    with rr.init(timeout_s=15) as comm:
        comm.all_reduce(np.ones(1))
        x = comm.empty(200_000, np.float32)
        y = np.ones(50_000, np.float32)
        for k in range(int(os.environ.get("ROUNDS", "12"))):
            x[:] = 1
            comm.all_reduce(x)
            assert (x == comm.size).all(), "wrong sum"
            comm.all_reduce(y.copy())
            comm.all_reduce(np.ones(1))
            time.sleep(float(os.environ.get("NAP", "0")))
said_error(work)
"""


NOT_MENDED = {"RDMARING_VERBS_RECONNECT_S": "0"}  # what mends is in test_mend


def run_verbs(world: int, source: str, tmp_path: Path, spec: str = "", env: dict[str, str] | None = None) -> Verbs:
    return simulated.run_verbs(world, source, tmp_path, spec, env={**NOT_MENDED, **(env or {})})


def errors(done: Verbs, world: int = 2) -> list[dict[str, Any]]:
    """What each rank said of its error; every one names what happened and what to do."""
    said = [next(what for what in done.ran.said[rank] if "error" in what) for rank in range(world)]
    assert "wrong sum" not in done.ran.output
    assert done.ran.code == 0, done.ran.output
    for what in said:
        if what["error"] is not None:
            assert what["error"] != "OperationTimeoutError", what
            assert what["text"], what
            assert what["seconds"] < 13, what
    return said


# The verb that fails on rank 1, at which of its calls, and words of the error that both ranks then have.
SET_UP = {
    "ibv_alloc_pd": "gives no protection domain",
    "ibv_create_comp_channel": "gives no completion channel",
    "ibv_create_cq": "gives no completion queue",
    "ibv_create_qp": "gives no queue pair",
}


@pytest.mark.parametrize("verb", SET_UP)
def test_set_up_fails_on_one_rank(verb: str, tmp_path: Path) -> None:
    done = run_verbs(2, ROUNDS, tmp_path, env={"VERBS_SIM_RANK_1": f"fail={verb}:1+:ENOMEM"})
    for rank, what in enumerate(errors(done)):
        assert what["error"] == ("LinkError" if rank == 1 else "PeerFailedError"), what
        assert SET_UP[verb] in what["text"]
        assert "Cannot allocate memory" in what["text"]
    done.clean(2)


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("state", ["INIT", "RTR", "RTS"])
def test_a_queue_pair_does_not_change_its_state(call: int, state: str, tmp_path: Path) -> None:
    """Queue pair `call` of three: its n-th change of state fails."""
    steps = {"INIT": call, "RTR": 3 + 2 * call - 1, "RTS": 3 + 2 * call}
    env = {"VERBS_SIM_RANK_0": f"fail=ibv_modify_qp:{steps[state]}:EINVAL", "RDMARING_VERBS_QPS": "3"}
    done = run_verbs(2, ROUNDS, tmp_path, env=env)
    for what in errors(done):
        assert f"cannot go to state {state}: Invalid argument" in what["text"], what
    assert errors(done)[0]["hint"]
    done.clean(2)


@pytest.mark.parametrize("call", range(1, 6))
def test_registering_fails(call: int, tmp_path: Path) -> None:
    """1: slots, 2: staging, later: the user's memory; locked memory is named where that is why."""
    done = run_verbs(2, ROUNDS, tmp_path, env={"VERBS_SIM_RANK_1": f"fail=ibv_reg_mr:{call}:ENOMEM"})
    said = errors(done)
    if said[1]["error"] is None:
        assert call > 3, said  # that many are not made
        return
    assert said[1]["error"] == "OutOfMemoryError", said
    assert all("does not register" in what["text"] and "Cannot allocate memory" in what["text"] for what in said), said
    done.clean(2)


def test_locked_memory_is_the_limit(tmp_path: Path) -> None:
    source = "import resource\nresource.setrlimit(resource.RLIMIT_MEMLOCK, (4 << 20, 4 << 20))\n" + ROUNDS
    done = run_verbs(2, source, tmp_path, env={"VERBS_SIM_RANK_0": "memlock_kb=64"})
    said = errors(done)
    assert "limited to 4096 KiB" in said[0]["hint"], said
    assert "ulimit -l" in said[0]["hint"]
    done.clean(2)


POSTING = [("ibv_post_send", n) for n in (1, 2, 3, 7, 20)] + [("ibv_post_recv", n) for n in (1, 100, 137, 140)]


@pytest.mark.parametrize(("verb", "call"), POSTING)
def test_posting_fails(verb: str, call: int, tmp_path: Path) -> None:
    done = run_verbs(2, ROUNDS, tmp_path, env={"VERBS_SIM_RANK_1": f"fail={verb}:{call}:ENOMEM"})
    words = "posting a send" if verb == "ibv_post_send" else "posting a receive"
    said = errors(done)
    assert said[1]["error"] == "LinkError", said
    assert words in said[1]["text"]
    assert "to rank 0 over sim0/1 failed: Cannot allocate memory" in said[1]["text"]
    assert said[0]["error"] == "PeerFailedError", said
    assert words in said[0]["text"]
    done.clean(2)


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("ibv_poll_cq:5", "polling completions to rank 0 over sim0/1 failed"),
        ("ibv_req_notify_cq:1", "arming completions to rank 0 over sim0/1 failed"),
    ],
)
def test_polling_and_arming_fail(verb: str, words: str, tmp_path: Path) -> None:
    done = run_verbs(2, ROUNDS, tmp_path, env={"VERBS_SIM_RANK_1": f"fail={verb}:EIO", "NAP": "0.02"})
    said = errors(done)
    assert all(words in what["text"] for what in said), said
    done.clean(2)


# What a completion says, and what must be told of it.
COMPLETIONS = {
    "LOC_LEN_ERR": "longer than the device",
    "LOC_QP_OP_ERR": "refused the request",
    "LOC_PROT_ERR": "memory was not registered",
    "BAD_RESP_ERR": "answered what was not asked",
    "LOC_ACCESS_ERR": "registration does not allow it",
    "REM_INV_REQ_ERR": "found the request invalid",
    "REM_ACCESS_ERR": "memory is not registered (any more)",
    "REM_OP_ERR": "could not carry out",
    "RETRY_EXC_ERR": "no acknowledgement came",
    "RNR_RETRY_EXC_ERR": "posted no receive",
    "REM_ABORT_ERR": "aborted the request",
    "FATAL_ERR": "the device failed",
    "RESP_TIMEOUT_ERR": "did not answer in time",
    "GENERAL_ERR": "does not tell",
    "INV_EECN_ERR": "no words for",
}


@pytest.mark.parametrize("status", COMPLETIONS)
def test_a_failed_completion_in_plain_words(status: str, tmp_path: Path) -> None:
    """Peer, device, port, GID pair, queue pairs, state, vendor code, meaning, remedy; no flush."""
    side = "recv_wc_error" if status.startswith("LOC_ACC") else "wc_error"
    done = run_verbs(2, ROUNDS, tmp_path, env={"VERBS_SIM_RANK_1": f"{side}=9:{status}:0x81"})
    said = errors(done)
    text = said[1]["text"]
    assert said[1]["error"] == "LinkError", said
    assert COMPLETIONS[status] in text
    if status != "INV_EECN_ERR":
        assert status in text
    for part in ("rank 0 failed with", "vendor code 0x81", "Device sim0 port 1, GID 3 10.0.", "(RoCE v2)", "state ERR"):
        assert part in text, text
    assert "queue pair 0x" in text
    assert said[1]["hint"]
    assert said[1]["peer"] == 0
    assert said[0]["error"] in ("PeerFailedError", "LinkError"), said
    done.clean(2)


EVENTS = {
    "port_down": "device sim0: port 1 went down",
    "qp_fatal": "failed (fatal)",
    "device_fatal": "device sim0: the device failed",
    "flush": "WR_FLUSH_ERR",
}


@pytest.mark.parametrize("event", EVENTS)
def test_what_befalls_a_device_is_an_error_within_a_second(event: str, tmp_path: Path) -> None:
    """While both ranks exchange without a pause."""
    env = {"VERBS_SIM_RANK_1": f"{event}_after=60", "ROUNDS": "4000"}
    done = run_verbs(2, ROUNDS, tmp_path, env=env)
    said = errors(done)
    assert said[1]["error"] == "LinkError", said
    assert EVENTS[event] in said[1]["text"], said
    assert said[1]["hint"]
    assert said[0]["error"] in ("PeerFailedError", "LinkError"), said
    done.clean(2)


WAITING = """
def wait():
    comm = rr.init(timeout_s=15)
    try:
        comm.all_reduce(np.ones(100_000, np.float32))
        if comm.rank == 0:
            time.sleep(4)
        say(begun=time.time())
        comm.all_reduce(np.ones(100_000, np.float32))
    finally:
        comm.close()
said_error(wait)
"""


@pytest.mark.parametrize("event", ["port_down", "qp_fatal", "device_fatal"])
def test_a_rank_that_sleeps_is_told_of_events(event: str, tmp_path: Path) -> None:
    done = run_verbs(2, WAITING, tmp_path, env={"VERBS_SIM_RANK_1": f"{event}_after_ms=2000"})
    said = errors(done)
    assert EVENTS[event] in said[1]["text"], said
    assert said[1]["at"] - done.of(1, "begun") < 3.2, said  # it happens 2 s after the device was opened
    assert said[0]["error"] in ("PeerFailedError", "LinkError"), said
    done.clean(2)


def test_a_cut_wire_ends_after_all_retries(tmp_path: Path) -> None:
    env = {"VERBS_SIM_RANK_1": "drop_link_after=60", "ROUNDS": "4000", "RDMARING_VERBS_RETRY_TIMEOUT_S": "0.2"}
    done = run_verbs(2, ROUNDS, tmp_path, env=env)
    said = errors(done)
    assert any("RETRY_EXC_ERR" in what["text"] for what in said), said
    assert any("rdmaring doctor --peer" in what["text"] + what["hint"] for what in said), said
    done.clean(2)


def test_a_killed_rank_is_found_as_over_tcp(tmp_path: Path) -> None:
    source = """
comm = rr.init(timeout_s=20)
comm.all_reduce(np.ones(100_000, np.float32))
if comm.rank == 1:
    time.sleep(0.3)  # the others are through the first operation too
    os.kill(os.getpid(), signal.SIGKILL)
said_error(lambda: comm.all_reduce(np.ones(1_000_000, np.float32)))
comm.close()
"""
    done = run_verbs(2, source, tmp_path)
    assert done.of(0, "error") == "PeerDiedError"
    assert done.of(0, "seconds") < 1.5
    assert "rank 1" in done.of(0, "text")
    assert done.reports[0]["live"] == dict.fromkeys(done.reports[0]["live"], 0)
    assert done.reports[0]["violations"] == []


@pytest.mark.parametrize("count", [2, 100_000])
def test_a_mismatch_tells_both_calls(count: int, tmp_path: Path) -> None:
    source = f"""
comm = rr.init(timeout_s=20)
comm.all_reduce(np.ones(5))
said_error(lambda: comm.all_reduce(np.ones({count} + comm.rank, np.float32)))
comm.close()
"""
    done = run_verbs(2, source, tmp_path)
    for rank in (0, 1):
        assert done.of(rank, "error") == "MismatchError"
        assert f"of {count} float32" in done.of(rank, "text")
        assert f"of {count + 1} float32" in done.of(rank, "text")
        assert done.of(rank, "seconds") < 1
    done.clean(2)


def test_nobody_writes_our_memory_after_an_error(tmp_path: Path) -> None:
    """Rank 0 gives up in the middle; what it then writes to its buffer stays."""
    source = """
comm = rr.init(timeout_s=20)
x = comm.empty(2_000_000, np.float32)
x[:] = 1
comm.all_reduce(x)
x[:] = 1
if comm.rank == 0:
    threading.Timer(0.02, lambda: comm.abort("enough")).start()
    error = said_error(lambda: [comm.all_reduce(x) for _ in range(1000)])
    x[:] = 5
    time.sleep(1)
    say(touched=int((x != 5).sum()))
else:
    said_error(lambda: [comm.all_reduce(x) for _ in range(1000)])
comm.close()
"""
    done = run_verbs(2, source, tmp_path, "seed=4,delay_us=3000")
    assert done.of(0, "error") == "AbortedError"
    assert done.of(1, "error") == "AbortedError"
    assert done.of(0, "touched") == 0
    done.clean(2)


def test_bytes_arrive_though_their_sender_closes_at_once(tmp_path: Path) -> None:
    """Close waits for acknowledgements: nothing of the last operation is lost."""
    source = """
with rr.init(timeout_s=10) as comm:
    x = np.full(4096, comm.rank + 1, np.float32)
    comm.all_reduce(x, algorithm="direct")
    say(sum=float(x[0]))
"""
    for seed in range(3):
        done = run_verbs(3, source, tmp_path, f"seed={seed},delay_us=20000")
        assert done.ran.code == 0, done.ran.output
        assert [done.of(rank, "sum") for rank in range(3)] == [6.0] * 3
        done.clean(3)


@pytest.mark.parametrize(
    "verb", ["ibv_destroy_qp", "ibv_dereg_mr", "ibv_destroy_cq", "ibv_destroy_comp_channel", "ibv_dealloc_pd"]
)
def test_a_failure_of_cleaning_up_leaves_the_rest_to_go(verb: str, tmp_path: Path) -> None:
    done = run_verbs(2, ROUNDS, tmp_path, env={"VERBS_SIM_RANK_1": f"fail={verb}:1:EBUSY"})
    said = errors(done)
    assert [what["error"] for what in said] == [None, None], said
    live = done.reports[1]["live"]
    kept = {"ibv_destroy_qp": "qps", "ibv_dereg_mr": "mrs", "ibv_destroy_cq": "cqs",
            "ibv_destroy_comp_channel": "channels", "ibv_dealloc_pd": "pds"}[verb]  # fmt: skip
    assert live[kept] >= 1, live
    assert done.reports[0]["live"] == dict.fromkeys(done.reports[0]["live"], 0)
