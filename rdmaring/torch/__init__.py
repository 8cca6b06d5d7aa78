"""torch.distributed on rdmaring: ``torch.distributed.init_process_group("rdmaring")``. See docs/TORCH.md.

torch loads this module by the entry point ``torch.backends``; where that is switched off, import it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdmaring.torch.errors import RingError
    from rdmaring.torch.hooks import Buckets, bf16_hook, plan_hook
    from rdmaring.torch.memory import empty, register
    from rdmaring.torch.process_group import RingProcessGroup

__all__ = [
    "BACKEND",
    "Buckets",
    "RingError",
    "RingProcessGroup",
    "autoload",
    "bf16_hook",
    "empty",
    "plan_hook",
    "register",
]

BACKEND = "rdmaring"
_LAZY = {
    "Buckets": "hooks",
    "RingError": "errors",
    "RingProcessGroup": "process_group",
    "bf16_hook": "hooks",
    "plan_hook": "hooks",
    "empty": "memory",
    "register": "memory",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"rdmaring.torch.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'rdmaring.torch' has no attribute {name!r}")


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> RingProcessGroup:
    """What torch calls for the world and for each new group, on its members."""
    from rdmaring.torch.process_group import RingProcessGroup

    return RingProcessGroup(store, rank, size, timeout)


def autoload() -> None:
    """The entry point: to be imported is all there is to do."""


def _register() -> None:
    import torch.distributed  # not at the top: it may be this import that loads torch, which asks for autoload() then

    if torch.distributed.is_available() and BACKEND.upper() not in dir(torch.distributed.Backend):
        torch.distributed.Backend.register_backend(BACKEND, _create, devices=["cpu", "cuda"])


_register()
