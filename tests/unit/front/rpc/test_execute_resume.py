"""Execute streams that break and are resumed: kept responses, repeated responses, and displaced streams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2
from hearthd.front.sessions.command_queue import CommandQueue
from tests.support.front.execute_batches import batch, device_settles, read_until
from tests.support.front.fake_device import FakeLauncher
from tests.support.front.fixture import front, refused, run, until
from tests.support.front.resumed_streams import attach, gone, kept, over, received, resume, take, window


def test_an_attachment_continues_in_another_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            stream, attached = await attach(f)
            assert not attached.resumed and attached.max_unacked_bytes == 32 << 20
            for seq in range(1, 4):
                await stream.write(batch(seq, requests=1))
            assert await take(stream, 3) == [1, 2, 3]
            f.launcher.hold_acks = True
            for seq in range(4, 7):
                await stream.write(batch(seq, requests=1))
            await until(lambda: len(f.device().batches) == 6)
            stream.cancel()
            await gone(f)
            stream, attached = await resume(f, received=2, acked=1)
            assert attached.resumed and (attached.generation, attached.last_seq) == (1, 6)
            assert await take(stream, 1) == [3], "missing responses are sent again"
            await stream.write(batch(7, requests=1))
            await until(lambda: len(f.device().batches) == 7)
            f.device().release_acks()
            assert await take(stream, 4) == [4, 5, 6, 7]
            await stream.write(batch(8))
            await read_until(stream, 8)
            assert [each.seq for each in f.device().batches] == list(range(1, 9))
            assert len(f.device().opened) == 1

    run(scenario())


def test_responses_during_an_outage_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            stream, _ = await attach(f)
            f.launcher.hold_acks = True
            await stream.write(batch(1, requests=3))
            await until(lambda: f.device().batches)
            stream.cancel()
            await gone(f)
            f.device().release_acks()
            text = device_pb2.ExecuteResponse(event=device_pb2.Event(output=device_pb2.Output(text="printed")))
            f.device().send(Kind.RESPONSE, text.SerializeToString(), channel=1)
            await until(lambda: kept(f).number == 4)
            for _ in range(2):  # works repeatedly
                stream, attached = await resume(f, received=0)
                assert attached.last_seq == 1
                assert await take(stream, 3) == [1, 1, 1]
                assert (await stream.read()).event.output.text == "printed"
                assert (await stream.read()).ack.seq == 1
                stream.cancel()
                await gone(f)
            stream, _ = await resume(f, received=4, acked=1)
            await stream.write(batch(2, requests=1))
            assert await take(stream, 1) == [2]

    run(scenario())


def test_acknowledged_responses_are_dropped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            stream, _ = await attach(f)
            await stream.write(batch(1, requests=10))
            await take(stream, 10)
            assert (kept(f).received, kept(f).number) == (0, 10) and kept(f).bytes
            await stream.write(received(4))
            await until(lambda: kept(f).received == 4)
            assert len(list(kept(f))) == 6
            await stream.write(received(10))
            await until(lambda: kept(f).received == 10)
            assert not kept(f).bytes
            await stream.write(received(11))
            refusal = await over(stream)
            assert (refusal.reason, refusal.details["allowed"]) == (Reason.INVALID_ARGUMENT, "10 to 10")
            assert not any(each.seq == 0 for each in f.device().batches), "none of it went to the device"

    run(scenario())


@pytest.mark.parametrize("full", ["number", "bytes"])
def test_full_reply_buffer_applies_backpressure_and_loses_nothing(tmp_path: Path, full: str) -> None:
    async def scenario() -> None:
        async with front(tmp_path, limits__max_batches_in_flight=8) as f:
            window(f, **({"max_kept": 4} if full == "number" else {"max_queued_bytes": 20}))
            await f.open()
            stream, _ = await attach(f)
            for seq in range(1, 3):
                await stream.write(batch(seq, requests=2))
            assert await take(stream, 4) == [1, 1, 2, 2]
            for seq in range(3, 9):
                await stream.write(batch(seq, requests=2))
            [attachment] = f.daemon.device_service.attachments
            await until(lambda: attachment.inspect().held == 6)
            await device_settles(f)
            assert len(f.device().batches) == 2 and kept(f).full, "the others wait"
            seen, taken = 4, [1, 1, 2, 2]
            while len(taken) < 16:  # acknowledgements after held batches, which the front still reads
                await stream.write(received(seen))
                more = await take(stream, 1)
                taken += more
                seen += len(more)
            assert taken == [seq for seq in range(1, 9) for _ in range(2)]
            assert [each.seq for each in f.device().batches] == list(range(1, 9))

    run(scenario())


def test_held_batches_are_sent_again_by_the_client(tmp_path: Path) -> None:
    """The front had read the batches but not passed them on, which `last_seq` shows."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            window(f, max_kept=2)
            await f.open()
            stream, _ = await attach(f)
            await stream.write(batch(1, requests=2))
            assert await take(stream, 2) == [1, 1]
            for seq in range(2, 6):
                await stream.write(batch(seq, requests=2))
            [attachment] = f.daemon.device_service.attachments
            await until(lambda: attachment.inspect().held == 4)
            stream.cancel()
            await gone(f)
            await device_settles(f)
            assert len(f.device().batches) == 1
            stream, attached = await resume(f, received=2, acked=1)
            assert attached.last_seq == 1
            for seq in range(2, 6):
                await stream.write(batch(seq, requests=2))
            taken, seen = [], 2
            while len(taken) < 8:
                taken += await take(stream, 1)
                seen += 1
                await stream.write(received(seen))
            assert taken == [2, 2, 3, 3, 4, 4, 5, 5]
            assert [each.seq for each in f.device().batches] == [1, 2, 3, 4, 5]

    run(scenario())


def test_existing_stream_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            old, _ = await attach(f)
            await old.write(batch(1, requests=1))
            assert await take(old, 1) == [1]
            new, attached = await resume(f, received=0)
            assert attached.last_seq == 1 and await take(new, 1) == [1]
            assert (await over(old)).reason == Reason.HANDLE_IN_USE
            await new.write(batch(2, requests=1))
            assert await take(new, 1) == [2]
            assert [each.seq for each in f.device().batches] == [1, 2]

    run(scenario())


def test_late_messages_of_an_old_stream_are_not_taken(tmp_path: Path) -> None:
    """The front had read messages that a full window held back, and the client sends them again on the resumed
    stream."""

    async def scenario() -> None:
        launcher = FakeLauncher()
        launcher.hold_acks = True
        async with front(tmp_path, launcher, limits__max_batches_in_flight=2) as f:
            await f.open()
            old, _ = await attach(f)
            for seq in range(1, 4):
                await old.write(batch(seq))
            await until(lambda: len(f.device().batches) == 2)
            [attachment] = f.daemon.device_service.attachments
            await until(lambda: attachment.inspect().held)
            new, attached = await resume(f, received=0)
            assert attached.last_seq == 2
            f.device().release_acks()
            await read_until(new, 2)
            await new.write(batch(3))
            await read_until(new, 3)
            await device_settles(f)
            assert [each.seq for each in f.device().batches] == [1, 2, 3]

    run(scenario())


def test_client_without_an_answer_attaches_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            silent, _ = await attach(f)
            again, attached = await attach(f)
            assert not attached.resumed
            assert (await over(silent)).reason == Reason.HANDLE_IN_USE
            await again.write(batch(1))
            await read_until(again, 1)
            # Neither a stream that was used nor one that is not resumable is displaced.
            for fields in ({}, {"resumable": False}):
                with pytest.raises(Refusal) as error:
                    await attach(f, **fields)
                assert error.value.reason == Reason.HANDLE_IN_USE

    run(scenario())


def test_impossible_resumptions_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()

            async def why(**fields: Any) -> Refusal:
                with pytest.raises(Refusal) as error:
                    await attach(f, resume=True, **{"generation": 1, **fields})
                return error.value

            assert (await why()).reason == Reason.DEVICE_LOST, "never attached in that generation"
            plain, _ = await attach(f, resumable=False)
            assert (await why()).reason == Reason.INVALID_ARGUMENT
            plain.cancel()
            await gone(f)
            stream, _ = await attach(f)
            await stream.write(batch(1, requests=3))
            await take(stream, 3)
            await stream.write(received(2))
            await until(lambda: kept(f).received == 2)
            for number in (1, 4):
                refusal = await why(received=number)
                assert refusal.reason == Reason.INVALID_ARGUMENT and refusal.details["allowed"] == "2 to 3"
            assert (await why(generation=7)).reason == Reason.DEVICE_LOST
            assert (await why(device=9)).reason == Reason.DEVICE_NOT_FOUND
            await stream.write(batch(2, requests=1))  # the status requests did not affect the stream
            assert await take(stream, 1) == [2]
            stream.cancel()
            await gone(f)
            _, attached = await attach(f)
            assert not attached.resumed and attached.last_seq == 2
            assert not kept(f).number
            assert (await why(received=3)).details["allowed"] == "0 to 0", "the kept responses are dropped"

    run(scenario())


def test_device_lost_during_an_outage(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            stream, _ = await attach(f)
            await stream.write(batch(1, requests=2))
            await take(stream, 1)
            f.launcher.hold_acks = True
            await stream.write(batch(2, requests=1))
            await until(lambda: len(f.device().batches) == 2)
            stream.cancel()
            await gone(f)
            first = f.device()
            first.die()
            await until(lambda: f.device() is not first)
            f.launcher.hold_acks = False
            await f.devices.MemoryUsage(device_pb2.MemoryUsageRequest(target=f.target(device=1)))
            for _ in range(2):  # sent again, because the stream broke as well
                stream, attached = await resume(f, received=1)
                assert attached.resumed and (attached.generation, attached.last_seq) == (1, 2)
                assert await take(stream, 1) == [1], "a result that had arrived is delivered"
                assert (await stream.read()).WhichOneof("kind") in ("ack", "event")
                assert (await over(stream)).reason == Reason.DEVICE_LOST
                await gone(f)
            fresh, attached = await attach(f)
            assert (attached.generation, attached.last_seq, attached.resumed) == (2, 0, False)
            await fresh.write(batch(1, requests=1))
            assert await take(fresh, 1) == [1]

    run(scenario())


def test_attachment_of_a_client_that_never_reads_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            window(f, max_queued_hard=1 << 20)
            await f.open()
            stream, _ = await attach(f)
            stream.cancel()
            await gone(f)
            big = device_pb2.ExecuteResponse(
                result=commands_pb2.Result(read=commands_pb2.ReadResult(data=bytes(600_000)))
            ).SerializeToString()
            for _ in range(2):
                await asyncio.to_thread(f.device().send, Kind.RESPONSE, big, channel=1)
            await until(lambda: kept(f).overrun)
            assert not kept(f).bytes
            with pytest.raises(Refusal) as error:
                await resume(f, received=0)
            assert error.value.reason == Reason.QUEUE_FULL
            await attach(f)

    run(scenario())


def test_outage_longer_than_the_lease(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, sessions__lease="0.3s") as f:
            session = await f.open_with_lease(30.0)
            stream, _ = await attach(f)
            session.lease = 0.3
            await asyncio.sleep(0.5)  # the lease does not run out while the stream exists
            assert not f.daemon.sessions.expired()
            session.lease = 30.0
            stream.cancel()
            await gone(f)
            stream, _ = await resume(f, received=0)
            session.lease = 0.3
            stream.cancel()
            await until(lambda: not len(f.daemon.sessions))
            await until(lambda: f.device().closed)
            with pytest.raises(Refusal) as error:
                await resume(f, received=0)
            assert error.value.reason == Reason.SESSION_EXPIRED

    run(scenario())


def test_resumed_stream_is_notified_of_a_drain(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, drain_timeout="5s") as f:
            await f.open()
            stream, _ = await attach(f)
            stream.cancel()
            await gone(f)
            draining = asyncio.create_task(f.daemon.drain())
            await until(lambda: f.daemon.sessions.draining)
            stream, _ = await resume(f, received=0)
            assert (await stream.read()).event.WhichOneof("kind") == "draining"
            await stream.write(batch(1, requests=1))
            assert await take(stream, 1) == [1]
            await f.node.CloseSession(node_pb2.CloseSessionRequest(session_token=f.token))
            await draining

    run(scenario())


# ---- the tenant's queue ----


def test_batches_wait_for_room_in_the_tenants_queue(tmp_path: Path) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        launcher.hold_acks = True
        async with front(tmp_path, launcher) as f:
            await f.open()
            [session] = f.daemon.sessions
            session.queue = CommandQueue(max_commands=3)
            stream, _ = await attach(f)
            other, _ = await attach(f, device=1)
            for seq in range(1, 6):
                await stream.write(batch(seq))
            await until(lambda: len(f.device().batches) == 3)
            await other.write(batch(1, requests=1))
            await device_settles(f)
            assert len(f.device().batches) == 3 and not f.device(1).batches and session.queue.commands == 3
            f.device().release_acks()
            await read_until(stream, 5)
            await until(lambda: f.device(1).batches)
            f.device(1).release_acks()
            assert await take(other, 1) == [1]
            assert (session.queue.commands, session.queue.bytes) == (0, 0)
            f.launcher.hold_acks = True
            await stream.write(batch(6))
            await until(lambda: session.queue.commands == 1)
            stream.cancel()
            await until(lambda: len(f.daemon.device_service.attachments) == 1)
            assert session.queue.commands == 1, "the device still executes it"
            f.device().die()
            await until(lambda: not session.queue.commands)

    run(scenario())


def test_single_calls_wait_for_room_and_are_refused_then(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            [session] = f.daemon.sessions
            session.queue = CommandQueue(max_commands=1, call_wait=0.1)
            f.launcher.unanswered.add("sync")
            waiting = f.devices.Sync(device_pb2.SyncRequest(target=f.target()))
            waiting = asyncio.ensure_future(waiting)
            await until(lambda: session.queue.commands == 1)
            flush = device_pb2.FlushRequest(target=f.target())
            refusal = await refused(f.devices.Flush(flush))
            assert refusal.reason == Reason.QUEUE_FULL and refusal.retry_after_s == 1.0
            session.queue.call_wait = 10.0
            patient = asyncio.ensure_future(f.devices.Flush(flush))
            await asyncio.sleep(0)
            waiting.cancel()
            await patient
            assert (session.queue.commands, session.queue.bytes) == (0, 0)

    run(scenario())
