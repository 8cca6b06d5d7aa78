"""Settings of RDMA links: from arguments and from variables, with their ranges."""

from __future__ import annotations

import pytest

from rdmaring import settings, verbs_settings
from rdmaring.errors import ArgumentError


class Options:
    """Stands for an rr_verbs_options."""

    timeout_ns = 0
    gid_index_plus_1 = 0
    qps = 0
    service_level = 0
    devices = b""


def test_arguments_go_before_variables() -> None:
    read = settings.read({"RDMARING_VERBS_QPS": "4", "RDMARING_VERBS_GID_INDEX": "0"}, None)
    chosen = settings.with_arguments(
        read, verbs={"qps": 2, "retry_timeout_s": 0.25, "service_level": 15, "devices": "mlx5_0"}
    )
    options = Options()
    chosen.verbs.fill(options)
    assert (options.qps, options.timeout_ns, options.service_level) == (2, 250_000_000, 15)
    assert (options.gid_index_plus_1, options.devices) == (1, b"mlx5_0")


@pytest.mark.parametrize("name", sorted(verbs_settings.RANGES))
def test_what_is_out_of_range_is_refused_by_name(name: str) -> None:
    accepted = verbs_settings.RANGES[name]
    for value in (accepted.least - 1, accepted.most + 1, float("nan"), "many"):
        with pytest.raises(ArgumentError, match=rf"^{name} is .*accepted are"):
            settings.with_arguments(settings.Settings(), verbs={name: value})
        with pytest.raises(ArgumentError, match=rf"^RDMARING_VERBS_{name.upper()} is .*accepted are"):
            settings.read({verbs_settings.variable(name): str(value)}, None)
    for value in (accepted.least, accepted.most):
        assert dict(settings.with_arguments(settings.Settings(), verbs={name: value}).verbs.numbers) == {name: value}


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="did you mean traffic_class"):
        settings.with_arguments(settings.Settings(), verbs={"trafic_class": 3})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"transport": "udp"}, "transport is 'udp'"),
        ({"require": "speed"}, "require is 'speed'"),
        ({"require": "rdma", "transport": "tcp"}, "require='rdma' with transport='tcp'"),
    ],
)
def test_transports(given: dict[str, str], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        settings.with_arguments(settings.Settings(), **given)  # type: ignore[arg-type]
