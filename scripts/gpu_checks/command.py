"""The command: which parts, on which driver, and the report."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gpu_checks.drivers import Driver, PartError
from gpu_checks.parts import PARTS, Wanted

LIMIT_S = 570.0
NAMES = [part.__name__ for part in PARTS]
NO_GPU = 3

EPILOG = """\b
Parts: doctor, attributes, conformance (each case of tests/gpu), bugs (deliberate ones, which must show), collectives
(2 to 4 processes on one device, against numpy), one_queue, replays (of a captured list), rates.

\b
Exit code: 0 if all held; 1 if something differs (the report says what); 2 for wrong usage; 3 if there is no GPU here.
"""


@click.command("gpu_check", epilog=EPILOG)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Of the report; default: stdout.")
@click.option("--simulated", is_flag=True, help="On the simulated driver of tests/cuda_sim; rates say nothing there.")
@click.option("--part", "parts", multiple=True, type=click.Choice(NAMES), help="This part alone; may be repeated.")
@click.option("--quick", is_flag=True, help="Few dtypes, small sizes.")
@click.option("--ranks", "worlds", default="2,3,4", show_default=True, help="Sizes of the worlds on one device.")
@click.option("--cases", default="", help="Conformance cases whose names match this expression.")
@click.option("--limit-s", default=LIMIT_S, show_default=True, type=click.FloatRange(10), help="For all together.")
def command(
    output: Path | None, simulated: bool, parts: Sequence[str], quick: bool, worlds: str, cases: str, limit_s: float
) -> int:
    """Check a GPU for all that rdmaring relies on; one JSON document."""
    try:
        sizes = tuple(int(word) for word in worlds.split(","))
    except ValueError:
        raise click.BadParameter(f"{worlds!r}: expected numbers with commas, as 2,3", param_hint="--ranks") from None
    begin = time.monotonic()
    driver = Driver(simulated, begin + limit_s)
    if not simulated and not _has_gpu():
        click.echo("gpu_check: no GPU here: the driver shows none; --simulated runs on tests/cuda_sim", err=True)
        return NO_GPU
    wanted = Wanted(sizes, quick, cases)
    report: dict[str, Any] = {"kind": "gpu_check", "driver": "simulated" if simulated else "real", "parts": {}}
    for part in PARTS:
        if not parts or part.__name__ in parts:
            report["parts"][part.__name__] = result = _run(part, driver, wanted)
            click.echo(f"{part.__name__:<12} {result['state']:<8} {result['seconds']:7.1f} s", err=True)
    failed = [name for name, result in report["parts"].items() if result["state"] != "ok"]
    report |= {"failed": failed, "seconds": time.monotonic() - begin}
    text = json.dumps(report, indent=2)
    if output is None:
        click.echo(text)
    else:
        output.write_text(text + "\n")
    return 1 if failed else 0


def _run(part: Any, driver: Driver, wanted: Wanted) -> dict[str, Any]:
    """One part; one that breaks must not hide the others."""
    begin = time.monotonic()
    try:
        ok, data = part(driver, wanted)
        found = {"state": "ok" if ok else "failed", "found": data}
    except PartError as error:
        found = {"state": "failed", "reason": str(error)}
    except Exception as error:
        found = {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {**found, "seconds": time.monotonic() - begin}


def _has_gpu() -> bool:
    from gpu.conformance import has_gpu

    return has_gpu()


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    try:
        return int(command.main(list(arguments), prog_name="gpu_check", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
