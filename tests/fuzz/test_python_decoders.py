"""Whatever comes from outside, Python's decoders raise what they document and nothing else, in bounded time and memory.

`scripts/test --long tests/fuzz` searches longer, from a new seed, which it prints; FUZZ_SEED=N repeats one.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from fuzz.searching import PROFILES, as_json, damaged, documents, search
from hypothesis import strategies as st

from rdmaring import settings
from rdmaring.cli.simulate_options import OptionError, costs_from
from rdmaring.diagnose.doctor import machine
from rdmaring.diagnose.doctor.findings import from_dict
from rdmaring.diagnose.doctor.probes import decode_probes
from rdmaring.diagnose.trace import perfetto, records
from rdmaring.errors import ArgumentError
from rdmaring.recover import messages
from rdmaring.recover.agreement import Accept, Decided, Here, Outcome, Prepare, Promise, Record, Refused
from rdmaring.rendezvous import boards, environment, hostlist, protocol, sockets
from rdmaring.rendezvous.protocol import ProtocolError, RendezvousError
from rdmaring.schedule import ScheduleError, encode, generate
from rdmaring.tuning import file as tuning
from rdmaring.tuning.constants import built_in
from rdmaring.tuning.fingerprint import Fingerprint

WORLD = 5
MEMBER = protocol.Member(1, WORLD, "0.3.0", "6.5", "host", 4711, 30.0, 300.0)


class Target(NamedTuple):
    """A decoder, what it is given, and which errors it documents."""

    decode: Callable[[Any], object]
    inputs: st.SearchStrategy[Any]
    documented: tuple[type[BaseException], ...]


def in_file(read: Callable[[Path], object], name: str = "given") -> Callable[[bytes], object]:
    """A decoder of files, given bytes."""

    def decode(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            return read(path)

    return decode


def of_json(decode: Callable[[dict[str, Any]], object]) -> Callable[[Any], object]:
    """A decoder of objects, given what it had as JSON over the network."""
    return lambda document: decode(protocol.parse_object(as_json(document)))


# ---- valid ones, to begin with ----

SCHEDULES = [
    encode.encode_file(generate("all_reduce", "ring", 3)),
    encode.encode_file(generate("broadcast", "tree", 4, 2)),
    encode.encode_file(generate("all_to_all", "direct", 3)),
]
TABLES = [encode.encode_rank(generate("all_reduce", name, 4), 1) for name in ("ring", "halving", "direct")]
CONSTANTS = built_in("shm", None)
TUNING = tuning._plain(Fingerprint(("cpu",), ("shm",), ("none",)), CONSTANTS)
OUTCOME = Outcome((0, 2, 3), 17, 4242)
RECORD = Record((3, 1), (2, 0), OUTCOME, True)
MESSAGES = [
    messages.encode(message)
    for message in (
        Here(17, 4242, True, ((1, RECORD),)), Prepare((3, 1)), Promise((3, 1), RECORD), Accept((3, 1), OUTCOME),
        Refused((3, 1), (4, 0)), Decided(OUTCOME),
    )
]  # fmt: skip
BOARD = json.loads(
    boards.encode_record(
        boards.Record(("host",), 4242, "host", "job", boards.proof_of(b"secret", "job"), "secret"), 4096
    )
)
MACHINE = json.loads(json.dumps(machine.bounded_dict(machine.examine(only=["secret"]))))
PROBES = {
    "reach": [{"source": "10.0.0.1", "target": "10.0.0.2", "time_us": 30, "error": ""}],
    "paths": [
        {"source": "10.0.0.1", "target": "10.0.0.2", "source_mtu": 1500, "target_mtu": 1500, "arrived": 1500,
         "reported": 0, "reporter": ""}
    ],
}  # fmt: skip
ENVIRONMENTS = [
    {"RDMARING_RANK": "0", "RDMARING_WORLD_SIZE": "2", "RDMARING_RENDEZVOUS": "[::1]:29400"},
    {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "29500"},
    {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
     "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_NAMESPACE": "prterun-node7-4711@1", "PMIX_SERVER_URI2": "a.0;tcp4://h:1",
     "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1,10.0.0.2:4711"},
    {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": "3000", "MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "0"},
    {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[01-03,7],gpu5", "SLURM_JOB_ID": "7",
     "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"},
]  # fmt: skip
SETTINGS = {
    "RDMARING_TIMEOUT": "30", "RDMARING_ALGORITHM": "ring", "RDMARING_RING_ORDER": "0,2,1", "RDMARING_TRANSPORT": "tcp",
    "RDMARING_REQUIRE": "rdma", "RDMARING_TCP_STREAMS": "2", "RDMARING_CHANNELS": "2", "RDMARING_CHECK": "crc,finite",
    "RDMARING_SLOT_BYTES": "65536", "RDMARING_DEVICE": "cuda:0", "RDMARING_VERBS_QPS": "2",
    "RDMARING_VERBS_DEVICES": "mlx5_0,mlx5_1",
}  # fmt: skip


def trace() -> dict[str, Any]:
    one = np.zeros(3, records.DTYPE)
    one["begin_ns"], one["end_ns"], one["kind"] = [10, 20, 30], [15, 28, 90], [0, 2, 5]
    ranks = tuple(records.RankTrace(rank, one, "host", 4711) for rank in range(2))
    return json.loads(json.dumps(perfetto.document(records.Trace(2, ranks))))  # type: ignore[no-any-return]


# ---- what is done with them ----


def frames(data: bytes) -> None:
    reader = protocol.FrameReader(4096)
    for at in range(0, len(data), 7):
        reader.feed(data[at : at + 7])
        while reader.next() is not None:
            pass


def sealed(data: bytes) -> object:
    """The bytes of a schedule file whose sum fits, so that what stands before it is looked at."""
    return encode.decode_file(data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little"))


def variables(document: Any) -> dict[str, str]:
    return {name: str(value) for name, value in document.items()} if isinstance(document, dict) else {}


def detected(document: Any) -> None:
    given = variables(document)
    environment.started(given)
    environment.is_described(given)
    environment.detect(given)


def read_settings(document: Any) -> None:
    settings.read(variables(document), None)


def show(path: Path) -> None:
    """As `rdmaring trace show` does."""
    from rdmaring.diagnose.trace.overlap import summarize

    summarize(perfetto.read(path))


FRAMES = [protocol.object_frame({"hello": "rdmaring"}) + protocol.frame("B", b"12345"), protocol.frame("J", b"{}")]
TARGETS = {
    "frames": Target(frames, damaged(FRAMES), (ProtocolError,)),
    "member": Target(
        lambda document: protocol.decode_member(as_json(document).decode()), documents(asdict(MEMBER)), (ProtocolError,)
    ),
    "refusal": Target(
        of_json(protocol.decode_error),
        documents({"error": "rank 1 left", "hint": "look", "missing_ranks": [1, 2], "timed_out": True}),
        (ProtocolError,),
    ),
    "board": Target(
        lambda document: boards.decode_record(as_json(document), b"secret"), documents(BOARD), (RendezvousError,)
    ),
    "recovery": Target(
        of_json(lambda fields: messages.decode(fields, WORLD)),
        st.sampled_from(MESSAGES).flatmap(documents),
        (ProtocolError,),
    ),
    "schedule file": Target(encode.decode_file, damaged(SCHEDULES), (ScheduleError,)),
    "schedule file, sealed": Target(sealed, damaged(SCHEDULES), (ScheduleError,)),
    "rank table": Target(encode.decode_rank, damaged(TABLES), (ScheduleError,)),
    "tuning": Target(in_file(lambda path: tuning.load(str(path))), documents(TUNING).map(as_json), (ArgumentError,)),
    "tuning, bytes": Target(in_file(lambda path: tuning.load(str(path))), damaged([as_json(TUNING)]), (ArgumentError,)),
    "cluster": Target(in_file(costs_from), documents(tuning.costs_dict(CONSTANTS.rows)).map(as_json), (OptionError,)),
    "cluster of tuning": Target(in_file(costs_from), documents(TUNING).map(as_json), (OptionError,)),
    "trace": Target(in_file(show), documents(trace()).map(as_json), (ArgumentError,)),
    "trace, bytes": Target(in_file(show), damaged([as_json(trace())]), (ArgumentError,)),
    "environment": Target(detected, st.sampled_from(ENVIRONMENTS).flatmap(documents), (RendezvousError,)),
    "settings": Target(read_settings, documents(SETTINGS), (ArgumentError,)),
    "host list": Target(
        hostlist.expand, st.one_of(st.text("n[]0129,-\n ", max_size=40), st.text(max_size=20)), (ValueError,)
    ),
    "address": Target(sockets.parse_address, st.text("[]:09a.²", max_size=20), (ValueError,)),
    "doctor's document": Target(of_json(machine.decode), documents(MACHINE), (ProtocolError,)),
    "doctor's finding": Target(of_json(from_dict), documents(MACHINE["findings"][0]), (ProtocolError,)),
    "doctor's probes": Target(of_json(decode_probes), documents(PROBES), (ProtocolError,)),
}


@pytest.mark.parametrize(("examples", "seed"), PROFILES)
@pytest.mark.parametrize("name", TARGETS)
def test_only_documented_errors(name: str, examples: int, seed: int | None) -> None:
    target = TARGETS[name]
    search(target.decode, target.inputs, target.documented, examples, seed)


@pytest.mark.parametrize("name", TARGETS)
def test_a_search_finds_what_is_there(name: str) -> None:
    """A decoder that lets another error out is found: so few inputs suffice for a common one."""

    class Slip(Exception):
        pass

    def slips(given: Any) -> None:
        raise Slip("always")

    with pytest.raises(Slip):
        search(slips, TARGETS[name].inputs, TARGETS[name].documented, 1, 1)
