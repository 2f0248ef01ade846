"""A framed call whose client has disconnected, as its handler sees it."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from hearth.transport.framed_call import FramedExchange, send_in_thread
from hearth_proto import calls, frames
from hearth_proto.calls import KEEPALIVE, Keepalive
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.admission.account import UnauthenticatedBytes
from hearthd.front.admission.gate import Admission, AdmissionGate, MethodGate
from hearthd.front.admission.limits import AdmissionLimits
from hearthd.front.config.front_limits import AdmissionSettings
from hearthd.front.connections.limiter import ConnectionLimiter
from hearthd.front.rpc.framed_context import FramedCall
from hearthd.front.rpc.framed_server import CallServer
from hearthd.front.sessions.attach import EOF
from hearthd.front.tenancy.tenants import EVERYONE, Caller

SETTINGS = AdmissionSettings()


def framed(
    starts: Callable[[FramedCall, bytes], None],
    account: UnauthenticatedBytes | None = None,
    keepalive: Keepalive = KEEPALIVE,
) -> FramedCall:
    account = account or UnauthenticatedBytes(SETTINGS.max_unauthenticated_bytes, CollectorRegistry())
    return FramedCall(starts, lambda _call: True, account, SETTINGS, keepalive)


def method_gate(account: UnauthenticatedBytes | None = None) -> MethodGate:
    auth: Any = None
    account = account or UnauthenticatedBytes(SETTINGS.max_unauthenticated_bytes, CollectorRegistry())
    return AdmissionGate(auth, AdmissionLimits(SETTINGS, 32 << 20), account).method_gate(
        "hearth.v1.DeviceService", "Upload"
    )


@pytest.mark.parametrize("reading", [False, True], ids=["before", "while"])
def test_read_ends_when_the_client_disconnects(reading: bool) -> None:
    """The cancellation of the task itself may have been lost."""

    async def scenario() -> None:
        call = framed(lambda _call, _head: None)
        if not reading:
            call.connection_lost(None)
        reader = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        if reading:
            assert not reader.done()
            call.connection_lost(None)
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(5):
                await reader
        assert reader.cancelled()

    asyncio.run(scenario())


class Quiet:
    """An observer that ignores all connections."""

    def connection_opened(self, listener: str) -> None: ...

    def connection_closed(self, listener: str) -> None: ...

    def connection_refused(self, listener: str, peer: str, reason: str) -> None: ...


HEAD = frames.encode(Kind.METHOD, calls.pack_head("/hearth.v1.DeviceService/LoadModule", ()))
HALF = frames.header(Kind.MESSAGE, 64 << 10) + bytes(63 << 10)


def call_server(refused: bool) -> CallServer:
    """Returns a server whose methods read a message. With `refused`, calls are refused when METHOD arrives."""
    account = UnauthenticatedBytes(SETTINGS.max_unauthenticated_bytes, CollectorRegistry())

    def decide(_method_gate: MethodGate, _context: Any) -> Admission:
        if refused:
            raise Refusal(Reason.UNAUTHENTICATED, "No.", fix="None.")
        return Admission(None, 64 << 10)

    async def behaviour(_request: Any, context: Any) -> bytes:
        if isinstance(context.admitted, Refusal):
            raise context.admitted
        return bytes(await context.read())

    behaviour.method_gate = method_gate(account)  # type: ignore[attr-defined]
    handler = SimpleNamespace(response_streaming=False, stream_unary=behaviour, response_serializer=None)
    service: Any = SimpleNamespace(name="hearth.v1.DeviceService", methods={"LoadModule": handler})
    gate: Any = SimpleNamespace(account=account, limits=SimpleNamespace(settings=SETTINGS), decide=decide)
    limiter = ConnectionLimiter(
        "calls", Quiet(), max_connections=10, max_strangers=10, max_strangers_per_peer=10, timeout=10
    )
    return CallServer([service], lambda _socket: "", gate, limiter)


@pytest.mark.parametrize("sent", [HEAD[:-1], HEAD, HEAD + HALF], ids=["part of METHOD", "METHOD", "part of MESSAGE"])
@pytest.mark.parametrize("refused", [False, True], ids=["read", "refused"])
def test_call_ends_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes, refused: bool
) -> None:
    """The call is freed immediately, not later by the garbage collector. Otherwise unauthenticated clients could fill
    the daemon's memory with their messages."""
    data_received = FramedCall.data_received

    async def scenario() -> None:
        came = 0
        all_came, gone = asyncio.Event(), asyncio.Event()

        def received(call: FramedCall, data: bytes) -> None:
            nonlocal came
            if not came:
                weakref.finalize(call, gone.set)
            came += len(data)
            data_received(call, data)
            if came == len(sent):
                all_came.set()

        monkeypatch.setattr(FramedCall, "data_received", received)
        path = str(tmp_path / "calls")
        server = call_server(refused)
        await server.open(path, public=False)
        gc.disable()
        try:
            async with asyncio.timeout(10):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(sent)
                if refused and sent.startswith(HEAD):
                    assert await reader.read()
                else:
                    await all_came.wait()
                writer.close()
                await gone.wait()
        finally:
            gc.enable()
            await server.close(0)

    asyncio.run(scenario())


MIB = 1 << 20
STILL_S = 2.5


@pytest.mark.parametrize("size", [6 * MIB, 40 * MIB], ids=["all sent", "half sent"])
def test_a_call_with_waiting_messages_is_not_timed_out(tmp_path: Path, size: int) -> None:
    """An upload waits for a long kernel. Its client does not consider the daemon dead, although the daemon does not
    read its pings."""
    keepalive = Keepalive(ask=0.15, answer=1.5)
    path = str(tmp_path / "calls")
    answers: list[bytes] = []

    def client() -> None:
        call = FramedExchange("unix:x", path, None, keepalive)
        call.start("/upload", (), b"head", more=True)
        send_in_thread(call, iter([bytes(MIB)] * (size // MIB)), "sender")
        answers.extend(call.messages())

    async def scenario() -> None:
        received = 0

        async def serve(call: FramedCall) -> None:
            nonlocal received
            await asyncio.sleep(STILL_S)
            while (message := await call.read()) is not EOF:
                received += len(message)
            await call.write(b"all of it")
            call.end()

        def starts(call: FramedCall, _head: bytes) -> None:
            call.admit(Admission(Caller(EVERYONE), 32 << 20), method_gate())
            call.task = asyncio.create_task(serve(call))

        server = await asyncio.get_running_loop().create_unix_server(lambda: framed(starts, keepalive=keepalive), path)
        try:
            await asyncio.to_thread(client)
        finally:
            server.close()
        assert answers == [b"all of it"] and received == size + len(b"head")

    asyncio.run(scenario())
    assert all(thread.name != "sender" for thread in threading.enumerate())


def test_answer_that_arrived_before_the_wait(tmp_path: Path) -> None:
    """The daemon has answered and closed the connection. The client's ping fails, and the client still reads the
    answer."""
    path = str(tmp_path / "calls")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        call = FramedExchange("unix:x", path, None)
        call.start("/unary", (), b"head", more=True)
        daemon, _ = listener.accept()
        daemon.recv(1 << 16)
        daemon.sendall(frames.encode(Kind.PING) + frames.encode(Kind.MESSAGE, b"answer") + frames.encode(Kind.END))
        daemon.close()
        assert list(call.messages()) == [b"answer"]
