"""A front with fake device processes on a Unix socket, and a client of it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import uvloop

from hearth_proto.reasons import STATUS_DETAILS_KEY, Refusal, from_status
from hearth_proto.v1 import device_pb2, device_pb2_grpc, node_pb2, node_pb2_grpc, status_pb2
from hearthd.front.config.loader import Config, load
from hearthd.front.daemon.daemon import Daemon
from hearthd.front.sessions.session import Session
from tests.support.front.fake_device import FakeDevice, FakeLauncher


class Front:
    """The fixture's value: the daemon, its fake device processes, gRPC stubs, and a session."""

    def __init__(self, daemon: Daemon, launcher: FakeLauncher, channel: grpc.aio.Channel) -> None:
        self.daemon = daemon
        self.launcher = launcher
        self.channel = channel
        self.node: Any = node_pb2_grpc.NodeServiceStub(channel)
        self.devices: Any = device_pb2_grpc.DeviceServiceStub(channel)
        self.token = ""
        self.session = ""
        self.last_seq = 0

    async def open(self, name: str = "test") -> str:
        answer = await self.node.OpenSession(node_pb2.OpenSessionRequest(client_name=name))
        self.token, self.session = answer.session_token, answer.session_id
        return self.token

    async def open_with_lease(self, seconds: float) -> Session:
        """Opens a session with this lease, which the test can change. The configured lease determines how often the
        front checks for sessions whose lease has expired."""
        configured, self.daemon.sessions.lease = self.daemon.sessions.lease, seconds
        await self.open()
        self.daemon.sessions.lease = configured
        (session,) = self.daemon.sessions
        return session

    def target(self, device: int = 0, stream: int = 0) -> device_pb2.Target:
        return device_pb2.Target(session_token=self.token, device=device, stream=stream)

    async def attach(self, device: int = 0) -> Any:
        """Returns an attached Execute stream."""
        stream = self.devices.Execute()
        attach = device_pb2.Attach(session_token=self.token, device=device)
        await stream.write(device_pb2.ExecuteRequest(attach=attach))
        try:
            answer = await stream.read()
        except grpc.aio.AioRpcError:
            raise await ended(stream) from None
        assert answer.WhichOneof("kind") == "attached", answer
        self.last_seq = answer.attached.last_seq
        return stream

    def device(self, ordinal: int = 0) -> FakeDevice:
        return self.launcher.current(ordinal)


async def ended(stream: Any) -> Refusal:
    """Reads a stream that must have no further messages; returns the refusal that ended it."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        answer = await stream.read()
        assert answer is grpc.aio.EOF, answer
    for key, value in await stream.trailing_metadata():
        if key == STATUS_DETAILS_KEY:
            refusal = from_status(status_pb2.Status.FromString(value))
            assert refusal.code == (await stream.code()).value[0]
            return refusal
    raise AssertionError(f"no details: {await stream.code()} {await stream.details()}")


async def refused(call: Any) -> Refusal:
    """Awaits a call that must fail; returns its refusal."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        for key, value in error.trailing_metadata() or ():
            if key == STATUS_DETAILS_KEY:
                return from_status(status_pb2.Status.FromString(value))
        raise
    raise AssertionError(f"was answered: {answer}")


async def refused_while_sending(begin: Callable[[], Any]) -> Refusal:
    """Starts a call that is refused while it still sends. If a message is sent after the refusal, gRPC's client reports
    "Internal error from Core" and loses the answer; then the call is repeated."""
    while True:
        try:
            return await refused(begin())
        except grpc.aio.AioRpcError as error:
            if error.details() != "Internal error from Core":
                raise


async def until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    """Returns when the condition holds; for events in the fake device's thread or at the other end of a socket."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def front(
    directory: Path,
    launcher: FakeLauncher | None = None,
    devices: int = 2,
    read: Callable[[], Config] | None = None,
    **flags: Any,
) -> AsyncIterator[Front]:
    """Runs a front. Settings are written with two underscores: ``sessions__lease="1s"``; or `read` returns the whole
    configuration, at every load."""
    launcher = launcher or FakeLauncher()
    paths: dict[tuple[str, ...], Any] = {
        ("listen", "grpc"): "",
        ("listen", "http"): "",
        ("listen", "lanes"): "",
        ("listen", "unix"): str(directory / "h.sock"),
        ("drain_timeout",): "0s",
        **{tuple(name.split("__")): value for name, value in flags.items()},
    }
    config = load(environ={}, flags=paths)[0] if read is None else read()
    daemon = Daemon(config, "cpu", list(range(devices)), launcher, read)
    channel = grpc.aio.insecure_channel(f"unix:{config.unix_path}")
    try:
        await daemon.start()
        yield Front(daemon, launcher, channel)
    finally:
        await channel.close()
        await daemon.stop(at_once=True)
        assert launcher.stopped


_runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
"""The event loop of all tests of a process: gRPC keeps state of a loop after the loop has ended, and reports errors
when it is collected."""


def _close() -> None:
    async def tidy() -> None:
        # gRPC's objects clean up on the loop on which they were created, so they must be collected before the loop ends
        gc.collect()
        await asyncio.sleep(0)

    _runner.run(tidy())
    _runner.close()


atexit.register(_close)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs a scenario until it ends, or fails after 30 s."""

    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scenario

    _runner.run(bounded())
