"""Writes that start before their task runs: order, accounting and end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto.v1 import device_pb2
from hearthd.front.rpc.eager_coroutine import EagerCoroutine
from hearthd.front.rpc.execute import ExecuteAttachment
from hearthd.front.sessions.attach import EOF, ExecuteWindow
from hearthd.front.sessions.command_queue import CommandQueue
from hearthd.front.sessions.in_flight import InFlightBatches


async def _steps(log: list[str], *waited: Awaitable[Any]) -> None:
    for number, each in enumerate(waited):
        log.append(f"before {number}")
        try:
            await each
        except asyncio.CancelledError:
            log.append(f"cancelled {number}")
            raise
        log.append(f"after {number}")


def test_first_step_runs_immediately() -> None:
    async def scenario() -> None:
        loop, log = asyncio.get_running_loop(), list[str]()
        futures = [loop.create_future() for _ in range(2)]
        begun = EagerCoroutine(_steps(log, *futures))
        assert log == ["before 0"]
        task = asyncio.ensure_future(asyncio.wait_for(begun, 10))
        futures[0].set_result(None)
        await asyncio.sleep(0.01)
        assert log == ["before 0", "after 0", "before 1"]
        futures[1].set_result(None)
        await task
        assert log[-1] == "after 1"

        log.clear()
        ended = EagerCoroutine(_steps(log))
        await ended
        yields = EagerCoroutine(_steps(log, asyncio.sleep(0), asyncio.sleep(0)))
        assert log == ["before 0"]
        await yields
        assert log[-1] == "after 1"

    asyncio.run(scenario())


def test_failure_after_close_is_discarded() -> None:
    """The exception reaches neither a caller nor the log. This is the case of a gRPC write whose client has
    disconnected."""
    complaints: list[str] = []

    async def scenario() -> None:
        loop, log = asyncio.get_running_loop(), list[str]()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        waited = loop.create_future()
        begun = EagerCoroutine(_steps(log, waited))
        begun.close()
        waited.set_exception(OSError("gone"))
        del waited, begun
        await asyncio.sleep(0)
        gc.collect()

    asyncio.run(scenario())
    assert not complaints


def test_errors_are_raised_by_the_await() -> None:
    async def fails(first: bool) -> None:
        if not first:
            await asyncio.sleep(0)
        raise OSError("gone")

    async def scenario() -> None:
        for first in (True, False):
            begun = EagerCoroutine(fails(first))
            with pytest.raises(OSError, match="gone"):
                await begun

    asyncio.run(scenario())


def test_coroutine_is_cancelled_with_its_task_and_closed_otherwise() -> None:
    async def scenario() -> None:
        loop, log = asyncio.get_running_loop(), list[str]()
        future = loop.create_future()
        task = asyncio.ensure_future(asyncio.wait_for(EagerCoroutine(_steps(log, future)), 10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["before 0", "cancelled 0"] and future.cancelled()

        left = EagerCoroutine(_steps(log, loop.create_future()))
        left.close()
        left.close()
        await left  # does nothing, because the coroutine was closed

    asyncio.run(scenario())


class Client:
    """An Execute stream whose writes complete when the test allows it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.batches = InFlightBatches(CommandQueue())
        self.let: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.more: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def read(self) -> Any:
        return await self.more

    async def write(self, message: bytes) -> None:
        self.writes.append(message)
        error = await self.let.get()
        if error is not None:
            raise error


def _with_client(
    scenario: Callable[[Client, ExecuteAttachment, asyncio.Task[None], list[int]], Awaitable[None]],
) -> None:
    async def run() -> None:
        client, sent = Client(), list[int]()
        channel: Any = SimpleNamespace(
            batches=client.batches, replies=None, lane=None, sink=None, link=SimpleNamespace(paused=False)
        )
        session: Any = SimpleNamespace(id="s", queue=SimpleNamespace(full=False))
        attachment = ExecuteAttachment(
            client, session, channel, ExecuteWindow(), lambda batches, received, size: sent.append(size)
        )  # type: ignore[arg-type]
        running = asyncio.create_task(attachment.run())
        await asyncio.sleep(0.01)
        await scenario(client, attachment, running, sent)
        if not running.done():
            client.more.set_result(EOF)
            for _ in range(9):
                client.let.put_nowait(None)
            await asyncio.wait_for(running, 10)

    asyncio.run(run())


def test_responses_are_written_immediately_and_in_order() -> None:
    async def scenario(client: Client, attachment: ExecuteAttachment, running: Any, sent: list[int]) -> None:
        attachment.on_response(b"1")
        assert client.writes == [b"1"], "the event loop has not run yet"
        attachment.on_response(b"22")
        attachment.on_response(b"333")
        await asyncio.sleep(0.01)
        assert client.writes == [b"1"] and attachment.inspect().unread == 6 and not sent
        for number, unread in enumerate((5, 3, 0), 1):
            client.let.put_nowait(None)
            await asyncio.sleep(0.01)
            assert attachment.inspect().unread == unread and sent == [1, 2, 3][:number]
        assert client.writes == [b"1", b"22", b"333"]
        attachment.on_response(b"4444")
        assert client.writes[-1] == b"4444"

    _with_client(scenario)


def test_an_ack_waits_for_the_response_before_it() -> None:
    async def scenario(client: Client, attachment: ExecuteAttachment, running: Any, sent: list[int]) -> None:
        client.batches.add(1)
        attachment.on_response(b"1")
        client.batches.acknowledge(1)
        attachment.on_ack(1)
        await asyncio.sleep(0.05)  # the acknowledgement is due by now
        assert client.writes == [b"1"]
        client.let.put_nowait(None)
        await asyncio.sleep(0.01)
        assert [device_pb2.ExecuteResponse.FromString(each).ack.seq for each in client.writes[1:]] == [1]

    _with_client(scenario)


def test_a_write_that_fails_ends_the_stream() -> None:
    async def scenario(client: Client, attachment: ExecuteAttachment, running: Any, sent: list[int]) -> None:
        attachment.on_response(b"1")
        client.let.put_nowait(ConnectionError("gone"))
        with pytest.raises(ConnectionError, match="gone"):
            await asyncio.wait_for(running, 10)
        assert not sent

    _with_client(scenario)


def test_client_that_never_reads_can_be_displaced() -> None:
    async def scenario(client: Client, attachment: ExecuteAttachment, running: Any, sent: list[int]) -> None:
        attachment.on_response(b"1")
        attachment.on_response(b"2")
        attachment.displace()
        with pytest.raises(Exception, match="another Execute stream"):
            await asyncio.wait_for(running, 10)
        assert client.writes == [b"1"]

    _with_client(scenario)
