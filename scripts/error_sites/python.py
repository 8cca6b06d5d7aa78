"""The places of the Python package: calls of a class that derives from RdmaringError, or that becomes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from error_sites.site import ROOT, VALUE, Site

PACKAGE = ROOT / "rdmaring"
# Errors of a room of its own are raised as ours, with their text and hint: communicator.py, __init__.py.
BECOMES = {"RendezvousError": "SetupError"}


@dataclass(frozen=True)
class ErrorClass:
    """A class of errors as its source has it."""

    name: str
    module: str
    bases: tuple[str, ...]
    summary: str  # the first paragraph of its docstring
    more: str
    own_advice: str | None
    group: str
    line: int


@dataclass
class Module:
    path: Path
    tree: ast.Module
    names: dict[str, tuple[str, str]] = field(default_factory=dict)  # as used here: module and name there


def _modules() -> dict[str, Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        module = found[name] = Module(path, ast.parse(path.read_text()))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    module.names[alias.asname or alias.name] = (node.module, alias.name)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                module.names[node.name] = (name, node.name)
    return found


MODULES = _modules()


def _resolved(module: str, name: str) -> tuple[str, str]:
    """Where a name that is used in a module is defined."""
    for _ in range(8):
        there = MODULES[module].names.get(name) if module in MODULES else None
        if there is None or there == (module, name):
            break
        module, name = there
    return module, name


def _advice(node: ast.ClassDef) -> str | None:
    for part in node.body:
        if isinstance(part, ast.Assign) and getattr(part.targets[0], "id", "") == "advice":
            return str(ast.literal_eval(part.value))
    return None


def _group(source: list[str], line: int) -> str:
    """The heading over the class: `# ---- this call: ... ----`."""
    for text in reversed(source[: line - 1]):
        if text.startswith("# ---- "):
            return text.strip("# -")
    return ""


def classes() -> dict[tuple[str, str], ErrorClass]:
    """Every class that is RdmaringError, derives from it or becomes one; bases before what derives from them."""
    found: dict[tuple[str, str], ErrorClass] = {}
    roots = {"RdmaringError", *BECOMES}
    grown = True
    while grown:
        grown = False
        for name, module in MODULES.items():
            for node in module.tree.body:
                if not isinstance(node, ast.ClassDef) or (name, node.name) in found:
                    continue
                bases = [_resolved(name, base.id) for base in node.bases if isinstance(base, ast.Name)]
                if node.name in roots or any(base in found for base in bases):
                    summary, _, more = (ast.get_docstring(node) or "").partition("\n\n")
                    found[name, node.name] = ErrorClass(
                        node.name,
                        name,
                        tuple(ast.unparse(base) for base in node.bases),
                        " ".join(summary.split()),
                        more,
                        _advice(node),
                        _group(module.path.read_text().splitlines(), node.lineno),
                        node.lineno,
                    )
                    grown = True
    return found


CLASSES = classes()


@cache
def advice_of(name: str) -> str:
    """Of the class or the nearest class it derives from."""
    for each in CLASSES.values():
        if each.name == name:
            if each.own_advice is not None:
                return each.own_advice
            return next((text for base in each.bases if (text := advice_of(base))), "")
    return ""


def texts_of(node: ast.expr | None) -> tuple[str, ...]:
    """What an expression says; several where it chooses; VALUE where only running tells."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values]
        return ("".join(parts),)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return tuple(left + right for left in texts_of(node.left) for right in texts_of(node.right))
    if isinstance(node, ast.IfExp):
        return (*texts_of(node.body), *texts_of(node.orelse))
    return (VALUE,)


def _given_name(name: str, module: Module, line: int) -> tuple[str, ...]:
    """What the function around a line puts under a name."""
    inside = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    values = [
        node.value
        for node in ast.walk(inside[-1] if inside else module.tree)
        if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == name for target in node.targets)
    ]
    return tuple(text for value in values for text in texts_of(value)) or (VALUE,)


def _said(node: ast.expr, module: Module) -> tuple[str, ...]:
    return _given_name(node.id, module, node.lineno) if isinstance(node, ast.Name) else texts_of(node)


def _calls(name: str, module: Module) -> Iterator[tuple[ast.Call, ErrorClass]]:
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name):
            where = _resolved(name, called.id)
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            there = module.names.get(called.value.id)
            where = _resolved(".".join(there), called.attr) if there else ("", "")
        else:
            continue
        if where in CLASSES:
            yield node, CLASSES[where]


@cache
def sites() -> list[Site]:
    """Every call that makes such an error."""
    found = []
    for name, module in MODULES.items():
        for call, kind in _calls(name, module):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            texts = _said(call.args[0], module) if call.args else ("",)
            hints = _said(given["hint"], module) if "hint" in given else ()
            for text in texts:
                found.append(Site(module.path, call.lineno, (kind.name,), text, hints))
    return found
