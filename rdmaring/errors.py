"""What can go wrong, one class a cause, in three groups: this call, this link, this communicator.

All derive from :class:`RdmaringError`; where Python has a word for the same thing (``ValueError``,
``TimeoutError``, ``ConnectionError``, ``MemoryError``) a class derives from that, too.
"""

from __future__ import annotations

from rdmaring.verdict import Verdict


class RdmaringError(Exception):
    """An error of rdmaring.

    Attributes (``None`` where one does not apply):
        cause: one sentence: what happened, to whom.
        hint: what to do about it: of the place that raised it, and then part of the text; or else the class's advice.
        rank, peer: this rank, and the rank at the other end of what failed.
        link: the edge, sender first, as "0->1": the verdict's (who is waited for is named first), on all ranks alike;
            without one from ``peer`` to this rank, of send() the other way. transport: "shm" and others.
        collective, op, row: the operation's name and number, and the schedule's row.
        verdict: of a lost communicator: the first stuck edge and the class of its trouble; see docs/WHY.md.
    """

    advice = ""  # what to do about any of its kind; kinds without it are explained by each place that raises them

    def __init__(
        self,
        cause: str,
        *,
        hint: str = "",
        rank: int | None = None,
        peer: int | None = None,
        transport: str | None = None,
        collective: str | None = None,
        op: int | None = None,
        row: int | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        advice = f". {hint[0].upper()}{hint[1:]}{'' if hint[-1] in '.?!' else '.'}" if hint else ""
        super().__init__(cause + advice)
        self.cause = cause
        self.hint = hint or self.advice
        self.rank = rank
        self.peer = peer
        self.link = _edge(rank, peer, collective, verdict)
        self.transport = transport
        self.collective = collective
        self.op = op
        self.row = row
        self.verdict = verdict


def _edge(rank: int | None, peer: int | None, collective: str | None, verdict: Verdict | None) -> str | None:
    if verdict is not None and verdict.rank is not None and verdict.peer is not None:
        return f"{verdict.rank}->{verdict.peer}"
    if rank is None or peer is None:
        return None
    return f"{rank}->{peer}" if collective == "send" else f"{peer}->{rank}"


# ---- this call: nothing was changed, the communicator lives on ----


class CallError(RdmaringError):
    """The call was refused."""


class ArgumentError(CallError, ValueError):
    """An argument is out of range, or arguments do not fit each other."""

    advice = "correct the argument: nothing was changed, and the communicator can be used on"


class ArgumentTypeError(CallError, TypeError):
    """An argument is of a kind that is not served."""

    advice = "give an array or value of a kind that is accepted: nothing was changed"


class OutOfMemoryError(CallError, MemoryError):
    """There was no memory for what the call needs beyond the caller's buffers."""

    advice = "free memory, or ask for less: smaller slots (RDMARING_SLOT_BYTES), fewer communicators or ranks"


class UnsupportedError(CallError):
    """The call is well-formed, and this build does not serve it."""


class NonFiniteError(CallError, ValueError):
    """With ``check="finite"``: a rank's input holds a NaN or an infinity: element ``index`` of rank ``peer``."""

    advice = "look at that element on the rank named, and at what made it: nothing was moved"

    index: int


class ScheduleFormatError(CallError, ValueError):
    """A schedule's bytes are damaged or of another version."""

    advice = "make the file again with `rdmaring schedule` of this release, and verify it"


class CudaError(CallError, RuntimeError):
    """cuda-python or the CUDA driver is missing, or refused a call before anything was moved.

    driver_error: the driver's name of it, such as "CUDA_ERROR_OUT_OF_MEMORY", or None where it said nothing.
    """

    def __init__(self, cause: str, *, hint: str = "", driver_error: str | None = None) -> None:
        super().__init__(cause, hint=hint)
        self.driver_error = driver_error


# ---- this link ----


class LinkError(RdmaringError, ConnectionError):
    """A link failed."""


class ProtocolError(LinkError):
    """A peer sent what the contract forbids."""

    advice = "install one version of rdmaring on all hosts; if they are equal, report this message"


class CorruptError(LinkError):
    """Bytes changed: ``check="crc"`` compares what comes with what this hop's sender had, and with what its origin had.

    It names hop, step and chunk, and whether the hop (slot, wire) changed them or a rank's memory, and whose.
    """


# ---- this communicator: it is lost; close it ----


class CommunicatorError(RdmaringError):
    """The communicator is lost."""


class OperationTimeoutError(CommunicatorError, TimeoutError):
    """An operation did not end in its time."""


class PeerDiedError(CommunicatorError, ConnectionError):
    """A rank's process ended while this rank needed it; ``peer`` names it."""


class PeerFailedError(CommunicatorError, ConnectionError):
    """Another rank raised an error and left the operation; ``peer`` names it."""

    advice = "the error of the rank named is the cause: see its own output"


class PeerClosedError(CommunicatorError, ConnectionError):
    """Another rank closed its communicator while this rank needed it."""


class AbortedError(CommunicatorError):
    """A rank called ``abort()``."""


class MismatchError(CommunicatorError, ValueError):
    """Ranks called different operations; the message holds both."""


class ClosedError(CommunicatorError, ValueError):
    """The communicator was closed before."""

    advice = "make a new communicator with rdmaring.init()"


class ForkedError(CommunicatorError):
    """A communicator was used in a child of the process that made it."""


class SystemCallError(CommunicatorError, OSError):
    """The operating system refused something; the message holds its words."""

    def __str__(self) -> str:  # OSError would print errno fields
        return str(self.args[0])


class SetupError(CommunicatorError, ConnectionError):
    """The communicator could not be made: ranks are missing, too far apart, or of another version."""

    advice = "start all ranks anew; the output of the rank that is named says more"


class NoQuorumError(CommunicatorError, ConnectionError):
    """``shrink()`` reached no majority of the ranks, and not all others are proven dead; it may be called again.

    present: ranks that took part. absent: rank -> why its death is not proven.
    """

    present: tuple[int, ...] = ()
    absent: dict[int, str] = {}  # noqa: RUF012 - replaced, not changed


class LeftOutError(CommunicatorError):
    """``shrink()`` came too late: the other survivors went on without this rank."""


class DeviceError(CommunicatorError):
    """A call of the GPU's driver failed; the message names the call and the driver's error."""


BY_STATUS: dict[int, type[RdmaringError]] = {
    -1: ArgumentError,
    -2: OutOfMemoryError,
    -3: UnsupportedError,
    -4: ScheduleFormatError,
    -20: LinkError,
    -21: ProtocolError,
    -22: CorruptError,
    -40: OperationTimeoutError,
    -41: PeerDiedError,
    -42: PeerFailedError,
    -43: PeerClosedError,
    -44: AbortedError,
    -45: MismatchError,
    -46: ClosedError,
    -47: ForkedError,
    -48: SystemCallError,
    -49: SetupError,
    -50: DeviceError,
}
