"""The event loop that a node belongs to: it is woken for answers, and has threads that work for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from hearth.aio.thread_pool import Threads, Work
from hearth.errors import UnsupportedError
from hearth.session.reply import wait_for_all

if TYPE_CHECKING:
    from hearth.session.reply import PendingResult, Reply
    from hearth_proto.v1 import commands_pb2

T = TypeVar("T")

CALLS = 4
OPENINGS = 2
UPLOADS = 4
DOWNLOADS = 4
DISPATCHES = 4
"""Threads of one node, at most, for each of these."""


def in_loop() -> bool:
    """True if this thread runs an event loop, so that it must not block here."""
    return asyncio._get_running_loop() is not None


class Home:
    """The event loop of one node, and its threads. Functions that are no coroutines are safe from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.calls = Threads("hearth-aio-call", CALLS)
        self.openings = Threads("hearth-aio-attach", OPENINGS)
        self.uploads = Threads("hearth-aio-upload", UPLOADS)
        self.downloads = Threads("hearth-aio-download", DOWNLOADS)
        self.dispatches = Threads("hearth-aio-dispatch", DISPATCHES)
        self._came: deque[asyncio.Future[None]] = deque()
        self._called = False

    def check(self) -> None:
        """Raises `UnsupportedError` in another event loop."""
        running = asyncio._get_running_loop()
        if running is not self.loop and running is not None:
            raise UnsupportedError(
                "this node belongs to another event loop.",
                reason="UNSUPPORTED",
                fix="connect in the loop that uses it: node = await hearth.aio.connect(...).",
            )

    # ---- answers ----

    async def answer(self, reply: Reply, timeout: float | None = None) -> commands_pb2.Result:
        """Returns the answer, as `Reply.wait` does. Where this is cancelled, the reply is abandoned."""
        try:
            await self.answered(reply, timeout)
        except BaseException:
            reply.abandon()
            raise
        if not reply.answered:
            raise reply.given_up(timeout)
        return reply.wait()

    async def asked(self, asked: PendingResult[T], timeout: float | None = None) -> T:
        """Returns the result of a request."""
        await self.answer(asked.reply, timeout)
        return asked.wait()

    async def answers(self, replies: Sequence[Reply], timeout: float | None = None) -> None:
        """Waits for all replies, like `wait_for_all`."""
        deadline = None if timeout is None else self.loop.time() + timeout
        try:
            for reply in replies:
                await self.answered(reply, None if deadline is None else max(0.0, deadline - self.loop.time()))
        except BaseException:
            for reply in replies:
                reply.abandon()
            raise
        late = [reply.given_up(timeout) for reply in replies if not reply.answered]
        wait_for_all([reply for reply in replies if not reply.abandoned])
        if late:
            raise late[0]

    async def answered(self, reply: Reply, timeout: float | None = None) -> None:
        """Returns when the answer is there, or after `timeout` seconds. One at a time for one reply."""
        self.check()
        if reply.answered:
            return
        came: asyncio.Future[None] = self.loop.create_future()
        reply.listen(partial(self._post, came))
        try:
            if timeout is None:
                await came
            else:
                with self._waking(came, timeout):
                    await came
        finally:
            reply.unlisten()

    # ---- threads ----

    async def call(self, work: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
        """Has a thread do some work, and returns its result. Where this is cancelled, work that has not begun is not
        done; work that has begun continues, and `undo` gets its result.
        """
        self.check()
        given = self.calls.run(work)
        try:
            await self.over(given)
        except BaseException:
            if not given.cancel() and undo is not None:
                given.add_done_callback(partial(self._undo, undo))
            raise
        return given.result()

    async def over(self, work: Work[Any], timeout: float | None = None) -> None:
        """Returns when the work has ended, or after `timeout` seconds. Several tasks may wait for the same work."""
        self.check()
        if work.done():
            return
        came: asyncio.Future[None] = self.loop.create_future()
        work.add_done_callback(lambda _: self._post(came))
        with self._waking(came, timeout):
            await came

    async def outlast(self, work: Work[Any], error: BaseException) -> None:
        """Waits until a thread has left the memory of the task that is to get `error`, even if that task is cancelled
        before: the end of one copy, no more.
        """
        if isinstance(error, GeneratorExit):  # the coroutine is not run any more
            work.join()
        while not work.done():
            try:
                await self.over(work)
            except GeneratorExit:
                work.join()
                raise
            except asyncio.CancelledError:
                continue

    def later(self, work: Callable[[], object]) -> None:
        """Has the loop do some work, while it runs."""
        with contextlib.suppress(RuntimeError):  # it is closed: no task waits there
            self.loop.call_soon_threadsafe(work)

    # ---- inside ----

    @contextlib.contextmanager
    def _waking(self, came: asyncio.Future[None], timeout: float | None) -> Iterator[None]:
        """Wakes the task that waits for the future after `timeout` seconds, unless the block has ended before."""
        late = None if timeout is None else self.loop.call_later(timeout, _wake, came)
        try:
            yield
        finally:
            if late is not None:
                late.cancel()

    def _undo(self, undo: Callable[[T], object], work: Work[T]) -> None:
        if not work.cancelled() and work.exception() is None:
            self.calls.run(partial(undo, work.result()))

    def _post(self, came: asyncio.Future[None]) -> None:
        """Wakes the task that waits for the future: all that come at about the same time by one call."""
        self._came.append(came)
        if not self._called:
            self._called = True
            self.later(self._deliver)

    def _deliver(self) -> None:
        self._called = False  # before: what comes now calls again
        while self._came:
            _wake(self._came.popleft())


def _wake(came: asyncio.Future[None]) -> None:
    if not came.done():
        came.set_result(None)
