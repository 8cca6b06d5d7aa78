"""Kernels compiled without a GPU, and the folder where they are kept."""

from __future__ import annotations

import logging
import multiprocessing
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdmaring._native import lib
from rdmaring.cuda import kernels, nvrtc
from rdmaring.errors import CudaError

CAPABILITIES = [(8, 0), (9, 0), (10, 0)]
OFTEN_COMPILED = (
    "float32",
    "float16",
    "bfloat16",
    "int8",
    "uint64",
)  # one of each kind; all, for sm_90 and in long runs


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where kernels are kept in this test; empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rdmaring" / "kernels"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each compilation of this process, which then takes no time."""
    names: list[str] = []

    def compile_cubin(source: bytes, name: str, options: list[str], included: dict[str, bytes]) -> bytes:
        names.append(name)
        return b"module " + repr(options).encode()

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    return names


def kernel_sections(cubin: bytes) -> set[str]:
    """Names of the sections with code, from the ELF file's own table."""
    assert cubin[:4] == b"\x7fELF"
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    entries = [struct.unpack_from("<IIQQQQ", cubin, table + index * entry_bytes) for index in range(count)]
    names_at = entries[names_index][4]
    found = (cubin[names_at + entry[0] : cubin.index(b"\0", names_at + entry[0])].decode() for entry in entries)
    return {name for name in found if name.startswith(".text.")}


def cases() -> Iterator[object]:
    for capability in CAPABILITIES:
        for dtype in kernels.DTYPES:
            often = capability == (9, 0) or dtype in OFTEN_COMPILED
            yield pytest.param(capability, dtype, marks=[] if often else [pytest.mark.long])


@pytest.mark.parametrize(("capability", "dtype"), list(cases()))
def test_a_module_has_all_kernels_of_its_dtype(capability: tuple[int, int], dtype: str, cache: Path) -> None:
    module = kernels.cubin(dtype, capability)
    assert kernel_sections(module) == {f".text.rr_{op}_{dtype}" for op in ("sum", "prod", "min", "max")}
    assert len(list(cache.iterdir())) == 1


def test_numbers_are_those_of_c() -> None:
    for number, dtype in enumerate(kernels.DTYPES):
        assert getattr(lib, f"RR_{dtype.upper()}") == number
    for number, op in enumerate(kernels.OPS):
        assert getattr(lib, f"RR_{op.upper()}") == number


def test_a_kept_module_is_not_compiled_again(cache: Path, compiled: list[str]) -> None:
    first = kernels.cubin("float32", (9, 0))
    assert kernels.cubin("float32", (9, 0)) == first
    assert len(compiled) == 1
    assert kernels.cubin("float64", (9, 0)) != first
    assert kernels.cubin("float32", (8, 0)) != first
    assert len(compiled) == 3
    assert len(list(cache.iterdir())) == 3


def test_what_a_module_is_made_of_is_in_its_name(
    cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernels.cubin("float16", (9, 0))
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "version", lambda: (99, 1))
        kernels.cubin("float16", (9, 0))
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "OPTIONS", (*kernels.OPTIONS, "-DANOTHER"))
        kernels.cubin("float16", (9, 0))
    changed = tmp_path / "changed"
    changed.mkdir()
    for name in (kernels.SOURCE_NAME, kernels.INCLUDED_NAME):
        text = (kernels.source_folder() / name).read_bytes()
        (changed / name).write_bytes(text + (b" " if name == kernels.INCLUDED_NAME else b""))
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "source_folder", lambda: changed)
        kernels.cubin("float16", (9, 0))
    for header in kernels.HEADERS_OF["float16"]:
        (changed / header).write_bytes(b"another version")
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "headers", lambda: changed)
        kernels.cubin("float16", (9, 0))
    assert len(compiled) == len(list(cache.iterdir())) == 5
    kernels.cubin("float16", (9, 0))
    assert len(compiled) == 5


@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "another"])
def test_a_damaged_module_is_compiled_again(cache: Path, compiled: list[str], damage: str) -> None:
    good = kernels.cubin("int32", (9, 0))
    (path,) = cache.iterdir()
    content = path.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"cut": content[:-3], "empty": b"", "changed": changed, "another": b"\x7fELF" * 99}[damage])
    assert kernels.cubin("int32", (9, 0)) == good
    assert len(compiled) == 2
    assert path.read_bytes() == content
    kernels.cubin("int32", (9, 0))
    assert len(compiled) == 2


def test_a_file_of_another_user_is_not_taken(cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.cubin("int32", (9, 0))
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        kernels.cubin("int32", (9, 0))
    assert len(compiled) == 2


def test_where_nothing_can_be_kept_kernels_are_compiled_and_the_log_says_so(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rdmaring").write_bytes(b"a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.WARNING, "rdmaring"):
        assert kernels.cubin("int8", (9, 0)).startswith(b"module ")
    assert "XDG_CACHE_HOME" in caplog.text and str(tmp_path) in caplog.text


def write_often(cache_home: str, begun: object) -> None:
    """For a process: keep the same module again and again, each time as if it were damaged."""
    os.environ["XDG_CACHE_HOME"] = cache_home
    nvrtc.compile_cubin = lambda *_: b"module" * 20000  # type: ignore[assignment]
    for _ in range(40):
        assert kernels.cubin("uint8", (9, 0)) == b"module" * 20000
        for path in kernels.cache_folder().glob("*.cubin"):
            kept = kernels._read(path)
            assert kept is None or kept == b"module" * 20000
            path.unlink(missing_ok=True)


def test_processes_that_write_together_leave_a_whole_file(cache: Path, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    processes = [spawn.Process(target=write_often, args=(str(tmp_path), None)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert not list(cache.glob("*.partial"))


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kernels.cache_folder() == tmp_path / ".cache" / "rdmaring" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")  # which the rule of that variable says to ignore
    assert kernels.cache_folder() == tmp_path / ".cache" / "rdmaring" / "kernels"


def test_a_device_newer_than_its_major_version_is_served_by_the_nearest_below() -> None:
    assert nvrtc.architecture((9, 0)) == "sm_90"
    assert nvrtc.architecture((8, 9)) == "sm_89"
    assert nvrtc.architecture((9, 9)) == "sm_90"
    with pytest.raises(CudaError, match=r"compute capability 3\.5") as refused:
        nvrtc.architecture((3, 5))
    assert "older" in refused.value.hint
    with pytest.raises(CudaError, match=r"compute capability 99\.0") as refused:
        nvrtc.architecture((99, 0))
    assert "pip install -U nvidia-cuda-nvrtc" in refused.value.hint


def test_what_the_compiler_refuses_is_told_with_its_words() -> None:
    with pytest.raises(CudaError, match=r"(?s)did not compile bad\.cu.*expected a declaration") as refused:
        nvrtc.compile_cubin(b"this is no program;\n}", "bad.cu", ["--gpu-architecture=sm_90"], {})
    assert refused.value.driver_error is None


def test_without_nvrtc_or_headers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    with monkeypatch.context() as patch:
        patch.setattr(nvrtc.importlib, "import_module", absent)
        with pytest.raises(CudaError, match="cuda-python") as refused:
            nvrtc.bindings.__wrapped__()
        assert refused.value.hint == "pip install 'rdmaring[cuda]'"

    class WithoutLibrary:
        @staticmethod
        def nvrtcVersion() -> None:
            raise RuntimeError("no libnvrtc.so anywhere")

    with monkeypatch.context() as patch:
        patch.setattr(nvrtc.importlib, "import_module", lambda name: WithoutLibrary)
        patch.setattr(nvrtc, "_wheel_files", lambda pattern: iter(()))
        with pytest.raises(CudaError, match=r"no libnvrtc\.so anywhere") as refused:
            nvrtc.bindings.__wrapped__()
        assert refused.value.hint == "pip install 'rdmaring[cuda]'"

    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "_wheel_files", lambda pattern: iter(()))
        patch.setattr("cuda.pathfinder.find_nvidia_header_directory", lambda name: None)
        with pytest.raises(CudaError, match=r"cuda_fp16\.h") as refused:
            nvrtc.headers.__wrapped__()
        assert refused.value.hint == "pip install 'rdmaring[cuda]'"
