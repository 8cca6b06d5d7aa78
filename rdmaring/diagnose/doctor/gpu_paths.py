"""What ranks do with GPUs of one node, tried: peer access, IPC handles, stream memory operations; and namespaces."""

from __future__ import annotations

import os

from rdmaring.diagnose.doctor.findings import Finding
from rdmaring.diagnose.doctor.gpu_driver import NO_GPU, is_absent
from rdmaring.diagnose.doctor.gpu_facts import GpuFacts
from rdmaring.diagnose.doctor.roots import Look, Roots
from rdmaring.diagnose.doctor.texts import listing

STAGED = "vectors go through pinned host memory (staged): slower, with the same results"
FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "ipc": "ipc:[4026531839]"}  # fixed numbers of the kernel
BUS_FAULTS = (
    "writes between GPUs that the IOMMU translates or ACS redirects can hang or go astray (see gpu-acs, gpu-iommu), "
    "or the bus is faulty"
)


def unreached(look: Look, roots: Roots, facts: GpuFacts, step: str, reached: bool) -> Finding | None:
    """The finding of a step that was not tried, or did not end; None where it was tried on every device."""
    if facts.stuck.startswith(step):
        look.note("child process", facts.stuck)
        return look.failure(
            facts.stuck,
            f"the driver does not come back from it: {BUS_FAULTS}",
            "nvidia-smi, and dmesg for NVRM and Xid; a reset of the GPU or a reboot; then this check again",
        )
    if not facts.gpus:
        return look.not_applicable(NO_GPU if is_absent(roots, facts) else "no device: see gpu-driver")
    if not reached:
        return look.not_applicable(f"not tried: {facts.stuck or 'the driver did not get so far'}")
    return None


def check_gpu_peers(roots: Roots) -> Finding:
    """Every GPU reads and writes every other's memory: bytes are copied and compared in a process of its own."""
    look = Look("gpu-peers")
    facts = roots.system.gpu()
    if len(facts.gpus) == 1:
        return look.not_applicable("one GPU")
    count = len(facts.gpus) * (len(facts.gpus) - 1)
    if early := unreached(look, roots, facts, "the copy of GPU", len(facts.peers) == count):
        return early
    matrix = []
    for path in facts.peers:
        state = "not offered" if not path.offered else path.error or "works"
        look.note(f"GPU {path.reader} reads and writes GPU {path.owner}", state)
        matrix.append({"reader": path.reader, "owner": path.owner, "offered": path.offered, "error": path.error})
    broken = [path for path in facts.peers if path.error]
    if broken:
        return look.failure(
            listing(f"GPU {path.reader} and GPU {path.owner}: {path.error}" for path in broken),
            f"the driver offers peer access, and it does not work: {BUS_FAULTS}",
            "switch ACS off on the bridges between them, and boot with iommu=pt; RDMARING_CUDA_IPC=0 stages meanwhile",
            peers=matrix,
        )
    refused = [path for path in facts.peers if not path.offered]
    if refused:
        pairs = listing(f"{a} and {b}" for a, b in sorted({tuple(sorted((p.reader, p.owner))) for p in refused}))
        return look.warning(
            f"no peer access between GPUs {pairs}",
            f"the driver does not offer it: GPUs of two processors or models, a virtual machine, or MIG; {STAGED}",
            "nvidia-smi topo -p2p r shows the driver's own reason; place ranks that are neighbours in the ring on "
            "GPUs that have it (reorder=)",
            peers=matrix,
        )
    return look.ok(f"{len(facts.gpus)} GPUs, each reads and writes every other", peers=matrix)


def _wrong(error: str) -> bool:
    return "same bytes" in error or "words are" in error


def check_gpu_ipc(roots: Roots) -> Finding:
    """A second process opens a handle of GPU memory, reads what is there and writes it back."""
    look = Look("gpu-ipc")
    facts = roots.system.gpu()
    if early := unreached(look, roots, facts, "ipc", len(facts.ipc) == len(facts.gpus)):
        return early
    for ordinal, error in facts.ipc.items():
        look.note(f"GPU {ordinal}", error or "opened, read and written")
    failed = {ordinal: error for ordinal, error in facts.ipc.items() if error}
    if not failed:
        return look.ok("CUDA IPC works: ranks of this node use each other's GPU memory")
    found = listing(f"GPU {ordinal}: {error}" for ordinal, error in failed.items())
    if any(map(_wrong, failed.values())):
        return look.failure(found, "the driver opened the handle on other memory", "report it to the driver's maker")
    if any(gpu.is_mig for gpu in facts.gpus):
        return look.warning(found, f"MIG instances have no CUDA IPC; {STAGED}", "nvidia-smi -i N -mig 0")
    if any("NOT_SUPPORTED" in error for error in failed.values()):
        cause = "this GPU (an integrated one) or its driver (WSL, a virtual GPU) has no CUDA IPC"
        return look.warning(found, f"{cause}; {STAGED}", "none on this machine; RDMARING_CUDA_IPC=0 says so at once")
    return look.warning(
        found,
        f"the driver refuses: a sandbox, an exclusive compute mode, or a security policy; {STAGED}",
        "docker run --pid=host --ipc=host with the GPUs of all ranks; nvidia-smi -c DEFAULT",
    )


def check_gpu_memops(roots: Roots) -> Finding:
    """A stream sets a word in GPU memory and waits for it, without a kernel."""
    look = Look("gpu-memops")
    facts = roots.system.gpu()
    if early := unreached(look, roots, facts, "memops", len(facts.memops) == len(facts.gpus)):
        return early
    for gpu in facts.gpus:
        powers = [name for name in ("memops_64", "memops_nor", "flush_remote_writes") if gpu.has(name)]
        look.note(f"GPU {gpu.ordinal}", f"{facts.memops.get(gpu.ordinal) or 'works'}; {listing(powers) or 'no extras'}")
    failed = {ordinal: error for ordinal, error in facts.memops.items() if error}
    if not failed:
        return look.ok("streams set and await flags")
    found = listing(f"GPU {ordinal}: {error}" for ordinal, error in failed.items())
    if any(map(_wrong, failed.values())):
        return look.failure(found, "the driver reported success for words it did not write", "install another driver")
    return look.warning(
        found,
        "without stream memory operations (old drivers, some virtual GPUs) the host drives every slice, and vectors "
        "cannot be enqueued or captured",
        "a driver of CUDA 12 or later; in a virtual machine: a whole GPU passed through",
    )


def check_gpu_namespaces(roots: Roots) -> Finding:
    """PID and IPC namespace of this process: GPU memory is shared only between ranks that have both in common."""
    look = Look("gpu-namespaces")
    facts = roots.system.gpu()
    words, hidden = [], []
    for kind, first in FIRST_NAMESPACES.items():
        path = roots.procfs / "self" / "ns" / kind
        try:
            own = os.readlink(path)
        except OSError as error:
            look.note(str(path), f"unreadable: {error.strerror}")
            hidden.append(kind)
            continue
        look.note(str(path), own)
        words.append(f"{kind.upper()} namespace {'of the host' if own == first else 'of a container'}")
    if not facts.gpus:
        return look.not_applicable(NO_GPU if is_absent(roots, facts) else "no device: see gpu-driver")
    if hidden:
        return look.warning(
            f"the {' and '.join(hidden)} namespace cannot be read",
            f"without it ranks cannot tell whether they may open each other's GPU memory; {STAGED}",
            "mount /proc without hidepid for the ranks",
        )
    return look.ok(f"{', '.join(words)}; ranks in other namespaces cannot open this one's GPU memory")
