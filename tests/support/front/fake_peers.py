"""Several fronts in one event loop, each with the real router and groups, and fake device processes that record the
frames they receive."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.reasons import Refusal, from_text
from hearth_proto.v1 import node_pb2
from hearthd.front.collectives.router import CollectiveRouter
from hearthd.front.config.peer_targets import AUTO, LOOPBACK
from hearthd.front.peers.connect import PeerConnector
from hearthd.front.peers.follower import ANSWER_MARGIN_S
from hearthd.front.peers.groups import PeerGroups
from hearthd.front.peers.link import PeerLink
from hearthd.front.peers.port import PeerPort
from hearthd.front.peers.targets import PeerTargets
from hearthd.front.peers.tickets import GroupMember, Members

TIMEOUT = 20.0
"""Seconds after which a wait is considered to hang."""
WINDOW = 5.0
SIGNATURE = [{"kind": "all_reduce", "count": 8, "dtype": "float32", "reduce": "sum", "root": 0, "peer": 0}]
STATUS = base64.b64encode(b"").decode()


class FakeLink:
    """A device process, as the front sees it. It joins every communicator that it is asked to join."""

    def __init__(self, front: FakeFront, ordinal: int, generation: int = 1) -> None:
        self.front = front
        self.ordinal = ordinal
        self.generation = generation
        self.channels: dict[int, Any] = {}
        self.received: list[dict[str, Any]] = []
        self.changed = asyncio.Event()
        self.is_responsive = True
        self.abandoned = ""
        self.loss: Refusal | None = None
        self.answers_pings = asyncio.Event()
        """Set while the process handles its frames; cleared by tests of a process with a backlog."""
        self.answers_pings.set()
        self.pinged = asyncio.Event()
        """Set by the first ping."""
        self.on_open: Callable[..., None] = lambda link, channel, session: None

    def send_json(self, kind: int, body: dict[str, Any]) -> None:
        assert kind == Kind.COLLECTIVE
        self.received.append(body)
        self.changed.set()
        if self.is_responsive and body["op"] == "create_id":
            unique_id = base64.b64encode(body["comm"].encode()).decode()
            self.send_soon({"op": "id", "comm": body["comm"], "unique_id": unique_id})
        elif self.is_responsive and body["op"] == "join":
            self.send_soon({"op": "joined", "comm": body["comm"]})

    async def ping(self) -> None:
        self.pinged.set()
        await self.answers_pings.wait()
        if self.loss is not None:
            raise self.loss

    def send_soon(self, body: dict[str, Any]) -> None:
        asyncio.get_running_loop().call_soon(self.send_to_front, body)

    def send_to_front(self, body: dict[str, Any]) -> None:
        self.front.router.on_frame(self.ordinal, self, body)  # type: ignore[arg-type]

    def abandon(self, reason: str) -> None:
        self.abandoned = reason

    def open(self, session: Any) -> Any:
        number = 10 * self.ordinal + len(self.channels) + 1
        channel = FakeChannel(link=self, number=number, session_id=session.id, alive=True)
        self.channels[number] = session.channels[self.ordinal] = channel
        self.on_open(self, number, session.id)
        return channel

    def present(
        self, session: Any, group: bytes, sequence: int = 1, timeout: float = 5.0, predecessors: Any = (), **change: Any
    ) -> None:
        signature = [{**SIGNATURE[0], **change}]
        self.send_to_front(
            {
                "op": "present", "channel": session.channels[self.ordinal].number, "group": group.hex(), "devices": [],
                "sequence": sequence, "signature": signature, "timeout": timeout, "behind": list(predecessors),
            }
        )  # fmt: skip

    def ops(self, *names: str) -> list[dict[str, Any]]:
        return [body for body in self.received if body["op"] in names]

    async def wait_for(self, op: str, **fields: Any) -> dict[str, Any]:
        """Waits for a matching frame, removes it from `heard` and returns it."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                for body in self.received:
                    if body["op"] == op and all(body.get(name) == value for name, value in fields.items()):
                        self.received.remove(body)
                        return body
                self.changed.clear()
                await self.changed.wait()


class FakeChannel(SimpleNamespace):
    """A channel; hashable, because the router keeps weak references to it."""

    __hash__ = object.__hash__


class FakeFront:
    """The collectives of one daemon: its router, its groups and its port. `make` builds the links that it opens,
    `accept` those of daemons that connect to it."""

    def __init__(self, name: str, devices: int = 2, listen: str = "127.0.0.1:0", **port: Any) -> None:
        self.router = CollectiveRouter(range(devices), 5.0)
        targets = PeerTargets(port.pop("peers", (AUTO,)), LOOPBACK)
        reach = PeerConnector(targets, port.pop("make", PeerLink), port.pop("window", WINDOW))
        self.groups = PeerGroups(self.router, reach, answer_margin=port.pop("answer_margin", ANSWER_MARGIN_S))
        self.refused: list[str] = []
        self.groups.on_refused = lambda session, addresses: self.refused.extend(map(str, addresses))
        self.router.relay, self.router.send_to_peer = self.groups, self.groups.send
        port["link_factory"] = port.pop("accept", PeerLink)
        self.groups.port = PeerPort(listen, port.pop("advertise", ()), "localhost", self.groups.admit, **port)
        self.name = name
        self.links = [FakeLink(self, ordinal) for ordinal in range(devices)]
        for link in self.links:
            link.on_open = self.groups.on_open
        self._sessions = 0

    def session(self, *devices: int) -> Any:
        """Returns a new session with a channel to each of these devices."""
        self._sessions += 1
        session = SimpleNamespace(id=f"{self.name}{self._sessions}", channels={}, closing=False)
        for device in devices:
            self.links[device].open(session)
        return session

    def ticket(self, secret: bytes, **changes: Any) -> node_pb2.GroupTicket:
        assert self.groups.port is not None
        return node_pb2.GroupTicket(**{"addresses": self.groups.port.addresses, "secret": secret, **changes})

    def replace(self, ordinal: int) -> FakeLink:
        """Simulates the loss of a device process and its replacement by a new one; returns the new link."""
        old = self.links[ordinal]
        self.router.on_device_lost(old, "it was killed by SIGKILL")  # type: ignore[arg-type]
        for channel in old.channels.values():
            channel.alive = False
        self.links[ordinal] = FakeLink(self, ordinal, old.generation + 1)
        self.links[ordinal].on_open = self.groups.on_open
        return self.links[ordinal]

    async def stop(self) -> None:
        await self.groups.stop()
        self.router.stop()


class Pair:
    """Two fronts, a session with device 0 on each, and a group of two ranks over them."""

    def __init__(self, first: FakeFront, second: FakeFront) -> None:
        self.first, self.second = first, second
        self.sessions = (first.session(0), second.session(0))
        self.members: Members = (GroupMember(0, 0), GroupMember(1, 0))
        self.group = self.secret = b""

    @property
    def ranks(self) -> tuple[FakeLink, FakeLink]:
        return self.first.links[0], self.second.links[0]

    async def form(self) -> None:
        self.group, self.secret = await self.first.groups.create(self.sessions[0], self.members, 5.0)
        ticket = self.first.ticket(self.secret)
        await self.second.groups.join(self.sessions[1], self.group, 1, self.members, ticket, 5.0)

    def present(self, sequence: int = 1, **more: Any) -> None:
        for link, session in zip(self.ranks, self.sessions, strict=True):
            link.present(session, self.group, sequence, **more)

    async def run(self, sequence: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Presents an operation on both ranks and waits for its launch; returns the two `go` messages."""
        self.present(sequence)
        first, second = [await link.wait_for("go", sequence=sequence) for link in self.ranks]
        return first, second


@contextlib.asynccontextmanager
async def fronts(*daemons: FakeFront) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for front in daemons:
            await front.stop()


@contextlib.asynccontextmanager
async def pair(answer_margin: float = ANSWER_MARGIN_S, **port: Any) -> AsyncIterator[Pair]:
    """A group that is formed; `answer_margin`: of the follower, see `PeerGroups`."""
    first, second = FakeFront("a", **port), FakeFront("b", answer_margin=answer_margin)
    async with fronts(first, second):
        both = Pair(first, second)
        await both.form()
        yield both


def refusal_in(body: dict[str, Any]) -> Refusal:
    return from_text(body["status"])


def quick(heartbeat: float = 0.05, silence: float = 0.3, **more: Any) -> Callable[[], PeerLink]:
    return partial(PeerLink, heartbeat=heartbeat, silence=silence, **more)


def run(work: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    """Runs `work` in a separate event loop, of uvloop (as the daemon) or asyncio. Fails if a task is left in it."""
    if loop == "uvloop":
        import uvloop

        uvloop.run(_alone(work))
    else:
        asyncio.run(_alone(work))


async def _alone(work: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(30):
        await work
        while other_tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(other_tasks)
