"""Threads and event loops that wait for the answers of one attachment.

If answers arrive over a lane and no other thread receives, a waiting thread becomes the receiver (Leader/Followers).
Otherwise it sleeps until it is woken.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.session.lane_channel import LaneChannel
    from hearth.session.reply import Reply


class Waiters:
    """Threads and event loops that wait for answers of one attachment.

    All members except `wait_for`, `wait_until`, `expect` and `listen` are used with the attachment's `lock` held.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.channel: LaneChannel | None = None
        """The lane over which answers arrive; None: there is no lane."""
        self.sleepers: list[Reply] = []
        """Replies for which sleeping threads wait."""
        self.watchers: list[SimpleQueue[None]] = []
        """Queues that wake the threads which wait for a change of the attachment."""
        self.listeners = 0
        """Number of answers that event loops expect and for which no thread waits."""
        self.lock = lock
        """The attachment's lock."""

    def wait_until(self, ready: Callable[[], bool], timeout: float | None) -> None:
        """Waits up to `timeout` seconds until `ready` returns True after a change of the attachment.

        The thread sleeps without the lock, which a Ctrl-C in the wait of a `Condition` might leave to another thread.

        Args:
            ready: Called with the lock held; must not block.
            timeout: Longest wait in seconds; None: without a limit.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        changes: SimpleQueue[None] = SimpleQueue()
        try:
            self.watchers.append(changes)
            while True:
                with self.lock:
                    if ready():
                        return
                    if self.channel is not None:
                        self.channel.expect()
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return
                with suppress(Empty):
                    changes.get(timeout=remaining)
        finally:
            if changes in self.watchers:
                self.watchers.remove(changes)

    def changed(self) -> None:
        """Wakes the threads that wait for a change of the attachment."""
        for changes in list(self.watchers):
            if changes.empty():  # otherwise the thread is about to continue
                changes.put(None)

    def wait_for(self, reply: Reply, timeout: float | None) -> bool:
        """Waits up to `timeout` seconds for the answer, and returns True if it has arrived.

        This thread receives if answers arrive over a lane and no other thread receives.

        Args:
            reply: Reply for which the calling thread waits.
            timeout: Longest wait in seconds; None: without a limit.
        """
        thread = threading.get_ident()
        channel: LaneChannel | None = None  # the lane from which this thread receives, or is about to
        deadline, remaining, slept = None, timeout, False
        try:
            if timeout is not None:
                deadline = time.monotonic() + timeout
            while True:
                with self.lock:
                    if slept:
                        self._remove_sleeper(reply)
                    if reply.answered or (remaining is not None and remaining <= 0):
                        return reply.answered
                    channel = self.channel
                    slept = channel is None or not channel.take_role(thread)
                    if slept:
                        channel = None
                        self.sleepers.append(reply)
                if channel is None:
                    reply.sleep(remaining)
                else:
                    channel.receive_for(reply, deadline, thread)
                    if reply.answered:
                        return True
                if deadline is not None:
                    remaining = deadline - time.monotonic()
        except BaseException:  # KeyboardInterrupt, at any point
            withdrawn: list[bool] = []
            while not withdrawn:
                try:
                    self._withdraw(reply, thread, channel, withdrawn)
                except KeyboardInterrupt:  # a second Ctrl-C: the first exception is already being raised
                    continue
            raise

    def _withdraw(self, reply: Reply, thread: int, channel: LaneChannel | None, withdrawn: list[bool]) -> None:
        """Removes the waiting thread's entry and releases its role. Appends to `withdrawn` when that is done."""
        with self.lock:
            if reply in self.sleepers:
                self._remove_sleeper(reply)
            if channel is not None:
                channel.interrupted(thread)
            withdrawn.append(True)

    def _remove_sleeper(self, reply: Reply) -> None:
        self.sleepers.remove(reply)
        if self.channel is not None:
            self.channel.pass_role()

    def expect(self) -> None:
        """Notes that work depends on the responses though no thread waits for an answer."""
        with self.lock:
            if self.channel is not None:
                self.channel.expect()

    def listen(self, change: int) -> None:
        """Adds `change` to the number of answers that event loops expect, as `ReplyWaiters.listen` does.

        Args:
            change: Number of further answers; negative if event loops no longer expect them.
        """
        with self.lock:
            self.listeners += change
            if change > 0 and self.channel is not None:
                self.channel.expect()
