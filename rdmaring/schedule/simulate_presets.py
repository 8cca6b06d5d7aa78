"""Machines to start from, each with where its numbers come from. They are predictions' inputs, not measurements."""

from __future__ import annotations

from dataclasses import dataclass

from rdmaring.schedule.cluster import Costs, LevelCost


@dataclass(frozen=True)
class Preset:
    """per_node: ranks of a node. source: of the numbers."""

    costs: Costs
    per_node: int
    title: str
    source: str


def per_byte(bytes_per_s: float) -> float:
    """Seconds per byte; 0 for an infinite rate."""
    return 1.0 / bytes_per_s


_OVERHEAD = 0.1e-6
_OVERHEAD_NOTE = "0.1 us for a row and for a slice are assumed"
_NCCL = "latencies: NCCL's tuning model (src/graph/tuning.cc, ring, Simple: 3.4 us NVLink, 14 us network)"

PRESETS: dict[str, Preset] = {
    "cpu": Preset(
        Costs(
            LevelCost(0.5e-6, per_byte(8e9), per_byte(8e9)),
            LevelCost(30e-6, per_byte(1.25e9), per_byte(3e9)),
            reduce_s_per_byte=per_byte(10e9),
            row_s=_OVERHEAD,
            slice_s=_OVERHEAD,
        ),
        8,
        "servers: shared memory inside, 10 Gb/s Ethernet and TCP between",
        "memory copied at 8 GB/s and added at 10 GB/s by one core, 30 us TCP round trips: orders of magnitude, to be "
        "replaced by what `rdmaring tune` measures; " + _OVERHEAD_NOTE,
    ),
    "roce": Preset(
        Costs(
            LevelCost(0.5e-6, per_byte(8e9), per_byte(8e9)),
            LevelCost(3e-6, per_byte(12.5e9)),
            reduce_s_per_byte=per_byte(10e9),
            row_s=_OVERHEAD,
            slice_s=_OVERHEAD,
        ),
        8,
        "servers: shared memory inside, one 100 Gb/s RoCE port between",
        "line rate 100 Gb/s; 3 us for a write and its notice through a switch, an order of magnitude; memory as in cpu",
    ),
    "dgx-a100": Preset(
        Costs(
            LevelCost(3.4e-6, per_byte(300e9)),
            LevelCost(14e-6, per_byte(25e9)),
            reduce_s_per_byte=per_byte(1000e9),
            rails=8,
            slice_bytes=1 << 20,
            row_s=_OVERHEAD,
            slice_s=_OVERHEAD,
        ),
        8,
        "8 GPUs by NVLink 3 and NVSwitch, 8 rails of 200 Gb/s",
        "NVLink 3: 600 GB/s both ways, 300 each; HDR InfiniBand: 200 Gb/s (NVIDIA's data sheet of DGX A100); "
        + _NCCL
        + "; additions at 1 TB/s are assumed; "
        + _OVERHEAD_NOTE,
    ),
    "dgx-h100": Preset(
        Costs(
            LevelCost(3.4e-6, per_byte(450e9)),
            LevelCost(14e-6, per_byte(50e9)),
            reduce_s_per_byte=per_byte(2000e9),
            rails=8,
            slice_bytes=1 << 20,
            row_s=_OVERHEAD,
            slice_s=_OVERHEAD,
        ),
        8,
        "8 GPUs by NVLink 4 and NVSwitch, 8 rails of 400 Gb/s",
        "NVLink 4: 900 GB/s both ways, 450 each; ConnectX-7: 400 Gb/s (NVIDIA's data sheet of DGX H100); "
        + _NCCL
        + "; additions at 2 TB/s are assumed; "
        + _OVERHEAD_NOTE,
    ),
}
