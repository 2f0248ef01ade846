"""HTTP on a Unix socket: callers have the rights of their user, as reported by the kernel."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hearthd.front.addresses import Address
from hearthd.front.config.http import HttpSettings
from hearthd.front.config.loader import tenants
from hearthd.front.config.settings import Config
from hearthd.front.http.refused import Refusals
from hearthd.front.http.server import HttpServer
from hearthd.front.sockets import ListenError, UnixSocket
from hearthd.front.tenancy.tenants import Directory
from tests.support.front.fixture import Front, front, run

TOKEN = "hearth_" + "t" * 22
ME = os.getuid()
BY_TOKEN = {"name": "by-token", "tokens": ["sha256:" + hashlib.sha256(TOKEN.encode()).hexdigest()]}
MINE = {"name": "mine", "users": [ME]}


def directory(*configured: dict[str, Any]) -> Directory:
    return tenants(Config.model_validate({"tenants": configured}))


async def get(path: Path | str, page: str, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as client,
        client.get(f"http://localhost{page}", headers=headers) as answer,
    ):
        return answer.status, await answer.text()


async def seen(f: Front, **headers: str) -> list[str]:
    """Returns the names of the tenants in the status document."""
    status, body = await get(f.daemon.addresses.http_unix, "/status", **headers)
    assert status == 200, body
    return [each["name"] for each in json.loads(body)["tenants"]]


def test_user_of_the_socket_is_the_tenant_and_a_token_counts_instead(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http_unix="auto") as f:
            path = f.daemon.addresses.http_unix
            assert path == str(tmp_path / "h-http.sock") and not f.daemon.addresses.http
            assert await seen(f) == [], "without tenants no credential is required"
            auth = f.daemon.access.auth
            auth.directory = directory(MINE, BY_TOKEN)
            for tenant in auth.directory.tenants.values():
                f.daemon.sessions.accounts.of(tenant)
            assert await seen(f) == ["mine"]
            assert await seen(f, Authorization=f"Bearer {TOKEN}") == ["by-token"]
            status, _ = await get(path, "/status", Authorization="Bearer hearth_wrong")
            assert status == 401, "a wrong token is refused also with a known user"
            for page in ("/", "/metrics", "/healthz", "/readyz"):
                assert (await get(path, page))[0] == 200, page
            assert 'tenant="mine"' in (await get(path, "/metrics"))[1]
            assert 'tenant="by-token"' not in (await get(path, "/metrics"))[1]
            auth.directory = directory({**MINE, "rights": ["observe"]}, BY_TOKEN)
            assert {"mine", "by-token"} <= set(await seen(f))

    run(scenario())


def test_user_of_no_tenant_has_no_further_access(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http_unix=str(tmp_path / "x.sock")) as f:
            f.daemon.access.auth.directory = directory({"name": "other", "users": [ME + 1]})
            for page in ("/status", "/metrics", "/traces/x.json"):
                status, body = await get(tmp_path / "x.sock", page)
                assert status == 401 and f"User {ME}" in body, page
            assert (await get(tmp_path / "x.sock", "/healthz"))[0] == 200
            status, _ = await get(tmp_path / "x.sock", "/status", Host="rebound.example.org")
            assert status == 421

    run(scenario())


@pytest.mark.parametrize(("access", "mode"), [("owner", 0o600), ("all", 0o666)])
def test_socket_has_the_access_mode_of_the_others_and_is_removed_at_the_end(
    tmp_path: Path, access: str, mode: int
) -> None:
    path = tmp_path / "x.sock"

    async def scenario() -> None:
        async with front(tmp_path, listen__http_unix=str(path), listen__unix_access=access) as f:
            assert stat.S_IMODE(path.stat().st_mode) == mode
            with pytest.raises(ListenError, match=r"listen\.http_unix"):
                UnixSocket(str(path), setting="listen.http_unix").claim()
            assert f"http_unix={path}" in str(f.daemon.addresses)

    run(scenario())
    assert not path.exists() and not Path(f"{path}.lock").exists()


def test_tcp_and_unix_share_a_server_and_its_limits(tmp_path: Path) -> None:
    """A TCP client has no user. Connections on the Unix socket are counted by user."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            settings = HttpSettings(max_connections=16, max_connections_per_address=4)
            limiter = f.daemon.parts.connections.http(settings)
            f.daemon.access.auth.directory = directory(MINE)
            server = HttpServer(
                f.daemon.supervisor, f.daemon.sessions, f.daemon.metrics, f.daemon.access.auth, f.daemon.status,
                limiter, settings, Refusals(),
            )  # fmt: skip
            path = tmp_path / "x.sock"
            address = await server.start(Address("127.0.0.1", 0), UnixSocket(str(path)))
            try:
                async with aiohttp.ClientSession() as client, client.get(f"http://{address}/status") as answer:
                    assert answer.status == 401
                assert (await get(path, "/status"))[0] == 200
                connectors = [aiohttp.UnixConnector(str(path)) for _ in range(6)]
                clients = [aiohttp.ClientSession(connector=each) for each in connectors]
                for client in clients:
                    async with client.get("http://localhost/status") as answer:
                        assert answer.status == 200
                labels = {"listener": "http", "reason": "address"}
                sample = f.daemon.metrics.registry.get_sample_value
                assert (sample("hearth_connections_refused_total", labels) or 0) >= 2
                for client in clients:
                    await client.close()
            finally:
                await server.stop()
            assert not path.exists()

    run(scenario())


def test_path_of_the_http_socket() -> None:
    def path(**listen: str) -> str:
        return Config.model_validate({"listen": listen}).http_path

    assert path(unix="/run/hearth/hearth.sock") == ""
    assert path(unix="/run/hearth/hearth.sock", http_unix="auto") == "/run/hearth/hearth-http.sock"
    assert path(unix="", http_unix="/x.sock") == "/x.sock" and path(unix="", http_unix="auto") == ""
    for wrong in ("relative.sock", "/" + 107 * "x"):
        with pytest.raises(ValueError, match=r"absolute|107"):
            path(http_unix=wrong)
