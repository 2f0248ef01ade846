"""Resumption without a network: the client's session and the daemon's records, over streams that are cut anywhere.

The daemon's side consists of the real `InFlightBatches` and `ResumeBuffer`, with the rules of `front/rpc/execute.py`.
Both directions of a stream are lists, and a cut loses any tail of either.
"""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hearth
from hearth.session.acks import BYTES, DOWNLOADED_BYTES, RESPONSES, Receipts
from hearth.session.protocol import Session
from hearth.session.send_queue import Limits
from hearth.session.views import SessionView
from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.sessions.in_flight import InFlightBatches
from hearthd.front.sessions.resume_buffer import ResumeBuffer
from tests.support.client.recorder import Recorder, attached, result

WINDOW = 4
UNACKED = 3000
KEPT = 5
TOLD = 3
Response = device_pb2.ExecuteResponse


class Daemon:
    """Front and device of one attachment: receives requests, forwards batches, executes them later, and answers."""

    def __init__(self) -> None:
        self.batches = InFlightBatches(CommandQueue())
        self.replies = ResumeBuffer(10**6, KEPT, 10**9)
        self.executed: list[bytes] = []
        self.held: deque[device_pb2.ExecuteRequest] = deque()
        self.passed_on: deque[device_pb2.ExecuteRequest] = deque()  # batches on the link, which is reliable
        self.down: list[bytes] = []
        self.attached = False
        self.sizes: dict[int, int] = {}

    def take(self, message: bytes) -> None:
        request = device_pb2.ExecuteRequest.FromString(message)
        kind = request.WhichOneof("kind")
        if kind == "attach":
            assert not self.attached
            attach = request.attach
            assert attach.resumable
            if attach.resume:
                assert attach.generation == 1 and attach.last_seq_acked <= self.batches.acked
                self.replies.release(attach.received)
            answer = device_pb2.Attached(
                generation=1, last_seq=self.batches.last, resumed=attach.resume, max_batches_in_flight=WINDOW,
                max_unacked_bytes=UNACKED,
            )  # fmt: skip
            self.attached = True
            self.down = [Response(attached=answer).SerializeToString(), *self.replies]
            if self.batches.acked > attach.last_seq_acked:
                self.down.append(Response(ack=device_pb2.Ack(seq=self.batches.acked)).SerializeToString())
        elif kind == "received":
            self.replies.release(request.received.responses)
        else:
            self.held.append(request)
            assert len(self.held) + len(self.batches) <= WINDOW, "a correct client does not exceed its window"
            under_way = sum(len(each.SerializeToString()) for each in self.held) + self.batches.bytes
            assert under_way <= UNACKED or len(self.held) + len(self.batches) == 1
        while self.held and not self.replies.full:
            request = self.held.popleft()
            assert request.batch.seq == self.batches.last + 1, "no gap, nothing twice"
            self.batches.add(len(request.SerializeToString()))
            self.passed_on.append(request)

    def execute(self) -> None:
        """Executes the oldest batch, as the device does."""
        batch = self.passed_on.popleft().batch
        for command in batch.commands:
            self.executed.append(command.SerializeToString())
            if command.request:
                self.say(result(command.request).SerializeToString())
            elif command.WhichOneof("kind") == "fill":  # in place of a kernel that prints
                text = device_pb2.Output(text=f"{command.fill.buffer} ")
                self.say(Response(event=device_pb2.Event(output=text)).SerializeToString())
        self.batches.acknowledge(batch.seq)
        if self.attached:
            self.down.append(Response(ack=device_pb2.Ack(seq=batch.seq)).SerializeToString())

    def say(self, payload: bytes) -> None:
        self.replies.add(payload)
        if self.attached:
            self.down.append(payload)

    def cut(self) -> None:
        self.attached = False
        self.held.clear()
        self.down.clear()


class ResumeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.session = Session(Limits(max_batch_bytes=2000))
        self.session.receipts = Receipts(TOLD)
        self.printed: list[str] = []
        self.session.on_output = self.printed.append
        self.daemon = Daemon()
        self.up: list[bytes] = []
        self.submitted: list[bytes] = []
        self.recorders: list[Recorder] = []
        self.prints = 0

    @initialize()
    def begin(self) -> None:
        self.up = [self.session.attach("t", 0)]

    # ---- actions of the user ----

    @rule(size=st.integers(0, 1200))
    def one_way(self, size: int) -> None:
        command = commands_pb2.Command(write=commands_pb2.Write(buffer=len(self.submitted), data=bytes(size)))
        self._add(command.SerializeToString())

    @rule()
    def prints_something(self) -> None:
        self.prints += 1
        self._add(commands_pb2.Command(fill=commands_pb2.Fill(buffer=self.prints)).SerializeToString())

    @rule(many=st.integers(1, 8))
    def ask(self, many: int) -> None:
        for _ in range(many):
            recorder = Recorder()
            self.recorders.append(recorder)
            number = len(self.recorders)
            command = commands_pb2.Command(request=number, sync=commands_pb2.Sync()).SerializeToString()
            self.session.add(command, number, recorder)
            self.submitted.append(command)

    def _add(self, command: bytes) -> None:
        self.session.add(command)
        self.submitted.append(command)

    # ---- actions of network and daemon ----

    @rule(many=st.integers(1, 5))
    def send(self, many: int) -> None:
        for _ in range(many):
            request = self.session.next_request()
            if request is None:
                return
            self.up.append(request)

    @precondition(lambda self: self.up)
    @rule(many=st.integers(1, 5))
    def carry_up(self, many: int) -> None:
        moved, self.up = self.up[:many], self.up[many:]
        for request in moved:
            self.daemon.take(request)

    @precondition(lambda self: self.daemon.passed_on)
    @rule()
    def execute(self) -> None:
        self.daemon.execute()

    @precondition(lambda self: self.daemon.down)
    @rule(many=st.integers(1, 8))
    def carry_down(self, many: int) -> None:
        moved, self.daemon.down = self.daemon.down[:many], self.daemon.down[many:]
        for payload in moved:
            self.session.receive(Response.FromString(payload))
            assert self.session.fail_later is None, self.session.fail_later

    @precondition(lambda self: self.session.generation)
    @rule(went_up=st.integers(0, 10), came_down=st.integers(0, 20))
    def cut(self, went_up: int, came_down: int) -> None:
        """Cuts the stream. Any number of the frames in transit may have arrived before."""
        for request in self.up[:went_up]:
            self.daemon.take(request)
        for payload in self.daemon.down[:came_down]:
            self.session.receive(Response.FromString(payload))
        self.daemon.cut()
        self.session.suspend(hearth.ConnectError("cut"))
        self.up = [self.session.attach("t", 0)]

    # ---- invariants ----

    @invariant()
    def once_and_in_order(self) -> None:
        assert self.daemon.executed == self.submitted[: len(self.daemon.executed)]
        assert all(len(recorder.outcomes) <= 1 for recorder in self.recorders)
        assert self.printed == [f"{number} " for number in range(1, len(self.printed) + 1)]

    def teardown(self) -> None:
        """Checks that everything completes once no more faults occur."""
        for _ in range(2_000):
            if self.session.idle and not self.session.outstanding and len(self.printed) == self.prints:
                break
            self.send(5)
            if self.up:
                self.carry_up(5)
            if self.daemon.passed_on:
                self.daemon.execute()
            if self.daemon.down:
                self.carry_down(8)
        assert self.daemon.executed == self.submitted
        assert all(len(recorder.outcomes) == 1 for recorder in self.recorders)
        assert len(self.printed) == self.prints
        assert self.session.inspect() == SessionView(0, 0, 0) and not len(self.daemon.batches)


TestResume = ResumeMachine.TestCase
TestResume.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def receipts(session: Session) -> list[device_pb2.Received]:
    found = []
    while (request := session.next_request()) is not None:
        message = device_pb2.ExecuteRequest.FromString(request)
        if message.WhichOneof("kind") == "received":
            found.append(message.received)
    return found


def test_received_responses_are_reported_now_and_then() -> None:
    session = attached(Session(Limits()))
    for number in range(1, 2 * RESPONSES + 2):
        session.add(b"", number, Recorder())
        assert not receipts(session) or number % RESPONSES == 1
        session.receive(result(number))
    assert session.receipts.responses == 2 * RESPONSES + 1
    session.receive(Response(event=device_pb2.Event(output=device_pb2.Output(text="x" * (BYTES)))))
    [receipt] = receipts(session)
    assert receipt.responses == session.receipts.responses
    big = result(session.receipts.responses)
    session.add(b"", session.receipts.responses, Recorder())
    big.result.read.data = bytes(BYTES)
    session.receive(big)
    [receipt] = receipts(session)
    assert receipt.responses == session.receipts.responses
    assert not receipts(session)


def test_received_downloads_are_reported_again_after_a_break() -> None:
    session = attached(Session(Limits()))
    session.receipts.record_download(7, 100)
    session.receipts.record_download(8, 5)
    assert not receipts(session)
    session.receipts.record_download(7, DOWNLOADED_BYTES)
    [receipt] = receipts(session)
    assert {entry.transfer: entry.bytes for entry in receipt.transfers} == {7: DOWNLOADED_BYTES, 8: 5}
    assert not receipts(session)
    session.receipts.record_download(8, 6)
    assert not receipts(session)
    idle = device_pb2.ExecuteRequest.FromString(session.next_request(idle=True) or b"")
    assert [entry.bytes for entry in idle.received.transfers] == [6]
    assert session.next_request(idle=True) is None
    session.suspend(hearth.ConnectError("cut"))
    assert session.next_request() is None
    session.attach("t", 0)
    session.receive(Response(attached=device_pb2.Attached(generation=1, resumed=True)))
    [receipt] = receipts(session)  # the receipt may have been lost
    assert {entry.transfer: entry.bytes for entry in receipt.transfers} == {7: DOWNLOADED_BYTES, 8: 6}
    for transfer in range(1000):
        session.receipts.record_download(transfer, 1)
    session.suspend(hearth.ConnectError("cut"))
    session.attach("t", 0)
    session.receive(Response(attached=device_pb2.Attached(generation=1, resumed=True)))
    [receipt] = receipts(session)
    assert len(receipt.transfers) < 300, "transfers that ended long before are forgotten"


@pytest.mark.parametrize("answer", [{}, {"resumed": True, "generation": 2}])
def test_a_daemon_that_cannot_resume(answer: dict[str, int]) -> None:
    session = attached(Session(Limits()))
    recorder = Recorder()
    session.add(b"", 1, recorder)
    assert session.next_request()
    session.suspend(hearth.ConnectError("cut off"))
    session.attach("t", 0)
    session.receive(Response(attached=device_pb2.Attached(**{"generation": 1, **answer})))
    error = session.fail_later
    assert isinstance(error, hearth.ConnectError) and "cut off" in str(error) and not error.broken
    session.fail(error)
    assert recorder.outcomes == [error]


@pytest.mark.parametrize("last_seq", [0, 3])
def test_a_daemon_that_counts_wrong(last_seq: int) -> None:
    session = attached(Session(Limits()))
    for _ in range(2):
        session.add(b"x")
        assert session.next_request()
    session.receive(Response(ack=device_pb2.Ack(seq=1)))
    session.suspend(hearth.ConnectError("cut"))
    session.attach("t", 0)
    session.receive(Response(attached=device_pb2.Attached(generation=1, resumed=True, last_seq=last_seq)))
    assert session.fail_later is not None and session.fail_later.reason == reasons.Reason.MALFORMED_MESSAGE


def test_answers_to_an_earlier_attachment_are_dropped() -> None:
    session = attached(Session(Limits(), 10))
    session.receive(result(9))
    assert session.fail_later is None and session.receipts.responses == 1
    session.receive(result(10))
    assert session.fail_later is not None
