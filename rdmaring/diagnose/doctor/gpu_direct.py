"""GPUs and NICs: whether a NIC may use GPU memory, how far apart they are, and what redirects their traffic."""

from __future__ import annotations

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.gpu_driver import NO_GPU, is_absent
from rdmaring.diagnose.doctor.gpu_facts import Gpu, GpuFacts
from rdmaring.diagnose.doctor.gpu_paths import unreached
from rdmaring.diagnose.doctor.pci import (
    WORDS,
    Distance,
    Function,
    acs_control,
    distance,
    function_at,
    gpu_functions,
    iommu_type,
    redirects,
)
from rdmaring.diagnose.doctor.ports import ports
from rdmaring.diagnose.doctor.roots import Look, Roots, peek
from rdmaring.diagnose.doctor.texts import listing

STAGED_TO_NIC = "slices between hosts are copied through pinned host memory (staged): one copy more at either end"
ORDERING_OF_OWNER = 100  # CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
FLUSH_BY_HOST = 1  # CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST


def nic_functions(roots: Roots) -> dict[str, Function]:
    """RDMA devices that lie on the PCI bus."""
    found = {}
    for port in ports(roots):
        function = None if port.is_software else function_at(roots, port.device_path)
        if function is not None:
            found[port.device] = function
    return found


def _gpu_labels(roots: Roots, facts: GpuFacts) -> dict[str, Function]:
    """GPUs on the bus by what they are called: "GPU 0" where the driver shows them to this process."""
    ordinals = {gpu.pci: gpu.ordinal for gpu in facts.gpus}
    found = {}
    for function in gpu_functions(roots):
        ordinal = ordinals.get(function.address)
        found[f"GPU {function.address}" if ordinal is None else f"GPU {ordinal}"] = function
    return found


def check_gpu_direct_rdma(roots: Roots) -> Finding:
    """Whether RDMA devices may read and write GPU memory: dma-buf, or the peer memory module."""
    look = Look("gpu-direct-rdma")
    facts = roots.system.gpu()
    if early := unreached(look, roots, facts, "dma_buf", len(facts.dma_buf) == len(facts.gpus)):
        return early
    hardware = sorted({port.device for port in ports(roots) if not port.is_software})
    look.note(str(roots.sysfs / "class" / "infiniband"), listing(hardware) or "no RDMA adapter")
    modules = [
        path
        for path in (
            roots.sysfs / "module" / "nvidia_peermem" / "version",
            roots.sysfs / "kernel" / "mm" / "memory_peers" / "nv_mem" / "version",
        )
        if look.text(path) is not None
    ]
    for gpu in facts.gpus:
        look.note(f"GPU {gpu.ordinal}", _direct_words(facts, gpu))
    if not hardware:
        return look.not_applicable(f"no RDMA adapter; {STAGED_TO_NIC}")
    lacking = [gpu for gpu in facts.gpus if facts.dma_buf.get(gpu.ordinal) or not gpu.has("dma_buf")]
    if not lacking:
        return look.ok("GPU memory is registered by dma-buf")
    if modules and all(gpu.has("gpu_direct_rdma") for gpu in lacking):
        return look.ok("GPU memory is registered by the peer memory module")
    which = listing(f"GPU {gpu.ordinal}" for gpu in lacking)
    if not all(gpu.has("gpu_direct_rdma") for gpu in lacking):
        return look.warning(
            f"{which}: the driver offers no GPUDirect RDMA",
            f"this model (GeForce), a virtual GPU or this platform has none; {STAGED_TO_NIC}",
            "a data centre or workstation model; nothing else helps",
        )
    module = peek(roots.procfs / "driver" / "nvidia" / "version")
    closed = "" if "Open Kernel Module" in module else ": NVIDIA's closed kernel module is loaded, or the kernel is old"
    return look.warning(
        f"{which}: neither dma-buf nor the peer memory module",
        f"dma-buf needs the open kernel modules and Linux 5.12 or later{closed}; nvidia_peermem is not loaded; "
        f"{STAGED_TO_NIC}",
        "install the driver with its open kernel modules, or modprobe nvidia-peermem (it needs an RDMA stack that "
        "has peer memory, such as DOCA-OFED)",
    )


def _direct_words(facts: GpuFacts, gpu: Gpu) -> str:
    error = facts.dma_buf.get(gpu.ordinal, "not tried")
    exported = error or ("exported" if gpu.has("dma_buf") else "exported, though not offered")
    ordering = gpu.attributes.get("gpu_direct_rdma_ordering", 0)
    options = gpu.attributes.get("gpu_direct_rdma_flush", 0)
    if ordering >= ORDERING_OF_OWNER:
        flush = "not needed"
    else:
        flush = "by the driver's call" if options & FLUSH_BY_HOST else "by a read over the NIC's loopback"
    return f"dma-buf {exported}; GPUDirect RDMA {gpu.attributes.get('gpu_direct_rdma', 0)}; flush {flush} ({ordering})"


def check_gpu_nic(roots: Roots) -> Finding:
    """How far each GPU is from its nearest RDMA adapter, by the bridges between them."""
    look = Look("gpu-nic")
    facts = roots.system.gpu()
    gpus, nics = _gpu_labels(roots, facts), nic_functions(roots)
    if not gpus:
        absent = is_absent(roots, facts)
        return look.not_applicable(NO_GPU if absent else "sysfs does not show where the GPUs are")
    if not nics:
        return look.not_applicable("no RDMA adapter on the PCI bus")
    for name, function in {**gpus, **nics}.items():
        look.note(name, f"{function.folder}, NUMA node {function.numa_node}")
    table = {gpu: {nic: distance(here, there) for nic, there in nics.items()} for gpu, here in gpus.items()}
    nearest = {gpu: min(row, key=lambda nic: (row[nic], nic)) for gpu, row in table.items()}
    words = [f"{gpu}: {nic} ({table[gpu][nic].name})" for gpu, nic in nearest.items()]
    data = {gpu: {nic: value.name for nic, value in row.items()} for gpu, row in table.items()}
    far = {gpu: nic for gpu, nic in nearest.items() if table[gpu][nic] > Distance.PXB}
    if far:
        what = sorted({WORDS[table[gpu][nic]] for gpu, nic in far.items()})
        return look.warning(
            listing(words),
            f"between {listing(far)} and the nearest adapter lies {' or '.join(what)}: many processors forward such "
            "traffic at a fraction of the bus's speed",
            "put GPU and adapter under one PCIe switch (another slot), or give those ranks a GPU that is near one",
            distances=data,
        )
    return look.ok(listing(words), distances=data)


def _of_interest(roots: Roots) -> dict[str, Function]:
    return {**_gpu_labels(roots, roots.system.gpu()), **nic_functions(roots)}


def check_gpu_acs(roots: Roots) -> Finding:
    """Bridges above GPUs and RDMA adapters that send traffic between their ports up to the processor (ACS)."""
    look = Look("gpu-acs")
    functions = _of_interest(roots)
    if not gpu_functions(roots):
        absent = is_absent(roots, roots.system.gpu())
        return look.not_applicable(NO_GPU if absent else "sysfs does not show where the GPUs are")
    if len(functions) < 2:
        return look.not_applicable("one GPU and no RDMA adapter: nothing crosses a bridge to a peer")
    bridges = sorted({bridge for function in functions.values() for bridge in function.bridges})
    hidden, redirecting = [], []
    for bridge in bridges:
        control = acs_control(roots, bridge)
        look.note(f"ACS control of {bridge}", "not shown" if control is None else f"{control:#06x}")
        if control is None:
            hidden.append(bridge)
        elif redirects(control):
            redirecting.append(bridge)
    if redirecting:
        return look.warning(
            f"ACS redirects at {listing(redirecting)}",
            "peer traffic climbs to the processor and back instead of crossing the switch: slow, and with an IOMMU "
            "that translates, it can hang",
            "on bare metal: setpci -s BRIDGE ECAP_ACS+0x6.w=0000 at every boot, or ACS off in the firmware; a "
            "virtual machine needs it on, and ATS on the adapter",
            bridges=redirecting,
        )
    if hidden:
        return look.not_applicable(
            f"{len(hidden)} of {len(bridges)} bridges show ACS to root alone: sudo rdmaring doctor --only gpu-acs"
        )
    return look.ok(f"none of {len(bridges)} bridges redirects" if bridges else "no bridge is shown above them")


def check_gpu_iommu(roots: Roots) -> Finding:
    """Whether an IOMMU translates what GPUs and RDMA adapters address."""
    look = Look("gpu-iommu")
    functions = _of_interest(roots)
    if not gpu_functions(roots):
        absent = is_absent(roots, roots.system.gpu())
        return look.not_applicable(NO_GPU if absent else "sysfs does not show where the GPUs are")
    look.text(roots.procfs / "cmdline")
    kinds = {name: iommu_type(function) for name, function in functions.items()}
    for name, kind in kinds.items():
        look.note(f"{functions[name].folder}/iommu_group/type", kind or "absent")
    translated = [name for name, kind in kinds.items() if kind.startswith("DMA")]
    if translated and len(functions) > 1:
        return look.warning(
            f"an IOMMU translates for {listing(translated)}",
            "peer traffic then goes by way of the processor's IOMMU: slower, and on some platforms wrong or stuck",
            "boot with iommu=pt (and intel_iommu=on or amd_iommu=on), or switch the IOMMU off in the firmware; not in "
            "a virtual machine that passes devices through",
        )
    present = [kind for kind in kinds.values() if kind]
    return look.ok("an IOMMU, which passes addresses through" if present else "no IOMMU")
