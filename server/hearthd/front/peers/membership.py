"""A session's membership in a group over daemons: this daemon's ranks of it. The base of leading and following."""

from __future__ import annotations

import base64
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_text, to_text
from hearth_proto.v1 import node_pb2
from hearthd.front.collectives.flight_recorder import FlightRecorder, GroupHistory
from hearthd.front.collectives.match import GROUP
from hearthd.front.peers.frames import Body
from hearthd.front.peers.tickets import Members, devices_of, natural

if TYPE_CHECKING:
    from hearthd.front.links.link import DeviceLink
    from hearthd.front.sessions.session import Session

REBUILD = "Leave the group and rebuild it from the devices that are there: create it anew and have all nodes join."
MAX_SECONDS = 366 * 86400.0
"""Longer timeouts are as good as this one."""
MAX_BEHIND = 1024
"""Operations that one stands behind."""
MAX_TEXT = 1000
MAX_DETAILS = 16
"""Details that a refusal may have."""
MAX_UNIQUE_ID = 4096
"""Characters in base64; NCCL's has 128 bytes."""
MAX_NOTED = 20
"""Log lines about ignored messages, for each group."""
_FIELDS = frozenset({"kind", "count", "dtype", "reduce", "root", "peer"})


class GroupMembership(ABC):
    """Abstract membership. Belongs to the event loop."""

    def __init__(self, group: bytes, members: Members, node: int, session: Session) -> None:
        self.id = group.hex()
        self.members = members
        self.node = node
        self.session = session
        self.ranks = devices_of(members, node)
        """Ranks by this daemon's ordinals."""
        self.over: Refusal | None = None
        """Why nothing runs in the group any more; it is there until it is left, to say so."""

    # ---- towards the session's device processes ----

    def enter(self, link: DeviceLink, channel: int) -> None:
        """Announces the group, and the rank, to a process of the session."""
        rank = self.ranks.get(link.ordinal)
        if rank is not None:
            tell(link, {"op": "group", "channel": channel, "group": self.id, "rank": rank, "ranks": len(self.members)})

    def exit(self) -> None:
        """The session has left: its processes know of the group no more."""
        for device in self.ranks:
            channel = self.session.channels.get(device)
            if channel is not None and channel.alive:
                tell(channel.link, {"op": "ungroup", "channel": channel.number, "group": self.id})

    def fail(self, link: DeviceLink, channel: int, sequence: int, refusal: Refusal) -> None:
        """An operation of the session will not run."""
        body = {"op": "fail", "channel": channel, "group": self.id, "devices": [], "sequence": sequence}
        tell(link, {**body, "status": status_of(refusal)})

    # ---- what becomes of it ----

    @property
    def state(self) -> str:
        return "failed" if self.over is not None else "ready"

    @abstractmethod
    def present(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """A device process of the session presents an operation."""

    @abstractmethod
    def withdraw(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """A device process of the session will not take part in an operation."""

    @abstractmethod
    def process_lost(self, link: DeviceLink, why: str) -> None:
        """A device process of this daemon has ended; it may have been the session's."""

    @abstractmethod
    def leave(self, why: str) -> None:
        """Gives the group up, here and on all its daemons."""

    def ring(self, recorder: FlightRecorder) -> GroupHistory | None:
        """Returns the group's last operations; `recorder`: that of the groups which this daemon coordinates."""
        return next((ring for _, ring in recorder.rings(GROUP + self.id)), None)

    def info(self) -> node_pb2.GroupInfo:
        """Returns its description for DescribeGroups; the operations are those of `ring`."""
        return node_pb2.GroupInfo(
            group=bytes.fromhex(self.id),
            members=[node_pb2.GroupMember(node=member.node, device=member.device) for member in self.members],
            state=self.state,
            detail=self.over.message if self.over is not None else "",
        )


def tell(link: Any, body: Body) -> None:
    """Sends a COLLECTIVE frame to a device process of this daemon."""
    link.send_json(Kind.COLLECTIVE, body)


def status_of(refusal: Refusal) -> str:
    return to_text(refusal)


def failed(group: str, why: str) -> Refusal:
    """Returns the refusal of operations of a group that is over."""
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"The group {group[:8]} over several daemons is over: {why}.",
        fix=REBUILD,
        details={"group": group},
    )


# ---- what peers say, made fit to be used: each raises ValueError, KeyError or TypeError for what means nothing ----


def text_of(value: Any, most: int = MAX_TEXT) -> str:
    """A peer's words, for a log or a message: bounded, on one line."""
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} in the place of a text")
    return "".join(each if each.isprintable() else " " for each in value[:most])


def encoded(value: Any, most: int = 64 << 10) -> str:
    """Bytes as base64, left so."""
    if not isinstance(value, str) or len(value) > most:
        raise ValueError("no base64, or too much of it")
    base64.b64decode(value, validate=True)
    return value


def refusal_in(status: str) -> Refusal:
    """Returns a peer's refusal, or its reason for giving a group up, in its words, for a session of this daemon."""
    told = from_text(status)
    details = {text_of(key, 64): text_of(value) for key, value in list(told.details.items())[:MAX_DETAILS]}
    return Refusal(told.reason, text_of(told.message), fix=text_of(told.fix), details=details)


def presented(group: str, body: Mapping[str, Any]) -> Body:
    """Checks a rank's `present`; its channel is known where it came from."""
    signature = body["signature"]
    if not isinstance(signature, list):
        raise ValueError("the signature is no list")
    timeout = body.get("timeout") or 0
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise ValueError("the timeout is no number of seconds")
    behind = body.get("behind") or []
    if not isinstance(behind, list) or len(behind) > MAX_BEHIND:
        raise ValueError("what it stands behind is no list, or too long")
    return {
        "op": "present",
        "channel": 0,
        "group": group,
        "devices": [],
        "sequence": natural(body["sequence"]),
        "signature": [_entry(entry) for entry in signature],
        "timeout": float(min(timeout, MAX_SECONDS)),
        "behind": [[[], natural(sequence)] for _, sequence in behind],
    }


def withdrawn(group: str, body: Mapping[str, Any]) -> Body:
    """Checks a rank's `withdraw`."""
    status = status_of(refusal_in(encoded(body["status"])))
    sequence = natural(body["sequence"])
    return {"op": "withdraw", "channel": 0, "group": group, "devices": [], "sequence": sequence, "status": status}


def _entry(entry: Any) -> Body:
    if not isinstance(entry, dict) or not set(entry) <= _FIELDS:
        raise ValueError("an operation has fields that there are not")
    for name, value in entry.items():
        if isinstance(value, str):
            if len(value) > 64 or not (value.isascii() and value.isprintable()):
                raise ValueError(f"{name} is too long, or no word")
        elif value is not None:
            natural(value)
    if not isinstance(entry.get("kind"), str):
        raise ValueError("an operation has no kind")
    return dict(entry)


def about(body: Mapping[str, Any], comm: str) -> Body:
    """Translates a device process's message about a communicator, under another name for that."""
    op = body["op"]
    said: dict[str, Callable[[], Body]] = {
        "id": lambda: {"unique_id": encoded(body["unique_id"], MAX_UNIQUE_ID)},
        "joined": lambda: {},
        "join_failed": lambda: {"status": encoded(body["status"])},
        "failed": lambda: {
            "reason": text_of(body.get("reason") or ""),
            "timed_out": body.get("timed_out") is True,
            "sequence": natural(body.get("sequence") or 0),
        },
        "progress": lambda: {"done": natural(body["done"])},
    }
    if op not in said:
        raise ValueError(f"there is no {str(op)[:40]!r}")
    return {"op": op, "comm": comm, **said[op]()}
