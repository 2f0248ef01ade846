"""Groups over daemons: their members, their tickets, and the greeting by which a daemon shows that it has a ticket.

Pure.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.front.addresses import Address, parse_address
from hearthd.front.peers.frames import Body

GROUP_BYTES = 16
SECRET_BYTES = 16
MAX_SECRET = 64
MAX_RANKS = 128
MAX_ADDRESSES = 16
_MAX_UNSIGNED = (1 << 64) - 1
PROTOCOL = 1
"""Version of the protocol between fronts."""


class GroupMember(NamedTuple):
    """The location of a rank, as all daemons of the group name it."""

    node: int
    device: int


Members = tuple[GroupMember, ...]


class PeerHello(NamedTuple):
    """The greeting of a daemon that joins a group."""

    group: bytes
    node: int
    secret: bytes
    members: Members
    protocol: int


# ---- members ----


def members_of(members: Sequence[node_pb2.GroupMember]) -> Members:
    """Returns the members in a request: each device of a node once, and nodes numbered from 0 without a gap.

    Raises `INVALID_ARGUMENT` if they do not make such a group.
    """
    if not 1 <= len(members) <= MAX_RANKS:
        raise _invalid_members(
            f"A group of {len(members)} ranks was requested", f"1 to {MAX_RANKS} members", len(members)
        )
    checked = tuple(GroupMember(member.node, member.device) for member in members)
    seen: set[GroupMember] = set()
    for rank, member in enumerate(checked):
        if member in seen:
            raise _invalid_members(
                f"Rank {rank} is device {member.device} of node {member.node}, which is a member already",
                "each device of a node once",
                rank,
            )
        seen.add(member)
    nodes = {member.node for member in checked}
    missing = sorted(set(range(len(nodes))) - nodes)
    if missing:
        raise _invalid_members(
            f"The members' nodes are {', '.join(map(str, sorted(nodes)))}; node {missing[0]} has no member",
            "nodes counted without a gap from 0, which is the daemon that creates the group",
            max(nodes),
        )
    return checked


def devices_of(members: Members, node: int) -> dict[int, int]:
    """Returns the ranks of one node's members, by device ordinal."""
    return {member.device: rank for rank, member in enumerate(members) if member.node == node}


def nodes_of(members: Members) -> list[int]:
    """Returns the numbers of the nodes that have members, in ascending order."""
    return sorted({member.node for member in members})


def _invalid_members(problem: str, allowed: str, requested: int) -> Refusal:
    return Refusal(
        Reason.INVALID_ARGUMENT,
        f"{problem}; a group has {allowed}.",
        fix=f"Name {allowed}.",
        details={"requested": requested, "allowed": allowed},
        fields=["members"],
    )


# ---- tickets ----


def new_group() -> tuple[bytes, bytes]:
    """Returns a new group id and secret, both made of random bytes of the kernel."""
    return secrets.token_bytes(GROUP_BYTES), secrets.token_bytes(SECRET_BYTES)


def check_group(group: bytes) -> bytes:
    """Returns `group`. Raises `INVALID_ARGUMENT` if it cannot be the id of a group."""
    if len(group) != GROUP_BYTES:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"The group has {len(group)} bytes; a group's id has {GROUP_BYTES}.",
            fix="Pass on the group that CreateGroup returned.",
            details={"requested": len(group), "allowed": GROUP_BYTES},
            fields=["group"],
        )
    return group


def addresses_of(ticket: node_pb2.GroupTicket) -> list[Address]:
    """Returns the coordinator's addresses without duplicates, in the order in which they are tried.

    Raises `INVALID_ARGUMENT` for a ticket that was not made by CreateGroup.
    """
    size = len(ticket.secret)
    if not SECRET_BYTES <= size <= MAX_SECRET:
        text = f"The ticket's secret has {size} bytes; it must have {SECRET_BYTES}."
        raise _altered_ticket("secret", text, requested=size, allowed=SECRET_BYTES)
    size = len(ticket.certificate_sha256)
    if size not in (0, 32):
        text = f"The ticket's certificate_sha256 has {size} bytes; it must have 32, or none."
        raise _altered_ticket("certificate_sha256", text, requested=size, allowed=32)
    count = len(ticket.addresses)
    if not 1 <= count <= MAX_ADDRESSES:
        text = f"The ticket has {count} addresses; it must have 1 to {MAX_ADDRESSES}."
        raise _altered_ticket("addresses", text, requested=count, allowed=MAX_ADDRESSES)
    addresses = []
    for text in ticket.addresses:
        try:
            address = parse_address(text)
            if not address.port or address.wildcard or len(text) > 300 or not text.isprintable():
                raise ValueError
        except ValueError:
            problem = f"The ticket's address {text[:300]!r} is not a host and a port to connect to."
            raise _altered_ticket("addresses", problem, requested=text[:300]) from None
        addresses.append(address)
    return list(dict.fromkeys(addresses))


def _altered_ticket(field: str, message: str, **details: object) -> Refusal:
    """Returns the refusal of a ticket that CreateGroup cannot have made."""
    return Refusal(
        Reason.INVALID_ARGUMENT,
        message,
        fix="Pass on the ticket that CreateGroup returned, unchanged.",
        details=details,
        fields=[f"ticket.{field}"],
    )


# ---- first message of a peer ----


def hello(group: bytes, node: int, secret: bytes, members: Members) -> Body:
    """Returns the greeting of a daemon that joins."""
    return {
        "t": "hello",
        "protocol": PROTOCOL,
        "group": group.hex(),
        "node": node,
        "secret": base64.b64encode(secret).decode(),
        "members": [list(member) for member in members],
    }


def parse_hello(body: Body) -> PeerHello:
    """Returns the parsed greeting. Raises `ValueError` if it is invalid."""
    try:
        members = body["members"]
        if body["t"] != "hello" or not isinstance(members, list) or len(members) > MAX_RANKS:
            raise ValueError("it is not a hello message")
        return PeerHello(
            bytes.fromhex(body["group"]),
            parse_unsigned(body["node"]),
            base64.b64decode(body["secret"], validate=True),
            tuple(GroupMember(parse_unsigned(node), parse_unsigned(device)) for node, device in members),
            parse_unsigned(body["protocol"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is not a hello message: {error!r}"[:200]) from None


def parse_unsigned(value: Any) -> int:
    """Returns `value` if it is an integer of 64 bits without a sign. Raises `ValueError` otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_UNSIGNED:
        raise ValueError(f"{str(value)[:40]!r} is not a number from 0 to {_MAX_UNSIGNED}")
    return value


def same_secret(candidate: bytes, secret: bytes | None) -> bool:
    """Returns True if `candidate` is the secret of the group.

    `secret` is None if there is no such group; the comparison takes the same time then.
    """
    return hmac.compare_digest(candidate, secret if secret is not None else bytes(SECRET_BYTES)) and secret is not None


def invalid_ticket() -> Refusal:
    """Returns the refusal of an unknown group or a wrong secret, with the same message for both."""
    return Refusal(
        Reason.UNAUTHENTICATED,
        "The ticket is not valid for any group of its daemon: the group has ended or never existed, "
        "or the secret is wrong.",
        fix="Create the group again with CreateGroup, and pass on the ticket that it returns, unchanged.",
    )


def check_hello(hello: PeerHello, members: Members, joined: Iterable[int]) -> None:
    """Checks whether a daemon that has the secret may join as the node that it names.

    `joined`: nodes that have joined. Raises `VERSION_UNSUPPORTED`, `INVALID_ARGUMENT`, `COLLECTIVE_MISMATCH` or
    `HANDLE_IN_USE`.
    """
    if hello.protocol != PROTOCOL:
        raise Refusal(
            Reason.VERSION_UNSUPPORTED,
            f"The daemon that joins speaks version {hello.protocol} of the protocol of peers, the other {PROTOCOL}.",
            fix="Run the same version of hearthd on all nodes of a group.",
            details={"requested": hello.protocol, "allowed": PROTOCOL},
        )
    if hello.members != members:
        differing = next(
            (rank for rank, pair in enumerate(zip(hello.members, members, strict=False)) if pair[0] != pair[1]),
            min(len(hello.members), len(members)),
        )
        raise Refusal(
            Reason.COLLECTIVE_MISMATCH,
            f"The group was created with {len(members)} ranks and joined with {len(hello.members)}; rank {differing} "
            f"is {_member_name(members, differing)} and {_member_name(hello.members, differing)}.",
            fix="Give JoinGroup the members that were given to CreateGroup, in the same order.",
            details={
                "field": "members",
                "rank": differing,
                "expected": _member_name(members, differing),
                "requested": _member_name(hello.members, differing),
            },
        )
    nodes = nodes_of(members)
    if hello.node == 0 or hello.node not in nodes:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"Node {hello.node} cannot join: the group has nodes {', '.join(map(str, nodes))}, and node 0 created it.",
            fix="Join as the node that the members have for this daemon.",
            details={"requested": hello.node, "allowed": ", ".join(map(str, nodes[1:])) or "none"},
        )
    if hello.node in joined:
        raise Refusal(
            Reason.HANDLE_IN_USE,
            f"Node {hello.node} has joined the group already.",
            fix="Join each node once; leave the group and create another to start again.",
            details={"node": hello.node},
        )


def _member_name(members: Members, rank: int) -> str:
    if rank >= len(members):
        return "missing"
    return f"device {members[rank].device} of node {members[rank].node}"
