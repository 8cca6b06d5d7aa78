"""Training over torch.distributed: the same figures as with gloo, for equal seeds."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launchers import environment
from torches import HERE, figures, finish, packages, start

# bfloat16 on the wire: 8 bits of mantissa in gradients of six steps at rate 0.05
TOLERANCE = {"ddp_bf16_hook": 2e-3, "ddp_plan_hook": 1e-6, "fsdp2_registered": 1e-6}
HEAVY = {"checkpoint", "compiled_step", "dtensor", "tensor_parallel", "zero", "fsdp1", "ddp_powersgd"}
TOLERANCE_OF_MORE = 1e-5  # four ranks' sums are rounded in another order


def all_features() -> list[str]:
    """The script's functions that are marked so; it is not imported here, where torch is not."""
    tree = ast.parse((HERE / "matrix.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in functions if any(ast.unparse(each) == "feature" for each in node.decorator_list)]


def compare(tmp_path: Path, world: int, names: list[str]) -> None:
    path = packages()
    ours = figures(path, world, "rdmaring", tmp_path / "ours", names)
    theirs = figures(path, world, "gloo", tmp_path / "gloo", names)
    for rank in range(world):
        for name in names:
            own, other = ours[rank].get(name, "not run"), theirs[rank].get(name, "not run")
            assert isinstance(own, list), f"rank {rank}, {name}: {own}"
            assert isinstance(other, list), f"gloo, rank {rank}, {name}: {other}"
            tolerance = TOLERANCE.get(name, 0.0 if world == 2 else TOLERANCE_OF_MORE)
            assert own == pytest.approx(other, rel=tolerance, abs=tolerance), f"rank {rank}, {name}"


@pytest.mark.timeout(900)
def test_figures_equal_gloos(tmp_path: Path) -> None:
    names = [name for name in all_features() if name not in HEAVY]
    assert len(names) >= 12
    compare(tmp_path, 2, names)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [2, 4])
def test_figures_of_heavy_features_equal_gloos(tmp_path: Path, world: int) -> None:
    compare(tmp_path, world, sorted(HEAVY) if world == 2 else [*sorted(HEAVY - {"checkpoint"}), "ddp", "fsdp2"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", ["collectives.py", "contracts.py"])
def test_what_collectives_give_and_keep(script: str) -> None:
    ranks = start(packages(), 2, str(HERE / script))
    said = finish(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)[-4000:]
    assert all("ALL GOOD" in text for text in said)


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_it_may_be_imported_before_torch(autoload: str) -> None:
    """torch, which it imports, asks for its entry point then."""
    code = "import rdmaring.torch, torch.distributed as dist; print(dist.Backend.RDMARING)"
    own = {"PYTHONPATH": packages(), "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(own), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "rdmaring\n"), done.stderr


@pytest.mark.timeout(600)
def test_a_killed_rank_is_named_by_the_others(tmp_path: Path) -> None:
    """Within 2 s of its death, out of DDP's backward."""
    ranks = start(packages(), 3, str(HERE / "killed.py"), str(tmp_path / "killed_at"))
    said = finish(ranks)
    assert ranks[2].returncode == -signal.SIGKILL
    killed_at = float((tmp_path / "killed_at").read_text())
    for rank in (0, 1):
        assert ranks[rank].returncode == 0, said[rank][-3000:]
        line = next(line for line in said[rank].splitlines() if line.startswith("RAISED "))
        raised_at, text = line.split(" ", 2)[1:]
        assert "rank 2" in text, line
        assert float(raised_at) - killed_at < 2.0, line
    assert killed_at < time.time()
