"""What searches of the Python decoders found, and reading them: each is refused in the decoder's own words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from fuzz.test_python_decoders import CONSTANTS, trace
from fuzz.test_python_streams import FAILED, MAGIC, Kind, WireError, controlled, data_frame, linked, message, wire

from rdmaring import settings
from rdmaring.cli.simulate_options import OptionError, costs_from
from rdmaring.diagnose.trace import perfetto
from rdmaring.errors import ArgumentError
from rdmaring.rendezvous import environment
from rdmaring.rendezvous.protocol import RendezvousError
from rdmaring.tuning.file import costs_dict

EVENT = next(n for n, event in enumerate(trace()["traceEvents"]) if event["ph"] == "X" and "slice" in event["args"])


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("traceEvents", EVENT, "args", "bytes"), -1),
        (("traceEvents", EVENT, "args", "bytes"), 10**30),
        (("traceEvents", EVENT, "args", "peer"), 70000),
        (("traceEvents", EVENT, "ts"), 1e308),
        (("traceEvents", EVENT), 7),
        (("otherData", "world"), 1 << 40),
        (("otherData", "ranks", 0, "rank"), "0"),
        (("otherData", "begin_ns"), 10**400),
    ],
)
def test_traces(where: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    document = inside = trace()
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ArgumentError, match="not a trace that rdmaring wrote"):
        perfetto.read(path)


def test_a_small_file_that_unpacks_to_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "FILE_BYTES_MAX", 1 << 20)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(bytes(4 << 20)))
    with pytest.raises(ArgumentError, match="more than 1048576 bytes"):
        perfetto.read(path)


def test_costs_that_no_float_holds(tmp_path: Path) -> None:
    given = costs_dict(CONSTANTS.rows) | {"row_s": 10**400}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(given))
    with pytest.raises(OptionError, match="holds no constants"):
        costs_from(path)


@pytest.mark.parametrize("port", ["²", "9" * 5000, "123456"])
def test_ports_of_torchrun(port: str) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": port}
    with pytest.raises(RendezvousError, match="MASTER_PORT"):
        environment.detect(env)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RDMARING_VERBS_QPS", "1e999"),
        ("RDMARING_VERBS_QPS", "nan"),
        ("RDMARING_DEVICE", "9" * 5000),
        ("RDMARING_SLOT_BYTES", str(1 << 70)),
        ("RDMARING_TCP_STREAMS", str(1 << 32)),
    ],
)
def test_settings_that_no_number_of_c_holds(name: str, text: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        settings.read({name: text}, 1.0)


def test_messages_of_a_peer_that_are_too_short_or_too_long() -> None:
    with pytest.raises(WireError, match="tells of its failure in 3 bytes"):
        controlled((message(FAILED, b"123"), [100]))
    with pytest.raises(WireError, match="sent an OPEN of 3 bytes"):
        linked((data_frame(Kind.OPEN, b"123"), [100]))
    with pytest.raises(WireError, match="announces a frame of 4294967295 bytes"):
        linked((wire.FRAME.pack(magic=MAGIC, kind=Kind.DATA, bytes=(1 << 32) - 1), [100]))
