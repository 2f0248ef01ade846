"""OpenBulk, the front's side: tickets, where they are valid, and the data that the device process receives."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from hearth_proto import frames
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.rights import Right
from hearth_proto.v1 import device_pb2
from hearthd.front.addresses import Address
from hearthd.front.lanes.stripe_port import reached_by
from hearthd.front.rpc.bulk_service import MAX_STRIPES
from hearthd.front.sockets import ListenError
from hearthd.front.tenancy.tenants import Quotas, Tenant
from tests.support.front.fake_device import FakeLauncher
from tests.support.front.fake_lanes import LaneClient, LaneDevice, LaneLauncher
from tests.support.front.fixture import Front, front, refused, run, until
from tests.support.front.resumed_streams import attach, gone

TCP = {"listen__lanes": "127.0.0.1:0", "listen__grpc": "127.0.0.1:0"}


def device(f: Front) -> LaneDevice:
    found = f.device()
    assert isinstance(found, LaneDevice)
    return found


def ask(f: Front, stripes: int = 0, generation: int = 1, ordinal: int = 0, token: str | None = None) -> Any:
    request = device_pb2.OpenBulkRequest(
        session_token=f.token if token is None else token, device=ordinal, generation=generation, stripes=stripes
    )
    return f.devices.OpenBulk(request)


async def tcp(answer: device_pb2.OpenBulkResponse, ticket: bytes, host: str = "127.0.0.1") -> LaneClient:
    client = LaneClient(*await asyncio.open_connection(answer.host or host, answer.port))
    client.write(frames.encode(Kind.TICKET, ticket))
    return client


async def unix(path: str, ticket: bytes) -> LaneClient:
    return await LaneClient.connect(device_pb2.LaneOffer(path=path, ticket=ticket))


def counted(f: Front, kind: str) -> float:
    return f.daemon.metrics.registry.get_sample_value("hearth_bulk_connections_total", {"kind": kind}) or 0.0


def refusals(f: Front, reason: str) -> float:
    return f.daemon.metrics.registry.get_sample_value("hearth_lane_refusals_total", {"reason": reason}) or 0.0


def test_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, LaneLauncher(), devices=1, lanes__segment_bytes="1GiB", **TCP) as f:
            await f.open()
            await attach(f)
            answer = await ask(f)
            [ticket] = answer.tickets
            assert len(ticket) == 32 and answer.valid_ns == 5_000_000_000
            assert (answer.path, answer.port) == (f"{f.daemon.config.unix_path}.lane", 0)
            assert answer.max_segment_bytes == 1 << 30
            stranger = await tcp(await ask(f, stripes=1), ticket)
            await stranger.over()
            assert refusals(f, "ticket") == 1, "a ticket for the Unix socket is invalid elsewhere"
            client = await unix(answer.path, ticket)
            assert (await client.read()).kind == Kind.LIVE
            [(body, connection)] = device(f).bulk
            assert body == {"kind": "segments", "channel": 1, "max_bytes": 1 << 30}
            connection.close()
            await client.over()
            again = await unix(answer.path, ticket)
            await again.over()
            assert (counted(f, "segments"), counted(f, "stripe")) == (1, 0)

    run(scenario())


@pytest.mark.parametrize("count", [1, 3, MAX_STRIPES])
def test_stripes(tmp_path: Path, count: int) -> None:
    async def scenario() -> None:
        async with front(tmp_path, LaneLauncher(), devices=1, **TCP) as f:
            await f.open()
            await attach(f)
            answer = await ask(f, stripes=count)
            assert len(set(answer.tickets)) == count and not answer.path and not answer.certificate
            assert f"{answer.host}:{answer.port}" == f.daemon.addresses.lanes and answer.max_chunk_bytes == 4 << 20
            clients = [await tcp(answer, ticket) for ticket in answer.tickets]
            for client in clients:
                assert (await client.read()).kind == Kind.LIVE
            taken = device(f).bulk
            assert [body for body, _ in taken] == [
                {"kind": "stripe", "channel": 1, "max_chunk_bytes": 4 << 20, "tls": None}
            ] * count
            for _, connection in taken:
                assert connection.family == socket.AF_INET
                connection.close()
            for client in clients:
                await client.over()
            assert counted(f, "stripe") == count

    run(scenario())


def test_stripes_over_tcp_and_segments_over_unix_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, LaneLauncher(), devices=1, **TCP) as f:
            await f.open()
            stream, _ = await attach(f)
            async with grpc.aio.insecure_channel(f.daemon.addresses.grpc) as channel:
                other = Front(f.daemon, f.launcher, channel)
                other.token = f.token
                refusal = await refused(ask(other))
                assert refusal.reason == Reason.UNSUPPORTED and "Unix socket" in refusal.fix
                answer = await ask(other, stripes=2)
                assert answer.host == "", "the address of its calls"
                client = await tcp(answer, answer.tickets[0])
                assert (await client.read()).kind == Kind.LIVE
                client.close()
            for wrong, reason in (
                (ask(f, token="unknown"), Reason.SESSION_EXPIRED),
                (ask(f, ordinal=7), Reason.DEVICE_NOT_FOUND),
                (ask(f, generation=2), Reason.DEVICE_LOST),
                (ask(f, generation=0), Reason.DEVICE_LOST),
                (ask(f, stripes=MAX_STRIPES + 1), Reason.INVALID_ARGUMENT),
                (ask(f, stripes=(1 << 32) - 1), Reason.INVALID_ARGUMENT),
            ):
                assert (await refused(wrong)).reason == reason
            [session] = f.daemon.sessions
            own = session.tenant
            for right, reason in ((Right.READ, None), (Right.WRITE, None), (Right.LAUNCH, Reason.PERMISSION_DENIED)):
                session.tenant = Tenant("narrow", rights=frozenset({right}), quotas=Quotas(pinned_bytes=4096))
                if reason is None:
                    assert (await ask(f)).max_segment_bytes == 4096
                else:
                    assert (await refused(ask(f))).reason == reason
            session.tenant = own
            stream.cancel()
            await gone(f)
            assert (await ask(f)).tickets, "the client may attach again"

    run(scenario())


def test_a_session_that_is_not_attached(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, LaneLauncher(), devices=2, **TCP) as f:
            await f.open()
            assert (await refused(ask(f))).reason == Reason.INVALID_ARGUMENT
            await attach(f)
            refusal = await refused(ask(f, ordinal=1))
            assert refusal.reason == Reason.INVALID_ARGUMENT and "Execute" in refusal.fix

    run(scenario())


@pytest.mark.parametrize("why", ["off", "no tcp", "no descriptors"])
def test_bulk_transfer_is_refused_if_unavailable(tmp_path: Path, why: str) -> None:
    flags: dict[str, dict[str, Any]] = {
        "off": {**TCP, "lanes__enabled": False},
        "no tcp": {"listen__lanes": "", "lanes__path": f"/tmp/{'x' * 103}"},
        "no descriptors": TCP,
    }
    launcher = FakeLauncher() if why == "no descriptors" else LaneLauncher()

    async def scenario() -> None:
        async with front(tmp_path, launcher, devices=1, **flags[why]) as f:
            assert (f.daemon.addresses.lanes == "") == (why != "no descriptors")
            await f.open()
            await attach(f)
            for stripes in (0, 4):
                refusal = await refused(ask(f, stripes=stripes))
                assert refusal.reason == Reason.UNSUPPORTED and "Upload and Download" in refusal.fix

    run(scenario())


def test_device_lost_before_the_bulk_connection_arrives(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, LaneLauncher(), devices=1, **TCP) as f:
            await f.open()
            await attach(f)
            answer, stripes = await ask(f), await ask(f, stripes=1)
            lost = device(f)
            lost.die()
            [session] = f.daemon.sessions
            await until(lambda: 0 not in session.channels)
            for client in (await unix(answer.path, answer.tickets[0]), await tcp(stripes, stripes.tickets[0])):
                await client.over()
            assert refusals(f, "gone") == 2 and not lost.bulk
            assert (await refused(ask(f))).reason == Reason.DEVICE_LOST

    run(scenario())


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            lanes = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(ListenError, match=r"listen\.lanes.*in use"):
                async with front(tmp_path, LaneLauncher(), listen__lanes=lanes):
                    pass
        async with front(tmp_path, LaneLauncher(), devices=1, listen__lanes="[::1]:0") as f:
            await f.open()
            await attach(f)
            answer = await ask(f, stripes=1)
            assert answer.host == "::1"
            client = await tcp(answer, answer.tickets[0])
            assert (await client.read()).kind == Kind.LIVE
            client.close()

    run(scenario())


@pytest.mark.parametrize(
    ("listens", "beside", "peer", "told"),
    [
        ("127.0.0.1", "127.0.0.1", "ipv4:127.0.0.1:9", ""),
        ("127.0.0.1", "0.0.0.0", "ipv4:127.0.0.1:9", "127.0.0.1"),
        ("127.0.0.1", "::", "ipv6:%5B::ffff:127.0.0.1%5D:9", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0", "ipv4:10.0.0.7:9", None),
        ("127.0.0.1", "::", "ipv6:%5B2001:db8::1%5D:9", None),
        ("127.0.0.1", "0.0.0.0", "", None),
        ("127.0.0.1", "", "unix:", "127.0.0.1"),
        ("::1", "127.0.0.1", "ipv6:[::1]:9", "::1"),
        ("0.0.0.0", "0.0.0.0", "ipv4:10.0.0.7:9", ""),
        ("0.0.0.0", "", "unix:/run/x", "127.0.0.1"),
        ("::", "", "unix:/run/x", "::1"),
        ("10.0.0.1", "10.0.0.1", "ipv4:10.0.0.7:9", ""),
        ("10.0.0.1", "0.0.0.0", "ipv4:10.0.0.7:9", "10.0.0.1"),
    ],
)
def test_address_of_the_lane_port_for_each_client(listens: str, beside: str, peer: str, told: str | None) -> None:
    listening = Address(listens, 7423)
    if told is None:
        with pytest.raises(Refusal, match="own host") as refusal:
            reached_by(peer, listening, beside)
        assert refusal.value.reason == Reason.UNSUPPORTED
    else:
        assert reached_by(peer, listening, beside) == Address(told, 7423)
