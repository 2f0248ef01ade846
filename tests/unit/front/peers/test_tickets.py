"""Members, tickets and greetings of groups, and the checks of daemons that join."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.front.peers import tickets
from hearthd.front.peers.tickets import MAX_RANKS, GroupMember, PeerHello

PAIR = (GroupMember(0, 0), GroupMember(1, 3))
THIRD = GroupMember(1, 4)
SECRET = b"s" * 16
GROUP = b"g" * 16
members = st.lists(st.builds(GroupMember, st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=8)


def wire(group: list[GroupMember]) -> list[node_pb2.GroupMember]:
    return [node_pb2.GroupMember(node=member.node, device=member.device) for member in group]


@given(members)
def test_members_are_a_group_or_refused(group: list[GroupMember]) -> None:
    nodes = {member.node for member in group}
    is_valid = len(set(group)) == len(group) and nodes == set(range(len(nodes)))
    try:
        assert tickets.members_of(wire(group)) == tuple(group)
    except Refusal as refusal:
        assert (
            not is_valid and refusal.reason == Reason.INVALID_ARGUMENT and refusal.fix and refusal.details["requested"]
        )
    else:
        assert is_valid


@pytest.mark.parametrize("count", [0, MAX_RANKS + 1])
def test_too_few_and_too_many(count: int) -> None:
    group = [GroupMember(0, device) for device in range(count)]
    with pytest.raises(Refusal, match=f"1 to {MAX_RANKS}") as error:
        tickets.members_of(wire(group))
    assert error.value.details["requested"] == str(count)
    assert len(tickets.members_of(wire([GroupMember(0, device) for device in range(MAX_RANKS)]))) == MAX_RANKS


def test_ranks_of_a_node() -> None:
    group = (GroupMember(0, 5), GroupMember(1, 0), GroupMember(0, 2))
    assert tickets.devices_of(group, 0) == {5: 0, 2: 2} and tickets.devices_of(group, 1) == {0: 1}


def test_ids_and_secrets_differ() -> None:
    pairs = [tickets.new_group() for _ in range(20)]
    assert len({token for pair in pairs for token in pair}) == 40
    assert {len(token) for pair in pairs for token in pair} == {16}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"secret": b""}, "secret"), ({"secret": b"x" * 15}, "secret"), ({"secret": b"x" * 65}, "secret"),
        ({"certificate_sha256": b"x" * 31}, "certificate_sha256"), ({"addresses": []}, "addresses"),
        ({"addresses": ["h:1"] * 17}, "addresses"), ({"addresses": ["h"]}, "'h'"), ({"addresses": ["h:0"]}, "'h:0'"),
        ({"addresses": ["unix:/run/docker.sock"]}, "docker"), ({"addresses": ["0.0.0.0:5"]}, "0.0.0.0"),
        ({"addresses": ["h:1", "x" * 1000 + ":1"]}, "xxx"), ({"addresses": [":5"]}, "':5'"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_group_tickets_are_refused(change: dict[str, Any], match: str) -> None:
    good = {"addresses": ["127.0.0.1:5", "[::1]:6", "gpu1:7"], "secret": SECRET, "certificate_sha256": b"c" * 32}
    assert [str(each) for each in tickets.addresses_of(node_pb2.GroupTicket(**good))] == good["addresses"]
    with pytest.raises(Refusal, match=match) as error:
        tickets.addresses_of(node_pb2.GroupTicket(**{**good, **change}))
    assert error.value.reason == Reason.INVALID_ARGUMENT and "CreateGroup" in error.value.fix
    assert "requested" in error.value.details and "s" * 16 not in str(error.value)


@given(members, st.binary(min_size=16, max_size=64), st.integers(0, 5))
def test_hellos_survive_the_wire(group: list[GroupMember], secret: bytes, node: int) -> None:
    body = tickets.hello(GROUP, node, secret, tuple(group))
    assert tickets.parse_hello(body) == PeerHello(GROUP, node, secret, tuple(group), tickets.PROTOCOL)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["t", "group", "node", "secret", "members", "protocol"]), json)
def test_invalid_hellos_are_refused(field: str, value: Any) -> None:
    body = tickets.hello(GROUP, 1, SECRET, PAIR)
    body[field] = value
    try:
        hello = tickets.parse_hello(body)
    except ValueError as error:
        assert len(str(error)) <= 200
        return
    assert all(isinstance(getattr(hello, name), kind) for name, kind in (("group", bytes), ("node", int)))
    assert all(isinstance(part, int) and part >= 0 for member in hello.members for part in member)


def test_a_field_that_is_missing() -> None:
    for field in tickets.hello(GROUP, 1, SECRET, PAIR):
        body = tickets.hello(GROUP, 1, SECRET, PAIR)
        del body[field]
        with pytest.raises(ValueError, match="not a hello"):
            tickets.parse_hello(body)


def test_secrets() -> None:
    assert tickets.same_secret(SECRET, SECRET)
    assert not tickets.same_secret(SECRET, b"t" * 16)
    assert not tickets.same_secret(SECRET[:-1], SECRET)
    assert not tickets.same_secret(bytes(16), None), "the placeholder secret of an unknown group admits no client"


@pytest.mark.parametrize(
    ("change", "joined", "reason", "details"),
    [
        ({"protocol": 99}, [], Reason.VERSION_UNSUPPORTED, {"requested": "99"}),
        ({"node": 0}, [], Reason.INVALID_ARGUMENT, {"requested": "0", "allowed": "1"}),
        ({"node": 2}, [], Reason.INVALID_ARGUMENT, {"requested": "2", "allowed": "1"}),
        ({}, [1], Reason.HANDLE_IN_USE, {"node": "1"}),
        ({"members": PAIR[::-1]}, [], Reason.COLLECTIVE_MISMATCH, {"field": "members", "rank": "0"}),
        ({"members": (*PAIR, THIRD)}, [], Reason.COLLECTIVE_MISMATCH, {"rank": "2", "expected": "missing"}),
        ({"members": PAIR[:1]}, [], Reason.COLLECTIVE_MISMATCH, {"rank": "1", "requested": "missing"}),
    ],
)  # fmt: skip
def test_mismatched_hellos_are_refused(
    change: dict[str, Any], joined: list[int], reason: Reason, details: dict[str, str]
) -> None:
    good = PeerHello(GROUP, 1, SECRET, PAIR, tickets.PROTOCOL)
    tickets.check_hello(good, PAIR, [])
    with pytest.raises(Refusal) as error:
        tickets.check_hello(good._replace(**change), PAIR, joined)
    assert error.value.reason == reason and error.value.fix
    assert error.value.details.items() >= details.items()
