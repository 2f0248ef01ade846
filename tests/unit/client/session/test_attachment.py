"""Wake-ups of the thread that sends on an Execute stream."""

from __future__ import annotations

import itertools
import signal
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hearth.errors import ClosedError
from hearth.session.attachment import Attachment
from hearth.session.kernel_output import KernelOutput
from hearth.session.memory import DeferredFrees
from hearth.session.send_queue import Limits
from hearth.session.timing import Timing
from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.client.waits import wait_for


class Sender(threading.Thread):
    """Sending thread that collects the requests of one stream until the stream ends."""

    def __init__(self, work: Attachment) -> None:
        super().__init__(daemon=True)
        self.work = work
        self.stream = work.begin()
        self.sent: list[device_pb2.ExecuteRequest] = []
        self.start()

    def run(self) -> None:
        while (request := self.work.next_request(self.stream)) is not None:
            self.sent.append(device_pb2.ExecuteRequest.FromString(request))


def attach(work: Attachment, last_seq: int = 0, resumed: bool = False) -> None:
    work.deliver(
        device_pb2.ExecuteResponse(
            attached=device_pb2.Attached(
                generation=1, last_seq=last_seq, max_batches_in_flight=8, max_batch_bytes=1 << 20, resumed=resumed
            )
        )
    )


def note() -> commands_pb2.Command:
    return commands_pb2.Command(create_stream=commands_pb2.CreateStream())


@pytest.fixture
def work() -> Attachment:
    """An attachment whose sender checks for work without a wake-up only once a minute."""
    timing = Timing(idle=60.0, lane_hold=60.0)
    return Attachment(Limits(), lambda *_: None, lambda error: None, KernelOutput(), itertools.count(1), timing)


def end(work: Attachment, *senders: Sender) -> None:
    work.end(ClosedError("over.", reason="CANCELLED"))
    for sender in senders:
        sender.join(10)
        assert not sender.is_alive()


def test_each_kind_of_work_wakes_the_sender(work: Attachment) -> None:
    sender = Sender(work)
    assert wait_for(lambda: work.inspect().sender_waits)
    attach(work)
    for number, submit in enumerate(
        (
            lambda: work.submit(note()),
            lambda: work.launch(b"x" * 64),
            lambda: work.request(note()),
            lambda: work.count_up("key", 1, lambda n: note().SerializeToString()),
        ),
        1,
    ):
        assert wait_for(lambda: work.inspect().sender_waits)
        submit()
        assert wait_for(lambda number=number: len(sender.sent) == number)
        work.deliver(device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=number)))
    assert [request.batch.seq for request in sender.sent] == [1, 2, 3, 4]
    end(work, sender)


def test_sender_is_woken_once_until_it_polls(work: Attachment) -> None:
    attach(work)
    for _ in range(100):
        work.submit(note())
    assert not work.inspect().calls, "no sender waits"
    sender = Sender(work)
    assert wait_for(lambda: sum(len(request.batch.commands) for request in sender.sent) == 100)
    end(work, sender)


def test_replaced_stream_sends_nothing(work: Attachment) -> None:
    first = Sender(work)
    attach(work)
    assert wait_for(lambda: work.inspect().sender_waits)
    second = Sender(work)
    first.join(10)
    assert not first.is_alive(), "the sender was woken although there was nothing to send"
    for number in range(1, 20):
        assert wait_for(lambda: work.inspect().sender_waits)
        work.submit(note())
        assert wait_for(lambda number=number: len(second.sent) == number), "no wake-up went to the first stream"
        work.deliver(device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=number)))
    assert not first.sent
    end(work, second)


def test_unsent_work_is_sent_after_a_break(work: Attachment) -> None:
    first = Sender(work)
    attach(work)
    assert wait_for(lambda: work.inspect().sender_waits)
    work.submit(note())
    assert wait_for(lambda: len(first.sent) == 1)
    work.suspend(ClosedError("broke.", reason="CANCELLED"))
    reply = work.request(note())
    second = Sender(work)
    assert wait_for(lambda: work.inspect().sender_waits) and not second.sent
    attach(work, last_seq=0, resumed=True)
    assert wait_for(lambda: len(second.sent) == 2)
    assert [request.batch.seq for request in second.sent] == [1, 2]
    assert second.sent[1].batch.commands[0].request and not reply.answered
    end(work, second)


def test_work_waiting_for_a_lane_is_sent_without_one(work: Attachment) -> None:
    sender = Sender(work)
    assert wait_for(lambda: work.inspect().sender_waits)
    work.hold_work()
    attach(work)
    work.submit(note())
    assert work.may_open_lane(), "a lane is being opened"
    assert not wait_for(lambda: sender.sent, 0.05)
    work.use_lane(None, lambda: None, "lane")
    assert wait_for(lambda: len(sender.sent) == 1)
    end(work, sender)


def test_deferred_free_wakes_the_sender(work: Attachment) -> None:
    sender, deferred_frees = Sender(work), DeferredFrees()
    attach(work)
    work.adopt(cast(Any, SimpleNamespace(deferred_frees=deferred_frees)))
    assert wait_for(lambda: work.inspect().sender_waits)
    deferred_frees.add("buffer", 7)
    assert wait_for(lambda: len(sender.sent) == 1)
    assert wait_for(lambda: work.inspect().sender_waits)
    with work.waiters.lock:
        deferred_frees.add("buffer", 8)  # like the garbage collector in a thread that holds the lock
        deferred_frees.add("buffer", 9)
    assert wait_for(lambda: len(sender.sent) == 2)
    freed = [list(command.free.buffers) for request in sender.sent for command in request.batch.commands]
    assert freed == [[7], [8, 9]]
    end(work, sender)


def test_ctrl_c_while_the_queue_is_full_leaves_the_lock_to_the_thread_that_holds_it(work: Attachment) -> None:
    """The waiting thread needs no lock to end its wait."""
    work.queue.max_commands = 1
    work.submit(note())
    main_thread, is_interrupted, held = threading.main_thread().ident, threading.Event(), list[bool]()
    assert main_thread is not None

    def interrupt() -> None:
        assert wait_for(lambda: work.waiters.watchers)
        with work.waiters.lock:
            signal.pthread_kill(main_thread, signal.SIGINT)
            held.append(is_interrupted.wait(20))

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        work.submit(note())
    is_interrupted.set()
    interrupting.join(30)
    assert held == [True] and not work.waiters.watchers
    attach(work)
    end(work)
