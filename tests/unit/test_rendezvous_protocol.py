"""What is said at the rendezvous: frames, members, addresses."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.rendezvous_ranks import MEMBER

from rdmaring.rendezvous.protocol import (
    FrameReader,
    ProtocolError,
    decode_member,
    encode_member,
    frame,
    rank_list,
)
from rdmaring.rendezvous.sockets import format_address, parse_address


@given(
    bodies=st.lists(st.tuples(st.sampled_from("JB"), st.binary(max_size=200)), max_size=8),
    cut=st.integers(1, 50),
)
def test_frames_survive_any_cut_of_the_stream(bodies: list[tuple[str, bytes]], cut: int) -> None:
    stream = b"".join(frame(kind, body) for kind, body in bodies)  # type: ignore[arg-type]
    reader = FrameReader(1000)
    found = []
    for start in range(0, len(stream), cut):
        reader.feed(stream[start : start + cut])
        while (whole := reader.next()) is not None:
            found.append(whole)
    assert found == bodies


@pytest.mark.parametrize("length", [0, 1001, 2**32 - 1])
def test_a_frame_out_of_bounds_is_refused_before_its_body_comes(length: int) -> None:
    reader = FrameReader(1000)
    reader.feed(struct.pack("<I", length))
    with pytest.raises(ProtocolError, match=str(length)):
        reader.next()


def test_a_member_survives_the_wire() -> None:
    assert decode_member(encode_member(MEMBER)) == MEMBER


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank", 4),
        ("rank", True),
        ("rank", "3"),
        ("world", 0),
        ("world", 1 << 40),
        ("host", "x" * 300),
        ("host", "a\nb"),
        ("pid", -1),
        ("assembly_timeout_s", float("nan")),
        ("round_timeout_s", 0),
    ],
)
def test_a_damaged_member_is_refused(field: str, value: object) -> None:
    fields = json.loads(encode_member(MEMBER)) | {field: value}
    with pytest.raises(ProtocolError):
        decode_member(json.dumps(fields))


@pytest.mark.parametrize("text", ["[" * 4000, "{", "null", "[]", '"x"', "\x00"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_member(text)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([0, 1], "ranks 0, 1"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([7, 5], "ranks 5, 7")],
)
def test_rank_list(ranks: list[int], words: str) -> None:
    assert rank_list(ranks) == words


def test_rank_list_says_how_many_it_left_out() -> None:
    assert rank_list(range(0, 100, 2)).endswith("30 and 34 more")


@pytest.mark.parametrize("text", ["h:1", "10.0.0.1:65535", "[::1]:29400", "[fe80::1%eth0]:5"])
def test_addresses_round_trip(text: str) -> None:
    assert format_address(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":5", "host:0", "host:65536", "host:-1", "::1:80", "h:\u0663"])
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        parse_address(text)
