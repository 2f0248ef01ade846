"""Admission of requests before they are decoded: unauthenticated callers and tenants, over gRPC and over frames."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

import hearth
from hearth_proto import frames
from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2, device_pb2, device_pb2_grpc, node_pb2, node_pb2_grpc
from tests.attacks.raw_http2 import Http2, message, status
from tests.attacks.target import Until
from tests.support.client.internals import session_of
from tests.support.daemon.framed import connected, method, reason
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.lent import TenantDaemon
from tests.support.daemon.raw import Raw, refused

DESCRIBE = "/hearth.v1.NodeService/Describe"
LOAD_MODULE = "/hearth.v1.DeviceService/LoadModule"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = ("v1", "v1alpha")
MIB = 1 << 20
WAIT = 30.0
DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = 4, 8, 12, 16


@pytest.fixture(scope="module")
def lent(cache: Path) -> Iterator[TenantDaemon]:
    with contextlib.closing(TenantDaemon(cache, auth={"max_failures": 10000})) as daemon:
        yield daemon


@pytest.fixture
def daemon(lent: TenantDaemon) -> DaemonProcess:
    return lent.lend()


@pytest.fixture(scope="module")
def lent_hasty(cache: Path) -> Iterator[TenantDaemon]:
    """A daemon whose time for a request is so short that a busy machine may exceed it."""
    admission = {"request_timeout": "0.5s", "request_rate": "1GiB"}
    with contextlib.closing(TenantDaemon(cache, admission=admission, auth={"max_failures": 10000})) as daemon:
        yield daemon


@pytest.fixture
def hasty(lent_hasty: TenantDaemon) -> DaemonProcess:
    return lent_hasty.lend()


Healthy = TypeVar("Healthy")


def in_time(work: Callable[[], Healthy]) -> Healthy:
    """Returns the result of healthy work with the hasty daemon; repeats requests that exceed its time limit."""
    for _ in range(5):
        with contextlib.suppress(hearth.TimeoutError):
            return work()
    return work()


def shown(lent: TenantDaemon) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {lent.token}"),)


def answered(daemon: DaemonProcess, path: bytes | str, body: bytes = b"", **more: Any) -> tuple[int, int]:
    """Returns the status of a call on a new connection, and the number of bytes of its body that the daemon read."""
    one = Http2(daemon.grpc)
    try:
        stream = one.call(path, body, **more)
        one.pump(Until(WAIT), 1)
        assert one.ended, "no answer arrived"
        return status(one.answers.get(stream, b"")), one.sent
    finally:
        one.close()


# ---- gRPC ----


def test_credential_is_checked_before_the_body_arrives(daemon: DaemonProcess) -> None:
    one = Http2(daemon.grpc)
    stream = one.call(DESCRIBE)
    one.pump(Until(WAIT), 1)
    one.close()
    assert status(one.answers[stream]) == UNAUTHENTICATED


def test_body_without_a_credential_is_not_read(daemon: DaemonProcess) -> None:
    code, taken = answered(daemon, DESCRIBE, message(bytes(8 * MIB), announced=9 * MIB))
    assert code == UNAUTHENTICATED and taken <= 64 << 10


def test_credential_is_read_from_short_messages_only(daemon: DaemonProcess) -> None:
    code, _ = answered(daemon, LOAD_MODULE, message(bytes(65 << 10)), end=True)
    assert code == RESOURCE_EXHAUSTED
    code, _ = answered(daemon, HEALTH, message(bytes(65 << 10)), end=True)
    assert code == RESOURCE_EXHAUSTED


def test_path_with_invalid_text_does_not_end_the_server(lent: TenantDaemon, daemon: DaemonProcess) -> None:
    """grpc.aio would end its server because of such a path."""
    for path in (b"/\xff\xfe", b"/hearth.v1.NodeService/\xff", b"", b"*", b"/\0", b"/a/b", b"/" + b"x" * 7000):
        assert answered(daemon, path, message(b""), end=True)[0] == UNIMPLEMENTED, path
    with hearth.connect(daemon.grpc, token=lent.token, lanes=False) as node:
        saxpy_works(node.device(0))


def test_metadata_with_invalid_text_is_answered_without_an_internal_error(
    lent: TenantDaemon, daemon: DaemonProcess
) -> None:
    for name, value in (
        (b"authorization", b"\xff\xfe"), (b"hearth-session", b"\xc3("), (b"hearth-ticket", b"\x80"), (b"x-bin", b"!!!"),
        (b"authorization", b"Bearer"), (b"te", b"\xff"), (b"grpc-tags-bin", b"AAAA"),
    ):  # fmt: skip
        one = Http2(daemon.grpc)
        one.call(DESCRIBE, message(b""), ((name, value),), end=True)
        one.pump(Until(WAIT), 1)
        one.close()
        assert one.ended and b"hearthd/" not in b"".join(one.answers.values()), (name, value)
    log = daemon.log()
    assert "call_failed" not in log
    assert "Invalid encoding" not in log, "strangers write no lines of gRPC's own"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_request_is_refused_before_it_is_inflated(daemon: DaemonProcess, encoding: str) -> None:
    packed = (gzip.compress if encoding == "gzip" else zlib.compress)(bytes(31 * MIB))
    headers = ((b"grpc-encoding", encoding.encode()),)
    for path in (DESCRIBE, LOAD_MODULE, HEALTH):
        assert answered(daemon, path, message(packed, compressed=True), metadata=headers, end=True)[0] == UNIMPLEMENTED
    assert "Compression algorithm" not in daemon.log(), "strangers write no lines of gRPC's own"


@pytest.mark.parametrize("path", [LOAD_MODULE, HEALTH])
def test_unfinished_message_of_a_stranger_has_a_deadline(hasty: DaemonProcess, path: str) -> None:
    assert answered(hasty, path, message(b"x", announced=1000))[0] == DEADLINE_EXCEEDED


def test_unfinished_message_of_a_tenant_has_a_deadline(lent_hasty: TenantDaemon, hasty: DaemonProcess) -> None:
    headers = tuple((name.encode(), value.encode()) for name, value in shown(lent_hasty))
    for path in (DESCRIBE, LOAD_MODULE):
        code, _ = answered(hasty, path, message(b"x", announced=1000), metadata=headers)
        assert code == DEADLINE_EXCEEDED

    def works() -> None:
        with hearth.connect(hasty.grpc, token=lent_hasty.token, lanes=False) as node:
            saxpy_works(node.device(0))

    in_time(works)


def test_requests_have_limits_before_they_are_decoded(lent: TenantDaemon, daemon: DaemonProcess) -> None:
    with grpc.insecure_channel(daemon.grpc) as channel, Raw(daemon.grpc, lent.token) as raw:
        node: Any = node_pb2_grpc.NodeServiceStub(channel)
        device: Any = device_pb2_grpc.DeviceServiceStub(channel)
        members = [node_pb2.GroupMember() for _ in range(100_000)]
        group = node_pb2.CreateGroupRequest(session_token=raw.token, members=members)
        refusal = refused(node.CreateGroup, group, metadata=shown(lent))
        assert refusal.reason == "MESSAGE_TOO_LARGE" and refusal.details["allowed"] == str(64 << 10)
        command = commands_pb2.LoadModule(module=1, options=[""] * 10_000)
        module = device_pb2.LoadModuleRequest(target=raw.target(), command=command)
        refusal = refused(device.LoadModule, module, metadata=shown(lent))
        assert refusal.reason == "MESSAGE_TOO_LARGE" and refusal.details["limit"] == "admission.max_request_fields"
        name = node_pb2.OpenSessionRequest(client_name="x" * 100_000)
        assert refused(node.OpenSession, name, metadata=shown(lent)).reason == "MESSAGE_TOO_LARGE"


def test_reflection_requires_a_credential(lent: TenantDaemon, daemon: DaemonProcess) -> None:
    for version in REFLECTION:
        path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        assert answered(daemon, path, message(b""))[0] == UNAUTHENTICATED
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    with grpc.insecure_channel(daemon.grpc) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        request: Any = reflection_pb2
        asked = iter([request.ServerReflectionRequest(list_services="")])
        (answer,) = stub.ServerReflectionInfo(asked, metadata=shown(lent), timeout=WAIT)
    assert "hearth.v1.NodeService" in {each.name for each in answer.list_services_response.service}


# ---- frames ----


def test_framed_call_of_a_stranger_is_refused_at_its_method(daemon: DaemonProcess) -> None:
    with connected(daemon) as stranger:
        stranger.sendall(method(DESCRIBE))
        assert reason(stranger) == "UNAUTHENTICATED"
    with connected(daemon) as stranger:
        stranger.sendall(method(DESCRIBE) + frames.header(Kind.MESSAGE, 31 * MIB) + bytes(1000))
        assert reason(stranger) == "UNAUTHENTICATED"


def test_framed_message_without_a_credential_must_be_short(daemon: DaemonProcess) -> None:
    with connected(daemon) as stranger:
        stranger.sendall(method(LOAD_MODULE) + frames.header(Kind.MESSAGE, (64 << 10) + 1))
        assert reason(stranger) == "MESSAGE_TOO_LARGE"
    with connected(daemon) as stranger:
        request = device_pb2.LoadModuleRequest(target=device_pb2.Target(session_token="unknown"))
        stranger.sendall(method(LOAD_MODULE) + frames.encode(Kind.MESSAGE, request.SerializeToString()))
        assert reason(stranger) == "SESSION_EXPIRED"


def test_framed_message_of_a_tenant_is_as_long_as_its_method_needs(lent: TenantDaemon, daemon: DaemonProcess) -> None:
    for path, size, expected in (
        (DESCRIBE, 65 << 10, "MESSAGE_TOO_LARGE"),
        (LOAD_MODULE, 18 * MIB, "MESSAGE_TOO_LARGE"),
        (LOAD_MODULE, 16 * MIB, "MALFORMED_MESSAGE"),
    ):
        with connected(daemon) as tenant:
            tenant.sendall(method(path, shown(lent)))
            with contextlib.suppress(OSError):  # the daemon closes the connection before it has read everything
                tenant.sendall(frames.header(Kind.MESSAGE, size) + b"\xff" * size)
            assert reason(tenant) == expected, (path, size)


def test_missing_framed_message_has_a_deadline(lent_hasty: TenantDaemon, hasty: DaemonProcess) -> None:
    for head, rest in (
        (method(LOAD_MODULE), b""),
        (method(LOAD_MODULE), frames.header(Kind.MESSAGE, 1000) + b"x"),
        (method(DESCRIBE, shown(lent_hasty)), b""),
        (method(LOAD_MODULE, shown(lent_hasty)), frames.header(Kind.MESSAGE, 1000) + b"x"),
    ):
        with connected(hasty) as slow:
            slow.sendall(head + rest)
            assert reason(slow) == "DEADLINE_EXCEEDED", (head, rest)


def test_framed_stream_with_an_unfinished_message_is_ended(lent_hasty: TenantDaemon, hasty: DaemonProcess) -> None:
    with in_time(lambda: hasty.connect(token=lent_hasty.token)) as node, connected(hasty) as slow:
        token = dict(session_of(node).transport.metadata)["hearth-session"]
        attach = device_pb2.ExecuteRequest(attach=device_pb2.Attach(session_token=token))
        begin = method("/hearth.v1.DeviceService/Execute", shown(lent_hasty))
        slow.sendall(begin + frames.encode(Kind.MESSAGE, attach.SerializeToString()))
        slow.sendall(frames.header(Kind.MESSAGE, MIB) + b"x")
        assert reason(slow) == "DEADLINE_EXCEEDED"


def test_refusals_are_counted_and_logged(lent: TenantDaemon, daemon: DaemonProcess) -> None:
    answered(daemon, b"/nothing", message(b""), end=True)
    counted = 'hearth_admission_refusals_total{limit="unknown_method"}'
    page = ""

    def is_counted() -> bool:  # the page is cached for a second
        nonlocal page
        page = daemon.get("/metrics", token=lent.operator).body
        return counted in page

    wait_until(is_counted, "the count")
    assert "hearth_admission_unauthenticated_bytes 0" in page
    assert '"event": "request_refused"' in daemon.log_path.read_text()
