"""The substitute libibverbs is as strict as real hardware, or stricter: each case of driver/ walks one rule."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from verbs_sim import build

# Plain: no configuration of their own. They hold with and without delays.
PLAIN = (
    "states values flush sq_accounting rq_accounting bad_lkey bad_rkey out_of_range access_flags registration "
    "rnr_exceeded rnr_forever inline_data receive_too_short imm_order reorder reads errors_leave_fields_undefined "
    "dead_peer stopped_peer wrong_psn wrong_gid_type mtu_mismatch two_processes cq_overrun notification port_events "
    "link_flap device_fatal source_reuse"
).split()
SPECS = ["seed=1", "seed=2,delay_us=300,reorder=1", "seed=3,delay_us=2000"]
NOTHING_LIVES = dict.fromkeys(["device_lists", "contexts", "pds", "mrs", "channels", "cqs", "qps"], 0)


class Run(NamedTuple):
    output: str
    reports: list[dict[str, Any]]


Runner = Callable[..., Run]


@pytest.fixture(scope="session")
def driver() -> Path:
    return build.driver()


@pytest.fixture
def run(driver: Path, tmp_path: Path) -> Runner:
    def run_case(case: str, spec: str = "", status: int = 0, **more: str) -> Run:
        print(f"VERBS_SIM={spec!r} driver {case}")
        report = tmp_path / "report"
        environment = build.environment(spec, fabric=str(tmp_path), report=report) | more
        result = subprocess.run(
            [driver, case], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == status, result.stderr
        reports = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        return Run(result.stdout + result.stderr, reports)

    return run_case


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("case", PLAIN)
def test_a_rule_holds_and_nothing_is_left(run: Runner, case: str, spec: str) -> None:
    reports = run(case, spec).reports
    assert reports
    for report in reports:
        assert report["live"] == NOTHING_LIVES
        assert report["violations"] == []


def test_every_case_is_run(driver: Path) -> None:
    listed = subprocess.run([driver, "--list"], capture_output=True, text=True, check=True).stdout.split()
    source = Path(__file__).read_text()
    assert [case for case in listed if case not in PLAIN and f'run("{case}"' not in source] == []


def test_completions_of_queue_pairs_overtake_each_other(run: Runner) -> None:
    counts = [int(run("reorder", f"seed={seed},delay_us=500,reorder=1").output.split()[0]) for seed in range(5)]
    assert min(counts) > 0
    assert len(set(counts)) > 1


def test_a_source_changed_too_early_is_seen_by_the_target(run: Runner) -> None:
    assert int(run("source_reuse", "delay_us=2000").output.split()[0]) > 30


def test_what_is_left_is_counted(run: Runner) -> None:
    assert run("leaves_all").reports[0]["live"] == dict.fromkeys(NOTHING_LIVES, 1)


def test_requests_lost_with_their_queue_pair_are_counted(run: Runner) -> None:
    assert run("drops", "seed=1,delay_us=1000000").reports[0]["counts"]["dropped"] == 2


def test_misuse_is_reported(run: Runner) -> None:
    closing, unacknowledged = run("misuses").reports[0]["violations"]
    assert "ibv_close_device while a QP" in closing
    assert "events that were not acknowledged" in unacknowledged
    (unmapped,) = run("unmapped").reports[-1]["violations"]
    assert "was unmapped before ibv_dereg_mr" in unmapped


def test_receivers_that_are_not_ready_are_counted(run: Runner) -> None:
    assert run("rnr_exceeded").reports[0]["counts"]["rnr_naks"] == 3  # the try and two more
    assert run("rnr_forever").reports[-1]["counts"]["rnr_naks"] > 3


def test_the_nth_call_of_a_verb_fails(run: Runner) -> None:
    faults = "fail=ibv_alloc_pd:2:ENOMEM,fail=ibv_poll_cq:2+:EIO,unsupported=ibv_create_comp_channel"
    assert run("nth_calls", faults).reports[0]["faults"] == {
        "ibv_alloc_pd:2": 3,
        "ibv_poll_cq:2": 3,
        "ibv_create_comp_channel:1": 2,
    }


def test_the_nth_completion_fails(run: Runner) -> None:
    run("wc_errors", "wc_error=2:REM_OP_ERR:0x77")


@pytest.mark.parametrize("when", ["qp_fatal_after_ms=200", "qp_fatal_after=1"])
def test_an_event_comes_in_its_time(run: Runner, when: str) -> None:
    run("qp_fatal", when)


def test_one_rank_alone_is_faulty(run: Runner) -> None:
    run("no_device", "", RDMARING_RANK="3", VERBS_SIM_RANK_3="devices=0")
    run("no_device", "", status=1, RDMARING_RANK="2", VERBS_SIM_RANK_3="devices=0")


def test_addresses_are_as_configured(run: Runner) -> None:
    lines = run("gid_table", "gids=v1:fe80::%r;-;v2:10.0.0.%r;v2:fd00::1,corrupt_gid=3,mtu=1024", RANK="4").output
    assert lines.splitlines() == [
        "link_layer 2 lid 0 mtu 1024",
        "0 fe80::5 v1",
        "1 :: No data available",
        "2 ::ffff:10.0.0.5 v2",
        "3 Input/output error",
    ]


def test_infiniband_is_addressed_by_lid(run: Runner) -> None:
    run("first_row", "link_layer=infiniband")
    assert run("gid_table", "link_layer=infiniband,lid=77").output.splitlines()[0] == "link_layer 1 lid 77 mtu 4096"


def test_a_port_may_have_ipv6_alone(run: Runner) -> None:
    run("first_row", "gids=v2:fd00::1")


def test_bytes_land_early_late_or_in_halves(run: Runner) -> None:
    early, halves, late, sender_first = map(int, run("landing", "seed=5,delay_us=4000").output.split())
    # Of 60, by seed. Who looks often enough sees even the late ones a moment before their completion.
    assert early > 0 and halves > 0
    assert early + halves + late <= 60
    assert sender_first > 0


@pytest.mark.parametrize(
    ("spec", "outcome"),
    [
        ("flush_after=3", "3: Work Request Flushed Error; Work Request Flushed Error"),
        ("drop_link_after=3", "3: transport retry counter exceeded; success"),
        ("port_down_after=3", "3: transport retry counter exceeded; success"),
        ("recv_wc_error=3:GENERAL_ERR", "3: success; general error"),
        ("wc_error=3:REM_ABORT_ERR", "3: aborted error; success"),
        ("devices=2,fault_device=0,drop_link_after=3", "3: transport retry counter exceeded; success"),
        ("devices=2,fault_device=1,drop_link_after=3", "20: success; success"),
        ("port_state=1", "1: transport retry counter exceeded; success"),
    ],
)
def test_a_device_breaks_when_it_is_told_to(run: Runner, spec: str, outcome: str) -> None:
    assert run("breaks", spec).output.splitlines() == [outcome]


def test_limits_of_the_device_hold(run: Runner) -> None:
    run("limits", "max_inline=8,max_sge=2,max_qp_wr=32,max_cqe=100,max_rd_atomic=3,memlock_kb=1028")


REFUSED = "nonsense seed=x fail=ibv_poll_cq:1:ENOWAY gids=v3:::1 wc_error=1:SUCCESS devices=9 flush_after=0".split()


@pytest.mark.parametrize("spec", REFUSED)
def test_a_string_that_is_not_understood_ends_the_process(run: Runner, spec: str) -> None:
    assert "README.md" in run("no_device", spec, status=70).output


def test_sysfs_says_the_types(tmp_path: Path) -> None:
    spec = "devices=2,gids=v1:fe80::1;v2:10.0.0.1;v2:fd00::1;-,corrupt_gid=2"
    environment = build.environment(spec, fabric="", sysfs_root=tmp_path / "sys")
    port = Path(environment["RDMARING_SYSFS"]) / "class" / "infiniband" / "sim0" / "ports" / "1"
    types = {path.name: path.read_text() for path in (port / "gid_attrs" / "types").iterdir()}
    assert types == {"0": "IB/RoCE v1\n", "1": "RoCE v2\n"}
    assert (port / "gids" / "1").read_text() == "0000:0000:0000:0000:0000:ffff:0a00:0001\n"
    assert (port / "rate").read_text() == "100 Gb/sec (4X)\n"
    assert (port / "link_layer").read_text() == "Ethernet\n"
    assert (tmp_path / "sys" / "class" / "infiniband" / "sim1").is_dir()


def test_an_older_library_lacks_a_function() -> None:
    def exports(path: Path) -> set[str]:
        listing = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
        return {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()}

    assert exports(build.library()) - exports(build.library(without=("ibv_reg_dmabuf_mr",))) == {"ibv_reg_dmabuf_mr"}
    with pytest.raises(ValueError, match="ibv_nonsense"):
        build.library(without=("ibv_nonsense",))
