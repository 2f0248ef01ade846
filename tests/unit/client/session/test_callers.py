from __future__ import annotations

import inspect

import pytest

from hearth.codec import batch
from hearth.errors import HearthError
from hearth.session.callers import CallerLog
from hearth.session.protocol import Session
from hearth.session.send_queue import Limits
from hearth_proto.launches import HEADER
from hearth_proto.v1 import commands_pb2

RECORD = HEADER.pack(HEADER.size, 0, 0, 7, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)


def line_before() -> str:
    """Returns the line before the calling line as a log names it."""
    current = inspect.currentframe()
    assert current is not None and current.f_back is not None
    frame = current.f_back
    return f"{__file__}:{frame.f_lineno - 1} in {frame.f_code.co_qualname}"


def test_a_command_is_found_by_its_batch_and_index() -> None:
    log = CallerLog()
    log.record_launch(RECORD, 0)
    log.record_command(b"", 1)
    second = line_before()
    log.record_launch(RECORD, 2)
    third = line_before()
    log.record_batch(1, 2, 1)
    log.record_batch(1, 1, 0)  # as after a Ctrl-C
    log.record_batch(2, 1, 0)
    assert log.find(1, 1) == second and log.find(2, 0) == third
    assert log.find(2, 1) == log.find(3, 0) == ""


def test_a_request_is_found_by_its_number() -> None:
    log = CallerLog()
    log.record_command(batch.with_request(300, b"\x1a\x00"), 0)
    log.record_command(batch.with_request(301, b"\x1a\x00"), 0)
    line = line_before()
    log.record_batch(1, 2, 0)
    assert log.find_by_request(301) == line and log.find_by_request(302) == ""


def test_the_oldest_batches_are_dropped() -> None:
    log = CallerLog(max_sent=10)
    for seq in range(1, 100):
        for _ in range(3):
            log.record_launch(RECORD, 0)
        log.record_batch(seq, 3, 0)
    assert log.find(96, 0) == "" and log.find(97, 0) and log.find(99, 2)


def test_a_lost_device_names_the_lines_of_its_kernels_that_are_not_known_to_be_done() -> None:
    log = CallerLog()
    named = commands_pb2.Command(get_function=commands_pb2.GetFunction(function=7, name="f"))
    log.record_command(named.SerializeToString(), 0)
    log.record_batch(1, 1, 0)
    log.record_launch(RECORD, 0)
    log.record_launch(RECORD, 1)
    second = line_before()
    log.record_batch(2, 2, 0)
    log.record_launch(RECORD, 2)
    third = line_before()
    error = HearthError("lost", details={"kernels": "g, f"})
    log.add_kernel_callers(error, 1)
    assert error.details["caller"] == f"{third}, or {second}"
    other = HearthError("lost", details={"kernels": "ff"})
    log.add_kernel_callers(other, 0)
    assert "caller" not in other.details


def test_a_refused_command_leaves_the_order_of_the_others() -> None:
    session = Session(Limits(max_batch_bytes=1000))
    session.queue.callers = CallerLog()
    session.queue.launch(RECORD)
    with pytest.raises(HearthError, match="does not fit"):
        session.queue.put(bytes(2000))
    session.queue.put(commands_pb2.Command(sync=commands_pb2.Sync()).SerializeToString())
    line = line_before()
    session.attached = True
    assert session.next_request() is not None
    log = session.queue.callers
    assert log is not None and log.find(1, 1) == line and log.find(1, 2) == ""


def test_after_an_interrupted_launch_the_later_callers_are_right() -> None:
    log = CallerLog()
    log.record_launch(RECORD, 0)  # never queued
    log.record_launch(RECORD, 0)
    line = line_before()
    log.record_batch(1, 1, 0)
    assert log.find(1, 0) == line
