"""The watchdog of an attachment: the times at which it asks, its conclusions, and the repetition of lost frames."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import hearth
import hearth.aio
from hearth.errors import broken
from hearth.session import watchdog
from hearth.session.timing import TIMING, Timing
from hearth.session.watchdog import MAX_PAUSE_S, ClientPosition, Watchdog, missing
from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.client.fake_daemon import Response
from tests.support.client.internals import connection_of
from tests.support.client.lane_daemon import LaneDaemon

HERE = ClientPosition(acked=3, sent=5, responses=7, lane=False)
SAME = {"known": True, "last_seq": 5, "responses": 7}


def status(**fields: Any) -> device_pb2.AttachmentStatusResponse:
    return device_pb2.AttachmentStatusResponse(**{**SAME, **fields})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        ({"last_seq": None}, ""),
        ({"last_seq": 6}, ""),
        ({"responses": 6}, ""),  # the client has received more than the front has counted
        ({"known": False}, "no stream"),
        ({"lane": True}, "uses a lane"),
        ({"responses": 8}, "8 responses, but only 7"),
        ({"last_seq": 4}, "batch 5 was sent, but batch 4"),
    ],
)
def test_missing_messages_are_named(fields: dict[str, Any], why: str) -> None:
    found = missing(HERE, status(**fields))
    assert why in found and bool(found) == bool(why)


class Watched:
    """A watchdog with a fake attachment, daemon and clock. Checks run in the calling thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.point: ClientPosition | None = HERE
        self.says: device_pb2.AttachmentStatusResponse | hearth.HearthError = status()
        self.asked: list[float] = []
        self.given_up: list[str] = []
        self.watchdog = Watchdog(lambda: self.point, self.ask, self.given_up.append, lambda: self.now)
        monkeypatch.setattr(watchdog.threading, "Thread", AtOnce)

    def ask(self) -> device_pb2.AttachmentStatusResponse:
        self.asked.append(self.now)
        if isinstance(self.says, hearth.HearthError):
            raise self.says
        return self.says

    def pass_(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            self.watchdog.tick()


class AtOnce:
    def __init__(self, target: Any, args: tuple[Any, ...], **_: Any) -> None:
        self.start = lambda: target(*args)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_status_is_queried_with_backoff_during_silence(watched: Watched) -> None:
    watched.pass_(200)
    pauses = [round(b - a) for a, b in zip([100.0, *watched.asked], watched.asked, strict=False)]
    assert pauses[:4] == [TIMING.silence, 2 * TIMING.silence, 4 * TIMING.silence, 8 * TIMING.silence] and set(
        pauses[4:]
    ) == {MAX_PAUSE_S}
    assert not watched.given_up


def test_status_is_not_queried_without_silence(watched: Watched) -> None:
    for number in range(100):
        watched.point = HERE._replace(responses=number)
        watched.pass_(TIMING.silence / 2)
    watched.point = None
    watched.pass_(100)
    assert not watched.asked


def test_connection_is_resumed_after_two_reports_of_missing_messages(watched: Watched) -> None:
    watched.says = status(responses=8)
    watched.pass_(TIMING.silence + 0.5)
    assert len(watched.asked) == 1 and not watched.given_up, "the message may still be in transit"
    watched.pass_(TIMING.recheck)
    assert len(watched.asked) == 2 and len(watched.given_up) == 1


def test_answer_in_flight_is_not_missing(watched: Watched) -> None:
    watched.says = status(responses=8)
    watched.pass_(TIMING.silence + 0.5)
    watched.point = HERE._replace(responses=8)
    watched.pass_(100)
    assert watched.asked and not watched.given_up


def test_unresponsive_daemon_is_queried_again(watched: Watched) -> None:
    watched.says = hearth.TimeoutError("late", reason="DEADLINE_EXCEEDED")
    watched.pass_(40)
    watched.says = broken("it is gone")
    watched.pass_(40)
    assert len(watched.asked) > 3 and not watched.given_up
    watched.says = status(known=False)
    while not watched.given_up:
        watched.pass_(1)
    assert watched.now < 100 + 80 + MAX_PAUSE_S + 3


def test_ended_session_is_detected_by_a_new_attach(watched: Watched) -> None:
    watched.says = hearth.SessionExpiredError("it has ended", reason="SESSION_EXPIRED")
    watched.pass_(2 * TIMING.silence)
    assert watched.given_up == ["it has ended"]


def test_older_daemon_is_queried_once(watched: Watched) -> None:
    watched.says = hearth.UnsupportedError("no such call", reason="UNSUPPORTED")
    watched.pass_(200)
    assert len(watched.asked) == 1 and not watched.given_up


# ---- with an attachment ----


class Forgetful(LaneDaemon):
    """Daemon that executes all requests, but may lose its responses."""

    silent_from = 1 << 60
    """Number of the first response that is lost."""

    def answer(self, response: Response) -> None:
        if self.kept and len(self.kept) >= self.silent_from:
            # only that batch's responses are lost
            self.silent_from = 1 << 60 if response.HasField("ack") else self.silent_from
            return
        super().answer(response)

    def AttachmentStatus(self, request: Any, context: Any) -> device_pb2.AttachmentStatusResponse:
        with self.working:
            assert (request.session_token, request.generation) == ("t", 1)
            lane = self.lane is not None
            last = None if lane else self.last
            return device_pb2.AttachmentStatusResponse(known=True, lane=lane, last_seq=last, responses=len(self.kept))


@pytest.fixture
def forgetful() -> Iterator[Forgetful]:
    with TemporaryDirectory() as directory:
        daemon = Forgetful(Path(directory))
        try:
            yield daemon
        finally:
            daemon.stop()


@pytest.mark.parametrize("lanes", [True, False])
def test_lost_answer_is_sent_again(forgetful: Forgetful, lanes: bool) -> None:
    forgetful.offers = lanes
    with hearth.connect(forgetful.target) as node:
        connection = connection_of(node.device(0))
        connection.timing = Timing(lane_hold=0.05, idle=0.05, silence=0.1, recheck=0.05)
        ask = commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())
        connection.call(ask)
        assert (connection.attachment().channel is not None) is lanes
        forgetful.silent_from = 2
        connection.attachment().request(ask).wait(20)
        assert connection.outages == 1
        connection.attachment().request(ask).wait(20)
    assert forgetful.count("memory_usage") == 3, "each once"


@pytest.mark.parametrize("lanes", [True, False])
def test_lost_answer_is_sent_again_to_the_asyncio_client(forgetful: Forgetful, lanes: bool) -> None:
    forgetful.offers = lanes

    async def run() -> None:
        async with await hearth.aio.connect(forgetful.target) as node:
            gpu = node.device(0)
            connection = connection_of(gpu)
            connection.timing = Timing(lane_hold=0.05, idle=0.05, silence=0.1, recheck=0.05)
            await gpu.memory_usage()
            forgetful.silent_from = 2
            await asyncio.wait_for(gpu.memory_usage(), 20)
            assert connection.outages == 1
            await gpu.memory_usage()

    asyncio.run(run())
    assert forgetful.count("memory_usage") == 3, "each once"


def test_long_work_is_waited_for_on_the_same_stream(forgetful: Forgetful) -> None:
    with hearth.connect(forgetful.target) as node:
        connection = connection_of(node.device(0))
        connection.timing = Timing(lane_hold=0.05, idle=0.05, silence=0.1, recheck=0.05)
        asked: list[int] = []
        forgetful.gate.clear()
        reply = connection.attachment().request(commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage()))
        original = connection.transport.call_device
        connection.transport.call_device = lambda *args: asked.append(1) or original(*args)  # type: ignore[method-assign,func-returns-value]
        while len(asked) < 3:
            assert not reply.wait_answered(0.05)
        forgetful.gate.set()
        reply.wait(20)
        assert connection.outages == 0
