"""Settings: arguments of init() first, then RDMARING_* variables, then defaults."""

from __future__ import annotations

import difflib
import logging
import operator
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rdmaring import verbs_settings
from rdmaring.errors import ArgumentError
from rdmaring.schedule import ALGORITHMS
from rdmaring.schedule.rows import CHANNELS_MAX
from rdmaring.verbs_settings import VerbsSettings

if TYPE_CHECKING:
    from rdmaring.transport.serve import MessageTransport

TIMEOUT_S_DEFAULT = 300.0
TRANSPORTS = ("tcp", "verbs")
CHECKS = ("crc", "finite")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# Every name that rdmaring reads, and what it means.
VARIABLES: dict[str, str] = {
    "RDMARING_RANK": "this process's rank; set by the launcher",
    "RDMARING_WORLD_SIZE": "number of ranks; set by the launcher",
    "RDMARING_LOCAL_RANK": "rank on this node; set by the launcher",
    "RDMARING_RENDEZVOUS": "host:port of rank 0, where the ranks meet; set by rdmaring run, by hand elsewhere",
    "RDMARING_RENDEZVOUS_HOSTED": "1: the launcher listens there; set by the launcher",
    "RDMARING_SECRET": "the job's secret, which every rank must prove",
    "RDMARING_HOST_ID": "name of this host, instead of the kernel's boot id",
    "RDMARING_TIMEOUT": "seconds an operation may take, the assembly of the world, and its set-up",
    "RDMARING_ALGORITHM": "algorithm of every collective that has it",
    "RDMARING_TUNING": "file of measured times, made by `rdmaring tune`, by which algorithms are chosen",
    "RDMARING_PROBE": "1: constants by which algorithms are chosen are measured when the world is made",
    "RDMARING_RING_ORDER": "ranks as rings visit them, such as 0,2,1,3; `rdmaring links --reorder` prints it",
    "RDMARING_TRANSPORT": "what may serve edges between nodes: tcp, verbs, or both between commas",
    "RDMARING_REQUIRE": "rdma: init() raises where an edge between nodes would go over TCP",
    "RDMARING_LINK": "path of a shared library whose transport serves edges between nodes (rdmaring_link.h)",
    "RDMARING_TCP_STREAMS": "data sockets of a channel of a TCP edge between nodes, 1 to 16",
    "RDMARING_CHANNELS": "parts of the vector with links of their own between nodes, 1 to 16; equal on all ranks",
    "RDMARING_LIBIBVERBS": "path of another libibverbs than the system's libibverbs.so.1",
    "RDMARING_SYSFS": "another root than /sys for the facts of devices; tests set it",
    "RDMARING_CHECK": "crc: slices carry CRC32C sums; finite: inputs of reductions have no NaN or infinity; or both",
    "RDMARING_RESTORE": "1: inputs that an operation overwrites are put back if it fails",
    "RDMARING_CMA": "0: never read another process's ordinary memory; use slots",
    "RDMARING_SLOT_BYTES": "bytes of a slot of a shared memory link",
    "RDMARING_SLOT_COUNT": "slots of a shared memory link",
    "RDMARING_MEMORY_BUDGET": "bytes this process may give to links",
    "RDMARING_SIMD": "lower the instruction set: scalar, x86-64-v3, x86-64-v4",
    "RDMARING_DEVICE": "number of the GPU that device='cuda' means; else the rank's number on its node",
    "RDMARING_CUDA_IPC": "0: never open another process's GPU memory; go through host memory",
    "RDMARING_CUDA_BETWEEN_NODES": "streams or host: who runs operations on GPU memory that go between nodes",
    "RDMARING_CUDA_FLAGS": "device or host: where the flags lie that order streams of several processes",
    "RDMARING_PIN": "0: rdmaring run does not pin ranks to CPUs",
    "RDMARING_TRACE": "file for a trace of the whole program, as Perfetto opens it; see `rdmaring trace`",
    "RDMARING_LOG": "level of the logger 'rdmaring' for programs that do not set one",
}

VARIABLES.update(verbs_settings.VARIABLES)


@dataclass(frozen=True)
class Settings:
    """Of one communicator and those split off it. None: the library's default."""

    timeout_s: float = TIMEOUT_S_DEFAULT
    algorithm: str | None = None
    tuning: str | None = None  # path of a tuning file
    probe: bool = False
    ring_order: tuple[int, ...] | None = None  # of the world: ranks as rings visit them
    transports: tuple[str, ...] = TRANSPORTS  # that may serve edges between nodes
    require_rdma: bool = False
    tcp_streams: int | None = None
    channels: int | None = None
    verbs: VerbsSettings = verbs_settings.DEFAULT
    link_library: str | None = None  # path of a library that serves edges between nodes
    link_transport: MessageTransport | None = None  # or what a Python class does for them
    checks: frozenset[str] = frozenset()  # of CHECKS
    restore: bool = False  # this rank puts overwritten inputs back after a failed operation
    cma: bool = True
    slot_bytes: int | None = None
    slot_count: int | None = None
    memory_budget_bytes: int | None = None
    device: int | None = None  # the GPU that device="cuda" means
    key: bytes = b""  # by which links between nodes prove the job; made by the rendezvous
    serial_start: int = 0  # first serial of links and mailboxes: tests meet the wrap with it


BYTES_MAX, COUNT_MAX = 1 << 62, (1 << 31) - 1  # of a variable: what C's members hold


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if text is None or text == "":
        return None
    try:
        value = int(text)
    except ValueError:
        value = 0
    most = BYTES_MAX if name.endswith(("_BYTES", "_BUDGET")) else COUNT_MAX
    if not 0 < value <= most:
        raise ArgumentError(f"{name} is {text!r:.60}; accepted is an integer > 0, of at most {most}")
    return value


def _device(text: str) -> int | None:
    number = text.removeprefix("cuda:")
    if number and not (number.isascii() and number.isdigit() and len(number) < 10):
        raise ArgumentError(f"RDMARING_DEVICE is {text!r}; accepted is a GPU's number, such as 0 or cuda:0")
    return int(number) if number else None


def _ranks(env: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    text = env.get(name, "")
    if not text:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentError(f"{name} is {text!r}; accepted are ranks between commas, such as 0,2,1,3") from None


def _transports(text: str, name: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names or not set(names) <= set(TRANSPORTS):
        raise ArgumentError(f"{name} is {text!r}; accepted are {', '.join(TRANSPORTS)}, or both between commas")
    return names


def _requires_rdma(value: str | None, name: str) -> bool:
    if value not in (None, "rdma"):
        raise ArgumentError(f"{name} is {value!r}; accepted is 'rdma'")
    return value == "rdma"


def _channels(value: int | None, name: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= CHANNELS_MAX):
        raise ArgumentError(f"{name} is {value!r}; accepted are 1 to {CHANNELS_MAX} channels")
    return value


def _checks(value: str, name: str) -> frozenset[str]:
    names = frozenset(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else {None}
    if not names <= set(CHECKS):
        raise ArgumentError(f"{name} is {value!r}; accepted are {', '.join(map(repr, CHECKS))}, or both between commas")
    return frozenset(map(str, names))


def with_arguments(
    settings: Settings,
    *,
    transport: str | MessageTransport | None = None,
    require: str | None = None,
    tcp_streams: int | None = None,
    channels: int | None = None,
    verbs: Mapping[str, Any] | None = None,
    tuning: str | os.PathLike[str] | None = None,
    probe: bool | None = None,
    check: str | None = None,
    restore: bool | None = None,
) -> Settings:
    """What init() was given goes before the variables.

    Raises:
        ArgumentError: a value that is not accepted.
    """
    if isinstance(transport, str) and ("/" in transport or transport.endswith(".so")):
        settings = replace(settings, link_library=transport, link_transport=None)
    elif isinstance(transport, str):
        settings = replace(
            settings, transports=_transports(transport, "transport"), link_library=None, link_transport=None
        )
    elif transport is not None:
        settings = replace(settings, link_library=None, link_transport=transport)
    if require is not None:
        settings = replace(settings, require_rdma=_requires_rdma(require, "require"))
    if tcp_streams is not None:
        settings = replace(settings, tcp_streams=tcp_streams)
    if channels is not None:
        settings = replace(settings, channels=_channels(channels, "channels"))
    if verbs is not None:
        settings = replace(settings, verbs=verbs_settings.with_arguments(settings.verbs, verbs))
    if tuning is not None:
        settings = replace(settings, tuning=os.fspath(tuning) or None)
    if probe is not None:
        settings = replace(settings, probe=bool(probe))
    if check is not None:
        settings = replace(settings, checks=_checks(check, "check"))
    if restore is not None:
        settings = replace(settings, restore=bool(restore))
    if settings.probe and settings.tuning:
        raise ArgumentError(
            f"a probe (probe= or RDMARING_PROBE) and the tuning file {settings.tuning!r}; accepted is one of the two",
            hint="tuning='' or probe=False goes before the variables",
        )
    if settings.require_rdma and "verbs" not in settings.transports:
        raise ArgumentError("require='rdma' with transport='tcp'; accepted is a transport that has RDMA: verbs")
    if settings.require_rdma and (settings.link_library or settings.link_transport):
        raise ArgumentError("require='rdma' with a transport of your own; accepted is one of the two")
    return settings


def read(env: Mapping[str, str], timeout_s: float | None) -> Settings:
    """The settings of this process.

    Raises:
        ArgumentError: a value that does not parse.
    """
    warn_unknown(env)
    if timeout_s is None:
        text = env.get("RDMARING_TIMEOUT", "")
        try:
            timeout_s = float(text) if text else TIMEOUT_S_DEFAULT
        except ValueError:
            raise ArgumentError(f"RDMARING_TIMEOUT is {text!r}; accepted is a number of seconds") from None
    if not 0 < timeout_s < 1e9:
        raise ArgumentError(f"timeout_s is {timeout_s!r}; accepted are seconds > 0")
    algorithm = env.get("RDMARING_ALGORITHM") or None
    known = sorted({name for _, name in ALGORITHMS})
    if algorithm is not None and algorithm not in known:
        raise ArgumentError(f"RDMARING_ALGORITHM is {algorithm!r}; accepted are {', '.join(known)}")
    return Settings(
        timeout_s=timeout_s,
        algorithm=algorithm,
        tuning=env.get("RDMARING_TUNING") or None,
        probe=env.get("RDMARING_PROBE", "0") not in ("", "0"),
        ring_order=_ranks(env, "RDMARING_RING_ORDER"),
        transports=_transports(env.get("RDMARING_TRANSPORT") or ",".join(TRANSPORTS), "RDMARING_TRANSPORT"),
        require_rdma=_requires_rdma(env.get("RDMARING_REQUIRE") or None, "RDMARING_REQUIRE"),
        tcp_streams=_number(env, "RDMARING_TCP_STREAMS"),
        channels=_channels(_number(env, "RDMARING_CHANNELS"), "RDMARING_CHANNELS"),
        verbs=verbs_settings.read(env),
        link_library=env.get("RDMARING_LINK") or None,
        checks=_checks(env.get("RDMARING_CHECK", ""), "RDMARING_CHECK"),
        restore=env.get("RDMARING_RESTORE", "0") not in ("", "0"),
        cma=env.get("RDMARING_CMA", "1") != "0",
        slot_bytes=_number(env, "RDMARING_SLOT_BYTES"),
        slot_count=_number(env, "RDMARING_SLOT_COUNT"),
        memory_budget_bytes=_number(env, "RDMARING_MEMORY_BUDGET"),
        device=_device(env.get("RDMARING_DEVICE", "")),
    )


def with_ring_order(settings: Settings, reorder: Sequence[int] | bool) -> Settings:
    """What init()'s ``reorder`` asks for goes before RDMARING_RING_ORDER.

    Raises:
        ArgumentError: it is neither a bool nor a sequence of ranks.
    """
    if isinstance(reorder, bool):
        return replace(settings, ring_order=None)
    try:
        return replace(settings, ring_order=tuple(operator.index(rank) for rank in reorder))
    except TypeError:
        raise ArgumentError(f"reorder is {reorder!r}; accepted are a sequence of ranks, True and False") from None


def set_log_level(env: Mapping[str, str]) -> None:
    """RDMARING_LOG: a program that sets up no logging of its own still sees what rdmaring logs.

    Raises:
        ArgumentError: no such level.
    """
    level = env.get("RDMARING_LOG", "").upper()
    if not level:
        return
    if level not in LOG_LEVELS:
        raise ArgumentError(f"RDMARING_LOG is {level!r}; accepted are debug, info, warning, error, critical")
    logger = logging.getLogger("rdmaring")
    logger.setLevel(level)
    heard = [handler for handler in logger.handlers if not isinstance(handler, logging.NullHandler)]
    if not heard and not logging.getLogger().handlers:
        logger.addHandler(logging.StreamHandler())


def warn_unknown(env: Mapping[str, str]) -> None:
    """A misspelt variable does nothing: say so, with the nearest known name."""
    for name in env:
        if name.startswith("RDMARING_") and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            also = f"; did you mean {near[0]}?" if near else ""
            warnings.warn(f"the environment variable {name} is unknown to rdmaring{also}", stacklevel=4)
