"""``rdmaring doctor``: what is wrong with this machine, with a pair of machines, with all ranks of a job."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

import click

import rdmaring
from rdmaring._version import __version__
from rdmaring.cli.findings import FindingsText
from rdmaring.cli.ranks import json_option, start_ranks
from rdmaring.diagnose import doctor
from rdmaring.diagnose.doctor import CHECKS, PORT_DEFAULT, Finding, Roots, State
from rdmaring.errors import RdmaringError
from rdmaring.rendezvous import RendezvousError
from rdmaring.rendezvous.environment import is_described
from rdmaring.rendezvous.secret import load_secret

EPILOG = """\b
Examples:
  rdmaring doctor                       this machine: limits, memory, CMA, network, RDMA devices and their ports
  rdmaring doctor -v                    with all that was read, such as the GID table row by row
  rdmaring doctor --only gid-table --only roce-mtu
  rdmaring doctor --list                the checks, and what each looks at
  rdmaring doctor --json > host1.json
  rdmaring doctor --ranks-here 64       limits are held against 64 ranks on this machine
  rdmaring doctor -n 4                  four ranks are started here, and each looks for itself
  mpirun -n 16 rdmaring doctor --live   the same for ranks that a launcher has placed; rank 0 prints

\b
A pair of machines, with the same RDMARING_SECRET (or the same secret file) on both:
  host2$ rdmaring doctor --serve        listens until Ctrl-C
  host1$ rdmaring doctor --peer host2   both ends, and between them: addresses, MTU at full size, clocks, GIDs

Exit code: 0 if nothing has failed; 1 if something has (with --strict: or warns), or the peer cannot be
examined; 2 for wrong usage. docs/DOCTOR.md tells for each check what failing means.
"""


@click.command("doctor", epilog=EPILOG)
@click.option("--peer", metavar="HOST[:PORT]", help="Examine HOST, where --serve listens, and the path between, too.")
@click.option("--serve", is_flag=True, help="Listen for a --peer; ends with Ctrl-C.")
@click.option("--port", type=click.IntRange(1, 65535), help=f"Where --serve listens; default {PORT_DEFAULT}.")
@click.option("--once", is_flag=True, help="With --serve: end after the first peer has left.")
@click.option("-n", "--ranks", type=click.IntRange(1, 4096), help="Start so many ranks here; each examines itself.")
@click.option("--live", is_flag=True, help="This is a rank of a job: examine all ranks; rank 0 prints.")
@click.option(
    "--ranks-here",
    type=click.IntRange(1, 1 << 16),
    help="How many ranks this machine is to hold; default: as many as CPUs.",
)
@click.option("--only", multiple=True, metavar="ID", help="This check alone; may be repeated. This machine only.")
@click.option("--list", "listing", is_flag=True, help="List the checks.")
@click.option("--strict", is_flag=True, help="A warning gives exit code 1, too.")
@click.option("-v", "--verbose", is_flag=True, help="Show what was read for all checks, not only for failing ones.")
@json_option
def command(
    peer: str | None,
    serve: bool,
    port: int | None,
    once: bool,
    ranks: int | None,
    live: bool,
    ranks_here: int | None,
    only: tuple[str, ...],
    listing: bool,
    strict: bool,
    verbose: bool,
    json_wanted: bool,
) -> int:
    """Say what is wrong with this machine, why, and what to do. Nothing is changed."""
    _check_usage(peer, serve, port, once, ranks, live, only)
    output = _Output(verbose, json_wanted, strict)
    roots = Roots() if ranks_here is None else Roots(ranks=ranks_here)
    if listing:
        return _list(json_wanted)
    if ranks is not None:
        flags = [*(["--strict"] * strict), *(["-v"] * verbose), *(["--json"] * json_wanted)]
        return start_ranks("doctor", ["--live", *flags], ranks)
    try:
        if serve:
            return _serve(port or PORT_DEFAULT, roots, once)
        if live:
            return _live(output)
        if peer is not None:
            return _pair(peer, roots, output)
    except (doctor.DoctorError, RendezvousError, RdmaringError) as error:
        hint = getattr(error, "hint", "")
        click.echo(f"rdmaring doctor: {error}" + (f"\n  {hint}" if hint else ""), err=True)
        return 1
    document = doctor.examine(roots, only or None)
    return output.show("machine", document.as_dict(), [(_title(document), document.findings)])


def _check_usage(
    peer: str | None,
    serve: bool,
    port: int | None,
    once: bool,
    ranks: int | None,
    live: bool,
    only: Sequence[str],
) -> None:
    ways = {"--peer": peer is not None, "--serve": serve, "-n": ranks is not None, "--live": live}
    given = [name for name, is_given in ways.items() if is_given]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} exclude each other: give one of them")
    if only and given:
        raise click.UsageError(f"--only is for this machine alone; leave out {given[0]}")
    if not serve and (port is not None or once):
        raise click.UsageError("--port and --once belong to --serve; a peer's port is given as --peer HOST:PORT")
    if ranks is not None and is_described(os.environ):
        raise click.UsageError("-n starts ranks, but a launcher has started this process as one: use --live")
    known = [check.id for check in CHECKS]
    for name in only:
        if name not in known:
            raise click.BadParameter(f"{name!r} is no check; there are {', '.join(known)}", param_hint="--only")


class _Output:
    """One JSON document, or groups of findings as text; and the exit code."""

    def __init__(self, verbose: bool, json_wanted: bool, strict: bool) -> None:
        self._verbose, self._json, self._strict = verbose, json_wanted, strict

    def show(self, kind: str, fields: dict[str, Any], groups: Sequence[tuple[str, Sequence[Finding]]]) -> int:
        every = [finding for _, findings in groups for finding in findings]
        worst = doctor.worst(every)
        if self._json:
            document = {"kind": kind, "rdmaring": __version__, "worst": worst.value} | fields
            click.echo(json.dumps(document, indent=2))
        else:
            text = FindingsText(verbose=self._verbose)
            for title, findings in groups:
                text.group(title, findings)
            text.closing(every)
        return 1 if worst is State.FAILURE or (self._strict and worst is State.WARNING) else 0


def _title(document: doctor.Document) -> str:
    return f"{document.machine.hostname}, rdmaring {document.machine.version}"


def _list(json_wanted: bool) -> int:
    if json_wanted:
        click.echo(json.dumps([{"id": check.id, "looks_at": check.looks_at} for check in CHECKS], indent=2))
        return 0
    width = max(len(check.id) for check in CHECKS)
    for check in CHECKS:
        click.echo(f"{check.id:<{width}}  {check.looks_at}")
    return 0


def _peer_address(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT, [IPV6], [IPV6]:PORT, or an IPv6 address without brackets."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise click.BadParameter(
            f"{text!r}: expected HOST or HOST:PORT with a port from 1 to 65535; IPv6 as [fd00::1]:{PORT_DEFAULT}",
            param_hint="--peer",
        )
    return host, int(port or PORT_DEFAULT)


def _pair(peer: str, roots: Roots, output: _Output) -> int:
    host, port = _peer_address(peer)
    report = doctor.examine_pair(host, port, load_secret(os.environ), roots)
    groups = [
        (f"here: {_title(report.mine)}", report.mine.findings),
        (f"there: {_title(report.theirs)}", report.theirs.findings),
        (f"between {report.mine.machine.label} and {report.theirs.machine.label}", report.findings),
    ]
    return output.show("pair", report.as_dict(), groups)


def _serve(port: int, roots: Roots, once: bool) -> int:
    logger = logging.getLogger("rdmaring")
    if all(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.StreamHandler())

    def told(mine: doctor.Document, theirs: doctor.Document) -> None:
        failing = ", ".join(finding.id for finding in mine.findings if finding.state is State.FAILURE)
        click.echo(f"rdmaring doctor: examined by {_title(theirs)}; failing here: {failing or 'nothing'}", err=True)

    try:
        server = doctor.Server(port, load_secret(os.environ), roots, told)
    except OSError as error:
        raise doctor.DoctorError(
            f"cannot listen on port {port}: {error.strerror}", "give another: --serve --port PORT, --peer HOST:PORT"
        ) from error
    with server, contextlib.suppress(KeyboardInterrupt):
        click.echo(f"rdmaring doctor: listening on port {server.port} of all addresses; Ctrl-C ends it", err=True)
        (server.examined if once else threading.Event()).wait()
    return 0


def _live(output: _Output) -> int:
    with rdmaring.init() as comm:
        report = doctor.over(comm)
        if comm.rank:
            return 0
    groups: list[tuple[str, Sequence[Finding]]] = [
        (f"rank {rank}: {_title(document)}", document.findings) for rank, document in enumerate(report.documents)
    ]
    for (rank, after), findings in report.pairs.items():
        groups.append((f"between rank {rank} and rank {after}", findings))
    return output.show("live", report.as_dict(), groups)
