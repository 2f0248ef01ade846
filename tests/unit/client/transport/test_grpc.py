"""Broken connections, retries of calls, and the replacement of a channel."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

import hearth
from hearth.transport.backoff import MAX_PAUSE_S, Backoff
from hearth.transport.grpc import GrpcTransport, from_rpc_error
from hearth.transport.grpc_channel import ReopenedChannel
from hearth_proto import reasons


class RpcError(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str = "", refusal: reasons.Refusal | None = None) -> None:
        self._code, self._details, self._refusal = code, details, refusal

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        if self._refusal is None:
            return ()
        return ((reasons.STATUS_DETAILS_KEY, self._refusal.to_status().SerializeToString()),)


@pytest.mark.parametrize(
    ("code", "details", "broken"),
    [
        ("UNAVAILABLE", "Socket closed", True),
        ("UNAVAILABLE", "keepalive timeout", True),
        ("CANCELLED", "Received RST_STREAM with error code 8", True),
        ("INTERNAL", "Received RST_STREAM with error code 2", True),
        ("UNKNOWN", "Stream removed", True),
        ("INTERNAL", "Exception deserializing response!", False),
        ("UNKNOWN", "Exception iterating requests!", False),
        ("RESOURCE_EXHAUSTED", "Received message larger than max", False),
        ("UNIMPLEMENTED", "Method not found!", False),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", False),
    ],
)
def test_grpc_errors_of_a_broken_connection(code: str, details: str, broken: bool) -> None:
    error = from_rpc_error(RpcError(grpc.StatusCode[code], details), "host:1")
    assert error.broken is broken and error.again().broken is broken
    assert isinstance(error, hearth.ConnectError) is broken


@pytest.mark.parametrize("reason", [reasons.Reason.DEVICE_UNAVAILABLE, reasons.Reason.SESSION_EXPIRED])
def test_refusals_are_not_broken_connections(reason: reasons.Reason) -> None:
    refusal = reasons.Refusal(reason, "no")
    error = from_rpc_error(RpcError(grpc.StatusCode.UNAVAILABLE, "no", refusal), "host:1")
    assert not error.broken and error.reason == reason


def test_pauses_grow_and_end() -> None:
    now = [0.0]
    backoff = Backoff(10, lambda: now[0])
    pauses = []
    while (pause := backoff.pause()) is not None:
        pauses.append(pause)
        now[0] += pause
    assert pauses[0] == 0 and 0 < pauses[1] < 0.01
    assert max(pauses) <= 1.25 * MAX_PAUSE_S and now[0] == pytest.approx(10)
    assert 20 < len(pauses) < 60


class Channel:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_a_channel_is_replaced_when_its_connection_has_broken() -> None:
    opened: list[Channel] = []

    def open_channel() -> Any:
        opened.append(Channel())
        return opened[-1]

    line = ReopenedChannel(open_channel, "host:1")
    assert not opened
    first = line.channel()
    assert line.channel() is first and len(opened) == 1
    line.mark_stale(first)
    line.mark_stale(first)  # every call on the channel reports it
    second = line.channel()
    assert second is not first and [channel.closed for channel in opened] == [True, False]
    line.mark_stale(first)  # a late report about the replaced channel
    assert line.channel() is second
    line.close()
    assert all(channel.closed for channel in opened)
    with pytest.raises(hearth.ClosedError):
        line.channel()


def test_absent_daemon_is_detected_by_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "hearth.sock"
    transport = GrpcTransport(f"unix:{path}", loopback=True)
    assert transport.absent()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert transport.absent(), "a socket without a listener"
        listener.listen(1)
        assert not transport.absent()
    assert transport.absent()
    assert not GrpcTransport("127.0.0.1:1", loopback=True).absent(), "over TCP this cannot be known"
