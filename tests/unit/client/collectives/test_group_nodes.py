"""Groups over several daemons: the calls that each daemon receives, and the state after a refusal."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import hearth
from hearth.collectives import formations, rendezvous
from hearth.collectives.rendezvous import form
from hearth_proto import reasons
from hearth_proto.collectives import short_number
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import node_pb2
from tests.support.client.group_daemon import GroupDaemon
from tests.support.client.internals import session_of
from tests.support.timing import LATE


@pytest.fixture
def daemons() -> Iterator[list[GroupDaemon]]:
    daemons = [GroupDaemon(devices=2) for _ in range(3)]
    yield daemons
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def nodes(daemons: list[GroupDaemon]) -> Iterator[list[hearth.Node]]:
    nodes = [hearth.connect(daemon.target) for daemon in daemons]
    yield nodes
    for node in nodes:
        node.close()


def everything(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> list[list[c.Collective]]:
    """Returns the operations submitted to each daemon."""
    for node in nodes:
        for device in node.devices:
            device.synchronize()
    return [[collective for _, collective in daemon.collectives] for daemon in daemons]


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_first_daemon_creates_and_the_others_join(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    first, second, _ = nodes
    group = hearth.Group([second.device(1), first.device(0), second.device(0)], timeout=5)
    (created,) = daemons[1].asked
    (joined,) = daemons[0].asked
    members = [(member.node, member.device) for member in created.members]
    assert members == [(0, 1), (1, 0), (0, 0)] and created.timeout_ns == 5_000_000_000
    assert joined.members == created.members and joined.node == 1 and joined.ticket.secret == b"secret"
    assert 0 < joined.timeout_ns <= 5_000_000_000
    assert group.id == joined.group.hex() and len(group.id) == 32 and group.id[:8] in repr(group)
    x = group.all_gather([device.ones(4, np.float32) for device in group.devices])
    group.reduce([device.ones(4, np.float32) for device in group.devices], root=1)
    assert [out.shape for out in x] == [(3, 4)] * 3
    presented = everything(daemons, nodes)
    assert [len(each) for each in presented] == [2, 4, 0]
    for part in presented[0] + presented[1]:
        assert part.group == joined.group and not part.devices
        assert part.sequence == (1 if part.operations[0].kind == c.COLLECTIVE_KIND_ALL_GATHER else 2)
        assert part.operations[0].root == (part.sequence == 2)
    group.close()
    assert [daemon.groups for daemon in daemons] == [set()] * 3
    assert all(len(daemon.requests(node_pb2.LeaveGroupRequest)) == 1 for daemon in daemons[:2])
    group.close()
    assert len(daemons[0].asked) == 2


def test_two_sessions_of_one_daemon(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    with hearth.connect(daemons[0].target) as other:
        group = hearth.Group([nodes[0].device(0), other.device(1)])
        kinds = [type(request) for request in daemons[0].asked]
        assert kinds == [node_pb2.CreateGroupRequest, node_pb2.JoinGroupRequest]
        assert group.all_reduce([device.ones(4) for device in group.devices])
        with pytest.raises(hearth.ArgumentError, match="of another session"):
            group.all_reduce([nodes[0].device(0).ones(4), nodes[0].device(1).ones(4)])


@pytest.mark.parametrize("method", ["CreateGroup", "JoinGroup"])
def test_refusal_by_one_daemon_leaves_no_group(
    daemons: list[GroupDaemon], nodes: list[hearth.Node], method: str
) -> None:
    refuser = daemons[0 if method == "CreateGroup" else 1]
    refuser.refusals[method] = reasons.Refusal(reasons.Reason.PERMISSION_DENIED, "Not you.", fix="ask.")
    with pytest.raises(hearth.AuthenticationError, match=r"Not you\..*at 127") as caught:
        hearth.Group([node.device(0) for node in nodes])
    assert caught.value.details["target"] == refuser.target and caught.value.details["node"] == "fake"
    wait_until(lambda: not any(daemon.groups for daemon in daemons))
    refuser.refusals.clear()
    hearth.Group([node.device(0) for node in nodes]).close()


def test_member_that_joins_after_a_refusal_leaves(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    daemons[1].refusals["JoinGroup"] = reasons.Refusal(reasons.Reason.DEVICE_NOT_FOUND, "None such.")
    slow = daemons[2].gates["JoinGroup"] = threading.Event()
    with pytest.raises(hearth.InvalidHandleError):
        hearth.Group([node.device(0) for node in nodes])
    slow.set()
    wait_until(lambda: daemons[2].requests(node_pb2.LeaveGroupRequest)[1:])
    wait_until(lambda: not daemons[2].groups)


def test_unresponsive_daemon_times_out(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    held = daemons[1].gates["JoinGroup"] = threading.Event()
    began = time.monotonic()
    with pytest.raises(hearth.TimeoutError):
        form([(session_of(node), 0) for node in nodes], 0.2, slack=0.1)
    assert time.monotonic() - began < LATE
    held.set()
    wait_until(lambda: not any(daemon.groups for daemon in daemons))


def test_rebuild_with_an_absent_daemon_fails(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    group = hearth.Group([node.device(0) for node in nodes])
    daemons[1].server.stop(None).wait()
    with pytest.raises(hearth.ConnectError) as caught:
        group.rebuild()
    assert caught.value.details["target"] == daemons[1].target
    assert not group.closed
    began = time.monotonic()
    fresh = group.rebuild(without=nodes[1])
    assert time.monotonic() - began < LATE
    assert group.closed and fresh.id != group.id
    assert [device.node for device in fresh.devices] == [nodes[0], nodes[2]]
    assert fresh.id in {each.hex() for each in daemons[2].groups}
    assert group.id not in {each.hex() for each in daemons[0].groups | daemons[2].groups}
    alone = fresh.rebuild(without=[nodes[2].device(0)])
    assert alone.id == "" and "[0]" in repr(alone)
    assert not daemons[0].groups
    wait_until(lambda: not daemons[2].groups)


class Silence(threading.Event):
    """Holds a daemon's answers until it is set; `expired` is True if one was waited for too long."""

    expired = False

    def wait(self, timeout: float | None = None) -> bool:
        answered = super().wait(20)
        self.expired |= not answered
        return answered


def test_rebuild_does_not_wait_for_a_silent_node(
    daemons: list[GroupDaemon], nodes: list[hearth.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (formations, rendezvous):
        monkeypatch.setattr(module, "LEAVE_S", 60.0)
    silence, do = Silence(), daemons[1].do

    def silent(kind: str, command: c.Command, result: c.Result) -> None:
        if kind == "query_event":  # its answer says that the operation is done
            silence.wait()
        do(kind, command, result)

    monkeypatch.setattr(daemons[1], "do", silent)
    daemons[1].gates["LeaveGroup"] = silence
    group = hearth.Group([node.device(0) for node in nodes])
    group.all_reduce([device.ones(4) for device in group.devices])
    fresh = group.rebuild(without=nodes[1])
    assert not silence.expired
    assert all(daemon.groups == {bytes.fromhex(fresh.id)} for daemon in (daemons[0], daemons[2]))
    silence.set()
    wait_until(lambda: not daemons[1].groups)


def test_rebuilt_group_restarts_its_sequence(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    group = hearth.Group([node.device(0) for node in nodes])
    arrays = [device.ones(4) for device in group.devices]
    group.all_reduce(arrays)
    group.barrier()
    again = group.rebuild()
    again.all_reduce(arrays)
    for presented in everything(daemons, nodes):
        assert [(part.group.hex(), part.sequence) for part in presented] == [
            (group.id, 1), (group.id, 2), (again.id, 1)
        ]  # fmt: skip


def test_pairs_over_daemons_are_formed_once(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    first, second, third = nodes
    group = hearth.Group([first.device(0), second.device(1), second.device(0), third.device(0)])
    arrays = [device.ones(4) for device in group.devices]
    slow = daemons[1].gates["JoinGroup"] = threading.Event()
    threads = [
        threading.Thread(target=lambda: group.send(arrays[0], to=1)),
        threading.Thread(target=lambda: group.recv(arrays[1], source=0)),
    ]
    for thread in threads:
        thread.start()
    slow.set()
    for thread in threads:
        thread.join(10)
    group.send(arrays[1], to=2)  # both ranks belong to one session: no group is formed
    group.recv(arrays[2], source=1)
    group.recv(arrays[0], source=1)
    with group.batch():  # all ranks take part in a batch, so no further group is formed
        group.send(arrays[3], to=0)
        group.recv(arrays[0], source=3)
    created = daemons[0].requests(node_pb2.CreateGroupRequest)
    assert [[(each.node, each.device) for each in request.members] for request in created] == [
        [(0, 0), (1, 1), (1, 0), (2, 0)], [(0, 0), (1, 1)]
    ]  # fmt: skip
    presented = everything(daemons, nodes)
    id = bytes.fromhex(group.id)
    pair = [(part.group != id, short_number(part.sequence), part.operations[0].peer) for part in presented[0]]
    assert pair == [(True, 1, 1), (True, 1, 1), (False, 1, 3)]
    assert sorted((tuple(part.devices), short_number(part.sequence)) for part in presented[1]) == [
        ((), 1), ((), 1), ((), 1), ((0, 1), 1), ((0, 1), 1)
    ]  # fmt: skip
    group.close()
    assert not any(daemon.groups for daemon in daemons)


def test_group_of_two_ranks_needs_no_pair_group(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    group = hearth.Group([nodes[0].device(0), nodes[1].device(0)])
    x, y = (device.ones(4) for device in group.devices)
    group.send(x, to=1)
    group.recv(y, source=0)
    assert len(daemons[0].asked) == len(daemons[1].asked) == 1
    presented = everything(daemons, nodes)
    assert [part.group.hex() for each in presented for part in each] == [group.id] * 2


def test_subgroups(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    group = hearth.Group([nodes[0].device(0), nodes[1].device(1), nodes[1].device(0)])
    local = group.subgroup([2, 1])
    assert local.id == "" and [device.ordinal for device in local.devices] == [0, 1]
    over = group.subgroup([2, 0])
    (created,) = daemons[1].requests(node_pb2.CreateGroupRequest)
    assert created.members[0].device == 0 and over.id not in ("", group.id)


def test_a_group_that_is_dropped_is_left(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    group = hearth.Group([nodes[0].device(0), nodes[1].device(0)])
    assert daemons[0].groups and daemons[1].groups
    del group
    gc.collect()
    wait_until(lambda: not daemons[0].groups and not daemons[1].groups)
    done = threading.Event()
    session_of(nodes[0]).run_in_keeper(done.set)  # the thread that left the group still runs
    assert done.wait(5)


def test_closed_while_a_pair_is_formed(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    group = hearth.Group([node.device(0) for node in nodes])
    held = daemons[1].gates["JoinGroup"] = threading.Event()
    failed: list[BaseException] = []

    def send() -> None:
        try:
            group.send(group.devices[0].ones(3), to=1)
        except hearth.HearthError as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: len(daemons[1].requests(node_pb2.JoinGroupRequest)) == 2)
    group.close()
    held.set()
    thread.join(10)
    assert isinstance(failed[0], hearth.ClosedError)
    wait_until(lambda: not any(daemon.groups for daemon in daemons))


def test_the_flight_recorder_is_the_coordinators(daemons: list[GroupDaemon], nodes: list[hearth.Node]) -> None:
    group = hearth.Group([nodes[0].device(0), nodes[1].device(0), nodes[1].device(1)])
    group.send(group.devices[0].ones(3), to=1)
    main, pair = (request for request in sorted(daemons[0].groups))

    def info(id: bytes, *what: str) -> node_pb2.GroupInfo:
        operations = [
            node_pb2.GroupOperation(sequence=1, what=each, presented=[1], presented_unix_ns=len(each)) for each in what
        ]
        return node_pb2.GroupInfo(group=id, operations=operations)

    daemons[0].described = [info(main, "barrier", "all"), info(pair, "send"), info(b"x" * 16, "not ours")]
    devices = [node_pb2.GroupMember(device=device) for device in (0, 1)]
    local = node_pb2.GroupOperation(what="recv between the two", presented=[0], presented_unix_ns=99)
    daemons[1].described = [
        info(main, "the joiner's own view"), node_pb2.GroupInfo(members=devices, operations=[local])
    ]  # fmt: skip
    found = group.flight_recorder()
    assert [(entry.what, entry.ranks, entry.presented) for entry in found] == [
        ("all", (0, 1, 2), (1,)), ("send", (0, 1), (1,)), ("barrier", (0, 1, 2), (1,)),
        ("recv between the two", (1, 2), (1,)),
    ]  # fmt: skip
