"""HTTP connections of unauthenticated clients: limits on size, time and number, and the responses beyond them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.core import Metric

from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2
from hearthd.front.config.http import HttpSettings
from hearthd.front.metrics.collector import Metrics
from hearthd.front.tenancy.tenants import EVERYONE
from tests.support.front.fixture import Front, front, run, until

ADDRESS = tuple[str, int]
HEAD = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


def address(f: Front) -> ADDRESS:
    host, _, port = f.daemon.addresses.http.rpartition(":")
    return host, int(port)


def refusals(f: Front, reason: str) -> float:
    value = f.daemon.metrics.registry.get_sample_value("hearth_http_refusals_total", {"reason": reason})
    assert value is not None
    return value


def connections(f: Front) -> float | None:
    return f.daemon.metrics.registry.get_sample_value("hearth_connections", {"listener": "http"})


def displaced(f: Front, reason: str) -> float:
    labels = {"listener": "http", "reason": reason}
    return f.daemon.metrics.registry.get_sample_value("hearth_connections_refused_total", labels) or 0.0


@asynccontextmanager
async def opened(f: Front) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address(f))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Reads a response with Content-Length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    return int(head[0].split()[1]), fields, await reader.readexactly(int(fields["content-length"]))


async def asked(f: Front, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Returns the response to these bytes, on a separate connection."""
    async with opened(f) as (reader, writer):
        writer.write(request)
        return await answer(reader)


async def closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


def test_oversized_and_malformed_requests_are_refused_and_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f:
            for request, status, reason in (
                (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000, 431, "head_too_large"),
                (b"GET /" + b"a" * 5000, 414, "line_too_long"),
                (b"\x16\x03\x01\x02", 400, "bad_request"),
                (b"GET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
                (b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 413, "body"),
                (b"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "body"),
                (b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 405, "method"),
            ):
                before = refusals(f, reason)
                async with opened(f) as (reader, writer):
                    writer.write(request)
                    found, fields, body = await answer(reader)
                    assert found == status and set(json.loads(body)) == {"error", "fix"}, request[:20]
                    assert fields["connection"] == "close" and fields["x-content-type-options"] == "nosniff"
                    await closed(reader)
                assert refusals(f, reason) == before + 1
            await until(lambda: connections(f) == 0)

    run(scenario())


def test_headers_that_take_too_long_and_silence_are_cut(tmp_path: Path) -> None:
    async def scenario() -> None:
        flags = {"http__header_timeout": "100ms", "http__idle_timeout": "100ms"}
        async with front(tmp_path, listen__http="127.0.0.1:0", **flags) as f:
            async with opened(f) as (reader, writer):
                writer.write(b"GET / HT")
                assert (await answer(reader))[0] == 408
            async with opened(f) as (reader, _):
                await closed(reader)
            assert refusals(f, "head_timeout") == 2
            async with opened(f) as (reader, writer):
                writer.write(HEAD % b"/healthz")
                assert (await answer(reader))[0] == 200
                await closed(reader)  # closed because it is idle after a request, which is not a refusal
            assert refusals(f, "head_timeout") == 2
            await until(lambda: connections(f) == 0)

    run(scenario())


def test_requests_on_one_connection_are_answered_one_after_the_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f, opened(f) as (reader, writer):
            paths = [b"/healthz", b"/nothing", b"/page/page.js", b"/readyz"] * 4
            writer.write(b"\r\n".join(HEAD % path for path in paths))  # with empty lines in between
            for path in paths:
                status, _, body = await answer(reader)
                assert status == (404 if path == b"/nothing" else 200) and (
                    path == b"/page/page.js" or body[:1] == b"{"
                )
            for byte in HEAD % b"/healthz":
                writer.write(bytes([byte]))
                await writer.drain()
            assert (await answer(reader))[0] == 200
            writer.write(
                b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
                b"Expect: 100-continue\r\n\r\n"
                b"GET /readyz HTTP/1.0\r\n\r\n"
            )
            assert (await answer(reader))[0] == (await answer(reader))[0] == 200
            await closed(reader)  # closed, because the request is HTTP/1.0

    run(scenario())


def test_pipelining_client_gets_one_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f, opened(f) as (reader, writer):
            writer.write(HEAD % b"/healthz" * 2000)
            assert (await answer(reader))[0] == 200
            await closed(reader)
            await until(lambda: connections(f) == 0)

    run(scenario())


def test_client_that_does_not_read_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0", http__write_timeout="200ms") as f:
            with socket.socket() as stranger:
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                stranger.connect(address(f))
                stranger.setblocking(False)
                request = unsent = HEAD % b"/page/page.js"

                def more() -> bool:
                    """Sends one request, or the rest of one: a connection that receives more ahead is not kept."""
                    nonlocal unsent
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        unsent = unsent[stranger.send(unsent) :] or request
                    return bool(refusals(f, "write_timeout"))

                await until(more)
                await until(lambda: connections(f) == 0)
            async with opened(f) as (reader, writer):
                writer.write(HEAD % b"/healthz")
                assert (await answer(reader))[0] == 200

    run(scenario())


def test_probes_are_answered_at_the_connection_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        flags = {"http__max_connections": 8, "http__max_connections_per_address": 4, "http__metrics_max_age": "0s"}
        async with front(tmp_path, listen__http="127.0.0.1:0", **flags) as f, contextlib.AsyncExitStack() as stack:
            limiter = f.daemon.parts.connections.limiters["http"]
            silent = [await stack.enter_async_context(opened(f)) for _ in range(50)]
            assert (await asked(f, HEAD % b"/status"))[0] == 200, "waiting connections are closed to make room"
            await until(lambda: displaced(f, "address") == 47)
            for reader, _ in silent[:40]:
                await closed(reader)
            held, go_on = [], threading.Event()
            render = f.daemon.metrics.render

            def slowly(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
                go_on.wait(20)
                return render(families, accept)

            monkeypatch.setattr(Metrics, "render", slowly)
            try:
                for _ in range(4):
                    held.append(await stack.enter_async_context(opened(f)))
                    held[-1][1].write(HEAD % b"/metrics")
                await until(lambda: limiter.strangers == 0)
                for _ in range(3):
                    status, fields, _ = await asked(f, HEAD % b"/status")
                    assert status == 503 and fields["retry-after"] == "1"
                    assert (await asked(f, HEAD % b"/healthz"))[0] == (await asked(f, HEAD % b"/readyz"))[0] == 200
                assert refusals(f, "connections") == 3
            finally:
                go_on.set()
            for reader, _ in held:
                assert (await answer(reader))[0] == 200
            assert (await asked(f, HEAD % b"/status"))[0] == 200

    run(scenario())


def test_names_and_origins_that_are_not_the_daemon_s(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0", http__hosts="gpu.example.org") as f:
            port = str(address(f)[1]).encode()

            async def status(path: bytes, host: bytes, *more: bytes, version: bytes = b"1.1") -> int:
                lines = [b"GET %s HTTP/%s" % (path, version), *([b"Host: " + host] if host else []), *more]
                found = await asked(f, b"\r\n".join([*lines, b"Connection: close", b"", b""]))
                return found[0]

            for path in (b"/", b"/status", b"/metrics", b"/traces/x.json", b"/page/page.js", b"/nothing", b"//status"):
                for host in (b"evil.example", b"localhost.evil.example:" + port):
                    assert await status(path, host) == 421, path
                assert await status(path, b"") == 400
                assert await status(path, b"", version=b"1.0") == 421
            for path in (b"/healthz", b"/readyz"):
                assert await status(path, b"evil.example") == await status(path, b"", version=b"1.0") == 200
            for host in (b"localhost:" + port, b"127.0.0.1", b"[::1]:" + port, b"gpu.example.org", b"GPU.example.org."):
                assert await status(b"/status", host) == 200, host
            host = b"localhost:" + port
            for more in (b"Origin: http://evil.example", b"Origin: null", b"Sec-Fetch-Site: cross-site"):
                for path in (b"/status", b"/metrics", b"/traces/x.json"):
                    assert await status(path, host, more) == 403, path
                assert await status(b"/", host, more) == 200, "a link to the page, which has no data in it"
            assert await status(b"/status", host, b"Origin: http://" + host, b"Sec-Fetch-Site: same-origin") == 200
            assert refusals(f, "host") and refusals(f, "origin") == 9

    run(scenario())


def test_a_page_of_metrics_is_collected_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with (
            front(tmp_path, listen__http="127.0.0.1:0", http__metrics_max_age="1m") as f,
            aiohttp.ClientSession(f"http://{f.daemon.addresses.http}") as client,
        ):
            collected, rendered = [], []
            families, render = f.daemon.metrics.families, f.daemon.metrics.render

            def counted(*arguments: object) -> object:
                collected.append(arguments)
                return families(*arguments)  # type: ignore[arg-type]

            def counted_render(found: Iterable[Metric], accept: str) -> tuple[bytes, str]:
                rendered.append(threading.current_thread())
                return render(found, accept)

            monkeypatch.setattr(f.daemon.metrics, "families", counted)
            monkeypatch.setattr(Metrics, "render", counted_render)

            async def scrape(accept: str) -> bytes:
                async with client.get("/metrics", headers={"Accept": accept}) as page:
                    return await page.read()

            pages = set(await asyncio.gather(*(scrape("*/*") for _ in range(60))))
            other = await scrape("application/openmetrics-text; version=1.0.0")
            assert len(pages) == 1 and other not in pages and other.endswith(b"# EOF\n")
            assert len(collected) == 1 and len(rendered) == 2
            assert threading.main_thread() not in rendered, "the loop runs meanwhile"

    run(scenario())


def test_internal_error_reveals_nothing_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f, opened(f) as (reader, writer):

            async def broken(viewer: object) -> None:
                raise RuntimeError("/secret/path")

            monkeypatch.setattr(f.daemon.status, "document", broken)
            writer.write(HEAD % b"/status" + HEAD % b"/healthz")
            status, _, body = await answer(reader)
            assert status == 500 and b"secret" not in body and b"log" in body
            assert (await answer(reader))[0] == 200, "the connection continues"

    run(scenario())


def test_slow_reader_of_a_trace_is_cut_and_delays_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0", http__write_timeout="300ms") as f:
            await f.open("me")
            await f.attach()
            await until(lambda: f.device(0).opened)
            result = commands_pb2.TraceResult(epoch_ns=10**18)
            for each in range(30_000):
                result.events.add(name="launch", kernel=f"kernel{each}", started_ns=each, ended_ns=each + 30, seq=each)
            head = json.dumps({"events": 1, "epoch_ns": 10**18, "lasted_ns": 99}).encode() + b"\n"
            channel = next(iter(f.device(0).opened))
            packed = zlib.compress(result.SerializeToString())
            await asyncio.to_thread(f.device(0).send, Kind.TRACED, head + packed, channel=channel)
            await until(lambda: len(f.daemon.status.traces) == 1)
            [trace] = f.daemon.status.traces.visible_to(EVERYONE)
            ident = trace["id"].encode()
            server = f.daemon.parts.listeners.http
            assert server is not None and server.acceptor is not None
            under_way = server.downloads.under_way
            with contextlib.ExitStack() as stack:
                for _ in range(2):
                    slow = stack.enter_context(socket.socket())
                    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    slow.connect(address(f))
                    slow.sendall(HEAD % (b"/traces/%s.json" % ident))
                await until(lambda: under_way.total() == 2 or refusals(f, "write_timeout"), 60)
                if under_way.total() == 2:
                    status, fields, _ = await asked(f, HEAD % (b"/traces/%s.json" % ident))
                    assert (status, fields["retry-after"]) == (429, "5") or refusals(f, "write_timeout")
                await until(lambda: refusals(f, "write_timeout") == 2, 60)
            await until(lambda: not under_way and connections(f) == 0)
            server.acceptor.settings = HttpSettings(write_timeout=60.0)
            async with (
                aiohttp.ClientSession() as client,
                client.get(f"http://{f.daemon.addresses.http}/traces/{ident.decode()}.json") as whole,
            ):
                assert len(json.loads(await whole.read())["traceEvents"]) > 30_000

    run(scenario())
