"""A peer in a group can affect only that group: not other groups, sessions or local devices."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth_proto.v1 import node_pb2
from hearthd.front.addresses import parse_address
from hearthd.front.peers import port, tickets
from hearthd.front.peers.follower import ANSWER_MARGIN_S, MAX_COMMUNICATORS
from hearthd.front.peers.leader import MAX_PRESENTED
from hearthd.front.peers.link import PeerLink
from hearthd.front.peers.tickets import GroupMember
from tests.support.front.fake_peers import STATUS, TIMEOUT, FakeFront, Pair, fronts, pair, run


class Insider:
    """A member with a valid ticket of `both.first` that sends arbitrary messages."""

    def __init__(self, front: FakeFront, link: PeerLink, group: bytes, session: Any) -> None:
        self.front, self.link, self.group, self.session = front, link, group, session
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.received: list[Any] = []
        link.start(self.received.append, self.lost.set_result)

    def send_message(self, body: dict[str, Any], device: Any = 0, process: Any = 1, kind: str = "rank") -> None:
        self.link.send({"t": kind, "device": device, "process": process, "body": body})

    async def wait_until_handled(self) -> None:
        """Waits until all earlier messages were handled: a message sent after them has been answered."""
        presentation = {
            "op": "present",
            "sequence": 10**6 + len(self.received),
            "signature": [{"kind": "?"}],
            "timeout": 0.001,
        }
        self.received.clear()
        self.send_message(presentation)
        async with asyncio.timeout(TIMEOUT):
            while not self.received and not self.lost.done():  # noqa: ASYNC110 - there is no other notification
                await asyncio.sleep(0.001)

    @property
    def is_disconnected(self) -> bool:
        return self.lost.done()


@contextlib.asynccontextmanager
async def insider(both: Pair) -> AsyncIterator[Insider]:
    """Yields a member of another group of `both.first`, with device 0 of node 1."""
    session = both.first.session(1)
    members = (GroupMember(0, 1), GroupMember(1, 0))
    group, secret = await both.first.groups.create(session, members, 20.0)
    assert both.first.groups.port is not None
    link = await port.connect(parse_address(both.first.groups.port.addresses[0]), b"", TIMEOUT)
    link.send(tickets.hello(group, 1, secret, members))
    assert (await link.receive_first())["t"] == "welcome"
    member = Insider(both.first, link, group, session)
    try:
        yield member
    finally:
        link.close()
        await link.closed


async def unharmed(both: Pair, sequence: int, comm: str) -> None:
    """Checks that the other group continues with the same communicator."""
    gos = await both.run(sequence)
    assert gos[0]["comm"] == comm and gos[0]["index"] == sequence
    for link in both.ranks:
        assert not link.ops("fail", "abort"), link.received


def test_other_groups_are_out_of_reach() -> None:
    async def work() -> None:
        async with pair() as both, insider(both) as peer:
            comm = (await both.run(1))[0]["comm"]
            both.ranks[0].present(both.sessions[0], both.group, 2)
            message = {"op": "present", "group": both.group.hex(), "sequence": 2, "timeout": 5.0}
            peer.send_message({**message, "signature": [{"kind": "all_reduce", "count": 9}], "channel": 1})
            for op in ("failed", "joined", "progress", "join_failed", "id"):
                peer.send_message(
                    {"op": op, "comm": comm, "done": 99, "status": STATUS, "reason": "!", "unique_id": STATUS}
                )
            peer.link.send({"t": "lost", "device": 0, "process": 1, "why": "!"})
            await peer.wait_until_handled()
            assert not peer.is_disconnected
            both.ranks[1].present(both.sessions[1], both.group, 2)
            for link in both.ranks:
                assert (await link.wait_for("go", sequence=2))["index"] == 2
            await unharmed(both, 3, comm)
            peer.link.send({"t": "leave", "why": "!"})
            async with asyncio.timeout(TIMEOUT):
                while both.first.groups.of(peer.session)[0].state != "failed":  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            await unharmed(both, 4, comm)

    run(work())


def test_local_communicators_are_out_of_reach() -> None:
    async def work() -> None:
        async with pair() as both, insider(both) as peer:
            front, session = both.first, both.first.session(0, 1)
            for ordinal, link in enumerate(front.links):
                channel = session.channels[ordinal].number
                body = {"op": "present", "channel": channel, "group": "", "devices": [0, 1], "sequence": 1}
                link.send_to_front({**body, "signature": [{"kind": "barrier"}], "timeout": 5.0})
            (comm,) = {(await link.wait_for("go", devices=[0, 1]))["comm"] for link in front.links}
            for device in (0, 1):
                for process in (0, 1):
                    peer.send_message({"op": "failed", "comm": comm, "reason": "!"}, device, process)
            await peer.wait_until_handled()
            for ordinal, link in enumerate(front.links):
                channel = session.channels[ordinal].number
                body = {"op": "present", "channel": channel, "group": "", "devices": [0, 1], "sequence": 2}
                link.send_to_front({**body, "signature": [{"kind": "barrier"}], "timeout": 5.0})
            assert {(await link.wait_for("go", sequence=2, devices=[0, 1]))["comm"] for link in front.links} == {comm}

    run(work())


def test_ranks_of_others_cannot_be_impersonated() -> None:
    async def work() -> None:
        async with pair() as both, insider(both) as peer:
            for device in (1, 5, 10**9):
                presentation = {"op": "present", "sequence": 1, "signature": [{"kind": "barrier"}], "timeout": 5.0}
                peer.send_message(presentation, device)
            await peer.wait_until_handled()
            assert not peer.is_disconnected and len(both.first.router.coordinator.matcher) == 0
            both.first.links[1].present(peer.session, peer.group, 1, timeout=0.2)
            await both.first.links[1].wait_for("fail", sequence=1)

    run(work())


def test_operations_without_end_are_not_kept() -> None:
    async def work() -> None:
        async with pair() as both, insider(both) as peer:
            for sequence in range(1, MAX_PRESENTED + 10):
                # The timeout is long, so that no operation is answered before the last one is sent.
                peer.send_message({**GOOD, "sequence": sequence, "timeout": 60.0})
            async with asyncio.timeout(TIMEOUT):
                await peer.lost
            assert "without waiting for an answer" in both.first.groups.of(peer.session)[0].info().detail
            assert len(both.first.router.coordinator.matcher) == 0
            await both.run(1)

    run(work())


def test_a_batch_may_be_large_and_answers_make_room() -> None:
    async def work() -> None:
        async with pair() as both, insider(both) as peer:
            device = both.first.links[1]
            for sequence in range(1, 4):
                batch = [{"kind": "barrier"}] * (MAX_PRESENTED + 1)
                peer.send_message({**GOOD, "sequence": sequence, "signature": batch})
                body = {"op": "present", "channel": peer.session.channels[1].number, "group": peer.group.hex()}
                device.send_to_front({**body, "devices": [], "sequence": sequence, "signature": [], "timeout": 5.0})
                await device.wait_for("fail", sequence=sequence)
            await peer.wait_until_handled()
            assert not peer.is_disconnected

    run(work())


GOOD = {"op": "present", "sequence": 1, "signature": [{"kind": "barrier"}], "timeout": 5.0}
NONSENSE: list[Any] = [
    {}, {"t": 5}, {"t": "send"}, {"t": "rank"}, {"t": "rank", "device": 0, "process": 1},
    *({"t": "rank", "device": device, "process": 1, "body": GOOD} for device in (-1, "0", None, True, 2**70, [])),
    *({"t": "rank", "device": 0, "process": process, "body": GOOD} for process in (-1, "0", None, 1.5)),
    *({"t": "rank", "device": 0, "process": 1, "body": {**GOOD, **change}}
      for change in ({"sequence": -1}, {"sequence": "1"}, {"sequence": 2**70}, {"timeout": -1}, {"timeout": "x"},
                     {"signature": 5}, {"signature": [5]}, {"signature": [{"kind": 5}]},
                     {"behind": 5}, {"behind": [5]}, {"behind": [[[], -1]]}, {"behind": [[[], 1]] * 2000},
                     {"op": "withdraw", "status": "%%"}, {"op": "withdraw", "status": 5}, {"op": "withdraw"},
                     {"signature": [{"kind": "x", "more": 1}]}, {"signature": [{"kind": "x" * 100}]},
                     {"signature": [{"kind": "barrier", "count": -1}]}, {"signature": [{"kind": "\ud800"}]},
                     {"signature": [{"kind": "a\nb"}]}, {"signature": [{"kind": "send", "dtype": "\u202e"}]},
                     {"sequence": True}, {"op": "go"}, {"op": None}, {"op": "wedged"})),
    *({"t": "rank", "device": 0, "process": 1, "body": body}
      for body in (None, [], 5, {"op": "failed"}, {"op": "failed", "comm": 5}, {"op": "id", "comm": "x"},
                   {"op": "id", "comm": "x", "unique_id": "?"},
                   {"op": "id", "comm": "x", "unique_id": "AAAA" * 2000},
                   {"op": "progress", "comm": "x", "done": "1"},
                   {"op": "join_failed", "comm": "x", "status": 5})),
    {"t": "lost", "device": 0, "process": 1}, {"t": "lost", "device": 0, "process": 1, "why": 5},
    {"t": "leave", "why": 5}, {"t": "hello"}, {"t": "over"},
]  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda body: str(body)[:60])
def test_peer_that_sends_garbage_is_disconnected(nonsense: Any) -> None:
    async def work() -> None:
        async with pair() as both, insider(both) as peer:
            comm = (await both.run(1))[0]["comm"]
            peer.link.send(nonsense)
            async with asyncio.timeout(TIMEOUT):
                await peer.lost
            await unharmed(both, 2, comm)
            assert both.first.groups.of(peer.session)[0].state == "failed"

    run(work())


json = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["op", "comm", "x"]), inner),
    max_leaves=5,
)
TYPES = st.sampled_from(["rank", "lost", "leave", "alive", "send", "over", "x"])
MORE = {
    "device": st.integers(-1, 2) | json,
    "process": st.integers(-1, 2) | json,
    "why": st.text(max_size=5) | json,
    "body": json
    | st.fixed_dictionaries(
        {"op": st.sampled_from(["present", "id", "joined", "failed", "progress", "join_failed", "wedged", "go"])},
        optional={
            "comm": st.text(max_size=3) | json,
            "sequence": st.integers(-1, 3) | json,
            "signature": st.lists(st.fixed_dictionaries({"kind": st.just("send"), "peer": json}), max_size=2) | json,
            "timeout": st.floats(allow_nan=False, allow_infinity=False) | json,
            "unique_id": json,
            "status": json,
            "done": json,
        },
    ),
}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.fixed_dictionaries({"t": TYPES}, optional=MORE), min_size=1, max_size=8))
def test_messages_of_a_member_harm_no_other_group(messages: list[dict[str, Any]]) -> None:
    async def work() -> None:
        async with pair() as both, insider(both) as peer:
            comm = (await both.run(1))[0]["comm"]
            for message in messages:
                peer.link.send(message)
            await peer.wait_until_handled()
            await unharmed(both, 2, comm)

    run(work())


# ---- hostile coordinator ----


class Coordinator:
    """A coordinator whose group a session of `front` has joined, and that sends arbitrary messages."""

    def __init__(self, front: FakeFront) -> None:
        self.front = front
        self.session: Any = None
        self.group = b"g" * 16
        self.link: PeerLink | None = None
        self.received: list[Any] = []
        self.lost: list[str] = []
        self.port = port.PeerPort("127.0.0.1:0", (), "localhost", self._admit)

    def _admit(self, body: Any, link: PeerLink) -> None:
        self.link = link
        link.send({"t": "welcome"})
        link.start(self.received.append, self.lost.append)

    async def joined(self) -> None:
        await self.port.open()
        self.session = self.front.session(0)
        ticket = node_pb2.GroupTicket(addresses=self.port.addresses, secret=b"s" * 16)
        members = (GroupMember(0, 0), GroupMember(1, 0))
        await self.front.groups.join(self.session, self.group, 1, members, ticket, 20.0)

    def send_message(self, body: Any, device: Any = 0, process: Any = 1) -> None:
        assert self.link is not None
        self.link.send({"t": "send", "device": device, "process": process, "body": body})

    async def wait_until_handled(self) -> None:
        """Waits until all earlier messages have arrived: a message sent after them has been answered."""
        device = self.front.links[0]
        device.present(self.session, self.group, 777)
        self.send_message({"op": "fail", "sequence": 777, "status": STATUS})
        await device.wait_for("fail", sequence=777)


@contextlib.asynccontextmanager
async def coordinator(answer_margin: float = ANSWER_MARGIN_S) -> AsyncIterator[Coordinator]:
    front = FakeFront("b", answer_margin=answer_margin)
    async with fronts(front):
        peer = Coordinator(front)
        await peer.joined()
        try:
            yield peer
        finally:
            await peer.port.close()
            assert peer.link is not None
            peer.link.close()
            await peer.link.closed


JOIN = {"op": "join", "comm": "c-1", "unique_id": STATUS, "rank": 1, "ranks": 2}


def test_a_coordinator_reaches_its_group_only() -> None:
    async def work() -> None:
        async with coordinator() as chief:
            front, device = chief.front, chief.front.links[0]
            other = front.session(0)
            device.present(chief.session, chief.group, 1)
            device.received.clear()
            ignored = [
                {"op": "abort", "comm": "local-1", "reason": "!", "status": STATUS},
                {"op": "go", "sequence": 1, "comm": "local-1", "rank": 1, "ranks": 2, "index": 1},
                {"op": "go", "sequence": 9, "comm": "c-1", "index": 1}, {"op": "fail", "sequence": 9, "status": STATUS},
                {**JOIN, "rank": 0}, {**JOIN, "ranks": 3}, {"op": "create_id", "comm": "c-1", "ranks": 9},
            ]  # fmt: skip
            for body in ignored:
                chief.send_message({**body, "channel": other.channels[0].number, "group": "ff" * 16})
            for device_number, process in ((1, 1), (0, 2), (7, 1)):
                chief.send_message(JOIN, device_number, process)
            await chief.wait_until_handled()
            assert device.received == [] and front.links[1].received == [] and not chief.lost
            chief.send_message(JOIN)
            received = await device.wait_for("join")
            assert received["comm"] == f"{chief.group.hex()}@1/c-1" and received["group"] == chief.group.hex()
            chief.send_message(
                {"op": "go", "sequence": 1, "comm": "c-1", "rank": 0, "ranks": 99, "index": 1, "channel": 99}
            )
            went = await device.wait_for("go")
            assert went == {
                "op": "go", "channel": chief.session.channels[0].number, "group": chief.group.hex(), "devices": [],
                "sequence": 1, "comm": received["comm"], "rank": 1, "ranks": 2, "index": 1,
            }  # fmt: skip

    run(work())


def test_launch_of_an_abandoned_operation_reaches_the_process() -> None:
    """The process reports that it misses the operation. The other ranks would wait for it otherwise."""

    async def work() -> None:
        async with coordinator(answer_margin=0.0) as chief:
            device = chief.front.links[0]
            chief.send_message(JOIN)
            comm = (await device.wait_for("join"))["comm"]
            device.present(chief.session, chief.group, 1, timeout=0.01)
            await device.wait_for("fail", sequence=1)
            chief.send_message({"op": "go", "sequence": 1, "comm": "c-1", "index": 3})
            went = await device.wait_for("go")
            assert (went["sequence"], went["comm"], went["index"]) == (1, comm, 3)
            while chief.received[-1]["body"]["op"] != "withdraw":  # noqa: ASYNC110 - there is no notification
                await asyncio.sleep(0.001)

    run(work())


def test_a_coordinator_cannot_have_helpers_without_end() -> None:
    async def work() -> None:
        async with coordinator() as chief:
            device = chief.front.links[0]
            device.received.clear()
            for number in range(5 * MAX_COMMUNICATORS):
                chief.send_message({**JOIN, "comm": f"c-{number}"})
            await chief.wait_until_handled()
            assert len(device.ops("join")) == MAX_COMMUNICATORS
            chief.send_message({"op": "abort", "comm": "c-0", "reason": "", "status": STATUS})
            chief.send_message({**JOIN, "comm": "again"})
            await chief.wait_until_handled()
            assert len(device.ops("join")) == MAX_COMMUNICATORS + 1 and len(device.ops("abort")) == 1
            assert chief.link is not None
            chief.link.abort("the coordinator ends")
            await device.wait_for("abort", comm=f"{chief.group.hex()}@1/again")
            assert len(device.ops("abort")) == MAX_COMMUNICATORS

    run(work())


@pytest.mark.parametrize(
    "nonsense",
    [
        {}, {"t": "rank"}, {"t": "send"}, {"t": "send", "device": 0, "process": 1}, {"t": "over"},
        {"t": "over", "status": "?"}, {"t": "over", "status": "AAAA////"},
        {"t": "send", "device": "0", "process": 1, "body": JOIN}, {"t": "send", "device": 0, "process": 1, "body": 5},
        *({"t": "send", "device": 0, "process": 1, "body": body}
          for body in ({}, {"op": "x", "comm": "c"}, {"op": "join"}, {**JOIN, "comm": 5}, {**JOIN, "unique_id": "?"},
                       {**JOIN, "unique_id": "AAAA" * 2000},
                       {"op": "fail", "sequence": 1, "status": "////"}, {"op": "abort", "comm": "c", "status": "////"},
                       {**JOIN, "rank": "1"}, {"op": "fail"}, {"op": "fail", "sequence": 1}, {"op": "go"},
                       {"op": "abort", "comm": 5}, {"op": "group", "comm": "x"}, {"op": "ungroup", "comm": "x"})),
    ],
    ids=str,
)  # fmt: skip
def test_coordinator_that_sends_garbage_is_disconnected(nonsense: Any) -> None:
    async def work() -> None:
        async with coordinator() as chief:
            device = chief.front.links[0]
            device.present(chief.session, chief.group, 1)
            assert chief.link is not None
            chief.link.send(nonsense)
            await device.wait_for("fail", sequence=1)
            assert chief.front.groups.of(chief.session)[0].state == "failed"
            assert not device.ops("join", "go", "abort", "x", "ungroup")

    run(work())
