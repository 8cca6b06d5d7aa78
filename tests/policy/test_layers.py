"""Who may import or include whom. A module that is new gets its place in LEVELS here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rdmaring"
NATIVE = ROOT / "native" / "src"

# A module imports its own room and what lies lower; nothing beside it, nothing above.
LEVELS = {
    "_version": 0,
    "verdict": 0,
    "errors": 1,
    "_native": 2,
    "single": 2,
    "schedule": 2,
    "rendezvous": 2,
    "verbs_settings": 2,
    "tuning": 3,
    "settings": 3,
    "recover": 3,
    "cuda": 3,
    "buffers": 4,
    "chunks": 3,
    "choice": 4,
    "topology": 3,
    "work": 3,
    "memory": 5,
    "transport": 5,
    "plan": 5,
    "launch": 5,
    "running": 6,
    "collectives": 7,
    "messages": 7,
    "communicator": 8,
    "diagnose": 9,  # below __init__: init(reorder=True) measures the links
    "probe": 9,  # likewise: init(probe=True)
    "__init__": 10,
    "bench": 11,
    "torch": 11,
    "cli": 12,
}
# Modules that are one room with another: to split a communicator is to make communicators.
ROOM_OF = {"group": "communicator", "shrink": "communicator", "gpu": "running", "finite": "running"}
WITHOUT_NATIVE = ("schedule", "rendezvous", "recover", "launch", "errors", "verdict", "single", "_version")
NATIVE_MODULES = ("_native", "buffers", "memory", "topology", "plan", "work", "running", "collectives", "communicator")
NATIVE_MODULES += ("messages", "finite", "__init__")


def room(path: Path) -> str:
    """The first name below the package: a module, or a folder of them."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return ROOM_OF.get(name, name)


def typing_only(tree: ast.Module) -> set[ast.AST]:
    """Nodes below `if TYPE_CHECKING:`, which are never run."""
    nodes: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            nodes.update(child for statement in node.body for child in ast.walk(statement))
    return nodes


def imported_rooms(path: Path) -> Iterator[str]:
    """Rooms of the package that a module imports, at its top or inside a function."""
    tree = ast.parse(path.read_text())
    skipped = typing_only(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "rdmaring":
                second = rest.split(".")[0]
                is_module = (PACKAGE / f"{second}.py").exists() or (PACKAGE / second / "__init__.py").exists()
                is_module = second != "" and (is_module or second == "_rdmaring")
                yield ROOM_OF.get(second, second) if is_module else "__init__"


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    own = room(path)
    assert own in LEVELS, f"give {own} a level in {Path(__file__).name}"
    for other in imported_rooms(path):
        if other == "_rdmaring":
            assert own == "_native", "only _native touches the extension"
        elif other != own:
            assert LEVELS[other] < LEVELS[own], f"{own} imports {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_data_and_rendezvous_know_nothing_native(path: Path) -> None:
    if room(path) in WITHOUT_NATIVE:
        assert not set(imported_rooms(path)) & set(NATIVE_MODULES)
        assert not re.search(r"^\s*(import|from) cffi\b", path.read_text(), re.MULTILINE)


def test_modules_are_found() -> None:
    rooms = {room(path) for path in MODULES}
    assert {"errors", "_native", "schedule", "rendezvous", "launch", "cli"} <= rooms


def includes(path: Path) -> set[str]:
    return set(re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE))


SOURCES = sorted([*NATIVE.glob("*.c"), *NATIVE.glob("*.h")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_engine_knows_no_link_and_a_link_not_the_engine(path: Path) -> None:
    if path.name.startswith(("engine", "rows")):
        assert not [name for name in includes(path) if re.match(r"(link_|shm)", name)]
    if path.name.startswith(("link_", "shm")):
        assert not [name for name in includes(path) if re.match(r"(engine|comm|plan|run)\b", name)]


def test_sources_are_found() -> None:
    names = {path.name for path in SOURCES}
    assert "engine.c" in names
    assert any(name.startswith("link_") for name in names)
