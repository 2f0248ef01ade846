"""What comes on a gRPC call: what is taken in gRPC's own thread, what is left to who iterates, and the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from fake_daemon import FakeDaemon

import hearth
from hearth.transport import incoming


class Server:
    """Sends what it is told to, and then ends as it is told to."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.status: grpc.StatusCode | None = None
        self.stay = threading.Event()
        self.stay.set()
        self._server = grpc.server(ThreadPoolExecutor(4))
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"M": handler}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def _serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from self.messages
        self.stay.wait(10)
        if self.status is not None:
            context.abort(self.status, "as told")

    def stop(self) -> None:
        self.stay.set()
        self._server.stop(None)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{server.port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        yield channel


def call(channel: grpc.Channel, over: threading.Event) -> Any:
    def requests() -> Iterator[bytes]:
        over.wait(10)
        yield from ()

    return channel.stream_stream("/t.T/M")(requests())


def spinning() -> int:
    """gRPC's threads that serve calls."""
    return sum("channel_spin" in thread.name or "_run" in thread.name for thread in threading.enumerate())


def test_each_message_comes_once_and_in_order(server: Server, channel: grpc.Channel) -> None:
    server.messages = [bytes([n % 7]) + n.to_bytes(4, "big") for n in range(2000)]
    taken, left, order, over = list[bytes](), list[bytes](), list[bytes](), threading.Event()
    iterating = threading.get_ident()

    def take(message: bytes) -> bool:
        assert threading.get_ident() != iterating
        if message[0] in (0, 3):
            return False
        taken.append(message)
        order.append(message)
        return True

    messages = incoming.of(call(channel, over), take)
    assert messages is not None
    for message in messages:
        left.append(message)
        order.append(message)
    over.set()
    assert order == server.messages, "also where one that is taken is behind one that is not"
    assert {message for message in server.messages if message[0] in (0, 3)} <= set(left) and taken


def test_nothing_is_taken_past_what_is_not_done_with(server: Server, channel: grpc.Channel) -> None:
    server.messages, over = [b"left", b"take", b"take"], threading.Event()
    messages = incoming.of(call(channel, over), lambda message: message == b"take")
    assert messages is not None
    seen = []
    for message in messages:
        time.sleep(0.05 if not seen else 0)  # the others have come by then
        seen.append(message)
    over.set()
    assert seen == server.messages


@pytest.mark.parametrize("status", [None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND])
def test_the_end_is_as_grpc_says(server: Server, channel: grpc.Channel, status: grpc.StatusCode | None) -> None:
    server.messages, server.status, over = [b"1"], status, threading.Event()
    before = spinning()
    messages = incoming.of(call(channel, over), lambda message: True)
    assert messages is not None
    if status is None:
        assert list(messages) == []
    else:
        with pytest.raises(grpc.RpcError) as error:
            list(messages)
        assert error.value.code() is status and error.value.details() == "as told"  # type: ignore[attr-defined]
    over.set()
    deadline = time.monotonic() + 10
    while spinning() > before:
        assert time.monotonic() < deadline, "gRPC's thread serves a call that is over"
        time.sleep(0.01)


def test_a_call_that_is_cancelled(server: Server, channel: grpc.Channel) -> None:
    server.messages, over = [b"1"], threading.Event()
    server.stay.clear()
    for early in (True, False):
        it = call(channel, over)
        messages = incoming.of(it, lambda message: True)
        assert messages is not None
        if early:
            it.cancel()
        else:
            threading.Timer(0.1, it.cancel).start()
        with pytest.raises(grpc.RpcError) as error:
            list(messages)
        assert error.value.code() is grpc.StatusCode.CANCELLED  # type: ignore[attr-defined]
    over.set()


def test_an_error_of_who_takes_goes_to_who_iterates(server: Server, channel: grpc.Channel) -> None:
    server.messages, over = [b"1", b"2"], threading.Event()

    def take(message: bytes) -> bool:
        raise RuntimeError("cannot")

    it = call(channel, over)
    messages = incoming.of(it, take)
    assert messages is not None
    with pytest.raises(RuntimeError, match="cannot"):
        list(messages)
    it.cancel()
    over.set()
    server.messages, over = [b"3"], threading.Event()
    other = incoming.of(call(channel, over), lambda message: False)
    assert other is not None and list(other) == [b"3"], "others on the channel go on"
    over.set()


@pytest.mark.parametrize("missing", ["state", "cygrpc", "off"])
def test_another_grpc_is_iterated_over(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    if missing == "off":
        monkeypatch.setattr(incoming, "WANTED", False)
    elif missing == "cygrpc":
        monkeypatch.setattr(incoming, "cygrpc", None)
    else:
        monkeypatch.setattr(incoming, "_OF_STATE", ("no longer there",))
    with hearth.connect(daemon.target) as node:
        for _ in range(20):
            node.device(0).synchronize()


def test_this_grpc_is_known(server: Server, channel: grpc.Channel) -> None:
    """Where this fails, gRPC has changed: look at `hearth.transport.incoming`. Round trips take longer until then."""
    over = threading.Event()
    assert incoming.of(call(channel, over), lambda message: True) is not None
    over.set()
