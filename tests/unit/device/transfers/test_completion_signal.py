"""Completion signals of copies: written when the copy is done, not earlier, and never after a failure."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterator

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.flows.segment import WORD
from tests.support.device import segment_client
from tests.support.device.copy_commands import (
    SIZE,
    Asked,
    Sharing,
    Told,
    begin,
    read,
    shut,
    unanswered,
    write,
)
from tests.support.device.lane_rig import Client, add, sync
from tests.support.device.passing import prepared
from tests.support.device.rig import Command

Ends = tuple[Client, segment_client.Client, mmap.mmap]


@pytest.fixture(params=[Told, Asked])
def rig(request: pytest.FixtureRequest) -> Iterator[Sharing]:
    yield from prepared(Sharing(request.param))


def share_signals(rig: Sharing, ends: Ends, **more: object) -> mmap.mmap:
    """Shares a segment for signals."""
    memory = ends[1].share(7, 64, **({"signals": True} | more))
    rig.memories.append(memory)
    rig.connections.append(ends[1])
    return memory


def until(condition: Callable[[], bool], description: str) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError(f"not there: {description}")


def word(memory: mmap.mmap) -> int:
    return int.from_bytes(memory[:8], "little")


def test_signal_is_written_after_the_copy_and_before_the_answer(rig: Sharing) -> None:
    ends = client, _, memory = begin(rig)
    signals = share_signals(rig, ends)
    for number in range(2, 40, 2):
        memory[:8] = number.to_bytes(8, "little")
        gate = shut(rig)
        client.batch(write(request=number, buffer=2))
        rig.submitted(client)
        assert word(signals) < number
        gate.set()
        assert client.response().result.request == number == word(signals)
        gate = shut(rig)
        client.batch(read(request=number + 1, buffer=2))
        rig.submitted(client)
        assert word(signals) == number
        gate.set()
        assert client.response().result.request == number + 1 == word(signals)
        assert memory[SIZE : SIZE + 8] == memory[:8]


def test_copies_are_signalled_and_launches_are_not(rig: Sharing) -> None:
    ends = client, _, _ = begin(rig)
    signals = share_signals(rig, ends)
    gate = shut(rig)
    client.batch(write(request=2, buffer=2))
    rig.submitted(client)
    telemetry = rig.process.device.telemetry
    before = telemetry.sync_points
    client.batch(Command(request=300, sync=c.Sync(all_streams=True)))
    until(lambda: telemetry.sync_points > before, "the waiting session")  # otherwise the copy might be done by then
    unanswered(client)
    gate.set()
    assert [client.response().result.request for _ in range(2)] == [2, 300] and word(signals) == 300
    client.batch(add(1), sync(301))
    assert client.response().result.request == 301 and word(signals) == 300


def test_failed_copies_are_not_signalled(rig: Sharing) -> None:
    """A failed copy is not signalled, nor a wait after it, nor a copy whose answer must report another failure."""
    ends = client, _, _ = begin(rig)
    signals = share_signals(rig, ends)
    rig.server.takes = 0
    client.batch(write(request=2, buffer=2))
    assert client.response().result.HasField("error")
    rig.server.takes = -1
    client.batch(write(buffer=9))  # the stream will report this failure
    client.batch(write(request=3, buffer=2))
    assert not client.response().result.HasField("error")
    client.batch(write(request=4, buffer=2))
    client.batch(sync(5))
    results = [client.response().result for _ in range(2)]
    assert results[1].HasField("error")
    assert word(signals) == 0
    client.batch(write(request=6, buffer=2))
    assert client.response().result.request == 6 == word(signals)


def test_wait_that_reports_a_failure_of_another_stream_is_not_signalled(rig: Sharing) -> None:
    ends = client, _, _ = begin(rig)
    signals = share_signals(rig, ends)
    client.batch(Command(create_stream=c.CreateStream(stream=5)))
    gate = shut(rig)
    client.batch(write(request=2, buffer=2))
    client.batch(write(stream=5, buffer=9))  # the wait for all streams reports this failure
    unanswered(client)  # the lane has sent everything
    client.batch(Command(request=3, sync=c.Sync(all_streams=True)))
    rig.submitted(client)
    gate.set()
    results = [client.response().result for _ in range(2)]
    assert results[0].request == 2 == word(signals)
    assert results[1].request == 3 and results[1].HasField("error")


@pytest.mark.parametrize("more", [{"signals": False}, {"signals": 1}, {"signals": "yes"}, {"signals": None}])
def test_no_signal_without_a_request_for_it(rig: Sharing, more: dict[str, object]) -> None:
    ends = client, _, _ = begin(rig)
    signals = share_signals(rig, ends, **more)
    client.batch(write(request=2, buffer=2))
    assert client.response().result.request == 2
    assert word(signals) == 0


def test_a_segment_that_is_too_short_is_not_used_for_signals(rig: Sharing) -> None:
    client, connection, _ = begin(rig)
    short = connection.share(7, WORD - 1, signals=True)
    client.batch(write(request=2, buffer=2))
    assert client.response().result.request == 2
    assert not any(short[:])
    short.close()


def test_device_without_signals(rig: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuServer, "signal_address", lambda self, address: 0)
    ends = client, _, _ = begin(rig)
    signals = share_signals(rig, ends)
    client.batch(write(request=2, buffer=2))
    assert client.response().result.request == 2
    assert word(signals) == 0


def test_signals_end_with_their_segment(rig: Sharing) -> None:
    ends = client, connection, _ = begin(rig)
    signals = share_signals(rig, ends)
    client.batch(write(request=2, buffer=2))
    assert client.response().result.request == 2 == word(signals)
    gate = shut(rig)
    client.batch(write(request=3, buffer=2))
    rig.submitted(client)
    connection.release(7)
    connection.share(8, 64).close()  # the process has handled the release by then
    gate.set()
    assert client.response().result.request == 3
    client.batch(write(request=4, buffer=2))
    assert client.response().result.request == 4
    assert word(signals) == 3, "a signal in progress was written, and none afterwards"


def test_session_that_ends_with_a_pending_signal(rig: Sharing) -> None:
    ends = client, _, _ = begin(rig)
    share_signals(rig, ends)
    gate = shut(rig)
    client.batch(write(request=2, buffer=2))
    rig.submitted(client)
    rig.send(Kind.CLOSE, channel=1)
    rig.barrier()
    gate.set()
    rig.until(Kind.CLOSED)
    rig.settled()


def test_signal_refused_by_the_driver(rig: Sharing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is answered as usual, and no further signal is tried."""
    ends = client, _, _ = begin(rig)
    found = share_signals(rig, ends)
    tried: list[int] = []

    def refuse(self: CpuServer, address: int, value: int, stream: object) -> None:
        tried.append(value)
        raise Refusal(Reason.INTERNAL, "the driver refuses this signal", fix="none")

    monkeypatch.setattr(CpuServer, "signal", refuse)
    for number in (2, 3):
        client.batch(write(request=number, buffer=2))
        result = client.response().result
        assert result.request == number and result.HasField("done")
    assert tried == [2] and word(found) == 0
