"""An overloaded front: the calls that it refuses, its reports, and clients that try again after the overload."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front.overload.policy import HOLD_S
from tests.support.client.short_connects import refusal_of_connect
from tests.support.front.fixture import Front, front, refused, run


def target_of(f: Front) -> device_pb2.Target:
    return device_pb2.Target(session_token=f.token, device=0)


async def get(f: Front, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(f"http://{f.daemon.addresses.http}{path}") as answer:
        return answer.status, await answer.text()


class Load:
    """Sets the front's reading of its open files."""

    def __init__(self, f: Front) -> None:
        self.share = 0.0
        self._manager = f.daemon.parts.overload
        self._manager.read = {"descriptors": lambda: self.share}
        self._manager.measure(0.0, all_resources=True)

    def put(self, share: float) -> None:
        self.share = share
        self._manager.measure(0.0, all_resources=True)

    async def end(self) -> None:
        """Returns when the front has noticed by its own measurements that the overload has ended."""
        self.share = 0.0
        over = asyncio.Event()
        self._manager.listeners.append(lambda: None if self._manager.level else over.set())
        await asyncio.wait_for(over.wait(), 20 * HOLD_S)


def test_new_sessions_are_refused_first_and_work_last(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, listen__http="127.0.0.1:0") as f:
            load = Load(f)
            await f.open()
            health = health_pb2_grpc.HealthStub(f.channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            opening = node_pb2.OpenSessionRequest(client_name="late", client_version="0")
            launch = device_pb2.LaunchRequest(target=target_of(f), command=c.Launch())

            load.put(0.9)
            refusal = await refused(f.node.OpenSession(opening))
            assert refusal.reason == Reason.OVERLOADED and refusal.retry_after_s and "90% of the files" in str(refusal)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            status, body = await get(f, "/readyz")
            assert status == 503 and "90% of the files that it may open" in json.loads(body)["overloaded"]
            await f.devices.Sync(device_pb2.SyncRequest(target=target_of(f)))  # work of open sessions continues
            await f.devices.Launch(launch)

            load.put(0.99)
            assert (await refused(f.devices.Launch(launch))).reason == Reason.OVERLOADED
            await f.devices.Sync(device_pb2.SyncRequest(target=target_of(f)))  # calls that only wait or read are served
            await f.node.Describe(node_pb2.DescribeRequest())
            _, page = await get(f, "/metrics")
            assert "hearth_overload_level 2.0" in page and "hearth_ready 0.0" in page
            assert 'hearth_overload_refusals_total{kind="session"} 1.0' in page

            await load.end()
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            assert (await f.node.OpenSession(opening)).session_token
            watch.cancel()

    run(scenario())


def test_upload_is_refused_before_any_of_its_bytes_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            load = Load(f)
            await f.open()
            load.put(0.9)
            call = f.devices.Upload()  # no message is sent
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(call, 20)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

    run(scenario())


@pytest.mark.parametrize("lanes", [True, False])
def test_connect_retries_after_the_time_in_the_refusal(tmp_path: Path, lanes: bool) -> None:
    """Connects with framed calls and with gRPC. If the time is too short, the error names the cause."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            load = Load(f)
            load.put(0.9)
            target = f"unix:{tmp_path / 'h.sock'}"
            error = await asyncio.to_thread(
                refusal_of_connect, lambda timeout: hearth.connect(target, timeout=timeout, lanes=lanes)
            )
            assert error.reason == "OVERLOADED" and error.retryable
            assert isinstance(error, hearth.UnavailableError)
            connecting = asyncio.ensure_future(asyncio.to_thread(hearth.connect, target, timeout=60, lanes=lanes))
            await load.end()
            node = await connecting
            await asyncio.to_thread(node.close)

    run(scenario())
