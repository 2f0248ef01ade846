"""Probes, metrics, status, gRPC health, reflection, and the listeners' own errors."""

from __future__ import annotations

import asyncio
import socket
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.front.addresses import Address
from hearthd.front.metrics.collector import Metrics
from hearthd.front.sockets import ListenError, UnixSocket, check_free
from tests.support.front.fake_device import FakeLauncher
from tests.support.front.fixture import Front, front, run, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def get(f: Front, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(f"http://{f.daemon.addresses.http}{path}") as answer:
        return answer.status, await answer.text()


def samples(text: str) -> dict[tuple[str, str], float]:
    """Returns samples by name and device or method. Samples that differ in other labels are summed."""
    found: dict[tuple[str, str], float] = {}
    seen = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            each = (sample.name, *sorted(sample.labels.items()))
            assert each not in seen
            seen.add(each)
            key = (sample.name, sample.labels.get("device", sample.labels.get("grpc_method", "")))
            found[key] = found.get(key, 0) + sample.value
    return found


def test_probes_follow_the_devices(tmp_path: Path) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        flags = {"listen__http": "127.0.0.1:0", "devices__max_restarts": 0, "drain_timeout": "5s"}
        async with front(tmp_path, launcher, **flags) as f:
            assert (await get(f, "/healthz"))[0] == 200
            assert (await get(f, "/readyz"))[0] == 200
            f.device(0).die()
            await until(lambda: f.daemon.supervisor.find(0).state == 4)
            status, text = await get(f, "/readyz")
            assert status == 200 and "fenced" in text, "a fenced device does not make the node unready"
            f.device(1).die()
            await until(lambda: f.daemon.supervisor.find(1).state == 4)
            assert (await get(f, "/readyz"))[0] == 503
            assert (await get(f, "/healthz"))[0] == 200

    run(scenario())


def test_draining_is_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f:
            f.daemon.parts.drain.begin()
            assert (await get(f, "/readyz"))[0] == 503
            assert (await get(f, "/healthz"))[0] == 200

    run(scenario())


def test_metrics_page(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0", http__metrics_max_age="0s") as f:
            await f.open()
            stream = await f.attach()
            await stream.write(device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=1)))
            await stream.read()
            await f.devices.Sync(device_pb2.SyncRequest(target=f.target(1)))
            f.device(1).die()
            await until(lambda: f.daemon.supervisor.find(1).state == 2 and f.daemon.supervisor.find(1).generation == 2)
            status, text = await get(f, "/metrics")
            assert status == 200
            found = samples(text)
            assert found["hearth_sessions", ""] == 1
            assert found["hearth_device_up", "0"] == found["hearth_device_up", "1"] == 1
            assert found["hearth_device_generation", "1"] == 2
            assert found["hearth_device_restarts_total", "1"] == 1
            assert found["hearth_launches_total", "0"] == 3
            assert found["hearth_memory_used_bytes", "0"] == 5
            assert found["hearth_front_batches_total", ""] == 1
            assert found["grpc_server_handled_total", "Sync"] == 1
            assert found["grpc_server_started_total", "Execute"] == 1
            assert "bad name" not in text
            assert text.count("# TYPE hearth_sessions ") == 1
            f.launcher.mute = True  # a device that does not answer delays the page by a second, but does not prevent it
            status, text = await get(f, "/metrics")
            found = samples(text)
            assert status == 200 and ("hearth_memory_used_bytes", "0") not in found
            assert found["hearth_launches_total", "0"] == 3, "a counter keeps its last value"
            f.launcher.mute = False

    run(scenario())


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        (
            "application/openmetrics-text; version=1.0.0, text/plain; q=0.5",
            "application/openmetrics-text; version=1.0.0",
        ),
        ("application/openmetrics-text; version=new", "text/plain; version=0.0.4"),
        (";;,=", "text/plain; version=0.0.4"),
    ],
)
def test_formats_of_the_page(tmp_path: Path, accept: str, kind: str) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f, aiohttp.ClientSession() as client:
            url = f"http://{f.daemon.addresses.http}/metrics"
            async with client.get(url, headers={"Accept": accept}) as answer:
                text = await answer.text()
                assert answer.status == 200 and answer.headers["Content-Type"].startswith(kind)
            assert text.endswith("# EOF\n") == kind.startswith("application/openmetrics")
            assert "hearth_device_up" in text and "_created" not in text

    run(scenario())


def test_a_large_page_delays_no_other_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is rendered in a thread, so the event loop serves other requests meanwhile."""

    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f:
            begun, go_on = threading.Event(), threading.Event()
            render = f.daemon.metrics.render

            def slowly(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
                begun.set()
                go_on.wait(20)
                return render(families, accept)

            monkeypatch.setattr(Metrics, "render", slowly)
            page = asyncio.create_task(get(f, "/metrics"))
            try:
                await until(begun.is_set)
                assert (await get(f, "/healthz"))[0] == 200 and not page.done()
            finally:
                go_on.set()
            assert (await page)[0] == 200

    run(scenario())


def test_status_document(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f:
            await f.open("me")
            async with (
                aiohttp.ClientSession() as client,
                client.get(f"http://{f.daemon.addresses.http}/status") as answer,
            ):
                body = await answer.json()
            assert [d["state"] for d in body["devices"]] == ["serving", "serving"]
            assert body["devices"][0]["memory"]["total_bytes"] == 1 << 30
            assert body["devices"][0]["pid"] == 100000
            [session] = body["sessions"]
            assert session["id"] == f.session and session["client"] == "me"
            assert f.token not in str(body)

    run(scenario())


def test_grpc_health_and_reflection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, devices__max_restarts=0) as f:
            health = health_pb2_grpc.HealthStub(f.channel)

            async def check(name: str) -> int:
                return (await health.Check(health_pb2.HealthCheckRequest(service=name))).status

            names = ("", "hearth.v1.NodeService", "hearth.v1.DeviceService", "device/0", "device/1")
            for name in names:
                assert await check(name) == SERVING
            with pytest.raises(grpc.aio.AioRpcError):
                await check("device/2")
            watch = health.Watch(health_pb2.HealthCheckRequest(service="device/1"))
            assert (await watch.read()).status == SERVING
            f.device(1).die()
            assert (await watch.read()).status == NOT_SERVING
            assert await check("device/0") == await check("") == SERVING
            f.daemon.parts.drain.begin()
            for name in names:
                await until_status(check, name)
            watch.cancel()
            stub = reflection_pb2_grpc.ServerReflectionStub(f.channel)
            listing = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            services = {service.name for service in (await listing.read()).list_services_response.service}
            assert {"hearth.v1.NodeService", "hearth.v1.DeviceService", "grpc.health.v1.Health"} <= services
            listing.cancel()

    async def until_status(check: object, name: str) -> None:
        while await check(name) != NOT_SERVING:  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    run(scenario())


def test_second_daemon_on_the_same_socket_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "h.sock"
        async with front(tmp_path) as f:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with pytest.raises(ListenError, match="already serves"):
                async with front(tmp_path):
                    pass
            await f.open()  # the first daemon is not affected
        assert not any(tmp_path.iterdir())  # noqa: ASYNC240
        async with front(tmp_path) as f:
            await f.open()

    run(scenario())


def test_a_stale_socket_is_replaced_and_other_files_are_not(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h.sock"
    claimed = UnixSocket(str(path))
    claimed.claim()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    Path(f"{path}.lock").unlink()  # as after a crash, and removal of the lock by an administrator
    again = UnixSocket(str(path))
    again.claim()
    assert not path.exists()
    again.release()
    path.parent.mkdir(exist_ok=True)
    path.write_text("precious")
    with pytest.raises(ListenError, match="not a socket"):
        UnixSocket(str(path)).claim()
    assert path.read_text() == "precious"
    claimed.release()


def test_a_live_socket_without_a_lock_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "h.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(path))
        live.listen()
        with pytest.raises(ListenError, match="already serves"):
            UnixSocket(str(path)).claim()
    assert path.exists()


@pytest.mark.parametrize("setting", ["grpc", "http"])
def test_a_port_in_use_is_named(tmp_path: Path, setting: str) -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ListenError, match=rf"listen\.{setting}: port {port} .*ss -ltnp"):
                async with front(tmp_path, **{f"listen__{setting}": f"127.0.0.1:{port}"}):
                    pass
        assert not any(tmp_path.iterdir())  # noqa: ASYNC240

    run(scenario())


def test_tcp_and_any_port(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__grpc="127.0.0.1:0", listen__http="127.0.0.1:0") as f:
            addresses = f.daemon.addresses
            assert not addresses.grpc.endswith(":0") and not addresses.http.endswith(":0")
            async with grpc.aio.insecure_channel(addresses.grpc) as channel:
                await asyncio.wait_for(channel.channel_ready(), 5)
            with pytest.raises(ListenError, match="in use"):
                host, _, port = addresses.grpc.rpartition(":")
                check_free(Address(host, int(port)), "grpc")

    run(scenario())
