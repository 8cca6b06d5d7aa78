"""Peer access, IPC, stream memory operations, namespaces and pairs: every state that can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine, evidence
from unit.doctor.fake_gpu import facts, gpu, with_gpus

from rdmaring.diagnose.doctor import Finding, State, examine, pair_findings
from rdmaring.diagnose.doctor.gpu_facts import PeerPath
from rdmaring.diagnose.doctor.gpu_paths import (
    check_gpu_ipc,
    check_gpu_memops,
    check_gpu_namespaces,
    check_gpu_peers,
)


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    made = FakeMachine(tmp_path)
    with_gpus(made, 2)
    return made


def test_one_gpu_has_no_peer(machine: FakeMachine) -> None:
    machine.system.gpu_facts = facts(1)
    assert check_gpu_peers(machine.roots).found == "one GPU"


def test_peers_that_are_well(machine: FakeMachine) -> None:
    finding = check_gpu_peers(machine.roots)
    assert finding.state is State.OK
    assert finding.data["peers"][0] == {"reader": 0, "owner": 1, "offered": True, "error": ""}


def test_a_pair_without_peer_access_warns(machine: FakeMachine) -> None:
    machine.system.gpu_facts = facts(2, peers=(PeerPath(0, 1, False, ""), PeerPath(1, 0, False, "")))
    finding = check_gpu_peers(machine.roots)
    assert finding.state is State.WARNING
    assert finding.found == "no peer access between GPUs 0 and 1"
    assert "staged" in finding.cause
    assert "GPU 1 reads and writes GPU 0: not offered" in evidence(finding)


def test_wrong_bytes_between_peers_fail(machine: FakeMachine) -> None:
    error = "4096 of 4096 bytes read over the bus are wrong"
    machine.system.gpu_facts = facts(2, peers=(PeerPath(0, 1, True, error), PeerPath(1, 0, True, "")))
    finding = check_gpu_peers(machine.roots)
    assert finding.state is State.FAILURE
    assert finding.found == f"GPU 0 and GPU 1: {error}"
    assert "ACS" in finding.cause
    assert "iommu=pt" in finding.fix


def test_a_peer_copy_that_hangs_fails(machine: FakeMachine) -> None:
    stuck = "the copy of GPU 0 from GPU 1 did not end within 60 s"
    machine.system.gpu_facts = facts(2, peers=(), stuck=stuck)
    finding = check_gpu_peers(machine.roots)
    assert finding.state is State.FAILURE
    assert finding.found == stuck
    assert "IOMMU" in finding.cause


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        ("in the second process: cuIpcOpenMemHandle: CUDA_ERROR_INVALID_CONTEXT (201)", State.WARNING, "sandbox"),
        ("cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED (801)", State.WARNING, "WSL"),
        ("the two processes do not see the same bytes", State.FAILURE, "other memory"),
        ("the second process did not end within 20 s", State.WARNING, "sandbox"),
    ],
)
def test_ipc_that_does_not_work(machine: FakeMachine, error: str, state: State, words: str) -> None:
    machine.system.gpu_facts = facts(2, ipc={0: "", 1: error})
    finding = check_gpu_ipc(machine.roots)
    assert finding.state is state
    assert finding.found == f"GPU 1: {error}"
    assert words in finding.cause


def test_mig_explains_that_there_is_no_ipc(machine: FakeMachine) -> None:
    refused = "cuIpcGetMemHandle: CUDA_ERROR_INVALID_VALUE (1)"
    machine.system.gpu_facts = facts(1, gpus=(gpu(name="A100 MIG 1g.5gb"),), ipc={0: refused})
    finding = check_gpu_ipc(machine.roots)
    assert finding.state is State.WARNING
    assert "MIG instances have no CUDA IPC" in finding.cause


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ("cuStreamWriteValue32: CUDA_ERROR_NOT_SUPPORTED (801)", State.WARNING),
        ("the stream's words are 00000000 00000000, not 07000000 09000000", State.FAILURE),
    ],
)
def test_memory_operations_that_do_not_work(machine: FakeMachine, error: str, state: State) -> None:
    machine.system.gpu_facts = facts(2, memops={0: error, 1: ""})
    finding = check_gpu_memops(machine.roots)
    assert finding.state is state
    assert finding.found == f"GPU 0: {error}"


def test_namespaces_of_host_and_container(machine: FakeMachine) -> None:
    folder = machine.root / "proc/self/ns"
    for kind, number in (("pid", 4026531836), ("ipc", 4026532000)):
        (folder / kind).unlink()
        (folder / kind).symlink_to(f"{kind}:[{number}]")
    finding = check_gpu_namespaces(machine.roots)
    assert finding.state is State.OK
    assert finding.found.startswith("PID namespace of the host, IPC namespace of a container;")
    (folder / "pid").unlink()
    finding = check_gpu_namespaces(machine.roots)
    assert finding.state is State.WARNING
    assert finding.found == "the pid namespace cannot be read"


@pytest.fixture
def other(tmp_path: Path) -> FakeMachine:
    made = FakeMachine(tmp_path / "there")
    with_gpus(made, 2)
    return made


def pair_gpus(machine: FakeMachine, other: FakeMachine) -> Finding:
    mine, theirs = (json.loads(json.dumps(examine(each.roots).as_dict())) for each in (machine, other))
    return next(finding for finding in pair_findings(mine, theirs) if finding.id == "pair-gpus")


def test_two_ranks_of_a_host_that_share_gpus(machine: FakeMachine, other: FakeMachine) -> None:
    assert pair_gpus(machine, other).found == "2 here, 2 there, 2 of them the same; one PID and one IPC namespace"
    other.system.gpu_facts = facts(2, gpus=(gpu(1), gpu(2)))
    assert "1 of them the same" in pair_gpus(machine, other).found


@pytest.mark.parametrize("kind", ["pid", "ipc"])
def test_containers_of_a_host_cannot_share_gpu_memory(machine: FakeMachine, other: FakeMachine, kind: str) -> None:
    (other.root / "proc/self/ns" / kind).unlink()
    (other.root / "proc/self/ns" / kind).symlink_to(f"{kind}:[4026539999]")
    finding = pair_gpus(machine, other)
    assert finding.state is State.WARNING
    assert finding.found == f"one host, but different {kind.upper()} namespaces"
    assert "--pid=host --ipc=host" in finding.fix


def test_two_hosts_and_a_host_without_gpus(machine: FakeMachine, other: FakeMachine) -> None:
    other.write("proc/sys/kernel/random/boot_id", "b1a5ed00-0000-4000-8000-000000000002")
    (other.root / "proc/self/ns/pid").unlink()
    (other.root / "proc/self/ns/pid").symlink_to("pid:[4026539999]")
    assert pair_gpus(machine, other).state is State.OK
    other.system.gpu_facts = facts(0)
    finding = pair_gpus(machine, other)
    assert finding.state is State.WARNING
    assert "sees no GPU" in finding.found
    machine.system.gpu_facts = facts(0)
    assert pair_gpus(machine, other).state is State.NOT_APPLICABLE
