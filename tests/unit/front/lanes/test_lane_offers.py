"""Lanes, the front's side: offers, tickets, and connections that present them."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from hearth_proto import frames
from hearth_proto.frames import Kind
from hearthd.front.lanes.ticket_port import TicketTimeouts
from hearthd.front.lanes.tickets import LaneTickets
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.sockets import ListenError
from tests.support.front.entered_lanes import channel, device, enter, launcher, refusals, silent
from tests.support.front.execute_batches import batch
from tests.support.front.fake_device import FakeLauncher
from tests.support.front.fake_lanes import LaneClient, open_sockets
from tests.support.front.fixture import Front, front, run, until
from tests.support.front.resumed_streams import attach, gone, over, resume, take

# ---- offers ----


def test_lanes_are_offered_over_the_unix_socket_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1, listen__grpc="127.0.0.1:0") as f:
            await f.open()
            stream, attached = await attach(f)
            assert attached.lane.path == f"{f.daemon.config.unix_path}.lane" and len(attached.lane.ticket) == 32
            assert attached.lane.valid_ns == 5_000_000_000
            stream.cancel()
            await gone(f)
            _, attached = await resume(f, 0)
            assert attached.lane.ticket
        async with front(tmp_path, launcher(), devices=1, listen__grpc="127.0.0.1:0") as f:
            await f.open()
            async with grpc.aio.insecure_channel(f.daemon.addresses.grpc) as tcp:
                other = Front(f.daemon, f.launcher, tcp)
                other.token = f.token
                stream, attached = await attach(other)
                assert not attached.HasField("lane"), "possibly another host"
                stream.cancel()
                await gone(f)
            stream, attached = await attach(f, resumable=False)
            assert not attached.HasField("lane")
            stream.cancel()
            await gone(f)
            [session] = f.daemon.sessions
            for bound in (CommandQueue(max_commands=9), CommandQueue(max_bytes=9)):
                session.queue = bound
                stream, attached = await attach(f)
                assert not attached.HasField("lane"), "its work must be counted"
                stream.cancel()
                await gone(f)
            session.queue = CommandQueue()
            f.daemon.parts.drain.begin()
            _, attached = await attach(f)
            assert not attached.HasField("lane")

    run(scenario())


@pytest.mark.parametrize("obstacle", ["off", "too long", "no descriptors"])
def test_disabled_lanes_are_not_offered(tmp_path: Path, obstacle: str) -> None:
    flags: dict[str, Any] = {"off": {"lanes__enabled": False}, "too long": {"lanes__path": f"/tmp/{'x' * 103}"}}
    process = FakeLauncher() if obstacle == "no descriptors" else launcher()

    async def scenario() -> None:
        async with front(tmp_path, process, devices=1, **flags.get(obstacle, {})) as f:
            await f.open()
            stream, attached = await attach(f)
            assert not attached.HasField("lane")
            await stream.write(batch(1, requests=1))
            assert await take(stream, 1) == [1]

    run(scenario())


def test_socket_is_private_and_removed_with_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "h.sock.lane"
    with socket.socket(socket.AF_UNIX) as left:  # left by a daemon that was killed
        left.bind(str(path))

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "h.sock").stat().st_mode) == 0o600
            await f.open()
            await enter(f)

    run(scenario())
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "both.lane")

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1, lanes__path=path):
            with pytest.raises(ListenError, match=r"lanes\.path: a daemon already serves.*set lanes\.path to"):
                async with front(tmp_path, launcher(), listen__unix=str(tmp_path / "i.sock"), lanes__path=path):
                    pass
            # The socket still belongs to the other daemon.
            client = LaneClient(*await asyncio.open_unix_connection(path))
            client.close()

    run(scenario())


# ---- tickets and connections ----


def test_ticket_is_valid_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            client = await LaneClient.live(attached.lane)
            assert device(f).given == [
                {
                    "channel": 1,
                    "max_batch_bytes": 8 << 20,
                    "max_batches": 64,
                    "max_unacked_bytes": 32 << 20,
                    "max_unread_bytes": 32 << 20,
                    "max_unread_hard": 256 << 20,
                }
            ]
            again = await LaneClient.connect(attached.lane)
            await again.over()
            assert refusals(f, "ticket") == 1
            client.send(batch(1, requests=1))
            assert await client.take(1, acked=1) == [1], "the first one's continues"
            await silent(stream)

    run(scenario())


@pytest.mark.parametrize("cause", ["too late", "displaced", "gone"])
def test_expired_and_displaced_tickets_are_refused(tmp_path: Path, cause: str) -> None:
    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            await f.open()
            stream, attached = await attach(f)
            tickets = f.daemon.parts.lanes.tickets
            now = tickets.clock()
            if cause == "too late":
                tickets.clock = lambda: now + 5.1
            elif cause == "displaced":
                await resume(f, 0)
                await over(stream)
            else:
                stream.cancel()
                await gone(f)
            await (await LaneClient.connect(attached.lane)).over()
            assert refusals(f, "ticket") == 1 and not device(f).given
            assert not channel(f).has_lane

    run(scenario())


def test_unused_tickets_are_forgotten() -> None:
    now = [0.0]
    tickets = LaneTickets(lambda: now[0])
    attachment: Any = object()
    first = tickets.issue(attachment)
    for _ in range(5000):
        newest = tickets.issue(attachment)
    assert len(tickets) == 4096 and tickets.redeem(first) is None
    assert tickets.redeem(newest) is attachment and tickets.redeem(newest) is None
    now[0] = 5.0
    assert tickets.redeem(tickets.issue(attachment)) is attachment
    assert len(tickets) == 0, "old tickets were removed when another was issued"


def test_silent_and_malformed_connections_are_closed(tmp_path: Path) -> None:
    reasons = {
        b"": "silent",
        frames.encode(Kind.TICKET, b"x" * 32)[:30]: "silent",
        frames.encode(Kind.TICKET, b"x" * 32): "ticket",
        frames.encode(Kind.TICKET, b"x" * 31): "malformed",
        frames.encode(Kind.BATCH, b"x" * 32): "malformed",
        b"\xff" * 100: "malformed",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n": "malformed",
    }

    async def scenario() -> None:
        async with front(tmp_path, launcher(), devices=1) as f:
            path, port = f.daemon.config.lane_path, f.daemon.parts.lanes
            port.timeouts = TicketTimeouts(ticket=0.3)
            sockets = open_sockets()
            for data, reason in reasons.items():
                before = refusals(f, reason)
                client = LaneClient(*await asyncio.open_unix_connection(path))
                client.write(data)
                await client.over()
                assert refusals(f, reason) == before + 1
            client = LaneClient(*await asyncio.open_unix_connection(path))
            client.write(b"\x20\0")
            client.close()
            await until(lambda: refusals(f, "closed") == 1)
            port.timeouts = TicketTimeouts(ticket=30.0)
            f.daemon.parts.connections.limiters["lanes"].max_strangers_per_peer = 8
            flood = [await asyncio.open_unix_connection(path) for _ in range(12)]
            await until(lambda: refusals(f, "crowded") == 4)
            for _, writer in flood:
                writer.close()
            await until(lambda: refusals(f, "closed") == 9)
            await until(lambda: open_sockets() == sockets)
            await f.open()
            _, client = await enter(f)
            client.send(batch(1, requests=1))
            assert await client.take(1) == [1]

    run(scenario())
