"""Publish and AttachBuffer repeated by the client, because the connection broke before the answer arrived."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

import hearth
from hearth import errors
from hearth.transport import framed
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, device_pb2_grpc
from tests.support.client.internals import connection_of
from tests.support.compiled import skip_if_compiled
from tests.support.daemon.cutter import Cutter
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.raw import TIMEOUT, Raw, refused

DATA = b"once only"


@pytest.fixture
def cutter(daemon: DaemonProcess) -> Iterator[Cutter]:
    with Cutter(daemon.unix) as cutter:
        yield cutter


@pytest.fixture
def raw(cutter: Cutter) -> Iterator[Raw]:
    with Raw(cutter.address) as raw:
        yield raw


@contextmanager
def written_slowly(daemon: DaemonProcess, raw: Raw, buffer: int) -> Iterator[threading.Event]:
    """Starts a Write of the buffer that ends when the event is set, on a connection that the test does not cut: later
    commands on the buffer wait for it."""
    ends = threading.Event()

    def requests() -> Iterator[Any]:
        command = c.Write(buffer=buffer, size=len(DATA), data=DATA[:4])
        yield device_pb2.WriteRequest(target=raw.target(), command=command)
        ends.wait(TIMEOUT)
        yield device_pb2.WriteRequest(data=DATA[4:])

    with grpc.insecure_channel(f"unix:{daemon.unix.removeprefix('unix:')}") as channel:
        method: Any = device_pb2_grpc.DeviceServiceStub(channel).Write
        call = method.future(requests(), timeout=TIMEOUT)
        wait_until(lambda: daemon.gauge("commands_waiting") == 1, "the write")
        yield ends
        ends.set()
        call.result()


def attached(gpu: hearth.Device) -> list[tuple[str, int]]:
    return [(each.name, each.attached) for each in gpu.published()]


@pytest.mark.parametrize("done", [False, True], ids=["while it is being done", "when it has been done"])
def test_repeated_publish_after_a_lost_answer_succeeds(
    daemon: DaemonProcess, gpu: hearth.Device, cutter: Cutter, raw: Raw, done: bool
) -> None:
    buffer, another = raw.buffer(DATA), raw.buffer(DATA)
    request = device_pb2.PublishRequest(target=raw.target(), buffer=buffer, name="w", description=b"d")
    with written_slowly(daemon, raw, buffer) as ends:
        first = raw.device.Publish.future(request, timeout=TIMEOUT)
        wait_until(lambda: daemon.gauge("commands_waiting") == 2, "the publish")
        cutter.cut()
        assert first.code() is grpc.StatusCode.UNAVAILABLE
        again = None if done else raw.device.Publish.future(request, timeout=TIMEOUT, wait_for_ready=True)
        ends.set()
    # gRPC may have sent it on the cut connection before it noticed the cut.
    assert again is None or again.code() in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    wait_until(lambda: attached(gpu) == [("w", 0)], "its name")
    for _ in range(2):
        raw.device.Publish(request, timeout=TIMEOUT, wait_for_ready=True)
    assert attached(gpu) == [("w", 0)] and daemon.gauge("buffers_published") == 1
    assert gpu.attach("w", dtype="uint8", shape=len(DATA)).get().tobytes() == DATA
    # A different request is refused as usual.
    for change in ({"buffer": another}, {"tenants": ["*"]}, {"description": b""}):
        fields = {"buffer": buffer, "name": "w", "description": b"d", **change}
        other = device_pb2.PublishRequest(target=raw.target(), **fields)
        assert refused(raw.device.Publish, other, timeout=TIMEOUT).reason is Reason.NAME_IN_USE
    with pytest.raises(hearth.HearthError) as caught:
        gpu.publish("w", gpu.zeros(4))
    assert caught.value.reason == "NAME_IN_USE"


def test_reused_handle_names_another_buffer(raw: Raw, gpu: hearth.Device) -> None:
    buffer = raw.buffer(DATA)
    request = device_pb2.PublishRequest(target=raw.target(), buffer=buffer, name="w")
    raw.device.Publish(request, timeout=TIMEOUT)
    raw.call("Free", c.Free(buffers=[buffer]))
    raw.call("Allocate", c.Allocate(buffer=buffer, size=16))
    assert refused(raw.device.Publish, request, timeout=TIMEOUT).reason is Reason.NAME_IN_USE


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
def test_repeated_attach_counts_once(daemon: DaemonProcess, raw: Raw, isolation: Any) -> None:
    with daemon.connect(isolation=isolation) as node:
        gpu = node.device(0)
        gpu.publish("w", gpu.asarray(bytearray(DATA)))
        gpu.publish("v", gpu.asarray(bytearray(DATA)))
        handle = raw.mint()
        request = device_pb2.AttachBufferRequest(target=raw.target(), buffer=handle, name="w")
        first = raw.device.AttachBuffer(request, timeout=TIMEOUT)
        assert raw.device.AttachBuffer(request, timeout=TIMEOUT) == first
        assert attached(gpu) == [("v", 0), ("w", 1)] and raw.read(handle, len(DATA)) == DATA
        other = device_pb2.AttachBufferRequest(target=raw.target(), buffer=handle, name="v")
        assert refused(raw.device.AttachBuffer, other, timeout=TIMEOUT).reason is Reason.HANDLE_IN_USE
        raw.call("Free", c.Free(buffers=[handle]))
        wait_until(lambda: attached(gpu) == [("v", 0), ("w", 0)], "the end of the attachment")
        raw.device.AttachBuffer(request, timeout=TIMEOUT)
        assert attached(gpu) == [("v", 0), ("w", 1)] and raw.read(handle, len(DATA)) == DATA


def test_client_repeats_the_same_request(daemon: DaemonProcess, gpu: hearth.Device, monkeypatch: Any) -> None:
    skip_if_compiled(framed)
    gpu.publish("w", gpu.asarray(bytearray(DATA)))
    with daemon.connect() as node:
        other = node.device(0)
        transport = connection_of(other).transport
        call = transport.call_device

        def lost(*arguments: Any) -> Any:
            call(*arguments)
            monkeypatch.undo()
            raise errors.broken("the daemon is gone")

        monkeypatch.setattr(transport, "call_device", lost)
        array = hearth.retrying(idempotent=True)(other.attach)("w")
        assert attached(gpu) == [("w", 1)] and array.get().tobytes() == DATA
        del array
        other.synchronize()
        wait_until(lambda: attached(gpu) == [("w", 0)], "the end of the only attachment")


def test_publish_of_a_published_array(gpu: hearth.Device) -> None:
    x = gpu.zeros(8)
    x.publish("x")
    x.publish("x")
    with pytest.raises(hearth.HearthError) as caught:
        x.publish("y")
    assert caught.value.reason == "INVALID_ARGUMENT"
