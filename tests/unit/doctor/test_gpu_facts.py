"""The child process that asks the driver: what it said before it hung, died or failed is kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rdmaring.diagnose.doctor.gpu_facts import GpuFacts, Nvrtc, PeerPath, ask_driver, decode_lines

TESTS = Path(__file__).resolve().parents[2]
C_LIBRARY = "libc.so.6"  # stands for libcuda: it can be opened


@pytest.mark.parametrize(
    ("way", "timeout_s", "end"),
    [
        ("hangs", 3.0, "ipc of GPU 1 did not end within 3 s"),
        ("dies", 60.0, "ipc of GPU 1 was ended by SIGSEGV"),
        ("fails", 60.0, "ipc of GPU 1 ended with exit code 1: no such device"),
    ],
)
def test_a_driver_that_is_stuck(monkeypatch: pytest.MonkeyPatch, way: str, timeout_s: float, end: str) -> None:
    monkeypatch.setenv("STUCK_DRIVER", way)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    begin = time.monotonic()
    facts = ask_driver(timeout_s, "unit.doctor.stuck_driver", C_LIBRARY)
    assert time.monotonic() - begin < 30
    assert facts.stuck == end
    assert (facts.binding, facts.driver_version, dict(facts.ipc)) == ("13.5.0", 13000, {0: ""})


def test_without_the_library_no_process_is_started() -> None:
    facts = ask_driver(module="no.such.module", library="libcuda-of-nowhere.so.1")
    assert facts == GpuFacts(library_error=facts.library_error)
    assert "libcuda-of-nowhere.so.1" in facts.library_error


def test_lines_become_facts() -> None:
    gpu = '{"ordinal": 0, "name": "G", "uuid": "U", "pci": "P", "capability": [9, 0]'
    gpu += ', "memory_bytes": 1, "attributes": {}}'
    lines = [
        '{"nvrtc": {"version": [13, 0], "archs": [80, 90]}}',
        f'{{"gpu": {gpu}}}',
        '{"peer": {"reader": 0, "owner": 1, "offered": true, "error": "bad"}}',
        '{"memops": [0, "no"]}',
        '{"dma_buf": [0, ""]}',
    ]
    facts = decode_lines(lines, "")
    assert facts.nvrtc == Nvrtc((13, 0), (80, 90))
    assert (facts.gpus[0].capability, facts.gpus[0].arch) == ((9, 0), 90)
    assert facts.peers == (PeerPath(0, 1, True, "bad"),)
    assert (dict(facts.memops), dict(facts.dma_buf), facts.stuck) == ({0: "no"}, {0: ""}, "")
    assert decode_lines(['{"nvrtc": {"error": "absent"}}'], "").nvrtc == Nvrtc(error="absent")
    assert decode_lines([], "ended with exit code 1: x").stuck == "start ended with exit code 1: x"
