"""Where a rank's flags lie: in GPU memory, but where the driver has too few hardware queues, or as chosen."""

from __future__ import annotations

import pytest

from rdmaring.cuda.blocks import CONNECTIONS, choose_flags_place
from rdmaring.errors import ArgumentError


@pytest.mark.parametrize(
    ("queues", "channels", "chosen", "place"),
    [
        ("", 1, "", "device"),
        ("1", 1, "", "host"),
        ("3", 1, "", "host"),  # two of the channel, the releasing one and the caller's are four
        ("4", 1, "", "device"),
        ("4", 2, "", "host"),
        ("32", 8, "", "device"),
        ("many", 1, "", "device"),  # the driver ignores it
        ("1", 1, "device", "device"),
        ("", 1, "host", "host"),
    ],
)
def test_place(monkeypatch: pytest.MonkeyPatch, queues: str, channels: int, chosen: str, place: str) -> None:
    monkeypatch.setenv(CONNECTIONS, queues)
    monkeypatch.setenv("RDMARING_CUDA_FLAGS", chosen)
    assert choose_flags_place(channels) == place


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMARING_CUDA_FLAGS", "gpu")
    with pytest.raises(ArgumentError, match="RDMARING_CUDA_FLAGS is 'gpu'; accepted are 'device' and 'host'"):
        choose_flags_place(1)
