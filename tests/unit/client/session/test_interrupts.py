"""Ctrl-C in the middle of the session core: an interrupted step that is repeated has its effect once."""

from __future__ import annotations

import pytest

import hearth
from hearth.session.protocol import Session
from hearth.session.send_queue import Limits
from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.client.interrupts import interrupting
from tests.support.client.replies import lone_reply


def session() -> Session:
    fresh = Session(Limits(max_batch_bytes=600, max_batches_in_flight=4))
    fresh.receive(device_pb2.ExecuteResponse(attached=device_pb2.Attached(generation=1)))
    return fresh


def with_launches(commands: int) -> tuple[Session, bytes]:
    """Returns a session with queued commands on the streams 1, 2, ..., then five launches, and the bytes of these."""
    core, records = session(), [bytes((number,)) * 40 for number in range(5)]
    for stream in range(1, commands + 1):
        core.add(commands_pb2.Command(stream=stream).SerializeToString())
    for record in records:
        core.queue.launch(record)
    return core, b"".join(records)


def carried(requests: list[tuple[int, bytes]]) -> tuple[list[int], bytes, list[int]]:
    """Returns the batch numbers, the bytes of all launches, and the streams of other commands in `requests`."""
    launches, streams = b"", []
    for _, request in requests:
        for command in device_pb2.ExecuteRequest.FromString(request).batch.commands:
            launches += command.launches
            if command.WhichOneof("kind") != "launches":
                streams.append(command.stream)
    return [seq for seq, _ in requests], launches, streams


def test_interrupt_while_sending() -> None:
    """The next stream or lane gets the interrupted batch again, and the later batches after it."""
    step = 1
    while sending(step):
        step += 1
    assert step > 100


def sending(step: int) -> bool:
    """Sends, is interrupted at the traced line number `step`, and continues. Returns False if there were fewer
    lines."""
    core = session()
    records = [bytes((number,)) * 40 for number in range(12)]
    for number, record in enumerate(records):
        core.queue.launch(record)
        if number % 5 == 4:
            core.add(commands_pb2.Command(stream=number).SerializeToString())
    sent: list[tuple[int, bytes]] = []

    def send() -> None:
        while (numbered := core.next_numbered()) is not None:
            sent.append(numbered)

    hit = interrupting(send, step)
    if hit:
        core.interrupted()
        core.suspend(hearth.ConnectError("broken"))
        attached = device_pb2.Attached(generation=1, resumed=True, last_seq=len(sent))
        core.receive(device_pb2.ExecuteResponse(attached=attached))
    core.queue.launch(b"x" * 40)
    while not core.idle:
        send()
        core.acknowledge(sent[-1][0])
    seqs, launches, streams = carried(sent)
    assert seqs == list(range(1, len(sent) + 1))
    assert launches == b"".join(records) + b"x" * 40 and streams == [4, 9]
    assert core.queue.queued_bytes == 0 and not core.inspect().unacked_bytes and not core.sendable
    return hit


@pytest.mark.parametrize("commands", [0, 2])
def test_interrupt_while_requesting(commands: int) -> None:
    """A request that is sent together with queued work is both sent and registered, or neither; the queued work is
    sent in any case."""
    step = 1
    while asking(step, commands):
        step += 1
    assert step > 12


def asking(step: int, queued: int) -> bool:
    core, launched = with_launches(queued)
    reply = lone_reply(reports=True)
    sent: list[tuple[int, bytes]] = []

    def ask() -> None:
        numbered = core.next_with(b"\x08\x07", 7, reply, True)
        assert numbered is not None
        sent.append(numbered)

    hit = interrupting(ask, step)
    if hit:
        core.interrupted()
        core.suspend(hearth.ConnectError("broken"))
        core.receive(device_pb2.ExecuteResponse(attached=device_pb2.Attached(generation=1, resumed=True)))
        sent.clear()
    asked = bool(core.outstanding)
    assert asked == bool(core.inspect().barriers)
    while (numbered := core.next_numbered()) is not None:
        sent.append(numbered)
    seqs, launches, streams = carried(sent)
    commands = [each for _, data in sent for each in device_pb2.ExecuteRequest.FromString(data).batch.commands]
    assert seqs == [1] and launches == launched and streams == [*range(1, queued + 1), *[0] * asked]
    assert [command.request for command in commands if command.request] == [7] * asked
    if asked:
        assert core.receive_done(bytes.fromhex("1a0408071a00"))
    core.acknowledge(1)
    assert core.fail_later is None and reply.answered is asked and core.unreported is not asked
    assert core.idle and not core.queue.queued_bytes and not core.inspect().unacked_bytes and not core.queue.run_bytes
    return hit


@pytest.mark.parametrize("commands", [0, 2])
def test_interrupt_while_preparing_a_batch_for_another_thread(commands: int) -> None:
    """A batch that is prepared for another thread is either sent or was never numbered, so that the numbers have no
    gap."""
    step = 1
    while readying(step, commands):
        step += 1
    assert step > 12


def readying(step: int, queued: int) -> bool:
    core, launched = with_launches(queued)
    reply = lone_reply(reports=True)

    hit = interrupting(lambda: core.add_ready(b"\x08\x07", 7, reply, True), step)
    asked = bool(core.outstanding)
    assert asked == bool(core.inspect().barriers)
    core.queue.launch(b"x" * 40)
    sent: list[tuple[int, bytes]] = []
    while (numbered := core.next_numbered()) is not None:
        sent.append(numbered)
    seqs, launches, streams = carried(sent)
    assert seqs == list(range(1, len(sent) + 1)) and core.next_seq == len(sent) + 1
    assert launches == launched + b"x" * 40 and streams == [*range(1, queued + 1), *[0] * asked]
    assert asked or hit
    if asked:
        assert core.receive_done(bytes.fromhex("1a0408071a00"))
    core.acknowledge(len(sent))
    assert core.fail_later is None and reply.answered is asked
    assert core.idle and not core.queue.queued_bytes and not core.inspect().unacked_bytes and not core.queue.run_bytes
    return hit


@pytest.mark.parametrize("failing", [False, True])
def test_interrupt_while_receiving(failing: bool) -> None:
    """A response that was not counted is sent again."""
    refusal = reasons.Refusal(reasons.Reason.OUT_OF_MEMORY, "full").to_status()
    step, hits = 0, 0
    while True:
        step += 1
        core, late, printed = session(), list[hearth.HearthError](), list[str]()
        core.on_output = printed.append
        replies = [lone_reply(reports=True) for _ in range(3)]
        replies[2].on_late_error = late.append
        replies[2].abandon()
        for request, reply in enumerate(replies, 1):
            core.queue.launch(b"x")
            core.add(b"", request, reply, barrier=True)
        assert core.next_numbered() is not None
        done = commands_pb2.Done()
        results = [commands_pb2.Result(request=request, done=done) for request in (1, 2, 3)]
        answers = [device_pb2.ExecuteResponse(result=result) for result in results]
        for answer in answers[1:]:
            if failing:
                answer.result.error.CopyFrom(refusal)
        said = [*answers, device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=1))]

        def receive(core: Session = core, said: list[device_pb2.ExecuteResponse] = said) -> None:
            for response in said:
                data = response.SerializeToString()
                if not core.receive_done(data):
                    core.receive_other(data)

        hit = interrupting(receive, step)
        if hit:
            for response in said[core.receipts.responses :]:
                core.receive(response)
        assert core.fail_later is None and core.error is None
        assert all(reply.answered for reply in replies) and bool(late) is failing
        assert core.receipts.responses == 3 and not core.outstanding and core.idle and not core.unreported
        if not hit:
            break
        hits += 1
    assert hits > 40
