"""`rdmaring links --hosts`: one rank a host, started by an agent that stands for ssh."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RDMARING = str(Path(sys.executable).with_name("rdmaring"))

# What ssh does, on this machine: each "host" is a node of its own. It notes what everyone could see of its arguments.
AGENT = """#!/bin/sh
echo "$*" >> "{seen}"
host=$1
shift
export RDMARING_HOST_ID="node-$host"
exec sh -c "$*"
"""


def run(tmp_path: Path, hosts: str, agent: str | None = None) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "agent"
    script.write_text(agent or AGENT.format(seen=tmp_path / "seen"))
    script.chmod(0o755)
    line = [RDMARING, "links", "--hosts", hosts, "--agent", str(script), "--seconds", "1", "--json"]
    return subprocess.run(line, capture_output=True, text=True, timeout=100, check=False)


def test_hosts_are_measured(tmp_path: Path) -> None:
    done = run(tmp_path, "localhost,127.0.0.1")
    assert done.returncode in (0, 3), done.stderr
    report = json.loads(done.stdout)
    assert len(report["gb_per_s"] if "gb_per_s" in report else report["edges"]) >= 2, done.stdout
    seen = (tmp_path / "seen").read_text().splitlines()
    assert sorted(line.split()[0] for line in seen) == ["127.0.0.1", "localhost"], "both are asked at once, in no order"
    assert not any("RDMARING_SECRET=" in line for line in seen), "the secret stands in no argument"


def test_a_host_that_cannot_be_reached_is_named_and_ends_it(tmp_path: Path) -> None:
    agent = AGENT.format(seen=tmp_path / "seen").replace("host=$1", 'host=$1\n[ "$1" = gone ] && exit 255')
    done = run(tmp_path, "localhost,gone", agent)
    assert done.returncode == 255
    assert "on gone it ended with status 255" in done.stderr


def test_wrong_hosts_are_refused(tmp_path: Path) -> None:
    for hosts in ("alone", "a,-oProxyCommand=x"):
        done = run(tmp_path, hosts)
        assert done.returncode == 2
        assert "--hosts" in done.stderr
