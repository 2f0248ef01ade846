"""Failed handles: a handle whose creation was refused reports the reason at every use, and can be destroyed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.session.handle_table import MAX_TOMBSTONES, HandleTable
from hearthd.device.session.replay_cache import ReplayCache
from hearthd.device.streams import stream_pool
from hearthd.shared.device_spec import DeviceSpec
from tests.support.compiled import skip_if_compiled
from tests.support.device.rig import Rig

FULL = "no more streams"


@pytest.fixture
def rig() -> Iterator[Rig[CpuServer]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), CpuServer)
    yield rig
    rig.close()


def refuse_streams(rig: Rig[CpuServer]) -> None:
    """Makes the creation of further streams fail, as if all tracks were withheld."""
    skip_if_compiled(stream_pool)
    assert fine(rig.call(sync=c.Sync()))  # the session already has its default stream

    def acquire(priority: int = 0, *, bounded: bool = False) -> object:
        raise Refusal(Reason.QUEUE_FULL, FULL, fix="wait", details={"streams": 2}, retry_after_s=1.0)

    rig.process.device.tracks.acquire = acquire  # type: ignore[assignment]


def refused(result: c.Result) -> Refusal:
    assert result.HasField("error")
    return from_status(result.error)


def fine(result: c.Result) -> bool:
    return not result.HasField("error")


def test_every_use_of_a_failed_stream_reports_the_reason(rig: Rig[CpuServer]) -> None:
    refuse_streams(rig)
    rig.batch(c.Command(create_stream=c.CreateStream(stream=5)))
    first = refused(rig.call(sync=c.Sync()))
    assert (first.reason, first.message, first.retry_after_s) == (Reason.QUEUE_FULL, f"create_stream: {FULL}", 1.0)
    for _ in range(2):
        error = refused(rig.call(stream=5, sync=c.Sync()))
        assert error.reason is Reason.QUEUE_FULL and error.message == f"stream 5 was not made: {FULL}"
        assert error.fix == "wait" and error.details["streams"] == "2" and error.retry_after_s is None
    assert refused(rig.call(stream=6, sync=c.Sync())).reason is Reason.INVALID_HANDLE
    assert fine(rig.call(sync=c.Sync()))  # none of the failures belonged to the default stream


def test_one_way_commands_on_failed_stream_report_reason(rig: Rig[CpuServer]) -> None:
    refuse_streams(rig)
    rig.batch(
        c.Command(create_stream=c.CreateStream(stream=5)),
        c.Command(stream=5, allocate=c.Allocate(buffer=1, size=64)),
        c.Command(stream=5, record_event=c.RecordEvent(event=2)),
        c.Command(fill=c.Fill(buffer=1, size=64, pattern=b"\1")),
        c.Command(wait_event=c.WaitEvent(event=2)),
    )
    error = rig.call(sync=c.Sync()).error
    assert from_status(error).reason is Reason.QUEUE_FULL and "(and 4 more failed after it)" in error.message
    said = refused(rig.call(read=c.Read(buffer=1, size=64)))
    assert said.reason is Reason.QUEUE_FULL
    assert said.message == f"buffer 1 was not made: stream 5 was not made: {FULL}"
    rig.batch(
        c.Command(free=c.Free(buffers=[1])),
        c.Command(destroy_event=c.DestroyEvent(event=2)),
        c.Command(destroy_stream=c.DestroyStream(stream=5)),
    )
    assert fine(rig.call(sync=c.Sync())), "destroying a handle that was never created is no failure"
    assert refused(rig.call(stream=5, sync=c.Sync())).reason is Reason.INVALID_HANDLE
    assert refused(rig.call(free=c.Free(buffers=[1]))).reason is Reason.INVALID_HANDLE


def test_failed_stream_can_be_destroyed_once(rig: Rig[CpuServer]) -> None:
    refuse_streams(rig)
    rig.batch(c.Command(create_stream=c.CreateStream(stream=5)))
    assert fine(rig.call(destroy_stream=c.DestroyStream(stream=5)))
    assert refused(rig.call(destroy_stream=c.DestroyStream(stream=5))).reason is Reason.INVALID_HANDLE


def test_failed_handle_can_be_created_again(rig: Rig[CpuServer]) -> None:
    acquire = rig.process.device.tracks.acquire
    refuse_streams(rig)
    rig.batch(c.Command(create_stream=c.CreateStream(stream=5)))
    assert refused(rig.call(stream=5, sync=c.Sync())).reason is Reason.QUEUE_FULL
    rig.process.device.tracks.acquire = acquire  # type: ignore[method-assign]
    assert fine(rig.call(create_stream=c.CreateStream(stream=5)))
    assert fine(rig.call(stream=5, sync=c.Sync()))
    assert refused(rig.call(create_stream=c.CreateStream(stream=5))).reason is Reason.HANDLE_IN_USE
    assert fine(rig.call(stream=5, sync=c.Sync())), "the handle exists; the refusal concerned another one"
    assert fine(rig.call(destroy_stream=c.DestroyStream(stream=5)))
    assert refused(rig.call(stream=5, sync=c.Sync())).reason is Reason.INVALID_HANDLE


def test_functions_of_an_unknown_module_report_the_reason(rig: Rig[CpuServer]) -> None:
    rig.batch(c.Command(get_function=c.GetFunction(function=3, module=9, name="f")))
    assert "module 9 is not live" in rig.call(sync=c.Sync()).error.message
    error = refused(rig.call(launch=c.Launch(function=3, grid=c.Dim3(x=1), block=c.Dim3(x=1))))
    assert error.reason is Reason.INVALID_HANDLE and error.message.startswith("function 3 was not made: module 9 is")


def test_number_of_remembered_failures_is_bounded() -> None:
    table: HandleTable[object] = HandleTable("stream", ReplayCache())
    for handle in range(MAX_TOMBSTONES + 10):
        table.mark_failed(handle, Refusal(Reason.QUEUE_FULL, FULL))
    assert not table.forget(0), "which is no handle"
    assert sum(table.has_tombstone(handle) for handle in range(MAX_TOMBSTONES + 10)) == MAX_TOMBSTONES
    assert "is not live" in table.unknown(1).message and FULL in table.unknown(MAX_TOMBSTONES).message


def test_failed_creation_by_a_request_leaves_an_unknown_handle(rig: Rig[CpuServer]) -> None:
    refuse_streams(rig)
    said = refused(rig.call(create_stream=c.CreateStream(stream=5)))
    assert (said.reason, said.message, said.retry_after_s) == (Reason.QUEUE_FULL, FULL, 1.0)
    assert refused(rig.call(stream=5, sync=c.Sync())).reason is Reason.INVALID_HANDLE
