"""Every public method, called by one thread while another one ends the communicator, or forks: a rank's program.

Arguments: what the other thread does, the seed, how many of the methods (0: all). A method that is new is in by itself;
a parameter without a default that ARGUMENTS lacks is a KeyError.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import inspect
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import rdmaring as rr
from rdmaring.plan import Plan
from rdmaring.work import Work

faulthandler.dump_traceback_later(100, exit=True)
COUNT = 6000
CALLS = 12  # beside a fork
ENOUGH_S = 0.1  # for calls that nothing ends
ENDS = (rr.ClosedError, rr.AbortedError, rr.PeerClosedError)
OF_RANK = {"send": ("send", "recv"), "recv": ("recv", "send")}  # what ranks 0 and 1 call
LEFT_OUT = {"abort", "close"}  # they are what the other thread does; twice is in test_threads.py
SPLIT_OFF = {"shrink"}  # refused on what is split off; beside close() in test_threads.py
ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "x": lambda comm: np.ones(COUNT),
    "peer": lambda comm: (comm.rank + 1) % comm.size,
    "shape": lambda comm: COUNT,
    "color": lambda comm: 0,
    "nbytes": lambda comm: 4096,
    "dtype": lambda comm: np.float32,
}
EXTRA: dict[str, Callable[[Any], dict[str, Any]]] = {
    "scatter": lambda comm: {"x": np.ones(COUNT * comm.size), "out": np.ones(COUNT)},
    "all_to_all": lambda comm: {"x": np.ones(COUNT * comm.size)},
}


def public(kind: type, beside: type = object) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_") and name not in dir(beside)]


def call(target: Any, kind: type, name: str, comm: Any) -> Any:
    """Call the method, or read the attribute."""
    if not callable(inspect.getattr_static(kind, name)):
        return getattr(target, name)
    method = getattr(target, name)
    given = {
        each.name: ARGUMENTS[each.name](comm)
        for each in inspect.signature(method).parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }
    got = method(**{**given, **EXTRA.get(name, lambda _: {})(comm)})
    if isinstance(got, rr.Communicator):
        got.close()
    elif hasattr(got, "__enter__"):
        with got:
            comm.barrier()
    elif isinstance(got, Work):
        got.wait()
    return got


class Held:
    """One communicator of this rank, a plan and a work of it; ``forget`` drops all that holds them."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.plan = comm.plan_all_reduce(np.ones(COUNT))
        self.work = comm.all_reduce(np.ones(COUNT), async_op=True)

    def forget(self) -> None:
        del self.comm, self.plan, self.work
        gc.collect()


def cases() -> Iterator[tuple[str, Callable[[Held], Any]]]:
    for name in public(rr.Communicator):
        if name not in LEFT_OUT:
            yield f"Communicator.{name}", lambda held, n=name: call(held.comm, rr.Communicator, n, held.comm)
    for name in public(Plan, functools.partial):
        yield f"Plan.{name}", lambda held, n=name: call(held.plan, Plan, n, held.comm)
    yield "Plan()", lambda held: held.plan()
    for name in public(Work):
        yield f"Work.{name}", lambda held, n=name: of_work(held, n)


def of_work(held: Held, name: str) -> Any:
    held.work.wait()  # its error, if it has one; the other ranks start as many
    held.work = held.comm.all_reduce(np.ones(COUNT), async_op=True)
    return call(held.work, Work, name, held.comm)


def end_in(held: Held, action: str, after_s: float) -> threading.Thread:
    comm = held.comm if action != "collected" else None

    def end() -> None:
        time.sleep(after_s)
        if action == "collected":
            held.forget()
        elif action == "close":
            comm.close()
        else:
            comm.abort("another thread ends it")

    thread = threading.Thread(target=end)
    thread.start()
    return thread


def until_ended(held: Held, one: Callable[[Held], Any], name: str) -> str:
    """Call it until it is ended."""
    until = time.monotonic() + ENOUGH_S
    while time.monotonic() < until:
        try:
            one(held)
        except ENDS as error:
            return type(error).__name__
        except rr.UnsupportedError:
            assert name.split(".")[-1] in SPLIT_OFF
        except AttributeError as error:
            assert error.name in ("comm", "plan", "work") and error.obj is held, error  # forgotten
            return "collected"
    return "its result"


def fork_in(held: Held, one: Callable[[Held], Any], after_s: float, codes: list[int]) -> threading.Thread:
    def fork() -> None:
        time.sleep(after_s)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                one(held)
                code = 0  # local: a number that was known
            except (rr.ForkedError, rr.ClosedError, rr.UnsupportedError):
                code = 0
            finally:
                os._exit(code)
        codes.append(os.waitpid(pid, 0)[1])

    thread = threading.Thread(target=fork)
    thread.start()
    return thread


def ranks_own(name: str, rank: int) -> str:
    kind, _, method = name.partition(".")
    return f"{kind}.{OF_RANK[method][rank % 2]}" if method in OF_RANK else name


def main() -> None:
    action, seed, some = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if os.environ.get("APART"):
        os.environ["RDMARING_HOST_ID"] = f"node-{os.environ['RDMARING_RANK']}"
    world = rr.init(timeout_s=60)
    drawn = random.Random(seed)
    every = dict(cases())
    names = [name for name in every if world.size > 1 or name.partition(".")[2] not in OF_RANK]
    if some:
        names = drawn.sample(names, some)
    for name in names:
        acts, after_s = drawn.randrange(world.size), drawn.choice((0.0, 0.0005, 0.002, 0.01)) * drawn.random()
        mine = ranks_own(name, world.rank)
        print("case", action, name, acts, after_s, flush=True)
        held = Held(world.dup())
        held.work.wait()
        if action == "fork":
            codes: list[int] = []
            other = None
            for number in range(CALLS):
                try:
                    every[mine](held)
                except rr.UnsupportedError:
                    assert name.split(".")[-1] in SPLIT_OFF
                if number == 0 and world.rank == acts:  # what the first call imports is Python's to lock
                    other = fork_in(held, every[mine], after_s, codes)
            x = held.comm.all_reduce(np.ones(COUNT))
            assert (x == world.size).all()
            if other is not None:
                other.join()
            assert codes in ([], [0]), (name, codes)
            held.comm.close()
        else:
            world.barrier()
            other = end_in(held, action, after_s) if world.rank == acts else None
            how = until_ended(held, every[mine], name)
            if other is not None:
                other.join()
            print("  ", how, flush=True)
            if "comm" in held.__dict__:
                held.comm.close()
                held.comm.close()
        del held
        gc.collect()  # a work that was started last, and with it all else
        world.barrier()
    print("SAY " + json.dumps({"cases": len(names)}), flush=True)
    world.close()


if __name__ == "__main__":
    main()
