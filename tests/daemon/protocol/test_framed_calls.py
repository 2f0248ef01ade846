"""Calls as frames on a Unix socket instead of gRPC: the same answers, and no effect of invalid data."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

import hearth
from hearth.transport import framed_call
from hearth.transport.framed import FramedTransport
from hearth.transport.framed_call import FramedExchange
from hearth.transport.grpc import GrpcTransport
from hearth_proto import calls, frames
from hearth_proto.calls import Keepalive
from hearth_proto.frames import Kind
from hearth_proto.v1 import device_pb2, node_pb2, status_pb2
from tests.support.client.internals import connection_of, session_of
from tests.support.daemon.framed import call_path, connected, method, reason, received
from tests.support.daemon.harness import DaemonProcess, StartDaemon
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.tenants import tenant, tenants

DESCRIBE = method("/hearth.v1.NodeService/Describe")
EXECUTE = method("/hearth.v1.DeviceService/Execute")


def transport(node: hearth.Node) -> object:
    return session_of(node).transport


# ---- the transport that a client selects ----


def test_client_on_the_unix_socket_uses_framed_calls(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        assert isinstance(transport(node), FramedTransport)
        assert node.describe().devices and node.sessions()
        saxpy_works(node.device(0))
        assert session_of(node).transport.open_calls <= 1  # type: ignore[attr-defined]


def test_grpc_is_used_without_lanes_or_for_other_socket_path(daemon: DaemonProcess, tmp_path: Path) -> None:
    """A container may have been given only gRPC's socket."""
    with daemon.connect(lanes=False) as node:
        assert isinstance(transport(node), GrpcTransport)
    alone = tmp_path / "alone.sock"
    alone.symlink_to(daemon.unix.removeprefix("unix:"))
    with hearth.connect(f"unix:{alone}") as node:
        assert isinstance(transport(node), GrpcTransport)
        saxpy_works(node.device(0))


def test_unrelated_server_on_call_socket_is_ignored(daemon: DaemonProcess, tmp_path: Path) -> None:
    """The server on the socket answers without frames, or closes the connection."""
    alone = tmp_path / "alone.sock"
    alone.symlink_to(daemon.unix.removeprefix("unix:"))
    beside = calls.socket_path(str(alone))
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(beside)
            listener.listen(8)

            def answer() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        stranger, _ = listener.accept()
                        with stranger:
                            stranger.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            threading.Thread(target=answer, daemon=True).start()
            with hearth.connect(f"unix:{alone}") as node:
                assert isinstance(transport(node), GrpcTransport)
                saxpy_works(node.device(0))
            listener.shutdown(socket.SHUT_RDWR)
    finally:
        alone.unlink()
        Path(beside).unlink(missing_ok=True)


# ---- data that is no call ----


def test_invalid_first_frame_closes_connection(daemon: DaemonProcess) -> None:
    message = frames.encode(Kind.MESSAGE, b"")
    too_long = frames.HEADER.pack(calls.MAX_MESSAGE + 1, Kind.MESSAGE, 0, 0, 0)
    for data in (
        b"\0" * 20, os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n" * 3, message, frames.encode(Kind.TICKET, b"\0" * 32),
        frames.encode(Kind.METHOD, b"Describe"), frames.encode(Kind.METHOD, b"/\xff"), too_long, EXECUTE + too_long,
        EXECUTE + EXECUTE, EXECUTE + frames.encode(Kind.BATCH, b""),
    ):  # fmt: skip
        with connected(daemon) as stranger:
            stranger.sendall(data)
            assert all(frame.kind in (Kind.END, Kind.PONG) for frame in received(stranger)), data[:40]
    with daemon.connect() as node:
        saxpy_works(node.device(0))


def test_silent_connection_is_closed(daemon: DaemonProcess) -> None:
    with connected(daemon) as silent:
        assert received(silent) == []


def test_unknown_method_is_refused(daemon: DaemonProcess) -> None:
    for path in ("/hearth.v1.NodeService/Nothing", "/x", "/grpc.health.v1.Health/Check"):
        with connected(daemon) as stranger:
            stranger.sendall(method(path))
            assert reason(stranger) == "UNSUPPORTED"


def test_malformed_and_missing_request_are_refused(daemon: DaemonProcess) -> None:
    for rest in (frames.encode(Kind.MESSAGE, b"\xff\xff"), frames.encode(Kind.END)):
        for path in ("/hearth.v1.NodeService/Describe", "/hearth.v1.DeviceService/Download"):
            with connected(daemon) as stranger:
                stranger.sendall(method(path) + rest)
                assert reason(stranger) == "MALFORMED_MESSAGE", (path, rest)


def test_execute_stream_with_invalid_first_message_is_refused(daemon: DaemonProcess) -> None:
    attach = device_pb2.ExecuteRequest(attach=device_pb2.Attach(session_token="unknown"))
    for rest, expected in (
        (frames.encode(Kind.END), "MALFORMED_MESSAGE"),
        (frames.encode(Kind.MESSAGE, b"\xff"), "MALFORMED_MESSAGE"),
        (frames.encode(Kind.MESSAGE, attach.SerializeToString()), "SESSION_EXPIRED"),
    ):
        with connected(daemon) as stranger:
            stranger.sendall(EXECUTE + rest)
            assert reason(stranger) == expected


def test_unary_answer_is_one_message_and_an_end_frame(daemon: DaemonProcess) -> None:
    with connected(daemon) as stranger:
        for byte in DESCRIBE:
            stranger.sendall(bytes([byte]))  # in pieces of any size
        stranger.sendall(frames.encode(Kind.MESSAGE) + frames.encode(Kind.END))
        message, end = received(stranger)
        assert message.kind == Kind.MESSAGE and node_pb2.DescribeResponse.FromString(message.payload).devices
        assert end.kind == Kind.END and not end.payload


def test_cancelled_call_is_cancelled_in_the_daemon(daemon: DaemonProcess) -> None:
    def cancelled() -> float:
        lines = daemon.get("/metrics").body.splitlines()
        of_execute = [line for line in lines if "grpc_server_handled_total" in line and '"Execute"' in line]
        return sum(float(line.rpartition(" ")[2]) for line in of_execute if '"CANCELLED"' in line)

    before = cancelled()
    with connected(daemon) as stranger:
        stranger.sendall(EXECUTE + frames.encode(Kind.PING))
        assert frames.HEADER.unpack(stranger.recv(20))[1] == Kind.PONG
    deadline = time.monotonic() + 10
    while cancelled() == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert cancelled() == before + 1


# ---- identification of the caller ----


def test_caller_is_identified_by_user_without_a_ticket(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(tenant("mine", users=[os.getuid()]), "other")
    daemon = start_daemon(**config)
    with daemon.connect() as node:
        assert isinstance(transport(node), FramedTransport) and node.tenant == "mine"
        saxpy_works(node.device(0))
    with daemon.connect(token=tokens["other"]) as node:
        assert isinstance(transport(node), FramedTransport) and node.tenant == "other"
    with pytest.raises(hearth.AuthenticationError):
        daemon.connect(token="hearth_wrong")


# ---- a daemon that does not answer ----


def test_stopped_daemon_is_detected(start_daemon: StartDaemon) -> None:
    """A stopped daemon is detected as by gRPC's keepalive; a slow daemon that responds is waited for."""
    daemon = start_daemon()
    with daemon.connect() as node:
        framed = transport(node)
        assert isinstance(framed, FramedTransport)
        framed.keepalive = Keepalive(ask=0.1)
        gpu = node.device(0)
        saxpy_works(gpu)
        time.sleep(0.5)  # asked, and answered, several times
        saxpy_works(gpu)
        assert not connection_of(gpu).attachment().execute.outages  # type: ignore[union-attr]
        framed.keepalive = Keepalive(ask=0.1, answer=0.2)
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(hearth.TimeoutError):
                session_of(node).call("Describe", node_pb2.DescribeRequest(), node_pb2.DescribeResponse, 0.15)
            call = FramedExchange(daemon.unix, call_path(daemon), None, framed.keepalive)
            call.start("/hearth.v1.NodeService/Describe", (), b"")
            with pytest.raises(hearth.ConnectError, match="stopped responding"):
                list(call.messages())
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        saxpy_works(gpu)


def test_call_refused_during_its_request_reports_the_reason(daemon: DaemonProcess) -> None:
    call = FramedExchange(daemon.unix, call_path(daemon), 20.0)
    call.start("/hearth.v1.NodeService/Nothing", (), bytes(8 << 20))
    with pytest.raises(hearth.HearthError) as refused:
        list(call.messages())
    assert refused.value.reason in ("UNSUPPORTED", "DEVICE_UNAVAILABLE")
    assert not isinstance(refused.value, hearth.TimeoutError)


def test_invalid_status_in_end_frame_raises_frame_error() -> None:
    with pytest.raises(frames.FrameError):
        raise framed_call.refusal_of(b"\xff")
    status = status_pb2.Status(code=5, message="no")
    assert "no" in str(framed_call.refusal_of(status.SerializeToString()))
