"""Execute: attach, batches, acks, windows, and the ends of a stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.front.execute_batches import batch, device_settles, read_until
from tests.support.front.fake_device import FakeLauncher
from tests.support.front.fixture import ended, front, run, until
from tests.support.front.resumed_streams import window


def test_batches_pass_through_and_are_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            stream = await f.attach()
            for seq in range(1, 201):
                await stream.write(batch(seq, requests=seq % 2))
            _, results, last = await read_until(stream, 200, 100)
            assert (results, last) == (100, 200)
            assert [b.seq for b in f.device().batches] == list(range(1, 201))
            [opened] = f.device().opened.values()
            assert (opened["session"], opened["client"], opened["tenant"]) == (f.session, "test", "default")

    run(scenario())


def test_attached_event_has_generation_and_window(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, limits__max_batches_in_flight=7) as f:
            await f.open()
            stream = f.devices.Execute()
            await stream.write(device_pb2.ExecuteRequest(attach=device_pb2.Attach(session_token=f.token)))
            attached = (await stream.read()).attached
            assert (attached.generation, attached.last_seq, attached.max_batches_in_flight) == (1, 0, 7)
            assert attached.max_batch_bytes == 8 << 20

    run(scenario())


@pytest.mark.parametrize("by", ["batches", "bytes"])
def test_a_full_window_applies_backpressure(tmp_path: Path, by: str) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        launcher.hold_acks = True
        limits: dict[str, Any] = {"limits__max_batches_in_flight": 4}
        if by == "bytes":
            limits = {"limits__max_unacked_bytes": 4 * 100_000}
        async with front(tmp_path, launcher, **limits) as f:
            await f.open()
            stream = await f.attach()
            device = f.device()

            async def send() -> None:
                for seq in range(1, 31):
                    await stream.write(batch(seq, padding=100_000))

            sender = asyncio.create_task(send())
            await until(lambda: len(device.batches) >= 4)
            await device_settles(f)
            assert len(device.batches) == 4
            device.release_acks()
            await read_until(stream, 30)
            await sender
            assert len(device.batches) == 30

    run(scenario())


def test_acks_are_coalesced_when_the_client_reads_late(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, limits__max_batches_in_flight=1000) as f:
            await f.open()
            stream = await f.attach()
            f.launcher.hold_acks = True
            for seq in range(1, 501):
                await stream.write(batch(seq))
            await until(lambda: len(f.device().batches) == 500)
            f.device().release_acks()
            acks, _, last = await read_until(stream, 500)
            assert last == 500
            assert acks < 500

    run(scenario())


def test_malformed_batch_is_answered_with_an_event_and_uses_no_window(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, limits__max_batches_in_flight=2) as f:
            await f.open()
            raw = f.channel.stream_stream("/hearth.v1.DeviceService/Execute")
            stream = raw()
            attach = device_pb2.ExecuteRequest(attach=device_pb2.Attach(session_token=f.token))
            await stream.write(attach.SerializeToString())
            await stream.read()
            for _ in range(10):
                await stream.write(b"\xff\xff garbage")
                answer = device_pb2.ExecuteResponse.FromString(await stream.read())
                assert answer.event.WhichOneof("kind") == "protocol_error"
            await stream.write(batch(1).SerializeToString())
            assert device_pb2.ExecuteResponse.FromString(await stream.read()).ack.seq == 1
            stream.cancel()
            await until(lambda: not f.daemon.device_service.attachments)
            await f.attach()
            assert f.last_seq == 1, "none of them counts as a batch"

    run(scenario())


def test_first_message_must_be_an_attach(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            raw = f.channel.stream_stream("/hearth.v1.DeviceService/Execute")
            for first in (b"\xff\xff", b"", batch(1).SerializeToString()):
                stream = raw()
                await stream.write(first)
                assert (await ended(stream)).reason == Reason.MALFORMED_MESSAGE
            stream = raw()
            await stream.done_writing()
            assert (await ended(stream)).reason == Reason.MALFORMED_MESSAGE

    run(scenario())


def test_unknown_tokens_and_devices_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            with pytest.raises(Refusal) as error:
                await f.attach(device=9)
            assert error.value.reason == Reason.DEVICE_NOT_FOUND
            assert error.value.details["allowed"] == "0, 1"
            f.token = "no such token"
            with pytest.raises(Refusal) as error:
                await f.attach()
            assert error.value.reason == Reason.SESSION_EXPIRED
            assert "unknown or expired session" in error.value.message

    run(scenario())


def test_second_stream_of_a_session_and_device_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            first = await f.attach()
            await f.attach(device=1)
            with pytest.raises(Refusal) as error:
                await f.attach()
            assert error.value.reason == Reason.HANDLE_IN_USE
            first.cancel()
            await until(lambda: len(f.daemon.device_service.attachments) == 1)
            again = await f.attach()
            await again.write(batch(1))
            assert (await again.read()).ack.seq == 1
            assert len(f.device().opened) == 1, "the channel outlives the stream"

    run(scenario())


def test_acks_of_an_ended_stream_do_not_count_for_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            f.launcher.hold_acks = True
            first = await f.attach()
            for seq in range(1, 6):
                await first.write(batch(seq))
            await until(lambda: len(f.device().batches) == 5)
            first.cancel()
            await until(lambda: not f.daemon.device_service.attachments)
            attaching = asyncio.create_task(f.attach())
            await until(lambda: f.daemon.device_service.attachments)
            await device_settles(f)
            assert not attaching.done()
            f.device().release_acks()
            again = await attaching
            assert f.last_seq == 5, "a stream continues at the end of the previous one"
            await again.write(batch(6))
            assert (await again.read()).ack.seq == 6
            await again.done_writing()
            assert await again.read() is grpc.aio.EOF

    run(scenario())


def test_a_message_that_is_too_large_ends_the_stream(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, limits__max_batch_bytes=10_000) as f:
            await f.open()
            stream = await f.attach()
            await stream.write(batch(1, padding=10_000))
            refusal = await ended(stream)
            assert refusal.reason == Reason.MESSAGE_TOO_LARGE
            assert refusal.details["allowed"] == "10000"
            assert not f.device().batches

    run(scenario())


def test_half_close_of_an_idle_stream_ends_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            for last in range(3):
                stream = await f.attach()
                assert f.last_seq == last
                if last < 2:
                    await stream.write(batch(last + 1))
                    await read_until(stream, last + 1)
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF
                await until(lambda: not f.daemon.device_service.attachments)

    run(scenario())


def test_half_close_delivers_pending_responses(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            f.launcher.hold_acks = True
            stream = await f.attach()
            for seq in range(1, 4):
                await stream.write(batch(seq, requests=1))
            await stream.done_writing()
            await until(lambda: len(f.device().batches) == 3)
            f.device().release_acks()
            assert await read_until(stream, 3, 3) is not None
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK

    run(scenario())


def test_drain_is_announced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, drain_timeout="5s") as f:
            await f.open()
            stream = await f.attach()
            draining = asyncio.create_task(f.daemon.drain())
            event = (await stream.read()).event
            assert 4_000_000_000 < event.draining.deadline_ns <= 5_000_000_000
            f.daemon.parts.drain.end_wait()
            await draining
            await f.daemon.stop(at_once=True)
            assert (await ended(stream)).reason == Reason.SESSION_EXPIRED

    run(scenario())


def test_a_client_that_does_not_read_is_not_served_without_bound(tmp_path: Path) -> None:
    """Responses wait in the front up to a limit; above it no more batches are taken."""

    async def scenario() -> None:
        async with front(tmp_path, limits__max_batches_in_flight=10_000) as f:
            await f.open()
            window(f, max_batches=100_000, max_queued_hard=1 << 20)
            stream = await f.attach()
            [attachment] = f.daemon.device_service.attachments
            big = device_pb2.ExecuteResponse(
                result=commands_pb2.Result(read=commands_pb2.ReadResult(data=bytes(400_000)))
            )
            payload = big.SerializeToString()

            def flood() -> None:
                for _ in range(200):
                    f.device().send(Kind.RESPONSE, payload, channel=1)

            await asyncio.to_thread(flood)
            await until(lambda: attachment.inspect().end is not None)
            end = attachment.inspect().end
            assert end is not None and end.reason == Reason.QUEUE_FULL
            with pytest.raises(grpc.aio.AioRpcError):
                while True:
                    await stream.read()
            assert (await ended(stream)).reason == Reason.QUEUE_FULL

    run(scenario())
