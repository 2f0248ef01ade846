"""Deadlines of single calls: commands that have not started are dropped, running ones continue, and the daemon's queue
empties."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import hearth
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.client.waits import wait_for
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import GATE
from tests.support.daemon.raw import Execute, Raw, refusal_of
from tests.support.daemon.resting import SOURCE

MAX_CALLS = 256


class Counted:
    """A session with a kernel that counts its launches, and a write whose bytes have not arrived: later calls on its
    stream wait."""

    STREAM = 7

    def __init__(self, raw: Raw, stream: Execute, daemon: DaemonProcess) -> None:
        self.raw = raw
        self._daemon = daemon
        self.counter = raw.buffer(bytes(4))
        self.function = raw.function(SOURCE, "rest")
        self._written = raw.buffer(bytes(8))
        self._stream = stream
        raw.call("CreateStream", c.CreateStream(stream=self.STREAM))
        raw.call("Sync", c.Sync())

    def hold(self) -> None:
        write = c.Write(buffer=self._written, size=8, transfer=5)
        self._stream.batch(c.Command(stream=self.STREAM, write=write))
        self.wait_for(1)

    def wait_for(self, commands: int) -> None:
        """Waits until at least `commands` commands are waiting."""
        wait_until(lambda: self._daemon.gauge("commands_waiting") >= commands, "commands to wait")

    def release(self) -> None:
        request = device_pb2.UploadRequest(session_token=self.raw.token, transfer=5, data=bytes(8))
        self.raw.device.Upload(iter([request]), timeout=30)
        self.raw.call("Sync", c.Sync(), stream=self.STREAM)

    def launch(self, nanoseconds: int = 0, timeout: float | None = None, future: bool = False) -> Any:
        """Launches on the blocked stream."""
        pointer = c.Argument.Pointer(buffer=self.counter)
        command = c.Launch(
            function=self.function,
            grid=c.Dim3(x=1),
            block=c.Dim3(x=1),
            arguments=[c.Argument(pointer=pointer), c.Argument(int64=nanoseconds)],
        )
        request = device_pb2.LaunchRequest(target=self.raw.target(self.STREAM), command=command)
        call = self.raw.device.Launch.future if future else self.raw.device.Launch
        return call(request, timeout=timeout)

    def launch_gated(self) -> int:
        """Launches a kernel that increases the count, once the buffer that is returned is not zero."""
        function, gate = self.raw.function(GATE, "hold"), self.raw.mint()
        self.raw.call("GetGlobal", c.GetGlobal(buffer=gate, module=function - 1, name="gate"))
        self.raw.call("Write", c.Write(buffer=gate, data=bytes(4)))
        pointer = c.Argument.Pointer(buffer=self.counter)
        dim = c.Dim3(x=1)
        command = c.Launch(
            function=function, grid=dim, block=dim, arguments=[c.Argument(pointer=pointer)], timeout_ns=60 * 10**9
        )
        self.raw.call("Launch", command, stream=self.STREAM)
        return gate

    @property
    def count(self) -> int:
        return int.from_bytes(self.raw.read(self.counter, 4), "little")


@pytest.fixture
def counted(raw: Raw, daemon: DaemonProcess) -> Iterator[Counted]:
    with raw.execute() as stream:
        yield Counted(raw, stream, daemon)


def code(call: Any, *arguments: Any, **keywords: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **keywords)
    found: grpc.StatusCode = error.value.code()  # type: ignore[attr-defined]
    return found


def dropped(daemon: DaemonProcess) -> float:
    return daemon.counter("cancelled", 0)


def test_a_deadline_drops_a_queued_call(counted: Counted, daemon: DaemonProcess) -> None:
    before = dropped(daemon)
    counted.hold()
    for timeout in (0.3, 3.0, 10.0):  # on a busy machine, the deadline may pass before the call reaches the device
        assert code(counted.launch, timeout=timeout) == grpc.StatusCode.DEADLINE_EXCEEDED
        if wait_for(lambda: dropped(daemon) > before, 5.0):
            break
    later = counted.launch(future=True)
    wait_until(lambda: dropped(daemon) > before, "the call to be dropped")
    counted.release()
    later.result(30)
    assert counted.count == 1


def test_a_call_that_is_cancelled_is_dropped(counted: Counted, daemon: DaemonProcess) -> None:
    before = dropped(daemon)
    counted.hold()
    calls = [counted.launch(future=True) for _ in range(3)]
    counted.wait_for(4)
    calls[1].cancel()
    wait_until(lambda: dropped(daemon) == before + 1, "the call to be dropped")
    counted.release()
    for call in (calls[0], calls[2]):
        call.result(30)
    assert counted.count == 2


def test_deadline_does_not_stop_a_running_kernel(counted: Counted, daemon: DaemonProcess) -> None:
    """A launch runs on the device, and the deadline of a wait for it passes: the kernel completes nevertheless."""
    before = dropped(daemon)
    gate = counted.launch_gated()
    request = device_pb2.SyncRequest(target=counted.raw.target(Counted.STREAM), command=c.Sync())
    assert code(counted.raw.device.Sync, request, timeout=0.1) == grpc.StatusCode.DEADLINE_EXCEEDED
    counted.raw.call("Write", c.Write(buffer=gate, data=b"\1\0\0\0"))
    counted.raw.device.Sync(request, timeout=30)
    assert counted.count == 1
    assert dropped(daemon) == before


def test_memory_of_a_running_kernel_is_not_reused_before_its_end(counted: Counted) -> None:
    """The buffer is freed while the kernel that writes to it runs; the next owner of its memory finds only its own
    bytes."""
    raw = counted.raw
    first = counted.counter
    counted.launch(nanoseconds=200_000_000)
    raw.call("Free", c.Free(buffers=[first]), stream=Counted.STREAM)
    later = [raw.buffer(b"mine") for _ in range(64)]
    raw.call("Sync", c.Sync(), stream=Counted.STREAM)
    assert all(raw.read(buffer, 4) == b"mine" for buffer in later)


def test_a_client_that_stops_waiting_drops_nothing(daemon: DaemonProcess) -> None:
    """`timeout=` of the client limits only its own wait."""
    with daemon.connect() as node:
        gpu = node.device(0)
        counter = gpu.zeros(1, "int32")
        rest = gpu.RawModule(code=SOURCE).get_function("rest")
        gpu.synchronize()
        for _ in range(3):
            rest((1,), (1,), (counter, 150_000_000))
        with contextlib.suppress(hearth.HearthError, TimeoutError):
            gpu.synchronize(timeout=0.1)
        gpu.synchronize()
        assert counter.get()[0] == 3


def excess(counted: Counted, daemon: DaemonProcess, timeout: float) -> Refusal | None:
    """Makes as many calls as may wait, and another one; returns its refusal after the deadlines of the others. Returns
    None if they had passed before, because the machine was busy."""
    waiting = daemon.gauge("commands_waiting")
    calls = [counted.launch(future=True, timeout=timeout) for _ in range(MAX_CALLS)]
    refusal = None
    if wait_for(lambda: daemon.gauge("commands_waiting") >= waiting + MAX_CALLS or calls[0].done(), 2 * timeout):
        with pytest.raises(grpc.RpcError) as error:
            counted.launch(timeout=1)
        if error.value.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
            refusal = refusal_of(error.value)
    with ThreadPoolExecutor(1) as pool:
        codes = list(pool.map(lambda call: call.exception().code(), calls))
    assert set(codes) == {grpc.StatusCode.DEADLINE_EXCEEDED}
    return refusal


def test_excess_calls_get_a_retry_time_and_deadlines_make_room(counted: Counted, daemon: DaemonProcess) -> None:
    counted.hold()
    for timeout in (2.0, 8.0, 30.0):
        before = dropped(daemon)
        refusal = excess(counted, daemon, timeout)
        if refusal is not None:
            break
    assert refusal is not None
    assert refusal.reason == Reason.QUEUE_FULL
    assert refusal.retry_after_s
    wait_until(lambda: dropped(daemon) >= before + MAX_CALLS, "the calls to be dropped")
    last = counted.launch(future=True)
    counted.release()
    last.result(30)
    assert counted.count == 1
