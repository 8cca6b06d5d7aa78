"""scripts/softroce: guests with a device of real verbs, on one wire, and what comes out of them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from beds import bed, environment, run_softroce
from worlds import Ran

pytestmark = pytest.mark.timeout(400)

# Plain Python that says what a rank sees; no package of ours, which would take an emulated CPU seconds to import.
LOOK = """
import json, os, resource, subprocess, sys

def output(*line):
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return f"{done.stdout}\\nSTATUS {done.returncode}"

def say(**what):
    print("SAY " + json.dumps(what), flush=True)

RANK = int(os.environ["RDMARING_RANK"])
"""


def run(guests: int, ranks: int, source: str, tmp_path: Path, *options: str, env: dict[str, str] | None = None) -> Ran:
    script = tmp_path / "look.py"
    script.write_text(LOOK + source)
    return run_softroce(guests, ranks, [sys.executable, str(script)], tmp_path, *options, env=env)


TWO_GUESTS = """
say(environment={name: value for name, value in os.environ.items() if name.startswith("RDMARING_")})
say(host=os.uname().nodename, limit=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
if RANK % 2 == 0:
    say(device=output("ibv_devinfo"))
    line = ["ib_write_bw", "-d", "rxe0", "-x", "1", "-F", "-n", "100"]
    if RANK == 2:
        for attempt in range(100):  # until the other listens
            said = output(*line, "10.77.0.1")
            if "Couldn't connect" not in said:
                break
        say(bandwidth=said)
    else:
        say(bandwidth=output(*line))
print("unfinished", end="")
sys.exit(7 if RANK == 3 else 0)
"""


def test_two_guests_talk_verbs(tmp_path: Path) -> None:
    ran = run(2, 2, TWO_GUESTS, tmp_path, "--grace", "100", env={"RDMARING_PIN": "0"})
    assert ran.code == 7, ran.output
    said = [ran.of(rank, "environment") for rank in range(4)]
    for rank, variables in enumerate(said):
        assert variables["RDMARING_RANK"] == str(rank)
        assert variables["RDMARING_WORLD_SIZE"] == "4"
        assert variables["RDMARING_LOCAL_RANK"] == str(rank % 2)
        assert variables["RDMARING_RENDEZVOUS"].startswith("10.77.0.1:")
        assert variables["RDMARING_PIN"] == "0"
        assert ran.of(rank, "host") == f"guest{rank // 2}"
        assert ran.of(rank, "limit") == -1
    assert len({variables["RDMARING_SECRET"] for variables in said}) == 1
    assert [said[0]["RDMARING_HOST_ID"] == variables["RDMARING_HOST_ID"] for variables in said] == [1, 1, 0, 0]
    for rank in (0, 2):
        assert re.search(r"hca_id:\s+rxe0", ran.of(rank, "device"))
        assert "PORT_ACTIVE" in ran.of(rank, "device")
        assert re.search(r"active_mtu:\s+4096", ran.of(rank, "device"))
        # No figure: where this machine is busy perftest cannot tell the guest's clock rate, and says 0.
        assert re.search(r"^ *65536 +100 +[\d.]+ +[\d.]+", ran.of(rank, "bandwidth"), re.MULTILINE), ran.output
        assert ran.of(rank, "bandwidth").endswith("STATUS 0")
    assert len(re.findall(r"^\[\d\] unfinished$", ran.output, re.MULTILINE)) == 4


def test_a_guest_that_goes_without_a_status_is_a_failure(tmp_path: Path) -> None:
    source = "if RANK == 1: open('/proc/sysrq-trigger', 'w').write('o')\nimport time; time.sleep(60)"
    ran = run(1, 2, source, tmp_path, "--grace", "0")
    assert ran.code == 125, ran.output
    assert "guest0 ended without a status of rank 0, 1" in ran.output
    assert "Power down" in ran.output  # its console


def test_three_guests_on_a_switch(tmp_path: Path) -> None:
    source = (
        "say(seen=[output('ping', '-q', '-c', '2', '-W', '9', f'{n}{i}') for n in ('guest', 'fd77::') for i in (1, 2)])"
    )
    ran = run(3, 1, source, tmp_path)
    assert ran.code == 0, ran.output
    for rank in range(3):
        assert all(each.endswith("STATUS 0") for each in ran.of(rank, "seen")), ran.output


LOSSY = """
from pathlib import Path
say(queue=output("tc", "qdisc", "show", "dev", "eth0"))
say(four=output("ip", "-4", "-br", "addr"), rendezvous=os.environ["RDMARING_RENDEZVOUS"])
gids = [path.read_text().strip() for path in Path("/sys/class/infiniband/rxe0/ports/1/gids").iterdir()]
say(gids=[gid for gid in gids if gid.strip("0:")])
say(ping=output("ping", "-q", "-c", "5", "-i", "0.2", "-W", "9", os.environ["BED_ADDRESSES"].split()[1 - RANK]))
say(limit=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
say(registered=output("timeout", "20", "ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-s", "1048576"))
Path(sys.argv[1], f"from-{RANK}").write_text("written in a guest")
Path(f"/etc/from-{RANK}").write_text("lost")
"""


def test_loss_delay_ipv6_limit_and_a_shared_folder(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    script = tmp_path / "look.py"
    script.write_text(LOOK + LOSSY)
    options = ["--ipv6", "--loss", "1%", "--delay", "20ms", "--memlock", "64", "--share", str(share)]
    ran = run_softroce(2, 1, [sys.executable, str(script), str(share)], tmp_path, *options)
    assert ran.code == 0, ran.output
    for rank in (0, 1):
        assert re.search(r"netem.*delay 20ms.*loss 1%", ran.of(rank, "queue"))
        assert "eth0" not in ran.of(rank, "four")
        assert ran.of(rank, "rendezvous").startswith("[fd77::1]:")
        gids = ran.of(rank, "gids")
        assert any(gid.startswith("fd77:") for gid in gids)
        assert not any("ffff:0a4d" in gid for gid in gids)
        fastest = re.search(r"rtt min/avg/max/mdev = ([\d.]+)", ran.of(rank, "ping"))
        assert fastest and float(fastest[1]) >= 40
        assert ran.of(rank, "limit") == 64 * 1024
        assert "Couldn't register MR" in ran.of(rank, "registered")
        assert (share / f"from-{rank}").read_text() == "written in a guest"
        assert not Path(f"/etc/from-{rank}").exists()


def processes(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_guest_outlives_the_script(number: signal.Signals, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    line = [*bed("softroce"), "--guests", "3", "--", "sleep", "300"]
    with subprocess.Popen(line, env=environment({"BED_TEST": mark}), stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while sum("qemu-system" in line for line in processes(mark)) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(processes(mark)) == 5  # the script, its switch and three guests
        process.send_signal(number)
        assert process.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
        while processes(mark):
            assert time.monotonic() < deadline, processes(mark)
            time.sleep(0.05)


def test_a_boot_that_takes_too_long_ends_in_time() -> None:
    line = [*bed("softroce"), "--guests", "1", "--timeout", "1", "--", "true"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 124, done.stderr
    assert "the time of 1 s was over before all hosts were up" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--guests", "0", "--", "true"], "'0': accepted are 1 to 16"),
        (["--loss", "1", "--", "true"], "'1': accepted is a value as in 1%"),
        (["--delay", "fast", "--", "true"], "'fast': accepted is a value as in 1ms"),
        (["--share", "/no/such/folder", "--", "true"], "'/no/such/folder' is no folder"),
        ([], "no COMMAND"),
    ],
)
def test_wrong_arguments_are_told(arguments: list[str], text: str) -> None:
    done = subprocess.run([*bed("softroce"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert text in done.stderr
