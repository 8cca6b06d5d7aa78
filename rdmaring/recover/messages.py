"""The agreement's messages and records as JSON objects, and back: every field checked before it is believed."""

from __future__ import annotations

from typing import Any

from rdmaring.recover.agreement import (
    Accept,
    Accepted,
    Ballot,
    Decided,
    Here,
    Message,
    Outcome,
    Prepare,
    Promise,
    Record,
    Refused,
)
from rdmaring.rendezvous.protocol import ProtocolError, integer

NUMBER_MAX = 1 << 62  # of operations and of rounds
KINDS = {"here": Here, "prepare": Prepare, "promise": Promise, "accept": Accept, "accepted": Accepted}
KINDS |= {"refused": Refused, "decided": Decided}
NAMES = {kind: name for name, kind in KINDS.items()}


def encode_outcome(outcome: Outcome) -> dict[str, Any]:
    return {"survivors": list(outcome.survivors), "last_op": outcome.last_op, "port": outcome.port}


def decode_outcome(value: Any, world: int) -> Outcome:
    """Raises ProtocolError."""
    fields = _object(value, "outcome")
    survivors = fields.get("survivors")
    if not isinstance(survivors, list) or not survivors or len(survivors) > world:
        raise ProtocolError("survivors is not a list of ranks")
    ranks = tuple(integer({"rank": rank}, "rank", 0, world - 1) for rank in survivors)
    if list(ranks) != sorted(set(ranks)):
        raise ProtocolError("survivors are not in order")
    return Outcome(ranks, integer(fields, "last_op", 0, NUMBER_MAX), integer(fields, "port", 0, 65535))


def encode_record(record: Record) -> dict[str, Any]:
    outcome = None if record.outcome is None else encode_outcome(record.outcome)
    return {
        "promised": list(record.promised),
        "accepted": list(record.accepted),
        "outcome": outcome,
        "decided": record.decided,
    }


def decode_record(value: Any, world: int) -> Record:
    """Raises ProtocolError."""
    fields = _object(value, "record")
    outcome = None if fields.get("outcome") is None else decode_outcome(fields["outcome"], world)
    decided = fields.get("decided") is True
    if decided and outcome is None:
        raise ProtocolError("a decision without an outcome")
    return Record(_ballot(fields, "promised", world), _ballot(fields, "accepted", world), outcome, decided)


def encode(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": NAMES[type(message)]}
    if isinstance(message, Here):
        fields |= {"last_op": message.last_op, "port": message.port, "heard": message.heard}
        fields["dead"] = [[rank, encode_record(record)] for rank, record in message.dead]
        return fields
    if not isinstance(message, Decided):
        fields["ballot"] = list(message.ballot)
    if isinstance(message, Promise):
        fields["record"] = encode_record(message.record)
    elif isinstance(message, Refused):
        fields["promised"] = list(message.promised)
    elif isinstance(message, Accept | Decided):
        fields["outcome"] = encode_outcome(message.outcome)
    return fields


def decode(fields: dict[str, Any], world: int) -> Message:
    """world: ranks are below it. Raises ProtocolError."""
    kind = KINDS.get(str(fields.get("kind")))
    if kind is Here:
        return _here(fields, world)
    if kind is Decided:
        return Decided(decode_outcome(fields.get("outcome"), world))
    if kind is None:
        raise ProtocolError(f"a message of kind {fields.get('kind')!r:.40}")
    ballot = _ballot(fields, "ballot", world)
    if kind is Prepare:
        return Prepare(ballot)
    if kind is Promise:
        return Promise(ballot, decode_record(fields.get("record"), world))
    if kind is Accept:
        return Accept(ballot, decode_outcome(fields.get("outcome"), world))
    if kind is Accepted:
        return Accepted(ballot)
    return Refused(ballot, _ballot(fields, "promised", world))


def _here(fields: dict[str, Any], world: int) -> Here:
    dead = fields.get("dead")
    if not isinstance(dead, list) or len(dead) > world or not all(isinstance(e, list) and len(e) == 2 for e in dead):
        raise ProtocolError("dead is not a list of ranks and records")
    return Here(
        integer(fields, "last_op", 0, NUMBER_MAX),
        integer(fields, "port", 0, 65535),
        fields.get("heard") is True,
        tuple((integer({"rank": rank}, "rank", 0, world - 1), decode_record(record, world)) for rank, record in dead),
    )


def _ballot(fields: dict[str, Any], name: str, world: int) -> Ballot:
    value = fields.get(name)
    if not isinstance(value, list) or len(value) != 2:
        raise ProtocolError(f"{name} is not a ballot")
    return integer({"round": value[0]}, "round", 0, NUMBER_MAX), integer({"rank": value[1]}, "rank", -1, world - 1)


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} is not an object")
    return value
