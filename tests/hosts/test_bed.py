"""scripts/hosts: what a rank gets, what comes out, links held to a rate, and that nothing stays."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from beds import SCRIPTS, bed, environment, run_hosts

# Of each frame of 1514 bytes on the wire TCP carries 1448 bytes of the program's.
GOODPUT = 1448 / 1514


def lines_of(output: str, rank: int) -> list[str]:
    return re.findall(rf"^\[{rank}\] (.*)$", output, re.MULTILINE)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 0", 0),
        ("exit $((RDMARING_RANK + 3))", None),
        ("test $RDMARING_RANK = 1 && exit 5; sleep 60", 5),
        ("test $RDMARING_RANK = 1 && kill -9 $$; sleep 60", 128 + signal.SIGKILL),
        ("exec /nonesuch", 127),
    ],
)
def test_the_status_is_of_the_first_that_failed(command: str, status: int | None, tmp_path: Path) -> None:
    ran = run_hosts(2, 1, ["sh", "-c", command], tmp_path, "--grace", "0.2", timeout_s=20)
    assert ran.code in ((3, 4) if status is None else (status,)), ran.output


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    ran = run_hosts(1, 1, ["nonesuch"], tmp_path)
    assert ran.code == 127
    assert "nonesuch: no such command" in ran.output


def test_others_have_grace_and_then_end(tmp_path: Path) -> None:
    command = "test $RDMARING_RANK = 1 && exit 5; trap 'echo asked to end; exit 0' TERM; sleep 60 & wait"
    begin = time.monotonic()
    ran = run_hosts(3, 1, ["sh", "-c", command], tmp_path, "--grace", "1")
    assert ran.code == 5
    assert 1 <= time.monotonic() - begin < 10
    assert lines_of(ran.output, 0) == lines_of(ran.output, 2) == ["asked to end"]


def test_a_time_limit_ends_all(tmp_path: Path) -> None:
    ran = run_hosts(2, 1, ["sleep", "60"], tmp_path, timeout_s=1)
    assert ran.code == 124
    assert "still running: rank 0, 1" in ran.output


def test_each_line_of_each_rank_has_its_prefix(tmp_path: Path) -> None:
    command = "for i in 1 2 3; do echo out $i; echo error $i >&2; done; printf 'no end'"
    ran = run_hosts(2, 2, ["sh", "-c", command], tmp_path)
    assert ran.code == 0
    for rank in range(4):
        said = lines_of(ran.output, rank)
        assert [line for line in said if line.startswith("out")] == ["out 1", "out 2", "out 3"]
        assert [line for line in said if line.startswith("error")] == ["error 1", "error 2", "error 3"]
        assert "no end" in said
        assert len(said) == 7
    assert len(ran.output.splitlines()) == 28


@pytest.mark.parametrize("options", [(), ("--interleave",)])
def test_the_environment_places_each_rank(options: tuple[str, ...], tmp_path: Path) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "RENDEZVOUS", "SECRET", "HOST_ID", "PIN"]
    command = "echo " + " ".join(f"$RDMARING_{name}" for name in names) + " $(hostname)"
    outer = {"RDMARING_PIN": "0", "RDMARING_RANK": "7", "RDMARING_SECRET": "outer"}
    ran = run_hosts(2, 2, ["sh", "-c", command], tmp_path, *options, env=outer)
    assert ran.code == 0, ran.output
    said = [lines_of(ran.output, rank)[0].split() for rank in range(4)]
    hosts = [0, 1, 0, 1] if options else [0, 0, 1, 1]
    local_ranks = [0, 0, 1, 1] if options else [0, 1, 0, 1]
    for rank in range(4):
        assert said[rank][:4] == [str(rank), "4", str(local_ranks[rank]), "10.77.0.1:29477"]
        assert said[rank][6:] == ["0", f"host{hosts[rank]}"]
    assert len({words[4] for words in said}) == 1
    assert len(said[0][4]) >= 32
    assert len({words[5] for words in said}) == 2
    assert said[0][5] == said[2 if options else 1][5]


def test_hosts_reach_each_other_by_all_addresses(tmp_path: Path) -> None:
    command = "for to in 10.77.0.2 fd77::2 fe80::77:ff:fe00:2%eth0 host1 ::1; do ping -q -c 1 -W 3 $to || exit 1; done"
    ran = run_hosts(2, 1, ["sh", "-c", command], tmp_path)
    assert ran.code == 0, ran.output


@pytest.mark.parametrize(("option", "rendezvous"), [("--ipv6", "[fd77::1]:"), ("--link-local", "[fe80::")])
def test_there_is_no_ipv4_where_none_is_wanted(option: str, rendezvous: str, tmp_path: Path) -> None:
    command = "echo $RDMARING_RENDEZVOUS; ip -4 -br addr; ping -q -c 1 -W 3 ${BED_ADDRESSES##* }"
    ran = run_hosts(2, 1, ["sh", "-c", command], tmp_path, option)
    assert ran.code == 0, ran.output
    said = lines_of(ran.output, 0)
    assert said[0].startswith(rendezvous)
    assert [line.split()[0] for line in said if "/" in line and "rtt" not in line] == ["lo"]


RATES = """
import os, socket, sys, time
host, peer = int(os.environ["BED_HOST"]), os.environ["BED_ADDRESSES"].split()[1 - int(os.environ["BED_HOST"])]
# Each direction in its turn, half a second each: bytes per second at the receiver.
server = socket.create_server(("10.77.0.%d" % (host + 1), 5000))
for sender in (0, 1):
    if host == sender:
        for attempt in range(100):
            try:
                connection = socket.create_connection((peer, 5000))
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            connection.send(bytes(1 << 16))
        connection.close()
    else:
        connection, _ = server.accept()
        begin = count = last = 0
        while data := connection.recv(1 << 16):
            last = time.monotonic()
            if not begin:
                begin, first = last, last + 0.5
            if last >= first:
                count, start = (count + len(data), start) if count else (1, last)
        print("RATE", sender, 8 * (count - 1) / (last - start), flush=True)
"""


def measured(tmp_path: Path, *options: str) -> dict[str, float]:
    """Bits per second that TCP carries from each of two hosts to the other."""
    script = tmp_path / "rates.py"
    script.write_text(RATES)
    ran = run_hosts(2, 1, [sys.executable, str(script)], tmp_path, *options)
    assert ran.code == 0, ran.output
    found = dict(re.findall(r"RATE (\d) ([\d.]+)", ran.output))
    return {f"{sender}-{1 - int(sender)}": float(rate) for sender, rate in found.items()}


def test_a_link_is_held_to_its_rate_in_both_directions(tmp_path: Path) -> None:
    rates = measured(tmp_path, "--rate", "100mbit")
    assert rates["0-1"] == pytest.approx(100e6 * GOODPUT, rel=0.1)
    assert rates["1-0"] == pytest.approx(100e6 * GOODPUT, rel=0.1)


def test_one_host_is_held_to_another_rate(tmp_path: Path) -> None:
    rates = measured(tmp_path, "--rate", "100mbit", "--rate-of", "1:40mbit")
    assert rates["0-1"] == pytest.approx(40e6 * GOODPUT, rel=0.1)
    assert rates["1-0"] == pytest.approx(40e6 * GOODPUT, rel=0.1)


@pytest.mark.parametrize("others", [("--rate", "100mbit"), ()])
def test_an_edge_is_held_to_its_rate_in_one_direction(others: tuple[str, ...], tmp_path: Path) -> None:
    rates = measured(tmp_path, *others, "--edge", "0-1:50mbit")
    assert rates["0-1"] == pytest.approx(50e6 * GOODPUT, rel=0.1)
    if others:
        assert rates["1-0"] == pytest.approx(100e6 * GOODPUT, rel=0.1)
    else:
        assert rates["1-0"] > 200e6


def marked(mark: str) -> list[str]:
    """Processes that have the mark in their environment, as all that a bed starts have."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(f"{folder.name} {(folder / 'cmdline').read_bytes()!r}")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def namespaces() -> set[str]:
    """Network namespaces in which processes live."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(link))
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


def machine() -> list[str]:
    """The machine's devices, mounts and named namespaces, and files that a bed could leave."""
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    named = [str(path) for path in Path("/run/netns").glob("*")]
    shared = [str(path) for path in Path("/dev/shm").iterdir()]
    devices = re.findall(r"^\d+: (\S+):", links, re.MULTILINE)
    return [*devices, *Path("/proc/self/mounts").read_text().splitlines(), *named, *sorted(shared)]


def wait_for_none(mark: str, inside: set[str]) -> None:
    deadline = time.monotonic() + 10
    while marked(mark) or inside & namespaces():
        assert time.monotonic() < deadline, f"left behind: {marked(mark)}, {inside & namespaces()}"
        time.sleep(0.05)


def wait_for_nothing_new(before: list[str]) -> None:
    """Other tests that run beside may make and remove something meanwhile."""
    deadline = time.monotonic() + 10
    while new := sorted(set(machine()) - set(before)):
        assert time.monotonic() < deadline, f"left behind: {new}"
        time.sleep(0.1)


def start(command: Sequence[str], mark: str, *options: str) -> tuple[subprocess.Popen[str], set[str]]:
    """A bed whose ranks have said in which namespaces they are."""
    line = [*bed("hosts"), "--hosts", "3", *options, "--", "sh", "-c", f"readlink /proc/self/ns/net; {command}"]
    process = subprocess.Popen(line, env=environment({"BED_TEST": mark}), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    inside = {process.stdout.readline().split()[1] for _ in range(3)}
    assert len(inside) == 3
    return process, inside


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
@pytest.mark.parametrize(
    ("command", "number", "status"),
    [
        ("exit 0", None, 0),
        ("exit 4", None, 4),
        ("setsid sleep 300 & sleep 300", signal.SIGKILL, -signal.SIGKILL),
        ("setsid sleep 300 & sleep 300", signal.SIGTERM, 128 + signal.SIGTERM),
        ("setsid sleep 300 & sleep 300", signal.SIGINT, 128 + signal.SIGINT),
        ("trap '' INT TERM; setsid sleep 300 & sleep 300 & wait", signal.SIGINT, 128 + signal.SIGINT),
    ],
)
def test_nothing_is_left_behind(command: str, number: signal.Signals | None, status: int) -> None:
    before, mark = machine(), uuid.uuid4().hex
    process, inside = start(command, mark)
    with process:
        wait_for_nothing_new(before)
        if number is not None:
            assert inside < namespaces()
            process.send_signal(number)
        assert process.wait(20) == status
        wait_for_none(mark, inside)
    wait_for_nothing_new(before)


def test_a_reader_that_leaves_ends_the_bed(tmp_path: Path) -> None:
    process, inside = start("while :; do echo line; sleep 0.01; done", mark := uuid.uuid4().hex)
    with process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(20) == 128 + signal.SIGPIPE
        wait_for_none(mark, inside)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--hosts", "0", "--", "true"], "'0': accepted are 1 to 200"),
        (["--rate", "fast", "--", "true"], "'fast' is no rate"),
        (["--edge", "0-2:1mbit", "--", "true"], "there is no host 2: --hosts is 2"),
        (["--edge", "1-1:1mbit", "--", "true"], "is no FROM-TO:RATE"),
        (["--hosts", "2"], "no COMMAND"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], text: str) -> None:
    done = subprocess.run([*bed("hosts"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert text in done.stderr


LACKING = """
import os, sys
sys.path.insert(0, {scripts!r})
from beds import hosts, packages
os.geteuid = lambda: 1000
packages.HOSTS["shaper"] = ("no-such-command", "/no/such/file*")
if {install}:
    try:
        packages.need(packages.HOSTS)
    except packages.LackingError as error:
        sys.exit(str(error))
sys.exit(hosts.main(["--", "true"]))
"""


@pytest.mark.parametrize(
    ("install", "status", "text"),
    [
        (False, 2, "making network namespaces needs root"),
        (True, 1, "missing: no-such-command, /no/such/file* (Debian's shaper). Run: sudo apt-get install shaper"),
    ],
)
def test_what_is_missing_is_said_exactly(install: bool, status: int, text: str) -> None:
    source = LACKING.format(scripts=str(SCRIPTS), install=install)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert text in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_machine_that_allows_no_namespaces_is_told() -> None:
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    done = subprocess.run([*without, *bed("hosts"), "--", "true"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no network namespace can be made here: " in done.stderr
    assert "Operation not permitted" in done.stderr


def test_the_plan_is_printed_on_demand() -> None:
    line = [*bed("hosts"), "--hosts", "2", "--ranks", "2", "--rate-of", "1:5mbit", "--edge", "0-1:1mbit", "--print"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "host1: rank 2, 3; 10.77.0.2, fd77::2, fe80::77:ff:fe00:2%eth0; 5 Mbit/s" in done.stderr
    assert "host0 to host1: 1 Mbit/s" in done.stderr
