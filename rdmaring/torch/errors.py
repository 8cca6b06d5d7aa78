"""Our errors as torch's: types that its callers catch, words that its tests and retry loops look for, our text."""

from __future__ import annotations

import torch.distributed as dist

from rdmaring.errors import (
    CallError,
    ClosedError,
    OperationTimeoutError,
    PeerClosedError,
    PeerDiedError,
    RdmaringError,
)

# What torch's own backends say in such cases, and what is searched for in their messages.
TIMED_OUT = "Timed out"
CLOSED = "Connection closed by peer"


class RingError(dist.DistBackendError):  # type: ignore[misc]
    """The group is lost. ``error`` is rdmaring's own exception: rank, peer, link, op and what to do."""

    def __init__(self, text: str, error: RdmaringError) -> None:
        super().__init__(text)
        self.error = error
        self.__cause__ = error


def as_torch_error(error: RdmaringError) -> Exception:
    """What is raised in its place; a refused call stays our ``ValueError`` or ``TypeError``."""
    if isinstance(error, CallError) or type(error) is RdmaringError:
        return error
    lead = ""
    if isinstance(error, OperationTimeoutError):
        lead = f"{TIMED_OUT} : "
    elif isinstance(error, (PeerDiedError, PeerClosedError, ClosedError)):
        lead = f"{CLOSED} : "
    return RingError(f"rdmaring: {lead}{error}", error)
