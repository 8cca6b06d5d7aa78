"""The public header: clean in three languages; Python and the library have exactly what it declares."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import rdmaring
from rdmaring._rdmaring import lib

ROOT = Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "native" / "include").glob("*.h"))
INSTALLED = Path(rdmaring.__file__).parent
LIBRARY = INSTALLED / "lib" / "librdmaring.so"
CC, CXX = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")


def text(path: Path) -> str:
    """Without comments and preprocessor lines."""
    code = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
    return re.sub(r"^\s*#.*$", "", code, flags=re.MULTILINE)


FUNCTIONS = {name for path in HEADERS for name in re.findall(r"\bRR_API\b[^;(]*?\b(\w+)\(", text(path))}
ENUMERATORS = {name for path in HEADERS for name in re.findall(r"\b(RR_[A-Z0-9_]+) = -?\d+", text(path))}
OF_THE_EXTENSION = {"rr_py_exchange", "rr_py_run_at"} | {
    f"rr_py_link_{name}" for name in ("open", "send", "receive", "progress", "due_ns", "close")
}


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "compiler", [(CC, "c", "c99"), (CC, "c", "c11"), (CXX, "c++", "c++17")], ids=lambda each: each[2]
)
def test_the_header_compiles_alone(header: Path, compiler: tuple[str, str, str], tmp_path: Path) -> None:
    command, language, standard = compiler
    source = tmp_path / "source"
    source.write_text(f"#include <{header.name}>\n#include <{header.name}>\nint used(void);\n")
    options = [f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    result = subprocess.run(
        [command, "-x", language, *options, f"-I{header.parent}", str(source)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_the_installed_headers_are_the_sources() -> None:
    for header in HEADERS:
        assert (INSTALLED / "include" / header.name).read_text() == header.read_text()


def test_python_sees_every_function_and_constant_and_no_other() -> None:
    assert len(FUNCTIONS) > 20
    assert len(ENUMERATORS) > 30
    assert set(dir(lib)) == FUNCTIONS | ENUMERATORS | OF_THE_EXTENSION


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_library_exports_the_functions_and_no_other() -> None:
    listing = output_of("nm", "-D", "--defined-only", LIBRARY)
    assert {line.split()[-1] for line in listing.splitlines()} == FUNCTIONS


def test_the_library_needs_the_c_library_alone() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", output_of("readelf", "-d", LIBRARY))
    assert needed
    assert [name for name in needed if not re.match(r"(libc|libm|libpthread|ld-linux[\w-]*)\.so", name)] == []
