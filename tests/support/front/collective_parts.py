"""Shared parts of the tests of the matcher and of the communicators."""

from __future__ import annotations

from typing import Any

from hearth_proto.reasons import Reason, Refusal, from_text
from hearthd.front.collectives.match import DeviceMessage, Match, MatchKey, Presentation, RankLocation

SIGNATURE = {"kind": "all_reduce", "count": 8, "dtype": "float32", "reduce": "sum", "root": 0, "peer": 0}


def present_body(channel: int = 1, timeout: float = 5, **changes: Any) -> dict[str, Any]:
    """Returns a `present` message of one all_reduce."""
    return {"op": "present", "channel": channel, "signature": [{**SIGNATURE, **changes}], "timeout": timeout}


def key(*members: int, owner: str = "s", sequence: int = 1) -> MatchKey:
    return MatchKey(owner, members, sequence)


def location(device: int, process: int = 0, node: int = 0) -> RankLocation:
    return RankLocation(node, device, process)


def complete(*members: int, owner: str = "s", sequence: int = 1, deadline: float = 5.0, process: int = 0) -> Match:
    """Returns an operation that all ranks have presented: rank r on channel 10 + r."""
    members = members or (0, 1)
    parts = {
        rank: Presentation(location(member, process), 10 + rank, [dict(SIGNATURE)])
        for rank, member in enumerate(members)
    }
    return Match(key(*members, owner=owner, sequence=sequence), deadline, parts)


def status_of(send: DeviceMessage) -> Refusal:
    return from_text(send.body["status"])


def refusal_in(send: DeviceMessage) -> Refusal:
    assert send.body["op"] == "fail"
    return status_of(send)


def ops(sends: list[DeviceMessage]) -> list[tuple[int, str]]:
    """Returns the device and `op` of each message."""
    return [(send.location.device, send.body["op"]) for send in sends]


def present(devices: tuple[int, ...] = (0, 1), channel: int = 1, timeout: float = 5, **more: Any) -> dict[str, Any]:
    """Builds a device process's message about one all_reduce."""
    return {
        "op": "present", "channel": channel, "group": "", "devices": list(devices), "sequence": 1,
        "signature": [SIGNATURE], "timeout": timeout, **more,
    }  # fmt: skip


def reason_of(body: dict[str, Any]) -> Reason:
    """Returns the reason of a `fail` message."""
    assert body["op"] == "fail"
    return status_of(DeviceMessage(location(0), body)).reason
