"""The session core without a network: sequence, window, batching, replies."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hearth
from hearth.session.protocol import Limits, Session
from hearth.session.send_queue import BATCH_BYTES
from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2, device_pb2, status_pb2
from tests.support.client.recorder import Recorder, attached, result

WINDOW = 3
MAX_BATCH = 400


def ack(seq: int) -> device_pb2.ExecuteResponse:
    return device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=seq))


def batch(session: Session) -> commands_pb2.Batch | None:
    data = session.next_request()
    return None if data is None else device_pb2.ExecuteRequest.FromString(data).batch


class SessionMachine(RuleBasedStateMachine):
    """Random interleavings of submissions, sends, acks, results and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session(Limits(max_batch_bytes=MAX_BATCH, max_batches_in_flight=WINDOW))
        self.submitted: list[bytes] = []
        self.sent: list[bytes] = []
        self.sent_seq = 0
        self.acked = 0
        self.requests = 0
        self.waiting: dict[int, Recorder] = {}
        self.recorders: list[Recorder] = []
        self.sent_requests: set[int] = set()
        self.failed = False
        self.ready = 0
        """Number of submitted commands in a batch that is ready to be sent."""

    @initialize()
    def attach(self) -> None:
        attached(self.session)

    @precondition(lambda self: not self.failed)
    @rule(size=st.integers(1, 16))
    def launch(self, size: int) -> None:
        record = bytes([len(self.submitted) % 256]) * (8 * size)
        self.session.queue.launch(record)
        self.submitted.append(record)

    @precondition(lambda self: not self.failed)
    @rule(size=st.integers(0, 300))
    def oneway(self, size: int) -> None:
        command = commands_pb2.Command(write=commands_pb2.Write(buffer=1, data=bytes(size)))
        self.session.add(command.SerializeToString())
        self.submitted.append(command.SerializeToString())

    @precondition(lambda self: not self.failed)
    @rule(reports=st.booleans(), at_once=st.booleans())
    def request(self, reports: bool, at_once: bool) -> None:
        self.requests += 1
        command = commands_pb2.Command(request=self.requests, sync=commands_pb2.Sync()).SerializeToString()
        recorder = Recorder(reports)
        self.submitted.append(command)
        if at_once and self.session.add_ready(command, self.requests, recorder, reports):
            self.ready = len(self.submitted) - len(self.sent)
        else:
            self.session.add(command, self.requests, recorder, barrier=reports)
        self.waiting[self.requests] = recorder
        self.recorders.append(recorder)

    @rule()
    def send(self) -> None:
        sent = batch(self.session)
        if sent is None:
            assert self.failed or len(self.sent) == len(self.submitted) or self.sent_seq - self.acked == WINDOW
            return
        self.ready = 0
        self.sent_seq += 1
        assert sent.seq == self.sent_seq
        assert len(sent.SerializeToString()) <= MAX_BATCH
        assert sent.commands
        for command in sent.commands:
            if command.WhichOneof("kind") == "launches":
                run = command.launches
                while run:  # the test's records differ in length
                    record = self.submitted[len(self.sent)]
                    assert run.startswith(record)
                    self.sent.append(record)
                    run = run[len(record) :]
            else:
                self.sent.append(command.SerializeToString())
                self.sent_requests.add(command.request)

    @precondition(lambda self: not self.failed and self.sent_seq > self.acked)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.acked = data.draw(st.integers(self.acked, self.sent_seq))
        self.session.receive(ack(self.acked))

    @precondition(lambda self: not self.failed and self.sent_requests & set(self.waiting))
    @rule(data=st.data(), fails=st.booleans())
    def answer(self, data: st.DataObject, fails: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.sent_requests & set(self.waiting))))
        refusal = reasons.Refusal(reasons.Reason.OUT_OF_MEMORY, "full") if fails else None
        self.session.receive(result(number, refusal))
        assert len(self.waiting.pop(number).outcomes) == 1

    @rule()
    def lose(self) -> None:
        error = hearth.DeviceLostError("gone", reason="DEVICE_LOST")
        self.session.fail(error)
        assert not self.session.fail(error)
        self.failed = True

    @invariant()
    def in_order_and_bounded(self) -> None:
        assert self.sent == self.submitted[: len(self.sent)]
        assert self.sent_seq - self.acked <= WINDOW
        assert all(len(recorder.outcomes) <= 1 for recorder in self.recorders)
        assert self.session.outstanding == (0 if self.failed else len(self.waiting))
        if not self.failed:
            assert self.session.queue.queued == len(self.submitted) - len(self.sent) - self.ready
            assert (self.session.queue.queued_bytes == 0) == (self.session.queue.queued == 0)

    def teardown(self) -> None:
        self.session.fail(hearth.DeviceLostError("gone"))
        assert all(len(recorder.outcomes) == 1 for recorder in self.recorders)


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_consecutive_launches_share_a_command() -> None:
    session = attached(Session(Limits()))
    for _ in range(3):
        session.queue.launch(bytes(64))
    session.add(commands_pb2.Command(flush=commands_pb2.Flush()).SerializeToString())
    session.queue.launch(bytes(64))
    sent = batch(session)
    assert sent is not None
    assert [len(command.launches) for command in sent.commands] == [192, 0, 64]


def test_large_commands_are_sent_in_separate_batches() -> None:
    session = attached(Session(Limits()))
    for _ in range(3):
        session.add(commands_pb2.Command(write=commands_pb2.Write(data=bytes(BATCH_BYTES - 100))).SerializeToString())
    sizes = [len(sent.commands) for sent in (batch(session), batch(session), batch(session)) if sent is not None]
    assert sizes == [1, 1, 1]


def test_a_command_that_fits_no_batch_is_refused() -> None:
    session = attached(Session(Limits(max_batch_bytes=1000)))
    with pytest.raises(hearth.HearthError, match="1000") as caught:
        session.add(bytes(1000))
    assert caught.value.reason == "MESSAGE_TOO_LARGE"
    assert session.queue.queued == 0


def test_nothing_is_sent_before_the_attach_and_limits_are_taken_from_it() -> None:
    session = Session(Limits())
    session.queue.launch(bytes(64))
    assert session.next_request() is None
    attached(session, max_batches_in_flight=1, max_batch_bytes=2000)
    assert session.limits.max_batch_bytes == 2000
    assert session.next_request() is not None
    session.queue.launch(bytes(64))
    assert session.next_request() is None
    session.receive(ack(1))
    assert session.next_request() is not None


def test_reattach_continues_the_batch_numbers() -> None:
    session = attached(Session(Limits()), last_seq=7)
    session.queue.launch(bytes(64))
    sent = batch(session)
    assert sent is not None and sent.seq == 8


@pytest.mark.parametrize("response", [ack(1), result(5), device_pb2.ExecuteResponse(attached=device_pb2.Attached())])
def test_unexpected_answers_are_protocol_errors(response: device_pb2.ExecuteResponse) -> None:
    session = attached(Session(Limits()))
    session.receive(response)
    assert session.fail_later is not None and session.fail_later.reason == "MALFORMED_MESSAGE"


def test_loss_names_the_commands_in_flight() -> None:
    session = attached(Session(Limits()))
    status = reasons.Refusal(reasons.Reason.DEVICE_LOST, "illegal address").to_status()
    lost = device_pb2.DeviceLost(status=status, in_flight=["saxpy"])
    session.receive(device_pb2.ExecuteResponse(event=device_pb2.Event(device_lost=lost)))
    assert session.device_lost
    assert isinstance(session.fail_later, hearth.DeviceLostError)
    assert session.fail_later.details["in_flight"] == "saxpy"


def test_a_loss_without_a_reason_is_still_a_loss() -> None:
    session = attached(Session(Limits()))
    lost = device_pb2.DeviceLost(status=status_pb2.Status(code=14))
    session.receive(device_pb2.ExecuteResponse(event=device_pb2.Event(device_lost=lost)))
    assert isinstance(session.fail_later, hearth.DeviceLostError)


@pytest.mark.parametrize(("reports", "waiting", "expected"), [(True, True, False), (False, True, True), (0, 0, True)])
def test_lost_one_way_work_is_reported_unless_a_wait_has_raised_it(
    reports: bool, waiting: bool, expected: bool
) -> None:
    session = attached(Session(Limits()))
    session.queue.launch(bytes(64))
    if waiting:
        session.add(b"", 1, Recorder(reports))
    assert session.fail(hearth.DeviceLostError("gone")) is expected


def test_sync_of_all_streams_settles_earlier_work() -> None:
    session = attached(Session(Limits()))
    session.queue.launch(bytes(64))
    session.add(b"", 1, Recorder(True), barrier=True)
    session.next_request()
    session.receive(result(1))
    assert not session.unreported
    session.queue.launch(bytes(64))
    assert session.unreported
