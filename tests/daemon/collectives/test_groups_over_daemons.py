"""Groups over several daemons of one device each: correct results, and quick and clear errors after failures."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import node_pb2
from tests.support.collectives.group_nodes import (
    LentNodes,
    Rank,
    form,
    launch_and_block,
    members,
    needs_rebuild,
    nodes,
    on_device,
    ranks,
    work,
)
from tests.support.collectives.ranks import FLOATS, A, B, operation
from tests.support.daemon.authority import Authority
from tests.support.daemon.harness import DaemonProcess, hearthd, toml, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.raw import refused
from tests.support.daemon.tenants import tenant, tenants
from tests.support.timing import LATE


@pytest.fixture
def two(lent_nodes: LentNodes) -> Iterator[list[DaemonProcess]]:
    """Yields two daemons whose devices the tests must not lose."""
    daemons = lent_nodes.lend(2)
    found = [daemon.generation() for daemon in daemons]
    yield daemons
    assert [daemon.generation() for daemon in daemons] == found, [daemon.log()[-4000:] for daemon in daemons]


@pytest.fixture
def pair(two: list[DaemonProcess]) -> Iterator[list[Rank]]:
    with ranks(*two) as both:
        yield both


def test_two_daemons_reduce_together(pair: list[Rank]) -> None:
    group = form(pair)
    for sequence in range(1, 6):
        work(pair, group, sequence)


def test_every_kind_and_a_batch(pair: list[Rank]) -> None:
    group = form(pair)
    half = FLOATS // 2
    kinds = {
        "reduce": ({"root": 1}, FLOATS, [None, [3] * FLOATS]),
        "broadcast": ({"root": 1}, FLOATS, [[2] * FLOATS] * 2),
        "all_gather": ({}, half, [[1] * half + [2] * half] * 2),
        "reduce_scatter": ({}, half, [[3] * half + [-1] * half] * 2),
        "all_to_all": ({}, half, [[1] * half + [2] * half] * 2),
    }
    for sequence, (kind, (more, count, expected)) in enumerate(kinds.items(), 1):
        for rank in pair:
            rank.stream.batch(*rank.filled())
            rank.present(group, sequence, operation(kind, A, B, count, **more))
        for rank, values in zip(pair, expected, strict=True):
            if values is not None:
                assert rank.data() == values, kind
    for rank in pair:
        peer = 1 - rank.rank
        rank.stream.batch(*rank.filled())
        rank.present(group, 6, operation("send", A, peer=peer), operation("recv", 0, B, peer=peer))
        rank.present(group, 7, operation("barrier", count=0))
    assert [rank.data() for rank in pair] == [[2] * FLOATS, [1] * FLOATS]
    assert [rank.stream.failures() for rank in pair] == [[], []]


def test_several_groups_of_the_same_sessions(pair: list[Rank], two: list[DaemonProcess]) -> None:
    """Several groups of the same sessions, used in different orders on separate buffers, and a group of another
    client."""
    outs = {10 + number: form(pair) for number in range(3)}
    with ranks(*two) as others:
        theirs = form(others)
        for rank, order in zip(pair, (list(outs), list(outs)[::-1]), strict=True):
            rank.stream.batch(*(c.Command(allocate=c.Allocate(buffer=out, size=4 * FLOATS)) for out in outs))
            rank.stream.batch(*(rank.part(outs[out], 1, operation("all_reduce", A, out)) for out in order))
            if rank is pair[0]:
                work(others, theirs, 1)
        assert [set(rank.data(out)) for rank in pair for out in outs] == [{3.0}] * 6


@pytest.mark.parametrize("odd", [0, 1])
def test_refused_rank_fails_the_other_immediately(pair: list[Rank], odd: int) -> None:
    group = form(pair)
    other = 1 - odd
    pair[other].present(group, 1, operation("all_reduce", A, B))
    pair[odd].present(group, 1, operation("all_reduce", A, 77))
    began = time.monotonic()
    assert pair[odd].failure().reason == Reason.INVALID_HANDLE
    refusal = pair[other].failure()
    assert refusal.reason == Reason.COMMUNICATOR_FAILED and refusal.details["failed"] == str(odd), refusal
    assert refusal.details["cause"] == "INVALID_HANDLE" and "77" in refusal.message
    assert time.monotonic() - began < LATE
    pair[odd].present(group, 2, operation("all_reduce", A, 77))
    assert pair[odd].failure().reason == Reason.INVALID_HANDLE
    pair[other].present(group, 2, operation("all_reduce", A, B))  # presents its part after the other rank has withdrawn
    assert pair[other].failure().reason == Reason.COMMUNICATOR_FAILED
    work(pair, group, 3)


def test_queues_in_different_orders_are_refused_immediately(pair: list[Rank]) -> None:
    group = form(pair)
    row = [operation("all_reduce", A, A)] * 2
    for rank, numbers in zip(pair, ((1, 2), (2, 1)), strict=True):
        rank.stream.batch(*(rank.part(group, number, part) for number, part in zip(numbers, row, strict=True)))
    for rank in pair:
        refusals = [from_status(entry.status) for entry in rank.stream.failures()]
        assert [refusal.reason for refusal in refusals] == [Reason.COLLECTIVE_MISMATCH] * 2, refusals
    work(pair, group, 3)


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        ("count", {"count": 4}, {"count": 3}),
        ("dtype", {"dtype": "float32"}, {"dtype": "int32"}),
        ("reduce", {"op": c.REDUCE_OP_SUM}, {"op": c.REDUCE_OP_MAX}),
    ],
)
def test_a_mismatch_is_named_on_both(pair: list[Rank], field: str, first: Any, second: Any) -> None:
    group = form(pair)
    for rank, fields in zip(pair, (first, second), strict=True):
        rank.present(group, 1, operation("all_reduce", A, B, **{"count": FLOATS, **fields}))
    for rank in pair:
        refusal = rank.failure()
        assert refusal.reason == Reason.COLLECTIVE_MISMATCH
        assert refusal.details["field"] == field and refusal.details["odd_rank"] == "1"
    work(pair, group, 2)


@pytest.mark.parametrize("late", [0, 1])
def test_missing_rank_fails_the_present_one_in_time(pair: list[Rank], late: int) -> None:
    group = form(pair)
    work(pair, group, 1)
    there = pair[1 - late]
    began = time.monotonic()
    there.present(group, 2, timeout=0.5)
    refusal = there.failure()
    assert 0.4 < time.monotonic() - began < 0.5 + LATE
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and refusal.details["missing"] == str(late)
    pair[late].present(group, 2)
    assert pair[late].failure().reason == Reason.COLLECTIVE_TIMEOUT
    work(pair, group, 3)


def test_two_sessions_of_one_daemon(two: list[DaemonProcess]) -> None:
    """Node 0 and node 1 are the same daemon; NCCL would require a GPU for each."""
    first, second = Rank(two[0], 0), Rank(two[0], 1)
    with first, second:
        group = form([first, second])
        first.present(group, 1, operation("barrier", count=0), timeout=5)
        if first.daemon.status()["devices"][0]["backend"] == "cpu":
            second.present(group, 1, operation("barrier", count=0), timeout=5)
            work([first, second], group, 2)


# ---- losses and ends ----


@pytest.mark.parametrize("lost", [0, 1])
def test_a_device_process_is_killed_in_mid_operation(lent_nodes: LentNodes, lost: int) -> None:
    with ranks(*lent_nodes.lend(2)) as pair:
        group = form(pair)
        work(pair, group, 1)
        survivor, victim = pair[1 - lost], pair[lost]
        launch_and_block(pair, group, 2, victim)
        os.kill(victim.daemon.device_pid(), signal.SIGKILL)
        began = time.monotonic()
        refusal = survivor.failure()
        assert time.monotonic() - began < LATE, "the loss is noticed before the timeout"
        assert refusal.reason == Reason.COMMUNICATOR_FAILED and "SIGKILL" in refusal.message
        assert "all_reduce" in refusal.details["recorder"]
        assert set(survivor.data(A)) == {survivor.rank + 1.0}, "the survivor keeps its data"
        wait_until(lambda: victim.daemon.status()["devices"][0]["state"] == "serving")
        victim.stream.cancel()
        with contextlib.suppress(grpc.RpcError):
            victim.raw.call("Sync", c.Sync())  # reports the loss, only once
        victim.attach()
        work(pair, group, 3)  # the same group, with a new communicator


@pytest.mark.parametrize(("lost", "launched"), [(0, True), (1, True), (1, False)])
def test_a_daemon_is_killed_in_mid_operation(lent_nodes: LentNodes, lost: int, launched: bool) -> None:
    with ranks(*lent_nodes.lend(2)) as pair:
        survivor, victim = pair[1 - lost], pair[lost]
        group = form(pair)
        work(pair, group, 1)
        if launched:
            launch_and_block(pair, group, 2, victim)
        else:
            survivor.present(group, 2, timeout=30)
        victim.daemon.process.kill()
        victim.abandon()
        began = time.monotonic()
        refusal = survivor.failure()
        assert time.monotonic() - began < LATE, "a broken link is noticed immediately"
        assert refusal.reason == Reason.COMMUNICATOR_FAILED and f"node {lost}" in refusal.message.lower()
        assert set(survivor.data(A)) == {survivor.rank + 1.0}, "the survivor keeps its data"
        began = time.monotonic()
        survivor.present(group, 3, timeout=30)
        refusal = survivor.failure()
        assert time.monotonic() - began < LATE and needs_rebuild(refusal)
        with Rank(lent_nodes.one(lost), lost) as fresh:
            again = sorted([survivor, fresh], key=lambda rank: rank.rank)
            work(again, form(again), 1)


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("how", ["leave", "session"])
def test_leaving_rank_ends_group_for_all(two: list[DaemonProcess], who: int, how: str) -> None:
    with ranks(*two) as pair:
        group = form(pair)
        work(pair, group, 1)
        stays, goes = pair[1 - who], pair[who]
        stays.present(group, 2, timeout=30)
        began = time.monotonic()
        if how == "leave":
            goes.call("LeaveGroup", group=group)
            goes.present(group, 2)
            assert goes.failure().reason == Reason.INVALID_HANDLE
        else:
            goes.close()
        assert stays.failure().reason == Reason.COMMUNICATOR_FAILED
        stays.present(group, 3, timeout=30)
        assert needs_rebuild(stays.failure()) and time.monotonic() - began < LATE
        stays.call("LeaveGroup", group=group)
        stays.present(group, 4)
        assert stays.failure().reason == Reason.INVALID_HANDLE


def test_stopping_daemon_notifies_its_peers(lent_nodes: LentNodes) -> None:
    with ranks(*lent_nodes.lend(2)) as pair:
        group = form(pair)
        work(pair, group, 1)
        pair[1].daemon.stop()
        pair[1].abandon()
        pair[0].present(group, 2, timeout=30)
        refusal = pair[0].failure()
        assert needs_rebuild(refusal) and "node 1" in refusal.message


# ---- permissions ----


def test_invalid_tickets_are_refused(pair: list[Rank]) -> None:
    first, second = pair
    created = first.call("CreateGroup", members=members(2))
    fields = {"group": created.group, "node": 1, "members": members(2), "ticket": created.ticket}

    def join(**change: Any) -> Any:
        request = node_pb2.JoinGroupRequest(session_token=second.raw.token, **{**fields, **change})
        return refused(second.raw.node.JoinGroup, request, timeout=20)

    def ticket(**change: Any) -> Any:
        good = created.ticket
        as_it_is = {"addresses": good.addresses, "secret": good.secret, "certificate_sha256": good.certificate_sha256}
        return node_pb2.GroupTicket(**{**as_it_is, **change})

    wrong, unknown = join(ticket=ticket(secret=b"x" * 16)), join(group=b"g" * 16)
    assert wrong.reason == Reason.UNAUTHENTICATED and str(wrong) == str(unknown)
    assert join(group=b"short").reason == Reason.INVALID_ARGUMENT
    assert join(node=0).reason == Reason.INVALID_ARGUMENT
    assert join(node=7).reason == Reason.INVALID_ARGUMENT
    assert join(ticket=ticket(addresses=["unix:/run/x"])).reason == Reason.INVALID_ARGUMENT
    assert join(members=members(2)[::-1]).reason == Reason.COLLECTIVE_MISMATCH
    assert join(members=[*members(2), node_pb2.GroupMember(node=1, device=99)]).reason == Reason.DEVICE_NOT_FOUND
    dead = join(ticket=ticket(addresses=["127.0.0.1:1"]))
    assert dead.reason == Reason.COMMUNICATOR_FAILED and "127.0.0.1:1" in dead.message
    assert '"nothing listens there"' in second.daemon.log(), "only the log has the cause"
    spoken = join(ticket=ticket(certificate_sha256=b"x" * 32))
    assert spoken.reason == Reason.COMMUNICATOR_FAILED and "TLS" not in spoken.message + spoken.fix
    second.call("JoinGroup", **fields)
    assert join().reason == Reason.HANDLE_IN_USE
    work(pair, created.group, 1)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ([], Reason.INVALID_ARGUMENT),
        ([(0, 0), (0, 0)], Reason.INVALID_ARGUMENT),
        ([(0, 0), (2, 0)], Reason.INVALID_ARGUMENT),
        ([(1, 0)], Reason.INVALID_ARGUMENT),
        ([(0, 99), (1, 0)], Reason.DEVICE_NOT_FOUND),
        ([(0, device) for device in range(129)], Reason.INVALID_ARGUMENT),
        ([(0, 2**32 - 1), (1, 0)], Reason.DEVICE_NOT_FOUND),
    ],
    ids=lambda value: str(value)[:30],
)
def test_invalid_members_are_refused(pair: list[Rank], wrong: list[tuple[int, int]], reason: Reason) -> None:
    found = [node_pb2.GroupMember(node=node, device=device) for node, device in wrong]
    request = node_pb2.CreateGroupRequest(session_token=pair[0].raw.token, members=found)
    refusal = refused(pair[0].raw.node.CreateGroup, request, timeout=20)
    assert refusal.reason == reason and refusal.fix and "requested" in refusal.details


def test_sessions_see_their_own_groups_only(pair: list[Rank], two: list[DaemonProcess]) -> None:
    group = form(pair)
    with Rank(two[0], 0) as stranger:
        told = []
        for named in (group, b"g" * 16):
            stranger.present(named, 1)
            told.append(stranger.failure())
            request = node_pb2.LeaveGroupRequest(session_token=stranger.raw.token, group=named)
            told.append(refused(stranger.raw.node.LeaveGroup, request, timeout=20))
        assert {refusal.reason for refusal in told} == {Reason.INVALID_HANDLE}
        assert told[0].message.replace(group.hex(), "") == told[2].message.replace((b"g" * 16).hex(), "")
        gone = node_pb2.CreateGroupRequest(session_token="unknown", members=members(2))
        assert refused(stranger.raw.node.CreateGroup, gone, timeout=20).reason == Reason.SESSION_EXPIRED
    work(pair, group, 1)


def test_rights_are_checked_on_every_node(cache: Path) -> None:
    may_not = tenant("guest", rights=["allocate", "read", "write"])
    config, tokens = tenants("alice", may_not)
    with nodes(cache, **config) as daemons, contextlib.ExitStack() as stack:
        alice = [stack.enter_context(Rank(daemon, number, tokens["alice"])) for number, daemon in enumerate(daemons)]
        guest = stack.enter_context(Rank(daemons[1], 1, tokens["guest"]))
        created = alice[0].call("CreateGroup", members=members(2))
        join = {"group": created.group, "node": 1, "members": members(2), "ticket": created.ticket}
        request = node_pb2.JoinGroupRequest(session_token=guest.raw.token, **join)
        refusal = refused(guest.raw.node.JoinGroup, request, timeout=20)
        assert refusal.reason == Reason.PERMISSION_DENIED and refusal.details["right"] == "collective"
        request = node_pb2.CreateGroupRequest(session_token=guest.raw.token, members=members(2))
        assert refused(guest.raw.node.CreateGroup, request, timeout=20).reason == Reason.PERMISSION_DENIED
        alice[1].call("JoinGroup", **join)
        work(alice, created.group, 1)


def test_devices_of_other_tenants_are_reported_as_absent(cache: Path) -> None:
    config, tokens = tenants("alice", tenant("bob", devices=[5]))
    with nodes(cache, 1, **config) as (daemon,), contextlib.ExitStack() as stack:
        from tests.support.daemon.raw import Raw

        bob = stack.enter_context(Raw(daemon.unix, tokens["bob"]))
        request = node_pb2.CreateGroupRequest(session_token=bob.token, members=members(2))
        assert refused(bob.node.CreateGroup, request, timeout=20).reason == Reason.DEVICE_NOT_FOUND


# ---- the link between daemons ----


def test_groups_over_tls(cache: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    both = []
    for _ in range(2):
        certificate, key = authority.issue("localhost")
        both.append({"certificate": str(certificate), "key": str(key)})
    with contextlib.ExitStack() as stack:
        daemons = []
        for number, tls in enumerate(both):
            daemon = DaemonProcess(cache, on_device(number, tls=tls), 1)
            stack.callback(daemon.remove)
            stack.callback(daemon.stop)
            daemons.append(daemon)
        with ranks(*daemons) as pair:
            created = pair[0].call("CreateGroup", members=members(2))
            assert len(created.ticket.certificate_sha256) == 32
            join = {"group": created.group, "node": 1, "members": members(2)}
            other = node_pb2.GroupTicket(
                addresses=created.ticket.addresses, secret=created.ticket.secret, certificate_sha256=b"x" * 32
            )
            request = node_pb2.JoinGroupRequest(session_token=pair[1].raw.token, ticket=other, **join)
            refusal = refused(pair[1].raw.node.JoinGroup, request, timeout=20)
            assert refusal.reason == Reason.COMMUNICATOR_FAILED and "certificate" not in refusal.message
            assert "its certificate is not the one that the ticket names" in daemons[1].log()
            pair[1].call("JoinGroup", ticket=created.ticket, **join)
            work(pair, created.group, 1)


def test_garbage_on_the_port(pair: list[Rank]) -> None:
    created = pair[0].call("CreateGroup", members=members(2))
    host, _, port = created.ticket.addresses[0].rpartition(":")
    random = np.random.default_rng(5)
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2{}", b"\xff" * 100, random.bytes(100_000), b"\0\0\0\5null "):
        connection = socket.create_connection((host, int(port)), timeout=10)
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(data)
            assert connection.recv(1) == b""
    pair[1].call("JoinGroup", group=created.group, node=1, members=members(2), ticket=created.ticket)
    work(pair, created.group, 1)
    with pair[0].daemon.connect() as node:
        saxpy_works(node.device(0))


def test_a_daemon_without_a_port(cache: Path) -> None:
    with nodes(cache, 1, collectives={"listen": ""}) as (daemon,), Rank(daemon, 0) as rank:
        request = node_pb2.CreateGroupRequest(session_token=rank.raw.token, members=members(2))
        refusal = refused(rank.raw.node.CreateGroup, request, timeout=20)
        assert refusal.reason == Reason.UNSUPPORTED and "collectives.listen" in refusal.message
        assert refusal.details["setting"] == "collectives.listen"


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"listen": "nowhere"}, "is not an address"),
        ({"listen": "0.0.0.0:7424"}, "needs TLS"),
        ({"listen": "127.0.0.1:7424", "advertise": ["gpu1"]}, "is not an address"),
        ({"listen": "127.0.0.1:7424", "advertise": ["0.0.0.0:7424"]}, "cannot be connected to"),
        ({"advertise": ["gpu1:7424"]}, "no fixed port"),
        ({"peers": ["gpu*"]}, "is not a peer"),
        ({"lisen": "127.0.0.1:7424"}, "collectives.listen"),
    ],
    ids=str,
)
def test_check_config_names_mistakes(tmp_path: Path, section: dict[str, Any], told: str) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text(toml({"collectives": section}))
    done = hearthd("check-config", "--config", str(path))
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr
