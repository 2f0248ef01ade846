"""The router: the destination and timing of frames, and the state after sessions and processes have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front.collectives.match import MatchKey, RankLocation
from hearthd.front.collectives.router import CollectiveRouter
from tests.support.front.collective_parts import location, present, reason_of
from tests.support.front.fixture import front, run, until


class Channel:
    """A channel of a session, as the router uses it."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id


class Link:
    """A link to a device process."""

    def __init__(self, ordinal: int, generation: int = 1, sessions: tuple[str, ...] = ("s",)) -> None:
        self.ordinal, self.generation = ordinal, generation
        self.channels = {number: Channel(session) for number, session in enumerate(sessions, 1)}
        self.sent: list[dict[str, Any]] = []
        self.abandoned = ""

    def send_json(self, kind: int, body: dict[str, Any]) -> None:
        assert kind == Kind.COLLECTIVE
        self.sent.append(body)

    def abandon(self, cause: str) -> None:
        self.abandoned = cause


def receive(router: CollectiveRouter, link: Link, body: dict[str, Any]) -> None:
    router.on_frame(link.ordinal, link, body)  # type: ignore[arg-type]


def state_sizes(router: CollectiveRouter) -> tuple[int, int]:
    return len(router.coordinator.matcher), len(router.coordinator.recorder)


def test_ranks_follow_the_order_of_the_devices() -> None:
    async def scenario() -> None:
        router, zero, one = CollectiveRouter([0, 1], 30), Link(0), Link(1)
        receive(router, zero, present((1, 0)))
        receive(router, one, present((1, 0)))
        assert [body["op"] for body in one.sent] == ["create_id"] and not zero.sent
        receive(router, one, {"op": "id", "comm": one.sent[0]["comm"], "unique_id": "u"})
        assert (one.sent[1]["rank"], zero.sent[0]["rank"]) == (0, 1)
        router.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (present((0, 7)), Reason.DEVICE_NOT_FOUND),
        (present((1,)), Reason.INVALID_ARGUMENT),
        (present((0, 0)), Reason.INVALID_ARGUMENT),
        (present((), group="aa" * 16), Reason.INVALID_HANDLE),
    ],
)
def test_invalid_groups_are_refused(body: dict[str, Any], reason: Reason) -> None:
    async def scenario() -> None:
        router, zero = CollectiveRouter([0, 1], 30), Link(0)
        receive(router, zero, body)
        (answer,) = zero.sent
        assert reason_of(answer) == reason and answer["channel"] == 1 and answer["sequence"] == 1
        assert (answer["group"], answer["devices"]) == (body["group"], [] if body["group"] else body["devices"])
        assert state_sizes(router) == (0, 0)

    run(scenario())


@pytest.mark.parametrize(
    "body",
    [{}, {"op": "present"}, {"op": 3}, {"op": "id"}, {"op": "wedged"}, present(channel=99), present(timeout=-1),
     {**present(), "signature": 7}, {**present(), "devices": 7}, {**present(), "sequence": None},
     {"op": "progress", "comm": "x", "done": "many"}],
    ids=str,
)  # fmt: skip
def test_malformed_messages_are_ignored(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        router, zero = CollectiveRouter([0, 1], 30), Link(0)
        receive(router, zero, body)
        assert state_sizes(router) == (0, 0) and not zero.sent and not zero.abandoned

    run(scenario())


def test_waiting_operations_expire_in_time() -> None:
    async def scenario() -> None:
        router, zero = CollectiveRouter([0, 1], 30), Link(0)
        receive(router, zero, present(timeout=20))
        receive(router, zero, present(sequence=2, timeout=0.02))  # the timer was set for a later time
        receive(router, zero, present(sequence=3, timeout=0.06))
        await until(lambda: len(zero.sent) == 2)
        assert [body["sequence"] for body in zero.sent] == [2, 3]
        assert reason_of(zero.sent[0]) == Reason.COLLECTIVE_TIMEOUT
        router.stop()

    run(scenario())


def test_ended_session_leaves_no_state() -> None:
    async def scenario() -> None:
        router, zero, one = CollectiveRouter([0, 1], 30), Link(0, sessions=("s", "t")), Link(1)
        receive(router, zero, present())
        router.on_session_closed("s")
        assert [reason_of(body) for body in zero.sent] == [Reason.SESSION_EXPIRED]
        receive(router, zero, present(sequence=2))  # was under way when the session ended
        assert state_sizes(router) == (0, 0)
        receive(router, zero, present(channel=2, sequence=2))
        assert state_sizes(router) == (1, 1), "another session's"
        zero.channels[3] = Channel("s")  # a session whose channel was closed opens another one
        receive(router, zero, present(channel=3, sequence=3))
        receive(router, one, present(sequence=9))
        assert state_sizes(router) == (3, 2)
        router.stop()

    run(scenario())


def test_ended_process_leaves_no_communicator() -> None:
    async def scenario() -> None:
        router, zero, one = CollectiveRouter([0, 1], 30), Link(0), Link(1)
        communicators = router.coordinator.communicators
        receive(router, zero, present())
        receive(router, one, present())
        assert len(communicators) == 1
        router.on_device_ended(zero)  # type: ignore[arg-type]
        assert len(communicators) == 0 and one.sent[0]["op"] == "abort"
        assert router.link(location(0, 1)) is None and router.link(location(1, 1)) is not None
        router.on_device_ended(Link(0))  # type: ignore[arg-type]
        router.stop()

    run(scenario())


def test_processes_of_a_dedicated_session_leave_no_communicator(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, devices=2) as f:
            communicators = f.daemon.collectives.coordinator.communicators
            request = node_pb2.OpenSessionRequest(isolation=node_pb2.ISOLATION_DEDICATED)
            f.token = (await f.node.OpenSession(request)).session_token

            def send(device: int, body: dict[str, Any]) -> None:
                f.device(device).send(Kind.COLLECTIVE, json.dumps(body).encode())

            for device in (0, 1):
                await f.devices.Sync(device_pb2.SyncRequest(target=f.target(device)))
                send(device, present())
            await until(lambda: len(communicators))
            [communicator] = communicators
            send(0, {"op": "id", "comm": communicator.id, "unique_id": "u"})
            await until(lambda: communicator.unique_id)
            for device in (0, 1):
                send(device, {"op": "joined", "comm": communicator.id})
            await until(lambda: communicator.is_ready)
            await f.node.CloseSession(node_pb2.CloseSessionRequest(session_token=f.token))
            await until(lambda: not len(communicators))

    run(scenario())


def test_a_process_that_cannot_abort_is_ended() -> None:
    async def scenario() -> None:
        router, zero = CollectiveRouter([0, 1], 30), Link(0)
        receive(router, zero, {"op": "wedged", "comm": "n-1"})
        assert zero.abandoned == "its communicator n-1 could not be aborted"

    run(scenario())


class Relay:
    """Handles messages about groups, and records the other events."""

    def __init__(self, router: CollectiveRouter) -> None:
        self.router = router
        self.heard: list[Any] = []

    def relay_message(self, link: Any, body: dict[str, Any]) -> bool:
        if body["op"] != "present" or not body["group"]:
            return body.get("comm", "").startswith("far")
        key = MatchKey("group:" + body["group"], (0, 1), body["sequence"])
        self.router.present(key, 0, RankLocation(0, link.ordinal, link.generation), body)
        return True

    def on_device_lost(self, link: Any, cause: str) -> None:
        self.heard.append((link.ordinal, cause))

    def on_session_closed(self, session: str) -> None:
        self.heard.append(session)


def test_groups_over_daemons_are_routed_to_their_peers() -> None:
    async def scenario() -> None:
        router, zero = CollectiveRouter([0], 30), Link(0)
        relay = router.relay = Relay(router)
        sent: list[tuple[RankLocation, dict[str, Any]]] = []
        router.send_to_peer = lambda location, body: sent.append((location, body))
        remote = location(0, 4, node=1)
        key = MatchKey("group:aa", (0, 1), 1)
        receive(router, zero, present((), group="aa"))
        router.present(key, 1, remote, present((), channel=77, group="aa"))
        comm = zero.sent[0]["comm"]
        assert zero.sent[0] == {"op": "create_id", "comm": comm, "group": "aa", "ranks": 2}
        receive(router, zero, {"op": "id", "comm": comm, "unique_id": "u"})
        receive(router, zero, {"op": "joined", "comm": comm})
        router.on_message(remote, {"op": "joined", "comm": comm}, "group:bb")
        assert [body["op"] for _, body in sent] == ["join"]
        router.on_message(remote, {"op": "joined", "comm": comm}, "group:aa")
        assert (sent[-1][0], sent[-1][1]["op"], sent[-1][1]["channel"]) == (remote, "go", 77)
        assert zero.sent[-1]["op"] == "go" and zero.sent[-1]["group"] == "aa"
        assert router.link(location(0, 1)) is zero and router.link(remote) is None  # type: ignore[comparison-overlap]
        router.on_loss(1, "its connection broke", {"group:aa"})
        assert zero.sent[-1]["op"] == "abort"
        router.on_session_closed("s")
        router.on_device_lost(zero, "boom")  # type: ignore[arg-type]
        assert relay.heard == ["s", (0, "boom")] and router.link(location(0, 1)) is None
        router.end_owner("group:aa", "It was left.")
        assert state_sizes(router) == (0, 0)
        router.stop()

    run(scenario())


def test_consecutive_operations_are_launched_by_one_message() -> None:
    """Consecutive operations are released in one message. If a rank stops, or another rank leaves a gap, the sequence
    is split into several messages."""

    async def work() -> None:
        router = CollectiveRouter([0, 1], 5.0)
        links = [Link(ordinal) for ordinal in (0, 1)]
        receive(router, links[0], {**present(), "sequence": 1})
        receive(router, links[1], {**present(), "sequence": 1})
        comm = links[0].sent[-1]["comm"]
        receive(router, links[0], {"op": "id", "comm": comm, "unique_id": "u"})
        for link in links:
            receive(router, link, {"op": "joined", "comm": comm})
        for link in links:
            assert link.sent.pop()["op"] == "go"
            link.sent.clear()
        receive(router, links[0], {**present(), "sequence": 2, "count": 10})
        assert links[0].sent == []
        receive(router, links[1], {**present(), "sequence": 2, "count": 4})
        receive(router, links[1], {**present(), "sequence": 6, "signature": [{"kind": "barrier"}]})
        receive(router, links[1], {**present(), "sequence": 7, "count": 5})
        for link in links:
            messages = [(body["op"], body["sequence"], body.get("index"), body.get("count", 1)) for body in link.sent]
            assert messages == [("go", 2, 2, 4), ("fail", 6, None, 1), ("go", 7, 6, 5)]
        assert state_sizes(router)[0] == 0

    run(work())


@pytest.mark.parametrize("count", ["x", [], {}])
def test_invalid_counts_of_operations_are_ignored(count: object) -> None:
    async def work() -> None:
        router = CollectiveRouter([0, 1], 5.0)
        receive(router, Link(0), {**present(), "count": count or "y"})
        assert state_sizes(router)[0] == 0

    run(work())
