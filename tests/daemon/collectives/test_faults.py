"""Ranks that do not all present an operation: the missing ranks are named, the wait is limited, and all ranks get the
error."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.raw import Execute, Raw
from tests.support.timing import LATE

pytestmark = pytest.mark.usefixtures("pair")
ENDLESS = """
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) {} }
"""


def part(
    buffer: int, sequence: int = 1, count: int = 4, dtype: str = "float32", timeout: float = 20, **more: Any
) -> Any:
    fields = {"op": c.REDUCE_OP_SUM, "devices": (0, 1), "source": buffer, "destination": buffer, **more}
    reduce = c.AllReduce(sequence=sequence, count=count, dtype=dtype, timeout_ns=int(timeout * 1e9), **fields)
    return c.Command(all_reduce=reduce)


@pytest.fixture
def ranks(raw: Raw) -> Any:
    """Returns two Execute streams, each with a buffer of 16 bytes under handle 1."""
    streams = [raw.execute(device) for device in range(2)]
    for stream in streams:
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=1, size=16)),
            c.Command(fill=c.Fill(buffer=1, size=16, pattern=np.float32(3).tobytes())),
        )
    yield streams
    for stream in streams:
        stream.__exit__()


def failure(stream: Execute) -> Any:
    """Returns the only failure of the stream."""
    (entry,) = stream.failures()
    assert entry.command.startswith("all_reduce")
    return from_status(entry.status)


def floats(stream: Execute) -> list[float]:
    result = stream.ask(c.Command(read=c.Read(buffer=1, size=16)))
    return list(np.frombuffer(result.read.data, np.float32))


def test_all_reduce_of_two_ranks(ranks: list[Execute]) -> None:
    for stream in ranks:
        stream.batch(part(1))
    assert [floats(stream) for stream in ranks] == [[6.0] * 4] * 2


@pytest.mark.parametrize(
    ("field", "first", "second"),
    [
        ("count", {"count": 4}, {"count": 3}),
        ("dtype", {"dtype": "float32"}, {"dtype": "int32"}),
        ("reduce", {"op": c.REDUCE_OP_SUM}, {"op": c.REDUCE_OP_MAX}),
    ],
)
def test_a_mismatch_names_the_field_and_the_values(
    ranks: list[Execute], field: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    ranks[0].batch(part(1, **first))
    ranks[1].batch(part(1, **second))
    for stream in ranks:
        refusal = failure(stream)
        assert refusal.reason == Reason.COLLECTIVE_MISMATCH
        assert refusal.details["field"] == field and refusal.details["odd_rank"] == "1"
        assert field in refusal.message and "device 1" in refusal.message
    for stream in ranks:
        stream.batch(part(1, sequence=2))
    assert [floats(stream) for stream in ranks] == [[6.0] * 4] * 2


def test_missing_rank_is_named_in_time_and_the_daemon_continues(ranks: list[Execute], daemon: DaemonProcess) -> None:
    began = time.monotonic()
    ranks[0].batch(part(1, timeout=0.3))
    refusal = failure(ranks[0])
    assert 0.25 < time.monotonic() - began < LATE
    assert refusal.reason == Reason.COLLECTIVE_TIMEOUT
    assert refusal.details["missing"] == "1" and "devices 1" in refusal.message
    ranks[1].batch(part(1, timeout=20))  # too late: refused immediately
    assert failure(ranks[1]).reason == Reason.COLLECTIVE_TIMEOUT
    for stream in ranks:
        stream.batch(part(1, sequence=2))
    assert [floats(stream) for stream in ranks] == [[6.0] * 4] * 2
    with daemon.connect() as node:
        saxpy_works(node.device(0))


def test_other_streams_continue_while_a_rank_is_missing(ranks: list[Execute]) -> None:
    waiting = ranks[0]
    waiting.batch(
        part(1, timeout=30),
        c.Command(create_stream=c.CreateStream(stream=5)),
        c.Command(stream=5, allocate=c.Allocate(buffer=2, size=4)),
        c.Command(stream=5, fill=c.Fill(buffer=2, size=4, pattern=b"\7")),
    )
    result = waiting.ask(c.Command(stream=5, read=c.Read(buffer=2, size=4)))
    assert result.read.data == b"\7\7\7\7"
    ranks[1].batch(part(1))
    assert [floats(stream) for stream in ranks] == [[6.0] * 4] * 2


def test_a_freed_buffer_is_kept_until_the_reduction_ends(ranks: list[Execute]) -> None:
    for stream in ranks:
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=2, size=16)),
            part(1),
            c.Command(copy=c.Copy(destination=2, source=1, size=16)),
            c.Command(free=c.Free(buffers=[1])),
        )
    for stream in ranks:
        result = stream.ask(c.Command(read=c.Read(buffer=2, size=16)))
        assert list(np.frombuffer(result.read.data, np.float32)) == [6.0] * 4
        assert stream.failures() == []


def test_dropped_arrays_take_part_to_the_end(pair: list[hearth.Device]) -> None:
    group = hearth.Group(pair)
    outs = [device.zeros(1 << 16, np.float32) for device in pair]
    for turn in range(10):
        group.all_reduce([device.full(1 << 16, turn, np.float32) for device in pair], outs=outs)
    for out in outs:
        assert (out.get() == 18).all()


@pytest.mark.parametrize(
    "wrong",
    [{"devices": (1,)}, {"devices": (0, 0)}, {"devices": ()}, {"op": 99}, {"dtype": "float31"}, {"count": 5},
     {"count": 2**62}, {"source_offset": 2**63}, {"devices": (0, 77)}],
    ids=str,
)  # fmt: skip
def test_invalid_operations_are_refused_immediately(ranks: list[Execute], wrong: dict[str, Any]) -> None:
    ranks[0].batch(part(1, **wrong))
    assert failure(ranks[0]).reason in (
        Reason.INVALID_ARGUMENT, Reason.UNSUPPORTED, Reason.OUT_OF_BOUNDS, Reason.DEVICE_NOT_FOUND
    )  # fmt: skip


def test_a_session_that_ends_affects_no_other(daemon: DaemonProcess, ranks: list[Execute]) -> None:
    with Raw(daemon.unix) as other, other.execute() as stream:
        stream.batch(c.Command(allocate=c.Allocate(buffer=1, size=16)), part(1))
    for stream in ranks:
        stream.batch(part(1))
    assert [floats(stream) for stream in ranks] == [[6.0] * 4] * 2


def test_a_collective_with_a_lost_rank_fails_on_the_other(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        if len(node.devices) < 2:
            pytest.skip("needs two devices")
        first, second = node.devices[:2]
        group = hearth.Group([first, second])
        arrays = [device.ones(64, np.float32) for device in (first, second)]
        group.all_reduce(arrays)
        assert (arrays[0].get() == 2).all() and (arrays[1].get() == 2).all()
        module = second.RawModule(code=ENDLESS)
        flag = second.zeros(1, np.int32)
        second.synchronize()
        module.get_function("endless")((1,), (1,), (flag,))
        group.all_reduce(arrays)  # the second rank cannot execute it
        os.kill(lossy.device_pid(1), signal.SIGKILL)
        with pytest.raises(hearth.HearthError):
            second.synchronize()
        wait_until(lambda: second.state == "serving")
        # one of the two errors, but no hang
        with contextlib.suppress(hearth.CommunicatorError, hearth.DeviceLostError):
            first.synchronize(timeout=30)
        while True:
            try:
                fresh = [device.ones(64, np.float32) for device in (first, second)]
                group.all_reduce(fresh)
                for device in (first, second):
                    device.synchronize(timeout=30)
                break
            except (hearth.CommunicatorError, hearth.DeviceLostError):
                continue
        assert [array.get()[0] for array in fresh] == [2, 2]
