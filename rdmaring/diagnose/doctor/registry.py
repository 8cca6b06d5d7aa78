"""All checks of one machine, in the order in which they are shown, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rdmaring.diagnose.doctor import (
    cma,
    gids,
    gpu_direct,
    gpu_driver,
    gpu_paths,
    identity,
    limits,
    memory,
    network,
    port_checks,
    verbs,
)
from rdmaring.diagnose.doctor.findings import Evidence, Finding, State
from rdmaring.diagnose.doctor.roots import Roots


class Check(NamedTuple):
    """id: kebab-case. run: looks below the roots and returns; prints nothing, changes nothing."""

    id: str
    run: Callable[[Roots], Finding]

    @property
    def looks_at(self) -> str:
        """One line."""
        return (self.run.__doc__ or "").strip().splitlines()[0]


CHECKS: tuple[Check, ...] = (
    Check("host-identity", identity.check_host_identity),
    Check("variables", identity.check_variables),
    Check("secret", identity.check_secret),
    Check("clock", identity.check_clock),
    Check("cpus", limits.check_cpus),
    Check("nofile", limits.check_nofile),
    Check("memlock", limits.check_memlock),
    Check("shared-memory", memory.check_shared_memory),
    Check("cma", cma.check_cma),
    Check("huge-pages", memory.check_huge_pages),
    Check("numa", memory.check_numa),
    Check("addresses", network.check_addresses),
    Check("ipv6", network.check_ipv6),
    Check("rdma-devices", verbs.check_rdma_devices),
    Check("verbs-access", verbs.check_verbs_access),
    Check("verbs-library", verbs.check_verbs_library),
    Check("port-state", verbs.check_port_state),
    Check("port-rate", verbs.check_port_rate),
    Check("gid-table", gids.check_gid_table),
    Check("roce-mtu", port_checks.check_roce_mtu),
    Check("port-counters", port_checks.check_port_counters),
    Check("nic-numa", port_checks.check_nic_numa),
    Check("pcie", port_checks.check_pcie),
    Check("gpu-driver", gpu_driver.check_gpu_driver),
    Check("cuda-python", gpu_driver.check_cuda_python),
    Check("nvrtc", gpu_driver.check_nvrtc),
    Check("gpu-devices", gpu_driver.check_gpu_devices),
    Check("gpu-namespaces", gpu_paths.check_gpu_namespaces),
    Check("gpu-peers", gpu_paths.check_gpu_peers),
    Check("gpu-ipc", gpu_paths.check_gpu_ipc),
    Check("gpu-memops", gpu_paths.check_gpu_memops),
    Check("gpu-direct-rdma", gpu_direct.check_gpu_direct_rdma),
    Check("gpu-nic", gpu_direct.check_gpu_nic),
    Check("gpu-acs", gpu_direct.check_gpu_acs),
    Check("gpu-iommu", gpu_direct.check_gpu_iommu),
)


def run_checks(roots: Roots | None = None, only: Iterable[str] | None = None) -> list[Finding]:
    """Run all checks, or those named in ``only``, on this machine; a finding each, in the order of CHECKS.

    Raises:
        ValueError: no such check.
    """
    wanted = None if only is None else set(only)
    known = [check.id for check in CHECKS]
    if wanted is not None and not wanted <= set(known):
        strange = sorted(wanted - set(known))
        raise ValueError(f"no check {', '.join(map(repr, strange))}; there are {', '.join(known)}")
    where = roots or Roots()
    return [_run(check, where) for check in CHECKS if wanted is None or check.id in wanted]


def _run(check: Check, roots: Roots) -> Finding:
    """One check that breaks on what it did not expect must not hide the findings of the others."""
    try:
        return check.run(roots)
    except Exception as error:
        return Finding(
            check.id,
            State.FAILURE,
            f"the check itself failed: {type(error).__name__}: {error}",
            (Evidence("exception", repr(error)),),
            "this machine shows something that the check does not expect: a fault of rdmaring",
            "report it with this line; the other checks stand",
        )
