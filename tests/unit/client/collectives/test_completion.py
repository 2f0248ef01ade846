"""The last operations of a group: which are waited for at its end, and which are dropped."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from hearth.collectives.completion import KEPT, LastOperation, LastOperations, wait_until_done
from hearth.errors import LaunchError, TransferError
from hearth.session.reply import Reply
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.replies import lone_reply


class Device:
    """Stand-in for connection and attachment. It answers a request for completion when `complete` is called."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, str, Reply]] = []
        self.sent = threading.Event()
        self.lost = False

    def mint(self) -> int:
        return 7

    def request(self, command: c.Command) -> Reply:
        if self.lost:
            raise TransferError("lost", reason="DEVICE_LOST")
        reply = lone_reply()
        self.requests.append((command.stream, str(command.WhichOneof("kind")), reply))
        if command.HasField("destroy_event"):
            self.sent.set()
        return reply

    def complete(self, error: LaunchError | None = None) -> None:
        """Answers the requests; with `error`, as a stream that records a graph."""
        requests, self.requests = self.requests, []
        for _, kind, reply in requests:
            if error is not None and kind in ("sync_collective", "query_event"):
                reply.set_error(error)
            else:
                reply.set_result(c.Result())

    def operation(self, handle: int, stream: Any = None) -> LastOperation:
        return LastOperation(self, self, stream, handle)  # type: ignore[arg-type]

    @property
    def streams(self) -> list[int]:
        """Streams on which the completion of collectives was requested."""
        return [stream for stream, kind, _ in self.requests if kind == "sync_collective"]


def waiting(*operations: LastOperation) -> threading.Thread:
    thread = threading.Thread(target=wait_until_done, args=(operations, 60.0))
    thread.start()
    return thread


def test_each_stream_of_each_rank_is_waited_for() -> None:
    device, other, operations = Device(), Device(), LastOperations()
    for handle in (1, 2, 1):
        operations.record(b"g", 0, device.operation(handle))
    operations.record(b"g", 1, other.operation(1))
    operations.record(b"h", 0, device.operation(3))
    taken = operations.take(b"g")
    assert len(taken) == 3 and len(operations) == 1 and operations.take(b"g") == []
    thread = waiting(*taken)
    assert device.sent.wait(20) and other.sent.wait(20)
    assert sorted(device.streams) == [1, 2] and other.streams == [1]
    device.complete()
    assert thread.is_alive()
    other.complete()
    thread.join(20)
    assert not thread.is_alive()


def test_streams_whose_operations_are_done_are_dropped() -> None:
    device, operations = Device(), LastOperations()
    for handle in range(100):
        operations.record(b"g", 0, device.operation(handle))
        device.complete()
    assert len(operations) <= KEPT + 2
    for handle in range(100, 200):  # none of these is done
        operations.record(b"g", 0, device.operation(handle))
    assert len(operations) >= 100
    device.complete()
    operations.record(b"g", 0, device.operation(200))
    assert len(operations) == KEPT + 1


def test_operation_that_is_submitted_after_the_check_is_kept() -> None:
    device, operations = Device(), LastOperations()
    for handle in range(KEPT + 1):
        operations.record(b"g", 0, device.operation(handle))
    assert device.streams == [0]
    operations.record(b"g", 0, device.operation(0))
    device.complete()
    operations.record(b"g", 0, device.operation(KEPT + 1))
    assert {operation.handle for operation in operations.take(b"g")} == set(range(KEPT + 2))


def test_lost_attachment_is_not_waited_for() -> None:
    device = Device()
    device.lost = True
    wait_until_done([device.operation(1)], 60.0)


def test_refusal_during_a_capture_is_not_taken_for_completion() -> None:
    device = Device()
    thread = waiting(device.operation(1))
    for _ in range(2):
        assert device.sent.wait(20)
        device.sent.clear()
        device.complete(LaunchError("it records a graph", reason="CAPTURE_INVALID"))
    assert device.sent.wait(20), "it is requested again"
    device.complete()
    thread.join(20)
    assert not thread.is_alive()


def test_nothing_is_sent_to_a_stream_that_is_captured() -> None:
    """The graph would contain the record of the event."""
    device, checked, capturing = Device(), threading.Semaphore(0), [True]

    def is_capturing() -> bool:
        checked.release()
        return capturing[0]

    thread = waiting(device.operation(1, SimpleNamespace(is_capturing=is_capturing)))
    assert all(checked.acquire(timeout=20) for _ in range(2))
    assert device.requests == []
    capturing[0] = False
    assert device.sent.wait(20)
    device.complete()
    thread.join(20)
    assert not thread.is_alive()
