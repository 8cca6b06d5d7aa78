"""``rdmaring bench --explain``: what would be chosen for each size, what the others would take, and why."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from rdmaring.bench.cases import Cases
from rdmaring.choice import Explanation
from rdmaring.communicator import Communicator


def show_explanations(comm: Communicator, cases: Cases, *, as_json: bool, measure: bool) -> int:
    """On rank 0, each collective and size once. measure: all ranks time the candidates. Returns the exit code."""
    wanted = dict.fromkeys((case.collective, case.nbytes) for case in cases.served)
    found = [comm.explain(nbytes, collective, measure=measure) for collective, nbytes in wanted]
    if comm.rank:
        return 0
    if as_json:
        click.echo(json.dumps([explanation_dict(each) for each in found], indent=2))
    else:
        click.echo("\n".join(found))
    return 0


def explanation_dict(explanation: Explanation) -> dict[str, object]:
    """For JSON: seconds, bytes."""
    return {
        "collective": explanation.collective,
        "size_bytes": explanation.nbytes,
        "world": explanation.world,
        "chosen": explanation.choice.algorithm,
        "reason": explanation.choice.reason,
        "constants": explanation.constants,
        "candidates": [asdict(each) for each in explanation.candidates],
    }
