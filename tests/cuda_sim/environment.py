"""What a process needs in its environment to have the simulated driver for its driver."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cuda_sim import build, build_shim


def environment(
    *,
    devices: int = 1,
    seed: int = 1,
    delay_us: int = 100,
    one_queue: bool = False,
    fail: Sequence[str] = (),
    attributes: Mapping[str, int] | None = None,
    race_log: Path | None = None,
    node: str = "",
    others: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """To be merged into the environment of a child process; libcuda is looked for at the first call, by the linker.

    devices: how many the node has; CUDA_VISIBLE_DEVICES chooses among them as ever.
    seed, delay_us: a quarter of the operations wait up to so long before they run. Give each process a seed of its own.
    one_queue: all streams of the process share one queue, as with CUDA_DEVICE_MAX_CONNECTIONS=1.
    fail: planned failures: "cuMemAlloc:3:2" (call 3 returns error 2), "cuLaunchKernel:1+:CUDA_ERROR_LAUNCH_FAILED".
    attributes: of all devices, "DMA_BUF_SUPPORTED", or of one, "1/DMA_BUF_SUPPORTED".
    race_log: a folder; each process writes what it did to a file there (race.c says how).
    node: part of the devices' UUIDs: processes of different nodes have different devices.
    others: further settings without RR_CUDA_SIM_: DRIVER_VERSION, MEMORY_MIB, PCI, PEER, MIG,
        KERNELS (the library of kernels, build_shim.library()).
    """
    queues: dict[str, str] = {}
    settings: dict[str, object] = {"DEVICES": devices, "SEED": seed, "DELAY_US": delay_us, "NODE": node}
    settings["KERNELS"] = build_shim.library()
    if one_queue:
        settings["CONNECTIONS"] = 1
        queues = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # which programs look at, too
    if fail:
        settings["FAIL"] = ",".join(fail)
    if attributes:
        settings["ATTRIBUTES"] = ",".join(f"{name}={value}" for name, value in attributes.items())
    if race_log is not None:
        settings["RACE_LOG"] = race_log
    settings.update(others or {})
    folders = [str(build.library().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    own = {f"RR_CUDA_SIM_{name}": str(value) for name, value in settings.items()}
    return {"LD_LIBRARY_PATH": ":".join(folders), **queues, **own}
