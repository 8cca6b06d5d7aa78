"""Ranks with twins: a communicator of host memory, and one of arrays in GPU memory, which must have the same bits."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from cuda_sim.environment import environment
from worlds import Ran, run_world

TESTS = str(Path(__file__).resolve().parent)
SEED = 20261130  # of the values; also in the assertion's text

TWINS = """
import gpu_arrays as ga
import ml_dtypes

FLOATS = [np.dtype(d) for d in ("f4", "f8", "f2", ml_dtypes.bfloat16)]
INTEGERS = [np.dtype(d) for d in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]

def values(rank, count, dtype):
    # All magnitudes that add and multiply without overflow, both zeros: so rounding shows in most elements.
    rng = np.random.default_rng([SEED, rank, count])
    if dtype in INTEGERS:
        return rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    x = rng.standard_normal(count) * np.exp2(rng.integers(-6, 4, count))
    x[rng.integers(0, max(1, count), count // 50)] *= 0.0
    return x.astype(dtype)

class Twins:
    def __init__(self, comm):
        self.host, self.gpu, self.calls, self.bad = comm, comm.dup(), 0, []
        self.producer = ga.Producer(comm.rank % DEVICES)

    def same(self, what, want, got):
        self.calls += 1
        want, got = np.ascontiguousarray(want), np.ascontiguousarray(got.get() if hasattr(got, "get") else got)
        if want.tobytes() != got.tobytes():
            wrong = int((want.view(np.uint8) != got.view(np.uint8)).sum())
            self.bad.append(f"{what}: {wrong} of {want.nbytes} bytes differ, seed {SEED}")

    def run(self, name, given, out, **options):
        want_out, got_out = out.copy(), ga.Torch(self.producer, out)
        getattr(self.host, name)(given.copy(), out=want_out, **options)
        getattr(self.gpu, name)(ga.Torch(self.producer, given), out=got_out, **options)
        self.same(f"{name} of {given.size} {given.dtype}, {options}", want_out, got_out)

    def in_place(self, name, given, **options):
        want, got = given.copy(), ga.Torch(self.producer, given)
        getattr(self.host, name)(want, **options)
        getattr(self.gpu, name)(got, **options)
        self.same(f"{name} of {given.size} {given.dtype}, {options}", want, got)

    def from_root(self, name, given, out, root):
        want, got, at_root = out.copy(), ga.Torch(self.producer, out), self.host.rank == root
        getattr(self.host, name)(given if at_root else None, out=want, root=root)
        getattr(self.gpu, name)(ga.Torch(self.producer, given) if at_root else None, out=got, root=root)
        self.same(f"{name} of {given.size} {given.dtype} from {root}", want, got)

    def to_root(self, name, given, out, root):
        want, got, at_root = out.copy(), ga.Torch(self.producer, out), self.host.rank == root
        getattr(self.host, name)(given, out=want if at_root else None, root=root)
        getattr(self.gpu, name)(ga.Torch(self.producer, given), out=got if at_root else None, root=root)
        self.same(f"{name} of {given.size} {given.dtype} to {root}", want, got)
"""


def run_twins(
    world: int,
    source: str,
    tmp_path: Path,
    cache: Path,
    *,
    devices: int,
    env: dict[str, str],
    timeout_s: float = 240,
    **settings: Any,
) -> Ran:
    """``source`` on ranks that have twins; settings: environment()'s."""
    own = {**environment(devices=devices, **settings), "PYTHONPATH": TESTS, "XDG_CACHE_HOME": str(cache)}
    head = f"SEED, DEVICES = {SEED}, {devices}\n" + TWINS
    return run_world(world, head + textwrap.dedent(source), tmp_path, env={**own, **env}, timeout_s=timeout_s)


def alike(ran: Ran, world: int, calls: int) -> None:
    """Every rank compared so many results, and none differs."""
    assert ran.code == 0, ran.output
    for rank in range(world):
        assert not ran.of(rank, "bad"), ran.output
        assert ran.of(rank, "calls") == calls, ran.output
