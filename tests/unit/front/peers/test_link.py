"""Links between fronts over loopback: handshake, TLS, heartbeats, and peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.addresses import Address, parse_address
from hearthd.front.auth.tls import ServerCertificates
from hearthd.front.peers import link as peer_link
from hearthd.front.peers import port as peer_port
from hearthd.front.peers.frames import Body, encode
from hearthd.front.peers.link import MAX_UNSENT, PeerLink, PeerLost
from hearthd.front.peers.port import MAX_UNAUTHENTICATED, MAX_UNAUTHENTICATED_OF_HOST, PeerPort
from tests.support.front.fake_peers import TIMEOUT, quick, run
from tests.support.timing import LATE

both_loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


class Echo:
    """A port that admits every peer that sends a name, and echoes its messages."""

    def __init__(self, **port: Any) -> None:
        self.links: list[PeerLink] = []
        self.lost: list[str] = []
        self.received: list[Body] = []
        self.changed = asyncio.Event()
        self.port = PeerPort(port.pop("listen", "127.0.0.1:0"), port.pop("advertise", ()), "myself", self.admit, **port)

    def admit(self, body: Body, link: PeerLink) -> None:
        if "name" not in body:
            raise ValueError("it has no name")
        self.links.append(link)
        link.send({"welcome": body["name"]})
        link.start(lambda body: self.on_message(link, body), self.on_lost)
        self.changed.set()

    def on_message(self, link: PeerLink, body: Body) -> None:
        self.received.append(body)
        if "raise" in body:
            raise KeyError("x")
        link.send({"echo": body})
        self.changed.set()

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.changed.set()

    @property
    def address(self) -> Address:
        return parse_address(self.port.addresses[0])

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def echo(**port: Any) -> AsyncIterator[Echo]:
    server = Echo(**port)
    await server.port.open()
    try:
        yield server
    finally:
        await server.port.close()
        for link in server.links:
            link.close()
            await link.closed


async def greet(server: Echo, pin: bytes = b"", link_factory: Callable[[], PeerLink] = PeerLink) -> PeerLink:
    link = await peer_port.connect(server.address, pin, TIMEOUT, link_factory)
    link.send({"name": "me"})
    assert await link.receive_first() == {"welcome": "me"}
    return link


async def greet_hasty(server: Echo, pin: bytes = b"") -> PeerLink:
    """Greets a server whose handshake timeout may be too short on a busy machine: repeats after a timeout."""
    for _ in range(20):
        with contextlib.suppress(PeerLost):
            return await greet(server, pin)
    return await greet(server, pin)


async def connect_from(server: Echo, host: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects from 127.0.0.`host`."""
    local_address = (f"127.0.0.{host}", 0)
    return await asyncio.open_connection(server.address.host, server.address.port, local_addr=local_address)


async def wait_for_unauthenticated(server: Echo, count: int) -> None:
    async with asyncio.timeout(TIMEOUT):
        while server.port.unauthenticated.total() != count:  # noqa: ASYNC110 - there is no notification of them
            await asyncio.sleep(0.001)


@both_loops
def test_messages_arrive_in_order(loop: str) -> None:
    async def work() -> None:
        async with echo() as server:
            link = await greet(server)
            answers: asyncio.Queue[Body] = asyncio.Queue()
            link.start(answers.put_nowait, lambda reason: None)
            for number in range(200):
                link.send({"n": number, "x": "y" * number * 50})
            for number in range(200):
                assert (await answers.get())["echo"]["n"] == number
            link.close({"last": True})
            await server.until(lambda: server.lost)
            assert server.received[-1] == {"last": True} and server.lost == ["it closed the connection"]

    run(work(), loop)


@both_loops
def test_a_silent_peer_is_lost_and_a_beating_one_is_not(loop: str) -> None:
    async def work() -> None:
        async with echo(link_factory=quick(0.05, 0.3)) as server:
            idle = await greet(server, link_factory=quick(0.05, 0.3))
            lost: list[str] = []
            idle.start(lambda body: None, lost.append)
            reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
            writer.write(encode({"name": "silent"}))
            begin = asyncio.get_running_loop().time()
            await server.until(lambda: server.lost)
            assert 0.25 < asyncio.get_running_loop().time() - begin < LATE
            assert "no message arrived" in server.lost[0] and len(server.lost) == 1
            assert not lost and not idle.end_reason, "the other link sends heartbeats"
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            idle.close()

    run(work(), loop)


def test_front_that_slept_does_not_cut_its_peers() -> None:
    async def work() -> None:
        async with echo(link_factory=quick(0.05, 0.3)) as server:
            link = await greet(server, link_factory=quick(0.05, 0.3))
            link.start(lambda body: None, lambda reason: None)
            import time

            time.sleep(0.8)  # noqa: ASYNC251 - the loop, and both ends with it, is held up
            for _ in range(3):
                await asyncio.sleep(0.1)
            assert not link.end_reason and not server.lost
            link.close()

    run(work())


@both_loops
def test_a_peer_that_does_not_read_is_cut(loop: str) -> None:
    async def work() -> None:
        async with echo() as server:
            _, writer = await asyncio.open_connection(server.address.host, server.address.port)
            writer.transport.pause_reading()
            writer.write(encode({"name": "deaf"}))
            await server.until(lambda: server.links)
            link = server.links[0]
            sent = 0
            while not link.end_reason:
                link.send({"x": "y" * 500_000})
                sent += 500_000
                assert sent < 100 << 20
                await asyncio.sleep(0)
            assert "has stopped reading" in link.end_reason and sent > MAX_UNSENT
            assert server.lost == [link.end_reason]
            link.send({"after": "all"})
            writer.close()

    run(work(), loop)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", encode({"who": "?"}),
     b"\0\0\0\2[]", b"\0\0\0\2{x", encode({"name": 1})[:-1] + b"\xff", b"\0\x02\0\0" + b"x" * 70_000],
    ids=lambda data: repr(data[:8]),
)  # fmt: skip
def test_unauthenticated_peer_that_sends_garbage_is_disconnected(garbage: bytes) -> None:
    async def work() -> None:
        async with echo() as server:
            reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
            writer.write(garbage)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "no answer is sent"
            writer.close()
            assert not server.links
            link = await greet(server)
            link.close()

    run(work())


@both_loops
def test_connection_without_a_hello_is_closed(loop: str) -> None:
    async def work() -> None:
        async with echo(handshake_timeout=0.2) as server:
            reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
            writer.write(encode({"name": "x"})[:3])
            async with asyncio.timeout(TIMEOUT):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()
            link = await greet_hasty(server)
            link.close()

    run(work(), loop)


def test_unauthenticated_connections_are_bounded() -> None:
    async def work() -> None:
        async with echo() as server:
            waiting = [await connect_from(server, 1 + number % 4) for number in range(MAX_UNAUTHENTICATED)]
            await wait_for_unauthenticated(server, MAX_UNAUTHENTICATED)
            reader, writer = await connect_from(server, 9)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "a further connection is closed"
            writer.close()
            waiting[0][1].close()
            await wait_for_unauthenticated(server, MAX_UNAUTHENTICATED - 1)
            link = await greet(server)
            link.close()
            for _, open_writer in waiting:
                open_writer.close()
        assert not server.port.unauthenticated

    run(work())


def test_connections_of_one_host_do_not_exclude_others() -> None:
    async def work() -> None:
        async with echo() as server:
            waiting = [await connect_from(server, 2) for _ in range(MAX_UNAUTHENTICATED_OF_HOST)]
            await wait_for_unauthenticated(server, MAX_UNAUTHENTICATED_OF_HOST)
            reader, writer = await connect_from(server, 2)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "a further connection of this host is closed"
            writer.close()
            link = await greet(server)
            link.close()
            for _, open_writer in waiting:
                open_writer.close()
            await wait_for_unauthenticated(server, 0)
            assert not server.port.unauthenticated

    run(work())


@both_loops
@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
def test_flooding_peer_is_read_slowly(loop: str, tls: bool, certificates: ServerCertificates) -> None:
    context, pin, link_factory = lambda: None, b"", quick(0.1, 2.0, max_messages=100)
    trusting = None
    if tls:
        context, pin = lambda: certificates.context, certificates.fingerprint()
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def work() -> None:
        async with echo(link_factory=link_factory, context=context) as server:
            calm = await greet(server, pin, link_factory=link_factory)
            answers: asyncio.Queue[Body] = asyncio.Queue()
            calm.start(answers.put_nowait, lambda reason: None)
            _, writer = await asyncio.open_connection(server.address.host, server.address.port, ssl=trusting)
            writer.write(encode({"name": "flood"}))
            await server.until(lambda: len(server.links) == 2)
            begin = asyncio.get_running_loop().time()
            writer.write(b"".join(encode({"n": number, "x": "y" * 80}) for number in range(20_000)))
            requests = 0
            while len(server.received) < 20_000 + requests:
                calm.send({"calm": True})
                requests += 1
                await asyncio.wait_for(answers.get(), 1.0)
                assert not server.lost, "the peer is slowed down, not disconnected"
            assert asyncio.get_running_loop().time() - begin > 4 * peer_link.SLICE
            assert sum(link.pauses for link in server.links) >= 4
            received = [body["n"] for body in server.received if "n" in body]
            assert received == list(range(20_000)), "and no message is lost"
            writer.close()
            calm.close()

    run(work(), loop)


def test_malformed_message_ends_the_link() -> None:
    async def work() -> None:
        async with echo() as server:
            link = await greet(server)
            lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            link.start(lambda body: None, lost.set_result)
            link.send({"raise": 1})
            assert await lost
            assert "sent an invalid message" in server.lost[0]

    run(work())


# ---- TLS ----


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> ServerCertificates:
    folder = tmp_path_factory.mktemp("tls")
    return ServerCertificates(*issue(folder, trustme.CA()))


def issue(folder: Path, authority: trustme.CA) -> tuple[str, str]:
    credentials = authority.issue_cert("some.other.name")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in credentials.cert_chain_pems))
    key.touch(mode=0o600)
    key.write_bytes(credentials.private_key_pem.bytes())
    return str(certificate), str(key)


@both_loops
def test_tls_with_the_certificate_of_the_ticket(loop: str, certificates: ServerCertificates) -> None:
    async def work() -> None:
        async with echo(context=lambda: certificates.context) as server:
            link = await greet(server, certificates.fingerprint())
            answers: asyncio.Queue[Body] = asyncio.Queue()
            link.start(answers.put_nowait, lambda reason: None)
            link.send({"n": 1})
            assert await answers.get() == {"echo": {"n": 1}}
            assert hashlib.sha256(link.certificate()).digest() == certificates.fingerprint()
            link.close()
            await server.until(lambda: server.lost)

    run(work(), loop)


@both_loops
def test_certificate_other_than_that_of_the_ticket_is_refused(loop: str, certificates: ServerCertificates) -> None:
    async def work() -> None:
        async with echo(context=lambda: certificates.context) as server:
            with pytest.raises(PeerLost, match="certificate is not the one"):
                await peer_port.connect(server.address, b"x" * 32, TIMEOUT)
            plain = await peer_port.connect(server.address, b"", TIMEOUT)
            plain.send({"name": "me", "secret": "in clear"})
            with pytest.raises(PeerLost):
                await plain.receive_first()
            assert not server.links
        async with echo() as server:
            with pytest.raises(PeerLost, match=r"TLS|closed|reset"):
                await peer_port.connect(server.address, certificates.fingerprint(), TIMEOUT)
            assert not server.links

    run(work(), loop)


def test_the_pin_is_that_of_the_leaf(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificates = ServerCertificates(*issue(tmp_path, authority))
    leaf = (tmp_path / "cert.pem").read_text().split("-----END")[0] + ssl.PEM_FOOTER
    assert certificates.fingerprint() == hashlib.sha256(ssl.PEM_cert_to_DER_cert(leaf)).digest()


def test_a_handshake_that_never_ends(certificates: ServerCertificates) -> None:
    async def work() -> None:
        async with echo(context=lambda: certificates.context, handshake_timeout=0.2) as server:
            reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
            writer.write(b"\x16\x03\x01")
            async with asyncio.timeout(TIMEOUT):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
            await wait_for_unauthenticated(server, 0)
            link = await greet_hasty(server, certificates.fingerprint())
            link.close()

    run(work())


# ---- port ----


def test_port_opens_once_and_reports_its_address() -> None:
    async def work() -> None:
        async with echo() as server:
            first = server.port.addresses
            await asyncio.gather(*(server.port.open() for _ in range(5)))
            assert server.port.addresses == first and server.address.port
        async with echo(listen="0.0.0.0:0") as server:
            assert server.address.host == "myself"
        async with echo(advertise=("gpu1:7424", "[::1]:5")) as server:
            assert server.port.addresses == ("gpu1:7424", "[::1]:5")

    run(work())


def test_ports_that_cannot_be_opened() -> None:
    async def work() -> None:
        with pytest.raises(Refusal, match=r"collectives\.listen") as error:
            await Echo(listen="").port.open()
        assert error.value.reason == Reason.UNSUPPORTED
        async with echo() as server:
            with pytest.raises(Refusal, match="in use") as error:
                await Echo(listen=str(server.address)).port.open()
            assert error.value.reason == Reason.COMMUNICATOR_FAILED
            assert error.value.details["setting"] == "collectives.listen"

    run(work())


def test_absent_peer() -> None:
    async def work() -> None:
        async with echo() as server:
            address = server.address
        with pytest.raises(PeerLost, match="nothing listens there"):
            await peer_port.connect(address, b"", TIMEOUT)
        with pytest.raises(PeerLost):
            await peer_port.connect(Address("no-such-host.invalid", 5), b"", TIMEOUT)

    run(work())
