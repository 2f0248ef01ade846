"""The status page over HTTP: access, headers and refusals; and downloads of traces."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

import aiohttp

from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.front.http import page
from tests.support.front.fixture import Front, front, run, until


@asynccontextmanager
async def pages(folder: Path) -> AsyncIterator[tuple[Front, aiohttp.ClientSession]]:
    async with (
        front(folder, listen__http="127.0.0.1:0") as f,
        aiohttp.ClientSession(f"http://{f.daemon.addresses.http}") as client,
    ):
        yield f, client


def test_the_page_and_its_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pages(tmp_path) as (_, client):
            async with client.get("/") as answer:
                html, headers = await answer.text(), answer.headers
            assert headers["Content-Type"] == "text/html; charset=utf-8" and "data-guarded" not in html
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
            assert "<noscript>" in html and 'href="status"' in html
            named = re.findall(r'(?:src|href)="(page/[^"]+)"', html)
            assert sorted(named) == ["page/page.css", "page/page.js"]
            for name in [each.name for each in resources.files(page).iterdir() if each.name.endswith((".js", ".css"))]:
                async with client.get(f"/page/{name}") as answer:
                    text = await answer.text()
                    assert answer.status == 200 and "nosniff" in answer.headers["X-Content-Type-Options"]
                assert "innerHTML" not in text and "eval(" not in text
            async with client.get("/", headers={"If-None-Match": f'"x", W/{headers["ETag"]}'}) as answer:
                assert answer.status == 304 and answer.headers["ETag"] == headers["ETag"] and not await answer.read()
            async with client.get("/", headers={"If-None-Match": '"other"'}) as answer:
                assert answer.status == 200

    run(scenario())


def test_head_requests_and_refused_methods(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pages(tmp_path) as (_, client):
            for path in ("/", "/page/page.js", "/status", "/status?max_age=1", "/metrics", "/healthz"):
                async with client.head(path) as answer:
                    assert answer.status == 200 and not await answer.read(), path
            for path in ("/", "/page/page.css", "/status", "/traces/x.json"):
                async with client.post(path, data=b"x") as answer:
                    body = await answer.json()
                    assert answer.status == 405 and answer.headers["Allow"] == "GET, HEAD" and "GET" in body["fix"]
            for path in ("/nothing", "/page/", "/page/index.html", "/page/../http.py", "/page/__init__.py",
                         "/traces/x.json", "/traces/..json", "/traces/a%2Fb.json"):  # fmt: skip
                async with client.get(path) as answer:
                    refusal = await answer.json()
                    assert answer.status == 404 and set(refusal) == {"error", "fix"}, path
                    assert path.startswith("/traces/") or "/history" in refusal["fix"]
                    assert answer.headers["Cache-Control"] == "no-store"
            for wrong in ("", "x", "-1", "nan", "inf", "11", "%00"):
                async with client.get(f"/status?max_age={wrong}") as answer:
                    body = await answer.json()
                    assert answer.status == 400 and "0 to 10" in body["fix"], wrong

    run(scenario())


def test_many_pages_cost_one_document_a_second(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pages(tmp_path) as (f, client):
            made, document = [], f.daemon.status.document

            async def counted(viewer: object) -> object:
                made.append(viewer)
                return await document(viewer)  # type: ignore[arg-type]

            f.daemon.status.document = counted  # type: ignore[method-assign, assignment]

            async def look(query: str) -> float:
                async with client.get(f"/status{query}") as answer:
                    body = await answer.json()
                    return float(body["uptime_seconds"])

            assert len(set(await asyncio.gather(*(look("?max_age=5") for _ in range(50))))) == 1
            assert len(made) == 1
            first, second = await look(""), await look("")
            assert second >= first and len(made) == 3, "without max_age the document is current"

    run(scenario())


def test_status_document_reports_device_activity(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pages(tmp_path) as (f, client):
            await f.open("me")
            f.launcher.hold_acks = True
            stream = await f.attach()
            await stream.write(device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=1)))
            await until(lambda: f.device(0).batches)
            async with client.get("/status") as answer:
                busy, idle = (await answer.json())["devices"]
            assert busy["queue"]["commands"] == 1 and busy["queue"]["bytes"] > 0
            assert idle["queue"] == {"commands": 0, "bytes": 0} and idle["memory_by_tenant"] == []
            assert set(busy["throughput"]) == {
                "commands_per_second", "launches_per_second", "received_bytes_per_second", "sent_bytes_per_second",
                "busy_ratio",
            }  # fmt: skip
            f.device(0).release_acks()
            f.device(1).die()
            await until(lambda: f.daemon.supervisor.find(1).state == 2 and f.daemon.supervisor.find(1).generation == 2)
            async with client.get("/status") as answer:
                body = await answer.json()
            [fault] = body["faults"]
            assert (fault["device"], fault["generation"], fault["kernels"]) == (1, 1, []) and fault[
                "reason"
            ] == "signal"
            assert body["traces"] == []

    run(scenario())


def test_trace_is_downloaded_or_reported_as_broken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pages(tmp_path) as (f, client):
            await f.open("me")
            await f.attach()
            await until(lambda: f.device(0).opened)  # the response to the attach does not wait for the device process
            channel = next(iter(f.device(0).opened))
            result = commands_pb2.TraceResult(epoch_ns=10**18)
            result.events.add(name="launch", kernel="k", started_ns=10, ended_ns=30, seq=1)
            head = json.dumps({"events": 1, "epoch_ns": 10**18, "lasted_ns": 99}).encode() + b"\n"
            for packed in (zlib.compress(result.SerializeToString()), b"junk"):
                f.device(0).send(Kind.TRACED, head + packed, channel=channel)
            await until(lambda: len(f.daemon.status.traces) == 2)
            async with client.get("/status") as answer:
                broken, good = (await answer.json())["traces"]
            assert good["session"] == f.session and good["events"] == 1 and good["started_unix"] == 10**9
            for encoding in ("gzip", "identity"):
                async with client.get(f"/traces/{good['id']}.json", headers={"Accept-Encoding": encoding}) as answer:
                    chart = await answer.json()
                    assert answer.headers.get("Content-Encoding", "identity") == encoding
                    assert answer.headers["Content-Disposition"].startswith("attachment; ")
                assert "k" in [entry["name"] for entry in chart["traceEvents"]]
            async with client.head(f"/traces/{good['id']}.json") as answer:
                assert answer.status == 200
            async with client.get(f"/traces/{broken['id']}.json") as answer:
                assert answer.status == 500 and "log" in (await answer.json())["fix"]
            f.device(0).send(Kind.TRACED, b"[]\n", channel=channel)  # an invalid frame ends the link, but not the front
            await until(lambda: f.daemon.supervisor.find(0).generation == 2)
            async with client.get(f"/traces/{good['id']}.json") as answer:
                assert answer.status == 200, "a trace outlives the process that made it"

    run(scenario())
