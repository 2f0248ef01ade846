"""A wait for a copy ends when the device has signalled the completion, however late the daemon's answer arrives."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hearth
from hearth.codec.decode import DONE
from hearth.session import attachment as attachments
from hearth.session.attachment import Attachment
from hearth.session.reply import Reply
from hearth.transport.memory_segments import Segment, Signals
from hearth.transport.spin_wait import CORES, MIN_PREDICTED_BYTES, UP, SpinWait
from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2
from tests.support.client.fake_daemon import Response
from tests.support.client.internals import connection_of
from tests.support.client.lane_daemon import LaneDaemon, serving
from tests.support.client.waits import wait_for


@pytest.fixture
def daemon() -> Iterator[LaneDaemon]:
    with serving() as daemon:
        yield daemon


@pytest.fixture
def work(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> Attachment:
    """An attachment of a client with many cores and completion signals; a waiting thread polls for up to 20 s."""
    monkeypatch.setattr(attachments, "cores", lambda: 64)
    gpu.synchronize()
    attachment = connection_of(gpu).attachment()
    attachment.spin_wait.max_spin_s = attachment.spin_wait.spin_s = 20.0
    attachment.signals = Signals(Segment(4096))
    return attachment


def ask(daemon: LaneDaemon, work: Attachment) -> Reply:
    """Sends a request that the daemon receives and does not answer. Returns when the background thread no longer
    receives, so that the waiting thread will: the background thread ignores signals, and receives while an ack is
    expected."""
    daemon.never_answer.add("memory_usage")
    count = daemon.count("memory_usage")
    reply = work.request(commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage()), reports=True)
    reply.signalled_result = DONE
    assert wait_for(lambda: daemon.count("memory_usage") > count)
    channel, session = work.channel, work.session
    assert channel is not None
    assert wait_for(lambda: session.acked == session.next_seq - 1 and not channel.role.holder)
    return reply


def answer(daemon: LaneDaemon, reply: Reply, error: reasons.Refusal | None = None) -> None:
    result = commands_pb2.Result(request=reply.request)
    if error is None:
        result.done.SetInParent()
    else:
        result.error.CopyFrom(error.to_status())
    with daemon.working:
        daemon.say(Response(result=result))


def signal(work: Attachment, reply: Reply) -> None:
    assert work.signals is not None
    work.signals.word[0] = reply.request


def wait(reply: Reply) -> tuple[threading.Thread, list[object]]:
    """Starts a thread that waits for `reply`; returns it and the list to which it appends the result or the error."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(reply.wait(20))
        except hearth.HearthError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_signalled_wait_returns_before_the_answer(daemon: LaneDaemon, gpu: hearth.Device, work: Attachment) -> None:
    for _ in range(20):
        reply = ask(daemon, work)
        thread, found = wait(reply)
        signal(work, reply)
        thread.join(20)
        assert found == [DONE] and work.session.outstanding
        answer(daemon, reply)
        daemon.never_answer.clear()
        work.request(commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())).wait(20)
        assert wait_for(lambda: work.session.idle) and not connection_of(gpu).late_errors
    assert work.session.error is None


def test_signal_before_the_wait_is_seen(daemon: LaneDaemon, work: Attachment) -> None:
    reply = ask(daemon, work)
    signal(work, reply)
    assert reply.wait(20) is DONE


def test_signal_with_another_number_is_ignored(daemon: LaneDaemon, work: Attachment) -> None:
    first, second = ask(daemon, work), ask(daemon, work)
    signal(work, second)
    work.spin_wait.spin_s = 0.1
    with pytest.raises(hearth.TimeoutError):
        first.wait(0.1)
    work.spin_wait.spin_s = 20.0
    assert second.wait(20) is DONE


def test_wait_without_a_signal_waits_for_the_answer(daemon: LaneDaemon, work: Attachment) -> None:
    reply = ask(daemon, work)
    reply.signalled_result = None
    signal(work, reply)
    work.spin_wait.spin_s = 0.1
    with pytest.raises(hearth.TimeoutError):
        reply.wait(0.1)


def test_earlier_failures_are_delivered_before_a_signalled_wait_ends(daemon: LaneDaemon, work: Attachment) -> None:
    """A failure that the daemon reported before the signalled work is delivered when the wait for that work ends."""
    before, reply = ask(daemon, work), ask(daemon, work)
    refused = reasons.Refusal(reasons.Reason.INVALID_HANDLE, "there is no such buffer", fix="none")
    answer(daemon, before, refused)
    signal(work, reply)
    assert reply.wait(20) is DONE
    assert before.answered and before.error is not None


def test_error_after_a_signal_is_a_late_error(daemon: LaneDaemon, work: Attachment) -> None:
    late: list[hearth.HearthError] = []
    reply = ask(daemon, work)
    reply.on_late_error = late.append
    signal(work, reply)
    assert reply.wait(20) is DONE
    answer(daemon, reply, reasons.Refusal(reasons.Reason.INTERNAL, "all was in vain", fix="none"))
    daemon.never_answer.clear()
    work.request(commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())).wait(20)
    assert wait_for(lambda: len(late) == 1)


def test_lane_breaks_after_a_signal(daemon: LaneDaemon, work: Attachment) -> None:
    """After the lane has broken, the batch is sent again over the next lane, and answered there."""
    reply = ask(daemon, work)
    signal(work, reply)
    assert reply.wait(20) is DONE
    lane = daemon.lane
    assert lane is not None
    lane.close()
    answer(daemon, reply)
    daemon.never_answer.clear()
    work.request(commands_pb2.Command(memory_usage=commands_pb2.MemoryUsage())).wait(20)
    assert wait_for(lambda: work.session.idle) and work.session.error is None


def test_work_after_a_signalled_copy_does_not_wait_for_its_ack(daemon: LaneDaemon, work: Attachment) -> None:
    """A launch after a signalled copy is sent as if the copy's answer had arrived."""
    channel = work.channel
    assert channel is not None
    reply = ask(daemon, work)
    signal(work, reply)
    assert reply.wait(20) is DONE
    assert channel.inspect().done == work.session.next_seq - 1


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(1e-4, 1e-2)), max_size=60))
def test_signals_do_not_delay_the_predicted_end_of_copies(program: list[tuple[int, float]]) -> None:
    """The copies end one after another, each by a signal or by its answer. The answer may arrive after the next copy
    has begun."""
    lookout, now, size = SpinWait(CORES), 1.0, MIN_PREDICTED_BYTES
    untold: list[float] = []
    for kind, took in program:
        begun = now
        lookout.begin(UP, size, begun)
        for each in untold:
            lookout.copy_ended(UP, size, each, begun + 1e-5)
        untold.clear()
        now = begun + took
        if kind:
            lookout.signalled(now)
            untold.append(begun)
        else:
            lookout.copy_ended(UP, size, begun, now)
        assert lookout.copies == 0 and lookout.ends_at <= now
        now += 1e-4
