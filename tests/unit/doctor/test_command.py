"""`rdmaring doctor` as a user meets it, and all ranks of a job at once."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from unit.doctor.fake import FakeMachine

from rdmaring.cli import doctor as command_module
from rdmaring.cli.findings import FindingsText
from rdmaring.cli.main import main
from rdmaring.diagnose.doctor import CHECKS, Evidence, Finding, Roots, Server, State

Outcome = tuple[int, str, str]
COMMAND = str(Path(sys.executable).parent / "rdmaring")
ENV = {name: value for name, value in os.environ.items() if not name.startswith("RDMARING_")}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """What the command examines."""
    made = FakeMachine(tmp_path)

    def roots(ranks: int = 2) -> Roots:
        made.ranks = ranks
        return made.roots

    monkeypatch.setattr(command_module, "Roots", roots)
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], machine: FakeMachine) -> Callable[..., Outcome]:
    """run("--json"): exit code, standard output, standard error."""

    def call(*arguments: str) -> Outcome:
        with pytest.raises(SystemExit) as left:
            main(["doctor", *arguments])
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return call


def test_plain_lines_where_there_is_no_terminal(run: Callable[..., Outcome]) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    lines = out.splitlines()
    assert "  n/a      gid-table        no active RDMA port" in lines
    # A fake machine without IPv6 addresses: the one warning there is.
    assert "  warning  ipv6             no IPv6 address but loopback's" in lines
    assert [line for line in lines if line.startswith("           cause  IPv6 is on")]
    assert [line for line in lines if line.startswith("           fix    nothing, if all hosts have IPv4")]
    assert lines[-1] == "12 ok, 1 warning, 0 failure, 22 n/a"


def test_the_exit_code_of_warnings_and_failures(run: Callable[..., Outcome], machine: FakeMachine) -> None:
    assert run()[0] == 0
    assert run("--strict")[0] == 1
    assert run("--strict", "--only", "nofile")[0] == 0
    machine.system.limits["RLIMIT_NOFILE"] = (64, 64)
    assert run()[0] == 1
    assert run("--only", "clock")[0] == 0


def test_json_is_one_document(run: Callable[..., Outcome], machine: FakeMachine) -> None:
    machine.system.limits["RLIMIT_NOFILE"] = (64, 64)
    code, out, err = run("--json")
    assert (code, err) == (1, "")
    document = json.loads(out)
    assert document["kind"] == "machine"
    assert document["worst"] == "failure"
    assert [finding["id"] for finding in document["findings"]] == [check.id for check in CHECKS]
    (nofile,) = [finding for finding in document["findings"] if finding["id"] == "nofile"]
    assert nofile["evidence"][0] == {"source": "RLIMIT_NOFILE soft", "value": "64"}


def test_limits_are_held_against_the_ranks_that_are_named(run: Callable[..., Outcome]) -> None:
    code, out, _ = run("--ranks-here", "100000", "--only", "nofile")
    assert code == 2  # a machine holds no more than 65536
    code, out, _ = run("--ranks-here", "60000", "--only", "nofile")
    assert code == 1
    assert "set-up of 60000 ranks takes about 240064" in out


def test_the_list_names_every_check(run: Callable[..., Outcome]) -> None:
    code, out, _ = run("--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [check.id for check in CHECKS]
    assert json.loads(run("--list", "--json")[1])[0]["id"] == CHECKS[0].id


def test_evidence_of_all_is_shown_on_demand(run: Callable[..., Outcome]) -> None:
    assert "RLIMIT_NOFILE soft" not in run()[1]
    assert "           read   RLIMIT_NOFILE soft: 65536" in run("-v")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "gids"], "'gids' is no check; there are host-identity"),
        (["--peer", "h", "--serve"], "--peer and --serve exclude each other"),
        (["--peer", "h", "--only", "nofile"], "--only is for this machine alone"),
        (["--port", "1"], "--port and --once belong to --serve"),
        (["--peer", "h:99999"], "expected HOST or HOST:PORT"),
        (["--peer", ":80"], "expected HOST or HOST:PORT"),
        (["--ranks-here", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_says_what_is_accepted(
    run: Callable[..., Outcome], arguments: list[str], words: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


def test_the_addresses_of_a_peer() -> None:
    parse = command_module._peer_address
    assert parse("host2") == ("host2", 29480)
    assert parse("host2:7") == ("host2", 7)
    assert parse("fd00::2") == ("fd00::2", 29480)
    assert parse("[fd00::2]:7") == ("fd00::2", 7)
    assert parse("[fe80::2%eth0]") == ("fe80::2%eth0", 29480)


def test_a_port_that_is_taken_is_told(run: Callable[..., Outcome], machine: FakeMachine) -> None:
    with Server(0, b"some secret or other", machine.roots) as server:
        code, out, err = run("--serve", "--port", str(server.port))
    assert (code, out) == (1, "")
    assert f"cannot listen on port {server.port}: Address already in use" in err
    assert "--peer HOST:PORT" in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table_with_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    findings = [
        Finding("nofile", State.FAILURE, "RLIMIT_NOFILE is 64", (Evidence("soft", "64"),), "a cause " * 20, "the fix"),
        Finding("clock", State.OK, "synchronized"),
    ]
    text = FindingsText(stream)
    text.group("host", findings)
    text.closing(findings)
    shown = stream.getvalue()
    assert "\x1b[" in shown
    assert shown.split().count("a") == 20  # folded, not cut
    assert "soft: 64" in shown
    assert "1 ok, 0 warning, 1 failure, 0 n/a" in shown


def test_help_has_examples() -> None:
    result = subprocess.run([COMMAND, "doctor", "--help"], capture_output=True, text=True, check=True, env=ENV)
    for words in ("--serve", "host1$ rdmaring doctor --peer host2", "Exit code:"):
        assert words in result.stdout


def test_two_ranks_examine_themselves_and_their_edge() -> None:
    command = [COMMAND, "doctor", "-n", "2", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=100)
    document = json.loads(result.stdout)
    assert document["kind"] == "live"
    assert [len(rank["findings"]) for rank in document["ranks"]] == [len(CHECKS)] * 2
    (pair,) = document["pairs"]
    assert pair["ranks"] == [0, 1]
    states = {finding["id"]: finding["state"] for finding in pair["findings"]}
    assert states["pair-version"] == states["pair-host"] == states["pair-namespaces"] == "ok"
    assert "pair-reach" not in states  # nothing was measured
    cpus = next(each for each in document["ranks"][0]["findings"] if each["id"] == "cpus")
    assert {"source": "ranks", "value": "2"} in cpus["evidence"]
    failing = [each for rank in document["ranks"] for each in rank["findings"] if each["state"] == "failure"]
    assert result.returncode == (1 if failing else 0), failing


def test_a_live_job_of_another_launcher_prints_once() -> None:
    command = [COMMAND, "run", "-n", "3", COMMAND, "doctor", "--live"]
    result = subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert {line.split("]")[0] for line in lines} == {"[0"}
    for rank, after in ((0, 1), (1, 2), (2, 0)):
        assert f"[0] between rank {rank} and rank {after}" in lines
