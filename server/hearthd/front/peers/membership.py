"""Membership of a session in a group over daemons: the ranks that this daemon has in the group.

Base class of `Leader` and `Follower`.
"""

from __future__ import annotations

import base64
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_text, to_text
from hearth_proto.v1 import node_pb2
from hearthd.front.collectives.flight_recorder import FlightRecorder, GroupHistory
from hearthd.front.collectives.match import GROUP
from hearthd.front.peers.frames import Body
from hearthd.front.peers.tickets import Members, devices_of, parse_unsigned

if TYPE_CHECKING:
    from hearthd.front.links.link import DeviceLink
    from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.peers")

REBUILD = "Leave the group and rebuild it from the devices that are available: create it again and have all nodes join."
MAX_SECONDS = 366 * 86400.0
"""Maximum timeout in seconds. Longer timeouts are reduced to this value."""
MAX_BEHIND = 1024
"""Maximum number of operations that an operation may be ordered after."""
MAX_TEXT = 1000
MAX_DETAILS = 16
"""Maximum number of details of a refusal."""
MAX_UNIQUE_ID = 4096
"""Maximum length in base64 characters. NCCL's unique id has 128 bytes."""
_MAX_IGNORED_LOGGED = 20
"""Maximum number of log lines about ignored messages, for each group."""
_FIELDS = frozenset({"kind", "count", "dtype", "reduce", "root", "peer"})


class GroupMembership(ABC):
    """The abstract base class of memberships. Belongs to the event loop."""

    def __init__(self, group: bytes, members: Members, node: int, session: Session) -> None:
        self.id = group.hex()
        self.members = members
        self.node = node
        self.session = session
        self.ranks = devices_of(members, node)
        """Ranks, by the ordinals of this daemon's devices."""
        self.end_reason: Refusal | None = None
        """The reason why no more operations run in the group. A group that has ended is kept until it is left, so that
        it can report the reason."""
        self._ignored = 0

    # ---- to the session's device processes ----

    def announce(self, link: DeviceLink, channel: int) -> None:
        """Announces the group and the rank to a process of the session."""
        rank = self.ranks.get(link.ordinal)
        if rank is not None:
            send_collective(
                link, {"op": "group", "channel": channel, "group": self.id, "rank": rank, "ranks": len(self.members)}
            )

    def announce_leave(self) -> None:
        """Notifies the session's processes that the session has left the group."""
        for device in self.ranks:
            channel = self.session.channels.get(device)
            if channel is not None and channel.alive:
                send_collective(channel.link, {"op": "ungroup", "channel": channel.number, "group": self.id})

    def fail(self, link: DeviceLink, channel: int, sequence: int, refusal: Refusal) -> None:
        """Notifies a device process that an operation of the session fails."""
        self.answer("fail", link, channel, sequence, {"status": to_text(refusal)})

    def answer(self, op: str, link: DeviceLink, channel: int, sequence: int, fields: Body) -> None:
        """Sends the answer to an operation of the session, `go` or `fail`, to its device process."""
        send_collective(
            link, {"op": op, "channel": channel, "group": self.id, "devices": [], "sequence": sequence, **fields}
        )

    def log_ignored(self, **fields: Any) -> None:
        """Logs a message of a peer that is stale or does not concern this daemon.

        The number of logged messages is limited, so that a peer cannot fill the log.
        """
        self._ignored += 1
        if self._ignored <= _MAX_IGNORED_LOGGED:
            log.warning("peer_ignored", group=self.id, **fields)

    # ---- state and events ----

    @property
    def state(self) -> str:
        """The state of the group for DescribeGroups: `ready`, or `failed` after its end."""
        return "failed" if self.end_reason is not None else "ready"

    @abstractmethod
    def present(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """Handles an operation that a device process of the session presents."""

    @abstractmethod
    def withdraw(self, link: DeviceLink, channel: int, body: Mapping[str, Any]) -> None:
        """Handles the message that a device process of the session will not take part in an operation."""

    @abstractmethod
    def on_process_lost(self, link: DeviceLink, cause: str) -> None:
        """Handles the end of a device process of this daemon, which may have served the session."""

    @abstractmethod
    def leave(self, cause: str) -> None:
        """Ends the group, on this daemon and all others."""

    def history(self, recorder: FlightRecorder) -> GroupHistory | None:
        """Returns the history of the group's last operations.

        `recorder` has the groups that this daemon coordinates.
        """
        return next((history for _, history in recorder.histories(GROUP + self.id)), None)

    def info(self) -> node_pb2.GroupInfo:
        """Returns the group's description for DescribeGroups, without the operations, which `history` has."""
        return node_pb2.GroupInfo(
            group=bytes.fromhex(self.id),
            members=[node_pb2.GroupMember(node=member.node, device=member.device) for member in self.members],
            state=self.state,
            detail=self.end_reason.message if self.end_reason is not None else "",
        )


def send_collective(link: Any, body: Body) -> None:
    """Sends a COLLECTIVE frame to a device process of this daemon."""
    link.send_json(Kind.COLLECTIVE, body)


def group_ended(group: str, cause: str) -> Refusal:
    """Returns the refusal of operations of a group that has ended."""
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"The group {group[:8]} over several daemons has ended: {cause}.",
        fix=REBUILD,
        details={"group": group},
    )


# ---- validation of peers' messages: each function raises ValueError, KeyError or TypeError for an invalid message ----


def clean_text(value: Any, max_length: int = MAX_TEXT) -> str:
    """Returns a peer's text for a log or a message, truncated and on one line."""
    if not isinstance(value, str):
        raise ValueError(f"a {type(value).__name__} instead of a text")
    return "".join(character if character.isprintable() else " " for character in value[:max_length])


def check_base64(value: Any, max_length: int = 64 << 10) -> str:
    """Checks that `value` is base64, and returns it without decoding it."""
    if not isinstance(value, str) or len(value) > max_length:
        raise ValueError("not valid base64, or too long")
    base64.b64decode(value, validate=True)
    return value


def parse_refusal(status: str) -> Refusal:
    """Returns a peer's refusal, or its reason for ending a group, as a refusal for a session of this daemon."""
    refusal = from_text(status)
    details = {clean_text(key, 64): clean_text(value) for key, value in list(refusal.details.items())[:MAX_DETAILS]}
    return Refusal(refusal.reason, clean_text(refusal.message), fix=clean_text(refusal.fix), details=details)


def parse_present(group: str, body: Mapping[str, Any]) -> Body:
    """Checks and returns a rank's `present` message.

    The channel is not taken from it, because only the rank's own daemon knows it.
    """
    signature = body["signature"]
    if not isinstance(signature, list):
        raise ValueError("the signature is not a list")
    timeout = body.get("timeout") or 0
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise ValueError("the timeout is not a number of seconds")
    predecessors = body.get("behind") or []
    if not isinstance(predecessors, list) or len(predecessors) > MAX_BEHIND:
        raise ValueError("the list of operations ahead of it is not a list, or is too long")
    return {
        "op": "present",
        "channel": 0,
        "group": group,
        "devices": [],
        "sequence": parse_unsigned(body["sequence"]),
        "signature": [_check_operation(operation) for operation in signature],
        "timeout": float(min(timeout, MAX_SECONDS)),
        "behind": [[[], parse_unsigned(sequence)] for _, sequence in predecessors],
    }


def parse_withdraw(group: str, body: Mapping[str, Any]) -> Body:
    """Checks and returns a rank's `withdraw` message."""
    status = to_text(parse_refusal(check_base64(body["status"])))
    sequence = parse_unsigned(body["sequence"])
    return {"op": "withdraw", "channel": 0, "group": group, "devices": [], "sequence": sequence, "status": status}


def _check_operation(operation: Any) -> Body:
    if not isinstance(operation, dict) or not set(operation) <= _FIELDS:
        raise ValueError("an operation has unknown fields")
    for name, value in operation.items():
        if isinstance(value, str):
            if len(value) > 64 or not (value.isascii() and value.isprintable()):
                raise ValueError(f"{name} is too long, or not a word")
        elif value is not None:
            parse_unsigned(value)
    if not isinstance(operation.get("kind"), str):
        raise ValueError("an operation has no kind")
    return dict(operation)


def parse_communicator_message(body: Mapping[str, Any], comm: str) -> Body:
    """Checks and returns a message about a communicator, which is renamed to `comm`."""
    op = body["op"]
    builders: dict[str, Callable[[], Body]] = {
        "id": lambda: {"unique_id": check_base64(body["unique_id"], MAX_UNIQUE_ID)},
        "joined": lambda: {},
        "join_failed": lambda: {"status": check_base64(body["status"])},
        "failed": lambda: {
            "reason": clean_text(body.get("reason") or ""),
            "timed_out": body.get("timed_out") is True,
            "sequence": parse_unsigned(body.get("sequence") or 0),
        },
        "progress": lambda: {"done": parse_unsigned(body["done"])},
    }
    if op not in builders:
        raise ValueError(f"there is no {str(op)[:40]!r}")
    return {"op": op, "comm": comm, **builders[op]()}
