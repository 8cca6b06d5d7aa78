"""The power of the matrix: each fault of mutants.py, planted in a copy of the sources, is found in a minute."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from shipping import build, machine, matrix
from shipping.mutants import MENDS, MUTANTS, Mutant

SECONDS = 60.0  # of processor time, all transports together
HANGS_S = 300  # of real time: whoever is not through by then has been led into a loop
FIRST = {"stream_": "stream", "verbs_": "verbs"}
ALL = ("shm", "stream", "verbs")


def planted(mutant: Mutant, folder: Path) -> Path:
    """A tree with the sources, and the fault in them."""
    tree = folder / "tree"
    shutil.copytree(build.ROOT / "native", tree / "native")
    file = tree / "native" / "src" / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1, (
        f"{mutant.name}: {mutant.file} has its text {text.count(mutant.old)} times, not once"
    )
    file.write_text(text.replace(mutant.old, mutant.new))
    return tree


def first_failure(tree: Path, mutant: Mutant, folder: Path) -> str | None:
    """What the matrix says of the fault; None: it passes."""
    likely = next((name for prefix, name in FIRST.items() if mutant.file.startswith(prefix)), "shm")
    shares = {name: SECONDS * (0.6 if name == likely else 0.2) for name in ALL}
    for transport in sorted(ALL, key=lambda name: name != likely):
        process = matrix.start(transport, 0, 100_000, seconds=shares[transport], root=tree, folder=folder)
        try:
            said = process.communicate(timeout=HANGS_S)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return f"over {transport} it hangs:\n{matrix.tail(process.communicate()[0])}"
        if process.returncode:
            return matrix.tail(said)
    return None


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", [*MUTANTS, *MENDS], ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant, tmp_path: Path) -> None:
    tree = planted(mutant, tmp_path)
    machine.library(tree)
    found = first_failure(tree, mutant, tmp_path)
    assert found is not None, f"{mutant.name}: {SECONDS:.0f} s of the matrix do not see it"
    print(f"{mutant.name}: {found[:300]}")


def test_each_fault_has_its_place() -> None:
    assert len(MUTANTS) == 20
    assert len({mutant.name for mutant in MUTANTS}) == 20
    for number, mutant in enumerate([*MUTANTS, *MENDS]):
        text = (build.ROOT / "native" / "src" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, (number, mutant.name)
