"""The record of a group's operations in a daemon that has joined the group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hearth_proto.v1 import node_pb2
from hearthd.front.collectives.flight_recorder import OPERATIONS
from hearthd.front.peers.record import PeerRecord
from hearthd.front.peers.tickets import GroupMember
from hearthd.front.rpc.group_service import GroupService
from tests.support.front.fake_peers import SIGNATURE, TIMEOUT, FakeFront, Pair, fronts, pair, run


async def described(front: FakeFront, session: Any) -> node_pb2.GroupInfo:
    """Returns the session's only group, as described by DescribeGroups."""

    class Sessions:
        def find(self, token: str) -> Any:
            return session

    sessions: Any = Sessions()
    service = GroupService(sessions, None, front.groups, front.router.coordinator.recorder, TIMEOUT, bytes)  # type: ignore[arg-type]
    answer = await service.describe(node_pb2.DescribeGroupsRequest(), None)  # type: ignore[arg-type]
    (group,) = answer.groups
    return group


async def becomes(front: FakeFront, session: Any, sequence: int, state: str) -> node_pb2.GroupOperation:
    async with asyncio.timeout(TIMEOUT):
        while True:
            for operation in (await described(front, session)).operations:
                if operation.sequence == sequence and operation.state == state:
                    return operation
            await asyncio.sleep(0.001)


def test_follower_records_operations_of_its_ranks() -> None:
    async def work() -> None:
        async with pair() as both:
            link, session = both.ranks[1], both.sessions[1]
            assert not (await described(both.second, session)).operations
            link.present(session, both.group, 1)
            waiting = await becomes(both.second, session, 1, "presented")
            assert waiting.what == "all_reduce 8 float32 sum" and list(waiting.presented) == [1]
            assert waiting.presented_unix_ns and not waiting.launched_unix_ns
            both.ranks[0].present(both.sessions[0], both.group, 1)
            launched = await becomes(both.second, session, 1, "launched")
            assert launched.launched_unix_ns >= launched.presented_unix_ns and not launched.finished_unix_ns
            comm = (await link.wait_for("go"))["comm"]
            link.send_to_front({"op": "progress", "comm": comm, "done": 1})
            done = await becomes(both.second, session, 1, "done")
            assert done.finished_unix_ns >= done.launched_unix_ns and not done.error
            group = await described(both.second, session)
            assert group.state == "ready" and group.aborts == 0 and len(group.operations) == 1
            (theirs,) = (await described(both.first, both.sessions[0])).operations
            assert list(theirs.presented) == [0, 1], "the coordinator knows all ranks"

    run(work())


def test_the_reason_for_which_an_operation_did_not_run() -> None:
    async def work() -> None:
        async with pair() as both:
            link, session = both.ranks[1], both.sessions[1]
            both.ranks[0].present(both.sessions[0], both.group, 1, count=9)
            link.present(session, both.group, 1)
            assert "count" in (await becomes(both.second, session, 1, "failed")).error
            link.present(session, both.group, 2, timeout=0.1)
            late = await becomes(both.second, session, 2, "failed")
            assert late.error and late.finished_unix_ns and not late.launched_unix_ns
            await both.run(3)
            assert [operation.state for operation in (await described(both.second, session)).operations] == [
                "failed", "failed", "launched",
            ]  # fmt: skip

    run(work())


@pytest.mark.parametrize("lost", ["own process", "other process", "coordinator"])
def test_operations_in_flight_at_a_loss_are_recorded(lost: str) -> None:
    async def work() -> None:
        async with pair() as both:
            session = both.sessions[1]
            await both.run(1)
            if lost == "own process":
                both.second.replace(0)
            elif lost == "other process":
                both.first.replace(0)
            else:
                await both.first.stop()
            operation = await becomes(both.second, session, 1, "failed")
            assert operation.launched_unix_ns and operation.finished_unix_ns
            words = {"coordinator": "node 0"}.get(lost, "SIGKILL")
            assert words in operation.error
            group = await described(both.second, session)
            assert group.state == "failed" and words in group.detail and group.aborts == 1

    run(work())


def test_two_sessions_of_one_daemon_have_a_record_each() -> None:
    async def work() -> None:
        front = FakeFront("a")
        async with fronts(front):
            both = Pair(front, front)
            await both.form()
            both.present(1)
            for rank in (0, 1):
                await front.links[0].wait_for("go", rank=rank)
            first, second = [(await described(front, session)).operations for session in both.sessions]
            assert [list(operation.presented) for operation in (*first, *second)] == [[0, 1], [1]]
            front.groups.leave(both.sessions[1], both.group)
            assert not front.groups.of(both.sessions[1])

    run(work())


def test_operation_is_done_when_all_local_ranks_are() -> None:
    async def work() -> None:
        first, second = FakeFront("a"), FakeFront("b")
        async with fronts(first, second):
            members = (GroupMember(1, 0), GroupMember(0, 0), GroupMember(1, 1))
            one, two = first.session(0), second.session(0, 1)
            group, secret = await first.groups.create(one, members, 20.0)
            await second.groups.join(two, group, 1, members, first.ticket(secret), 20.0)
            for link, session in ((second.links[0], two), (first.links[0], one), (second.links[1], two)):
                link.present(session, group, 1)
            comms = [(await link.wait_for("go"))["comm"] for link in second.links]
            second.links[0].send_to_front({"op": "progress", "comm": comms[0], "done": 1})
            (operation,) = (await described(second, two)).operations
            assert operation.state == "launched" and list(operation.presented) == [0, 2]
            second.links[1].send_to_front({"op": "progress", "comm": comms[1], "done": 1})
            (operation,) = (await described(second, two)).operations
            assert operation.state == "done"

    run(work())


def test_record_is_bounded() -> None:
    record = PeerRecord("ab", 2, 1)
    for sequence in range(1, 10 * OPERATIONS):
        record.record_presentation(1, {"sequence": sequence, "signature": SIGNATURE})
        record.record_launch("c", (0, 1), 1, sequence, sequence)
    history = record.history
    assert history is not None and len(history.operations) == OPERATIONS
    assert {key: len(found.operations) for key, found in record.in_flight.items()} == {("c", (0, 1)): OPERATIONS}
    record.record_progress("c", (0, 1), 10 * OPERATIONS)
    assert {entry.state for entry in history.operations.values()} == {"done"} and not record.finished
    record.record_abort("c", (0, 1), "the end")
    assert not record.in_flight and history.aborts == 1
    assert {entry.state for entry in history.operations.values()} == {"done"}


def test_lagging_ranks_are_eventually_forgotten() -> None:
    record = PeerRecord("ab", 3, 2)
    for sequence in range(1, 10 * OPERATIONS):
        record.record_presentation(1, {"sequence": sequence, "signature": SIGNATURE})
        record.record_launch("c", (0, 1), 1, sequence, sequence)
        record.record_progress("c", (0, 1), sequence)
    assert 0 < len(record.finished) <= OPERATIONS
