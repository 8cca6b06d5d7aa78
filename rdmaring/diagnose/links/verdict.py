"""Which edge, or which host, is slow: by comparing what should be alike.

Edges of one transport are compared with each other, never with an absolute figure. A host is named when every edge
that it sends on, or receives on, or both, is slow against the edges that do not touch it; an edge when it alone is,
against all others. Slow is below 0.7 of the median of those others, and outside of what they scatter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rdmaring.diagnose.links.counters import troubles
from rdmaring.diagnose.links.records import Edge, Member, Slow

SLOW_RATIO = 0.7
SUSPECT_RATIO = 0.85  # measured again before anything is said
SCATTER = 3 * 1.4826  # median absolute deviations: three standard deviations, were they normal
DIRECTIONS = ("both", "sending", "receiving")


@dataclass(frozen=True)
class Group:
    """Edges that should be alike. unit: of each rank, what may be slow as a whole: its node, or the rank itself."""

    transport: str
    edges: tuple[Edge, ...]
    unit: Mapping[int, int]
    what: str  # "host" or "rank"


def groups_of(edges: Sequence[Edge], members: Sequence[Member]) -> tuple[list[Group], list[str]]:
    """What is compared with what, and what is not compared at all.

    Ranks that outnumber the CPUs they may use take turns; what passes between them depends on whose turn it is.
    """
    node = {member.rank: member.node for member in members}
    notes, crowded = [], set()
    for number in sorted(set(node.values())):
        own = [member for member in members if member.node == number]
        cpus = {cpu for member in own for cpu in member.cpus}
        if len(own) > len(cpus):
            crowded.add(number)
            notes.append(
                f"edges inside node {number} ({own[0].host}): {len(own)} ranks share {len(cpus)} CPUs, "
                "and their rates depend on who runs when"
            )
    groups = []
    for transport in sorted({edge.transport for edge in edges}):
        inside = transport == "shm"
        alike = tuple(
            edge for edge in edges if edge.transport == transport and not (inside and node[edge.source] in crowded)
        )
        unit = {rank: rank for rank in node} if inside else node
        if alike:
            groups.append(Group(transport, alike, unit, "rank" if inside else "host"))
    return groups, notes


def suspects(edges: Sequence[Edge], members: Sequence[Member]) -> list[tuple[int, int]]:
    """The edges that may be slow, slowest first against those like them."""
    found = []
    for group in groups_of(edges, members)[0]:
        fast = max((_median_without(group, unit) for unit in set(group.unit.values())), default=0.0)
        found += [(edge.gb_s / fast, edge.source, edge.target) for edge in group.edges if fast > 0]
    return [(source, target) for ratio, source, target in sorted(found) if ratio < SUSPECT_RATIO]


def find_slow(edges: Sequence[Edge], members: Sequence[Member]) -> tuple[tuple[Slow, ...], tuple[str, ...]]:
    """Everything that is slow, and notes on what could not be judged."""
    groups, notes = groups_of(edges, members)
    slow: list[Slow] = []
    for group in groups:
        left, found = group, _slowest_unit(group, members)
        while found is not None:
            slow.append(found[0])
            left = Group(group.transport, found[1], group.unit, group.what)
            found = _slowest_unit(left, members)
        slow += _slow_edges(left, members)
    return tuple(slow), tuple(notes)


def _median_without(group: Group, unit: int) -> float:
    return median([edge.gb_s for edge in group.edges if unit not in _units(group, edge)] or [0.0])


def _units(group: Group, edge: Edge) -> tuple[int, int]:
    return group.unit[edge.source], group.unit[edge.target]


def _below(values: Sequence[float], others: Sequence[float]) -> tuple[bool, float]:
    """Whether all values are slow against the others, and the others' median."""
    reference = median(others)
    scatter = median([abs(other - reference) for other in others])
    limit = min(SLOW_RATIO * reference, reference - SCATTER * scatter)
    return max(values) < limit, reference


# ---- a host, or a rank ----


def _slowest_unit(group: Group, members: Sequence[Member]) -> tuple[Slow, tuple[Edge, ...]] | None:
    """The unit whose edges are slowest against the rest, and the edges that are left without them."""
    found: list[tuple[int, float, Slow, tuple[Edge, ...]]] = []
    for unit in sorted({unit for edge in group.edges for unit in _units(group, edge)}):
        for rank, direction in enumerate(DIRECTIONS):
            own = [edge for edge in group.edges if _touches(group, edge, unit, direction)]
            others = [edge for edge in group.edges if unit not in _units(group, edge)]
            peers = {place for edge in own for place in _units(group, edge)} - {unit}
            if len(peers) < 2 or not others or not _complete(group, own, unit, direction):
                continue
            is_slow, reference = _below([edge.gb_s for edge in own], [edge.gb_s for edge in others])
            if is_slow:
                rest = tuple(edge for edge in group.edges if edge not in own)
                slow = _unit_slow(group, unit, direction, own, reference, len(others), members)
                found.append((rank, slow.ratio, slow, rest))
    if not found:
        return None
    _, _, slow, rest = min(found, key=lambda each: each[:2])
    return slow, rest


def _touches(group: Group, edge: Edge, unit: int, direction: str) -> bool:
    source, target = _units(group, edge)
    return (direction != "receiving" and source == unit) or (direction != "sending" and target == unit)


def _complete(group: Group, own: Sequence[Edge], unit: int, direction: str) -> bool:
    """Both directions are there, if both are claimed: else the claim is "sending" or "receiving"."""
    return direction != "both" or len({group.unit[edge.source] == unit for edge in own}) == 2


def _unit_slow(
    group: Group,
    unit: int,
    direction: str,
    own: Sequence[Edge],
    reference: float,
    others: int,
    members: Sequence[Member],
) -> Slow:
    ranks = tuple(member.rank for member in members if group.unit[member.rank] == unit)
    rate = median([edge.gb_s for edge in own])
    host = members[ranks[0]].host
    named = f"host {host} ({rank_text(ranks)})" if group.what == "host" else f"rank {ranks[0]}"
    doing = {"both": "sending and receiving", "sending": "sending", "receiving": "receiving"}[direction]
    evidence = [
        f"all its {len(own)} edges ({doing}) are slow: {rate_range(own)} GB/s",
        f"the {others} edges that do not touch it: {reference:.4g} GB/s (median)",
    ]
    evidence += [line for rank in ranks for line in _counter_lines(members[rank])]
    text = f"{named} is slow {doing} over {group.transport}: {rate:.4g} GB/s, {rate / reference:.2f} of the others"
    return Slow(group.what, None, None, ranks, direction, group.transport, rate, reference, text, tuple(evidence))


# ---- single edges ----


def _slow_edges(group: Group, members: Sequence[Member]) -> list[Slow]:
    slow = []
    for edge in group.edges:
        others = [other.gb_s for other in group.edges if other is not edge]
        if others:
            is_slow, reference = _below([edge.gb_s], others)
            if is_slow:
                slow.append(_edge_slow(group, edge, reference, len(others), members))
    return slow


def _edge_slow(group: Group, edge: Edge, reference: float, others: int, members: Sequence[Member]) -> Slow:
    source, target = members[edge.source], members[edge.target]
    text = (
        f"edge rank {edge.source} -> rank {edge.target} ({source.host} -> {target.host}, {edge.transport}) is slow: "
        f"{edge.gb_s:.4g} GB/s, {edge.gb_s / reference:.2f} of the others"
    )
    times = ", ".join(f"{each:.4g}" for each in edge.measured_gb_s)
    often = "once" if len(edge.measured_gb_s) == 1 else f"{len(edge.measured_gb_s)} times"
    evidence = [
        f"the {others} edges like it: {reference:.4g} GB/s (median)",
        f"measured {often}, each the median of its messages: {times} GB/s",
    ]
    for other in group.edges:
        if (other.source, other.target) == (edge.target, edge.source):
            evidence.append(f"the other direction, rank {other.source} -> rank {other.target}: {other.gb_s:.4g} GB/s")
    if edge.of_expected is not None:
        evidence.append(f"expected {edge.expected.gb_s:.4g} GB/s ({edge.expected.text}): {edge.of_expected:.2f} of it")
    evidence += _counter_lines(source) + _counter_lines(target)
    return Slow(
        "edge",
        edge.source,
        edge.target,
        (edge.source, edge.target),
        "sending",
        edge.transport,
        edge.gb_s,
        reference,
        text,
        tuple(evidence),
    )


def _counter_lines(member: Member) -> list[str]:
    moved = troubles(member.counters)
    if not moved:
        return []
    listed = ", ".join(f"{name} +{by}" for name, by in sorted(moved.items()))
    return [f"counters of rank {member.rank} ({member.host}) meanwhile: {listed}"]


def rank_text(ranks: Sequence[int]) -> str:
    """ "rank 3", "ranks 2, 3"."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def rate_range(edges: Sequence[Edge]) -> str:
    rates = [edge.gb_s for edge in edges]
    return f"{min(rates):.4g} to {max(rates):.4g}"
