"""Certificates: refused at the start, renewed while the daemon runs, and used for HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from hearthd.front.addresses import Address, parse_address
from hearthd.front.auth import tls
from hearthd.front.auth.tls import ServerCertificates, TlsError
from hearthd.front.config.http import HttpSettings
from hearthd.front.config.settings import Config
from hearthd.front.http.refused import Refusals
from hearthd.front.http.server import HttpServer
from hearthd.front.tenancy.tenants import Credential, Directory, Right, Tenant, token_key
from tests.support.front.fixture import Front, front, run, until

CA = trustme.CA()


def issue(folder: Path, name: str, ca: trustme.CA = CA, days: int = 30, since: int = 1) -> tuple[Path, Path]:
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    issued = ca.issue_cert("localhost", not_before=now - since * day, not_after=now + days * day)
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.touch(mode=0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    return certificate, key


def refused(certificate: Path, key: Path, client_ca: Path | str = "") -> str:
    with pytest.raises(TlsError) as error:
        ServerCertificates(str(certificate), str(key), str(client_ca))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    certificate, key = issue(tmp_path, "good")
    ServerCertificates(str(certificate), str(key))
    other, other_key = issue(tmp_path, "other")
    old, old_key = issue(tmp_path, "old", days=-1, since=9)
    early, early_key = issue(tmp_path, "early", since=-9)
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing\n")
    assert "does not belong to the certificate" in refused(certificate, other_key)
    assert "expired" in refused(old, old_key) and str(old) in refused(old, old_key)
    assert "not yet valid" in refused(early, early_key)
    assert "missing.key" in refused(certificate, tmp_path / "missing.key")
    assert "nothing.pem" in refused(nothing, key) and "nothing.pem" in refused(certificate, nothing)
    assert "tls.client_ca" in refused(certificate, key, nothing)
    for mode in (0o604, 0o602, 0o666):
        other_key.chmod(mode)
        assert "every user" in refused(other, other_key) and f"chmod 600 {other_key}" in refused(other, other_key)
    other_key.chmod(0o640)  # read access of a group is allowed
    ServerCertificates(str(other), str(other_key))


def test_encrypted_key_is_refused_without_a_prompt(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = issue(tmp_path, "good")
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        plain.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert "encrypted" in refused(certificate, key)


class GrpcCertificates:
    """The credentials of a gRPC server: the initial certificates, and those that it requests before each handshake.
    `shown` are the pairs of key and certificate that clients see now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, certificates: ServerCertificates) -> None:
        monkeypatch.setattr(tls.grpc, "ssl_server_certificate_configuration", lambda pairs, authority: list(pairs))
        monkeypatch.setattr(tls.grpc, "dynamic_ssl_server_credentials", self._create)
        certificates.grpc()

    def _create(self, initial: Any, renewed: Callable[[], Any], **_: Any) -> None:
        self.shown, self.renewed = initial, renewed

    def handshake(self) -> bool:
        """Returns True if gRPC gets other certificates for the next handshake."""
        given = self.renewed()
        if given is not None:
            self.shown = given
        return given is not None


def test_files_that_change_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(tls.time, "monotonic", lambda: now[0])
    certificate, key = issue(tmp_path, "good")
    certificates = ServerCertificates(str(certificate), str(key))
    server = GrpcCertificates(monkeypatch, certificates)
    assert not server.handshake()
    issue(tmp_path, "good")
    assert not server.handshake(), "the file is not checked again yet"
    now[0] += 6
    assert server.handshake() and server.shown == [(key.read_bytes(), certificate.read_bytes())]
    now[0] += 6
    assert not server.handshake(), "the same files"
    # Files that cannot be used are ignored; the daemon continues with the earlier certificate.
    kept = certificates.fingerprint()
    for spoil in (lambda: certificate.write_text("half"), certificate.unlink):
        spoil()
        now[0] += 6
        assert not server.handshake() and certificates.fingerprint() == kept
    issue(tmp_path, "good")
    now[0] += 6
    assert server.handshake() and server.shown == [(key.read_bytes(), certificate.read_bytes())]


def test_new_certificate_reaches_grpc_after_another_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(tls.time, "monotonic", lambda: now[0])
    certificate, key = issue(tmp_path, "good", days=30)
    certificates = ServerCertificates(str(certificate), str(key))
    server = GrpcCertificates(monkeypatch, certificates)
    assert certificates.expires == pytest.approx(time.time() + 30 * 86400, abs=86400)
    issue(tmp_path, "good", days=60)
    now[0] += 6
    assert certificates.refresh(), "a scrape of metrics, or a page"
    assert certificates.expires == pytest.approx(time.time() + 60 * 86400, abs=86400)
    assert server.handshake() and server.shown == [(key.read_bytes(), certificate.read_bytes())]
    assert not server.handshake()


# ---- HTTP ----

ALICE, OPERATOR = Tenant("alice", rights=frozenset({Right.READ})), Tenant("operator")


async def http(f: Front, folder: Path) -> tuple[HttpServer, str, aiohttp.ClientSession]:
    """The HTTP server of a front as on addresses other than loopback: with TLS, for tenants."""
    certificate, key = issue(folder, "http")
    auth = f.daemon.access.auth
    auth.directory = Directory(
        [ALICE, OPERATOR],
        {Credential(token_key("hearth_" + "a" * 22)): ALICE, Credential(token_key("hearth_" + "o" * 22)): OPERATOR},
    )
    server = HttpServer(
        f.daemon.supervisor, f.daemon.sessions, f.daemon.metrics, auth, f.daemon.status,
        f.daemon.parts.connections.http(HttpSettings()), HttpSettings(), Refusals(),
        certificates=ServerCertificates(str(certificate), str(key)),
    )  # fmt: skip
    address = await server.start(Address("localhost", 0))
    trusted = ssl.create_default_context()
    CA.configure_trust(trusted)
    return server, f"https://{address}", aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted))


def test_pages_beyond_loopback(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open("secret plan")
            server, base, client = await http(f, tmp_path)
            try:
                for path in ("/healthz", "/readyz"):
                    async with client.get(base + path) as answer:
                        assert answer.status == 200
                for path in ("/", "/page/page.js", "/page/page.css"):  # files without data
                    async with client.get(base + path) as answer:
                        assert answer.status == 200
                        assert ('data-guarded=""' in await answer.text()) is (path == "/")
                for path in ("/metrics", "/status?max_age=1", "/traces/x.json", "/page/nothing"):
                    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic a"}):
                        async with client.get(base + path, headers=headers) as answer:
                            assert answer.status == 401 and answer.headers["WWW-Authenticate"].startswith("Bearer")
                            assert set(await answer.json()) == {"error", "fix"}
                for token, sees in (("hearth_" + "a" * 22, False), ("hearth_" + "o" * 22, True)):
                    async with client.get(base + "/status", headers={"Authorization": f"Bearer {token}"}) as answer:
                        body = await answer.json()
                    assert bool(body["sessions"]) is sees and len(body["devices"]) == 2
                    assert ("default" in [entry["name"] for entry in body["tenants"]]) is sees
                    async with client.get(base + "/metrics", headers={"authorization": f"bearer {token}"}) as answer:
                        text = await answer.text()
                    assert ('tenant="default"' in text) is sees and ("hearth_sessions 1.0" in text) is sees
                    assert "hearth_ready 1.0" in text and ("grpc_server_handled" in text) is sees
            finally:
                await client.close()
                await server.stop()

    run(scenario())


@contextlib.asynccontextmanager
async def limited(f: Front, folder: Path, header_timeout: float) -> AsyncIterator[tuple[Any, Refusals, Any]]:
    """Yields the address of an HTTP server for few connections, its refusals and its limiter."""
    certificate, key = issue(folder, "http")
    refusals = Refusals()
    settings = HttpSettings(header_timeout=header_timeout, max_connections=8, max_connections_per_address=4)
    limiter = f.daemon.parts.connections.http(settings)
    server = HttpServer(
        f.daemon.supervisor, f.daemon.sessions, f.daemon.metrics, f.daemon.access.auth, f.daemon.status,
        limiter, settings, refusals, certificates=ServerCertificates(str(certificate), str(key)),
    )  # fmt: skip
    address = await server.start(Address("127.0.0.1", 0))
    try:
        yield address, refusals, limiter
    finally:
        await server.stop()


def test_unfinished_handshakes_are_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f, limited(f, tmp_path, 0.2) as (address, refusals, limiter):
            silent = await asyncio.open_connection(*address)
            assert await silent[0].read() == b""
            plain = await asyncio.open_connection(*address)
            plain[1].write(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await plain[0].read()
            await until(lambda: refusals.counts["handshake"] == 2 and not len(limiter))
            for _, writer in (silent, plain):
                writer.close()

    async def crowd() -> None:
        """More connections than an address may have; no timeout ends one before all are open."""
        async with front(tmp_path) as f, limited(f, tmp_path, 60) as (address, _, limiter):
            labels = {"listener": "http", "reason": "address"}
            refused = partial(f.daemon.metrics.registry.get_sample_value, "hearth_connections_refused_total", labels)
            many = [await asyncio.open_connection(*address) for _ in range(12)]
            await until(lambda: refused() == 8)
            assert len(limiter) == 4
            for _, writer in many:
                writer.close()
            await until(lambda: not len(limiter))

    run(scenario())
    run(crowd())


def test_token_is_required_on_loopback_with_tenants(tmp_path: Path) -> None:
    """Without tenants every path is open. Loopback has no TLS, and its metrics may be open."""

    async def statuses(port: int) -> list[int]:
        async with aiohttp.ClientSession() as client:
            answers = [await client.get(f"http://127.0.0.1:{port}{path}") for path in ("/status", "/metrics")]
            return [answer.status for answer in answers]

    async def scenario() -> None:
        certificate, key = issue(tmp_path, "x")
        tls = {"tls__certificate": str(certificate), "tls__key": str(key)}
        async with front(tmp_path, listen__http="127.0.0.1:0", **tls) as f:
            port = parse_address(f.daemon.addresses.http).port
            assert await statuses(port) == [200, 200]
            f.daemon.access.auth.directory = Directory([ALICE])
            assert await statuses(port) == [401, 401]
            open_metrics = HttpSettings(metrics_on_loopback=True)
            f.daemon.parts.listeners.change(Config(http=open_metrics))
            assert await statuses(port) == [401, 200]
            beyond = HttpServer(
                f.daemon.supervisor, f.daemon.sessions, f.daemon.metrics, f.daemon.access.auth, f.daemon.status,
                f.daemon.parts.connections.http(open_metrics), open_metrics, Refusals(),
            )  # fmt: skip
            address = await beyond.start(Address("0.0.0.0", 0))
            try:
                assert address is not None and await statuses(address.port) == [401, 401]
            finally:
                await beyond.stop()

    run(scenario())
