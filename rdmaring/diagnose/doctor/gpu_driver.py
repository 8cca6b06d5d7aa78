"""CUDA's driver, cuda-python, the run-time compiler, and the devices that a rank sees."""

from __future__ import annotations

import re

from rdmaring.cuda.driver import DRIVER_VERSION_MIN
from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.gpu_facts import LIBRARY, GpuFacts
from rdmaring.diagnose.doctor.pci import gpu_functions
from rdmaring.diagnose.doctor.roots import Look, Roots, names, peek
from rdmaring.diagnose.doctor.texts import bytes_text, count_text, listing

NO_GPU = "no GPU here"
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}
PROHIBITED, EXCLUSIVE = 2, 3
PIP = "pip install 'rdmaring[cuda]'"

# cuInit's errors, by number: cause and fix.
INIT_ERRORS = {
    34: (
        f"the loader found the toolkit's stub of {LIBRARY}, which only serves linking",
        "take the stubs folder out of LD_LIBRARY_PATH",
    ),
    100: (
        "the driver sees no device: the process may not open /dev/nvidia*, or CUDA_VISIBLE_DEVICES hides all",
        "nvidia-smi as the same user; a container is started with --gpus all; unset CUDA_VISIBLE_DEVICES",
    ),
    802: (
        "GPUs joined by NVSwitch wait for the fabric manager, which does not run",
        "systemctl enable --now nvidia-fabricmanager, of the driver's own version; nvidia-smi -q shows Fabric",
    ),
    803: (
        f"{LIBRARY} and the kernel's nvidia module are of different versions: an update without a reboot, or a "
        "container that brings a driver library of its own",
        "reboot, or reload the nvidia modules; take libcuda out of the container's image",
    ),
    804: (
        f"{LIBRARY} is of a forward compatibility package, which this GPU is not entitled to",
        "take the cuda-compat folder out of LD_LIBRARY_PATH, or install a newer driver",
    ),
    999: (
        "mostly the module nvidia_uvm is not loaded, or its device files are missing",
        "nvidia-modprobe -u -c=0, or modprobe nvidia_uvm; then look at dmesg for NVRM and Xid",
    ),
}


def version_text(version: int) -> str:
    """13.0 of 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


def error_number(text: str) -> int:
    """999 of "cuInit: CUDA_ERROR_UNKNOWN (999)"; 0 where there is none."""
    match = re.search(r"\((\d+)\)$", text)
    return int(match[1]) if match else 0


def device_files(roots: Roots) -> list[str]:
    """nvidia0, nvidia1 and so on of /dev."""
    return [name for name in names(roots.dev) if re.fullmatch(r"nvidia\d+", name)]


def is_absent(roots: Roots, facts: GpuFacts) -> bool:
    """Whether nothing hints at a GPU: none on the bus, no kernel module, no device files, none of the driver."""
    hints = gpu_functions(roots) or device_files(roots) or peek(roots.procfs / "driver" / "nvidia" / "version")
    return not hints and not facts.gpus and (bool(facts.library_error) or error_number(facts.init_error) == 100)


def check_gpu_driver(roots: Roots) -> Finding:
    """NVIDIA's kernel module and libcuda are there, fit each other, and cuInit works."""
    look = Look("gpu-driver")
    facts = roots.system.gpu()
    on_bus = gpu_functions(roots)
    look.note(str(roots.sysfs / "bus" / "pci" / "devices"), listing(each.address for each in on_bus) or "no GPU")
    module = peek(roots.procfs / "driver" / "nvidia" / "version").partition("\n")[0]
    look.note(str(roots.procfs / "driver" / "nvidia" / "version"), module or "absent")
    look.note(str(roots.dev), listing(device_files(roots)) or "no nvidia file")
    look.note(f"dlopen {LIBRARY}", facts.library_error or "opened")
    if is_absent(roots, facts):
        return look.not_applicable(NO_GPU)
    if facts.library_error:
        return _no_library(roots, look, bool(module))
    if facts.stuck and not facts.driver_version and not facts.binding_error:
        return look.failure(
            f"the driver does not answer: {facts.stuck}",
            "cuInit hangs or dies when a GPU has fallen off the bus, or the driver's daemon restarts",
            "nvidia-smi, and dmesg for NVRM and Xid; reset the GPU or reboot",
        )
    if facts.init_error:
        look.note("cuInit", facts.init_error)
        cause, fix = INIT_ERRORS.get(
            error_number(facts.init_error),
            ("the driver could not start", "nvidia-smi, and dmesg for NVRM and Xid, say more"),
        )
        return look.failure(facts.init_error, cause, fix)
    if facts.binding_error:
        return look.ok(f"{LIBRARY} is there{_module_words(module)}; not asked: see cuda-python")
    look.note("cuDriverGetVersion", facts.driver_version)
    if facts.driver_version < DRIVER_VERSION_MIN:
        return look.failure(
            f"the driver serves CUDA {version_text(facts.driver_version)}",
            f"rdmaring needs calls that came with CUDA {version_text(DRIVER_VERSION_MIN)}",
            "install a newer driver (525 or later)",
        )
    return look.ok(f"CUDA {version_text(facts.driver_version)}{_module_words(module)}")


def _module_words(module: str) -> str:
    """Version and kind out of the first line of /proc/driver/nvidia/version, behind a comma; "" without a version."""
    number = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", module)
    if not number:
        return ""
    return f", kernel module {number[0]}{', open' if 'Open Kernel Module' in module else ''}"


def _no_library(roots: Roots, look: Look, has_module: bool) -> Finding:
    loaded = {line.split(" ")[0] for line in peek(roots.procfs / "modules").splitlines()}
    look.note(str(roots.procfs / "modules"), listing(sorted({"nvidia", "nvidia_uvm", "nouveau"} & loaded)) or "none")
    if has_module or device_files(roots):
        return look.failure(
            f"the kernel drives a GPU, but {LIBRARY} cannot be opened",
            "a container that was given the device files without the driver's libraries, or only the kernel's part "
            "of the driver is installed",
            "docker run --gpus all (NVIDIA's container toolkit), with NVIDIA_DRIVER_CAPABILITIES=compute,utility; on "
            "the host: apt install libcuda1, or the driver's package of the same version",
        )
    why = "nouveau, which knows no CUDA, drives it" if "nouveau" in loaded else "no module of the kernel drives it"
    return look.failure(
        f"GPU {gpu_functions(roots)[0].address} is there, but not NVIDIA's driver",
        why,
        "install NVIDIA's driver (with the open kernel modules, which GPUDirect RDMA by dma-buf needs); "
        "modprobe nvidia nvidia_uvm",
    )


def check_cuda_python(roots: Roots) -> Finding:
    """cuda-python's bindings can be imported."""
    look = Look("cuda-python")
    facts = roots.system.gpu()
    if is_absent(roots, facts) or facts.library_error:
        return look.not_applicable(NO_GPU if is_absent(roots, facts) else "no CUDA driver: see gpu-driver")
    look.note("import cuda.bindings", facts.binding_error or f"version {facts.binding}")
    if facts.binding_error:
        return look.failure(
            "cuda-python is not installed",
            f"rdmaring reaches the driver by it; arrays on the GPU are refused without. Python says: "
            f"{facts.binding_error}",
            PIP,
        )
    return look.ok(f"cuda-bindings {facts.binding or 'of an unknown version'}")


def check_nvrtc(roots: Roots) -> Finding:
    """The run-time compiler is there, no newer than the driver's major version, and knows every device."""
    look = Look("nvrtc")
    facts = roots.system.gpu()
    if not facts.gpus:
        return look.not_applicable(NO_GPU if is_absent(roots, facts) else "no device: see gpu-driver")
    nvrtc = facts.nvrtc
    if nvrtc.error:
        look.note("NVRTC", nvrtc.error)
        return look.failure(
            "NVRTC cannot be used",
            f"the kernels that add vectors are compiled for the GPU at hand on first use: {nvrtc.error}",
            f"{PIP}, or the CUDA toolkit's libnvrtc on the loader's path",
        )
    version = ".".join(map(str, nvrtc.version))
    look.note("nvrtcVersion", version)
    look.note("nvrtcGetSupportedArchs", " ".join(map(str, nvrtc.archs)))
    look.note("cuDriverGetVersion", facts.driver_version)
    unknown = [gpu for gpu in facts.gpus if gpu.arch not in nvrtc.archs]
    if unknown:
        newer = unknown[0].arch > max(nvrtc.archs, default=0)
        return look.failure(
            f"NVRTC {version} has no code for {listing(f'GPU {gpu.ordinal} (sm_{gpu.arch})' for gpu in unknown)}",
            "the GPU is newer than this compiler" if newer else "this compiler has dropped the GPU's generation",
            "install a newer nvidia-cuda-nvrtc" if newer else "install an older one: nvidia-cuda-nvrtc-cu12",
        )
    if nvrtc.version[0] > facts.driver_version // 1000:
        return look.warning(
            f"NVRTC {version} on a driver for CUDA {version_text(facts.driver_version)}",
            "a driver loads what compilers of its own major version make; of a later one it may refuse the kernels",
            f"a newer driver, or the compiler of CUDA {facts.driver_version // 1000}: nvidia-cuda-nvrtc-cu"
            f"{facts.driver_version // 1000}",
        )
    return look.ok(f"version {version}, knows sm_{', sm_'.join(map(str, sorted({gpu.arch for gpu in facts.gpus})))}")


def check_gpu_devices(roots: Roots) -> Finding:
    """The devices a rank sees: name, UUID, compute capability, memory, mode, and whether they are parts (MIG)."""
    look = Look("gpu-devices")
    facts = roots.system.gpu()
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY"):
        if name in roots.env:
            look.note(name, roots.env[name])
    if not facts.gpus:
        return look.not_applicable(NO_GPU if is_absent(roots, facts) else "no device: see gpu-driver")
    for gpu in facts.gpus:
        mode = COMPUTE_MODES.get(gpu.attributes.get("compute_mode", 0), "unknown")
        major, minor = gpu.capability
        look.note(
            f"GPU {gpu.ordinal}",
            f"{gpu.name}, {gpu.uuid}, at {gpu.pci}, compute capability {major}.{minor}, "
            f"{bytes_text(gpu.memory_bytes)}, compute mode {mode}",
        )
    data = [
        {"ordinal": gpu.ordinal, "name": gpu.name, "uuid": gpu.uuid, "pci": gpu.pci,
         "capability": list(gpu.capability), "memory_bytes": gpu.memory_bytes, "mig": gpu.is_mig}
        for gpu in facts.gpus
    ]  # fmt: skip
    words = listing(f"{gpu.ordinal}: {gpu.name}, sm_{gpu.arch}, {bytes_text(gpu.memory_bytes)}" for gpu in facts.gpus)
    modes = {gpu.ordinal: gpu.attributes.get("compute_mode", 0) for gpu in facts.gpus}
    forbidden = [ordinal for ordinal, mode in modes.items() if mode == PROHIBITED]
    if forbidden:
        return look.failure(
            f"GPU {listing(map(str, forbidden))} may not be used: compute mode prohibited",
            "an administrator has set it so",
            "nvidia-smi -i N -c DEFAULT",
            gpus=data,
        )
    if any(gpu.is_mig for gpu in facts.gpus):
        return look.warning(
            f"MIG: {words}",
            "a MIG instance has neither CUDA IPC nor peer access: vectors go through pinned host memory (staged)",
            "nvidia-smi -i N -mig 0, if whole GPUs can be had",
            gpus=data,
        )
    exclusive = [ordinal for ordinal, mode in modes.items() if mode == EXCLUSIVE]
    if exclusive and roots.ranks > len(facts.gpus):
        return look.warning(
            f"GPU {listing(map(str, exclusive))}: compute mode exclusive process, for "
            f"{count_text(roots.ranks, 'rank')} on {count_text(len(facts.gpus), 'GPU')}",
            "one process alone gets such a GPU: the second rank on it fails",
            "one rank a GPU, or nvidia-smi -i N -c DEFAULT",
            gpus=data,
        )
    return look.ok(words, gpus=data)
