"""The event loop that a node belongs to: wakes tasks for answers, and runs blocking work in threads."""

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
"""Maximum number of threads of one node for each kind of work."""


def in_loop() -> bool:
    """Returns True if this thread runs an event loop, and therefore must not block."""
    return asyncio._get_running_loop() is not None


class Home:
    """The event loop of one node, and its threads. Methods that are not coroutines may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.calls = Threads("hearth-aio-call", CALLS)
        self.openings = Threads("hearth-aio-attach", OPENINGS)
        self.uploads = Threads("hearth-aio-upload", UPLOADS)
        self.downloads = Threads("hearth-aio-download", DOWNLOADS)
        self.dispatches = Threads("hearth-aio-dispatch", DISPATCHES)
        self._done: deque[asyncio.Future[None]] = deque()
        self._delivery_scheduled = False

    def check(self) -> None:
        """Raises `UnsupportedError` if called in another event loop."""
        running = asyncio._get_running_loop()
        if running is not self.loop and running is not None:
            raise UnsupportedError(
                "this node belongs to another event loop.",
                fix="connect in the event loop that uses the node: node = await hearth.aio.connect(...).",
            )

    # ---- answers ----

    async def answer(self, reply: Reply, timeout: float | None = None) -> commands_pb2.Result:
        """Returns the answer to a command, as `Reply.wait` does. If the await is cancelled, the reply is abandoned.

        Args:
            reply: The reply to wait for.
            timeout: Seconds to wait at most; None: no limit.

        Returns:
            The result that the device sent.

        Raises:
            TimeoutError: The answer has not arrived in time.
            HearthError: The command failed.
        """
        try:
            await self.wait_answered(reply, timeout)
        except BaseException:
            reply.abandon()
            raise
        if not reply.answered:
            raise reply.given_up(timeout)
        return reply.wait()

    async def result_of(self, pending: PendingResult[T], timeout: float | None = None) -> T:
        """Returns the result of a request. If the await is cancelled, the reply is abandoned.

        Args:
            pending: The request that was sent.
            timeout: Seconds to wait at most; None: no limit.

        Returns:
            The result, converted as the request says.

        Raises:
            TimeoutError: The answer has not arrived in time.
            HearthError: The request failed.
        """
        await self.answer(pending.reply, timeout)
        return pending.wait()

    async def answers(self, replies: Sequence[Reply], timeout: float | None = None) -> None:
        """Waits for all replies, like `wait_for_all`. If the await is cancelled, the replies are abandoned.

        Args:
            replies: The replies to wait for.
            timeout: Seconds to wait at most for all of them; None: no limit.

        Raises:
            TimeoutError: An answer has not arrived in time.
            HearthError: The error of the first command that failed.
        """
        deadline = None if timeout is None else self.loop.time() + timeout
        try:
            for reply in replies:
                await self.wait_answered(reply, None if deadline is None else max(0.0, deadline - self.loop.time()))
        except BaseException:
            for reply in replies:
                reply.abandon()
            raise
        timeouts = [reply.given_up(timeout) for reply in replies if not reply.answered]
        wait_for_all([reply for reply in replies if not reply.abandoned])
        if timeouts:
            raise timeouts[0]

    async def wait_answered(self, reply: Reply, timeout: float | None = None) -> None:
        """Returns when the answer has arrived or `timeout` seconds have passed.

        Only one task may wait for a reply at a time.

        Args:
            reply: The reply to wait for.
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            UnsupportedError: The node belongs to another event loop.
        """
        self.check()
        if reply.answered:
            return
        future: asyncio.Future[None] = self.loop.create_future()
        reply.listen(partial(self._post, future))
        try:
            if timeout is None:
                await future
            else:
                with self._waking(future, timeout):
                    await future
        finally:
            reply.unlisten()

    # ---- threads ----

    async def call(self, work: Callable[[], T], *, undo: Callable[[T], object] | None = None) -> T:
        """Runs a function in a thread and returns its result.

        If the await is cancelled, work that has not started is not run; work that has started continues.

        Args:
            work: The function; it may block.
            undo: Called in a thread with the result of work that completes after the await was cancelled.

        Returns:
            The result of `work`.

        Raises:
            UnsupportedError: The node belongs to another event loop.
        """
        self.check()
        task = self.calls.run(work)
        try:
            await self.wait_done(task)
        except BaseException:
            if not task.cancel() and undo is not None:
                task.add_done_callback(partial(self._undo, undo))
            raise
        return task.result()

    async def wait_done(self, work: Work[Any], timeout: float | None = None) -> None:
        """Returns when the work has ended or `timeout` seconds have passed. Several tasks may wait for the same work.

        Args:
            work: The work of a thread.
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            UnsupportedError: The node belongs to another event loop.
        """
        self.check()
        if work.done():
            return
        future: asyncio.Future[None] = self.loop.create_future()
        work.add_done_callback(lambda _: self._post(future))
        with self._waking(future, timeout):
            await future

    async def wait_uncancelled(self, work: Work[Any], error: BaseException) -> None:
        """Waits until a thread no longer uses the memory of the calling task, even if the task is cancelled meanwhile.

        The wait is short: until the end of one copy.

        Args:
            work: The work of the thread.
            error: The exception that the task is about to raise; for `GeneratorExit` the wait blocks the loop.
        """
        if isinstance(error, GeneratorExit):  # the coroutine cannot be resumed any more
            work.join()
        while not work.done():
            try:
                await self.wait_done(work)
            except GeneratorExit:
                work.join()
                raise
            except asyncio.CancelledError:
                continue

    def call_soon(self, work: Callable[[], object]) -> None:
        """Has the event loop call a function; does nothing if the loop is closed.

        Args:
            work: The function.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits there
            self.loop.call_soon_threadsafe(work)

    # ---- internals ----

    @contextlib.contextmanager
    def _waking(self, future: asyncio.Future[None], timeout: float | None) -> Iterator[None]:
        """Wakes the task that waits for the future after `timeout` seconds, unless the block ends earlier."""
        timer = None if timeout is None else self.loop.call_later(timeout, _wake, future)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    def _undo(self, undo: Callable[[T], object], work: Work[T]) -> None:
        if not work.cancelled() and work.exception() is None:
            self.calls.run(partial(undo, work.result()))

    def _post(self, future: asyncio.Future[None]) -> None:
        """Wakes the task that waits for the future.

        Futures completed at about the same time are delivered by one call into the loop.
        """
        self._done.append(future)
        if not self._delivery_scheduled:
            self._delivery_scheduled = True
            self.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivery_scheduled = False  # reset first, so that a future posted from now on schedules another call
        while self._done:
            _wake(self._done.popleft())


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
