"""The event loop that a node belongs to: where its answers are told, and the threads that work for it."""

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
    """Whether this thread runs an event loop, so that nothing may wait here."""
    return asyncio._get_running_loop() is not None


class Home:
    """Of one node. What is not a coroutine is safe from any thread."""

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
        """The answer, as `Reply.wait` has it. Where this is cancelled, nobody waits for it any more."""
        try:
            await self.answered(reply, timeout)
        except BaseException:
            reply.abandon()
            raise
        if not reply.answered:
            raise reply.given_up(timeout)
        return reply.wait()

    async def asked(self, asked: PendingResult[T], timeout: float | None = None) -> T:
        """What is made of the answer."""
        await self.answer(asked.reply, timeout)
        return asked.wait()

    async def answers(self, replies: Sequence[Reply], timeout: float | None = None) -> None:
        """Waits for all, as `wait_for_all`."""
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
        """Has a thread do it. Where this is cancelled it is not begun any more; or, begun, it goes on, and `undo` gets
        what comes of it."""
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
        """Returns at its end, whatever that is, or after `timeout` seconds. Several may wait for the same."""
        self.check()
        if work.done():
            return
        came: asyncio.Future[None] = self.loop.create_future()
        work.add_done_callback(lambda _: self._post(came))
        with self._waking(came, timeout):
            await came

    async def outlast(self, work: Work[Any], error: BaseException) -> None:
        """Waits until a thread has left the memory of who is to get `error`, whoever wants to be gone before: the end
        of a copy, no more."""
        if isinstance(error, GeneratorExit):  # nobody runs this any more
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
        """Has the loop do it, while it runs."""
        with contextlib.suppress(RuntimeError):  # it is closed: nobody waits there any more
            self.loop.call_soon_threadsafe(work)

    # ---- inside ----

    @contextlib.contextmanager
    def _waking(self, came: asyncio.Future[None], timeout: float | None) -> Iterator[None]:
        """Wakes who waits for it after `timeout` seconds, unless the block has ended before."""
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
        """Wakes who waits for it in the loop: all that come at about the same time by one call."""
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
