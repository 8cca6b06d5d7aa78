"""The prototypes in cuda_api.h against those of NVIDIA's headers, at the versions that are asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cuda_sim import build

OURS = Path(__file__).resolve().parents[2] / "native" / "src" / "cuda_api.h"
HANDLES = ("CUstream", "CUevent", "CUcontext", "CUfunction")
WORDS = {  # how a parameter of that type is passed
    "CUdeviceptr": 64, "CUdeviceptr_v2": 64, "rr_cuda_ptr": 64, "size_t": 64, "unsigned long long": 64,
    "unsigned int": 32, "cuuint32_t": 32, "uint32_t": 32, "int": 32, "CUresult": 32, "rr_cuda_result": 32,
    "CUpointer_attribute": 32, "CUmemRangeHandleType": 32, "CUflushGPUDirectRDMAWritesTarget": 32,
    "CUflushGPUDirectRDMAWritesScope": 32, "CUdevice": 32, "CUdevice_v1": 32, "CUdevice_attribute": 32,
}  # fmt: skip


def passed(parameter: str) -> str:
    """ "pointer", or the bits of a number."""
    text = parameter.replace("const ", "").strip()
    if "*" in text or any(re.match(rf"{handle}\b", text) for handle in HANDLES):
        return "pointer"
    kind = re.sub(r"\s*\w+$", "", text)
    return f"{WORDS[kind]} bits"


def ours() -> list[tuple[str, str, list[str]]]:
    text = OURS.read_text(encoding="utf-8").replace("\\\n", " ")
    calls = re.findall(r"CALL\((cu\w+), (\d+), [01],\s*\((.*?)\)\)", text, flags=re.DOTALL)
    return [(name, version, [passed(each) for each in parameters.split(",")]) for name, version, parameters in calls]


@pytest.mark.parametrize(("name", "version", "parameters"), ours(), ids=[name for name, *_ in ours()])
def test_a_call_is_passed_what_the_driver_takes(name: str, version: str, parameters: list[str]) -> None:
    header = (build.headers() / "cudaTypedefs.h").read_text(encoding="utf-8")
    found = re.search(rf"\*PFN_{name}_v{version}\)\((.*?)\);", header)
    assert found, f"cudaTypedefs.h has no {name} of version {version}"
    assert parameters == [passed(each) for each in found.group(1).split(",")]


def test_all_calls_are_found() -> None:
    text = OURS.read_text(encoding="utf-8")
    assert len(ours()) == text.count("CALL(cu") > 20


@pytest.mark.parametrize(
    ("ours_name", "theirs"),
    [
        ("RR_CUDA_ERROR_NOT_READY", "CUDA_ERROR_NOT_READY"),
        ("RR_CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_VALUE"),
        ("RR_CUDA_ERROR_DEINITIALIZED", "CUDA_ERROR_DEINITIALIZED"),
        ("RR_CUDA_ERROR_ALREADY_REGISTERED", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
        ("RR_CUDA_STREAM_NON_BLOCKING", "CU_STREAM_NON_BLOCKING"),
        ("RR_CUDA_EVENT_DISABLE_TIMING", "CU_EVENT_DISABLE_TIMING"),
        ("RR_CUDA_WAIT_VALUE_EQ", "CU_STREAM_WAIT_VALUE_EQ"),
        ("RR_CUDA_DMA_BUF_SUPPORTED", "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED"),
        ("RR_CUDA_RDMA_FLUSH_OPTIONS", "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS"),
        ("RR_CUDA_RDMA_ORDERING", "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING"),
        ("RR_CUDA_SYNC_MEMOPS", "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS"),
        ("RR_CUDA_BUFFER_ID", "CU_POINTER_ATTRIBUTE_BUFFER_ID"),
        ("RR_CUDA_RDMA_CAPABLE", "CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE"),
        ("RR_CUDA_HANDLE_DMA_BUF_FD", "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"),
        ("RR_CUDA_FLUSH_TARGET_CONTEXT", "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX"),
        ("RR_CUDA_FLUSH_TO_OWNER", "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER"),
        ("RR_CUDA_HOST_PORTABLE", "CU_MEMHOSTREGISTER_PORTABLE"),
        ("RR_CUDA_HOST_PORTABLE", "CU_MEMHOSTALLOC_PORTABLE"),
        ("RR_CUDA_HOST_MAPPED", "CU_MEMHOSTREGISTER_DEVICEMAP"),
        ("RR_CUDA_HOST_MAPPED", "CU_MEMHOSTALLOC_DEVICEMAP"),
    ],
)
def test_a_number_is_the_drivers(ours_name: str, theirs: str) -> None:
    mine = re.search(rf"#define {ours_name} (\d+)", OURS.read_text(encoding="utf-8"))
    header = (build.headers() / "cuda.h").read_text(encoding="utf-8")
    other = re.search(rf"(?:#define\s+{theirs}\s+|\b{theirs}\s*=\s*)(0x[0-9a-fA-F]+|\d+)", header)
    assert mine and other
    assert int(mine.group(1)) == int(other.group(1), 0)
