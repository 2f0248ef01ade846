"""Publish and AttachBuffer repeated by the client, because the connection broke before the answer arrived."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import grpc
import pytest

import hearth
from hearth import errors
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, device_pb2_grpc
from tests.support.client.internals import connection_of
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


def test_repeated_attach_succeeds_after_the_name_has_ended(daemon: DaemonProcess, raw: Raw, gpu: hearth.Device) -> None:
    first, second = gpu.asarray(bytearray(DATA)), gpu.asarray(bytearray(b"something"))
    gpu.publish("w", first)
    handle = raw.mint()
    request = device_pb2.AttachBufferRequest(target=raw.target(), buffer=handle, name="w")
    answer = raw.device.AttachBuffer(request, timeout=TIMEOUT)
    gpu.publish("w", second, replace=True)
    assert raw.device.AttachBuffer(request, timeout=TIMEOUT) == answer and raw.read(handle, len(DATA)) == DATA
    gpu.unpublish("w")
    assert raw.device.AttachBuffer(request, timeout=TIMEOUT) == answer
    assert daemon.gauge("buffers_attached") == 1
    gpu.publish("w", second)
    raw.call("Free", c.Free(buffers=[handle]))
    raw.device.AttachBuffer(request, timeout=TIMEOUT)  # a new attachment, whether or not the end of the first is known
    assert raw.read(handle, len(DATA)) == b"something"
    raw.call("Free", c.Free(buffers=[handle]))
    gpu.unpublish("w")
    assert refused(raw.device.AttachBuffer, request, timeout=TIMEOUT).reason is Reason.NOT_PUBLISHED


def test_repeated_attach_waits_for_the_first(daemon: DaemonProcess, raw: Raw, gpu: hearth.Device) -> None:
    with daemon.connect(isolation="dedicated") as node:
        home = node.device(0)
        home.publish("w", home.asarray(bytearray(DATA)))
        (pid,) = {each["pid"] for each in daemon.status()["devices"][0]["processes"]} - {daemon.device_pid()}
        handle = raw.mint()
        request = device_pb2.AttachBufferRequest(target=raw.target(), buffer=handle, name="w")
        os.kill(pid, signal.SIGSTOP)
        try:
            first = raw.device.AttachBuffer.future(request, timeout=TIMEOUT)
            wait_until(lambda: attached(gpu) == [("w", 1)], "the attachment")
            gpu.unpublish("w")
            second = raw.device.AttachBuffer.future(request, timeout=TIMEOUT)
            with suppress(grpc.FutureTimeoutError):  # a refusal would arrive immediately
                second.exception(timeout=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert second.result() == first.result() and raw.read(handle, len(DATA)) == DATA


def lose_next_answer(gpu: hearth.Device, error: BaseException, before: Callable[[], object] = bool) -> None:
    """Makes the device's next call raise `error` after it was answered and `before` has run."""
    transport, patch = connection_of(gpu).transport, pytest.MonkeyPatch()
    call = transport.call_device

    def lost(*arguments: Any) -> Any:
        call(*arguments)
        before()
        patch.undo()
        raise error

    patch.setattr(transport, "call_device", lost)


LOST = [errors.broken("the daemon is gone"), errors.TimeoutError("not in time"), KeyboardInterrupt()]


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("unpublished", [False, True])
def test_attachment_without_an_answer_is_released(
    daemon: DaemonProcess, gpu: hearth.Device, error: BaseException, unpublished: bool
) -> None:
    array = gpu.asarray(bytearray(DATA))
    gpu.publish("w", array)
    with daemon.connect() as node:
        other = node.device(0)
        lose_next_answer(other, error, partial(gpu.unpublish, "w") if unpublished else bool)
        with pytest.raises(type(error)):
            other.attach("w")
        wait_until(lambda: daemon.gauge("buffers_attached") == 0, "the end of the attachment")
        if not unpublished:
            wait_until(lambda: attached(gpu) == [("w", 0)], "the end of the attachment")
            gpu.unpublish("w")
        wait_until(partial(writable, gpu, array), "the end of the publication")
        other.synchronize()  # no late error


def writable(gpu: hearth.Device, array: hearth.DeviceArray) -> bool:
    array.fill(1)
    try:
        gpu.synchronize()
    except hearth.HearthError as error:
        assert error.reason == "READ_ONLY"
        return False
    return True


def test_client_attaches_again_after_a_lost_answer(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    gpu.publish("w", gpu.asarray(bytearray(DATA)))
    with daemon.connect() as node:
        other = node.device(0)
        lose_next_answer(other, errors.broken("the daemon is gone"))
        array = hearth.retrying(idempotent=True)(other.attach)("w")
        wait_until(lambda: daemon.gauge("buffers_attached") == 1, "the end of the other attachment")
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
