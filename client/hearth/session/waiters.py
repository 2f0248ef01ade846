"""Threads and event loops that wait for the answers of one attachment.

A thread that waits receives by itself where answers come over a lane and no other thread receives (Leader/Followers);
else it sleeps.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    from hearth.session.reply import Reply

    class Receiver(Protocol):
        """A lane, as threads that wait use it: `hearth.session.lane_channel.LaneChannel`."""

        def take_role(self, thread: int) -> bool:
            """Gives the role of the receiver to the thread if it may have it, and returns whether it does; with the
            lock held."""

        def receive_for(self, reply: Reply, deadline: float | None, thread: int) -> None:
            """Receives until `reply` is answered, `deadline` has come, or the lane is over."""

        def interrupted(self, thread: int) -> None:
            """The thread left `receive_for` by an exception, or never came to it; with the lock held."""

        def pass_role(self) -> None:
            """A thread that slept does so no more: perhaps it was called to receive; with the lock held."""

        def expect(self) -> None:
            """Notes that responses are needed, though no thread receives them for itself; with the lock held."""


class Waiters:
    """All but `attend`, `expect` and `listen` is used with the attachment's `lock` held."""

    def __init__(self, lock: threading.Lock) -> None:
        self.channel: Receiver | None = None
        """The lane over which answers come, if any."""
        self.sleepers: list[Reply] = []
        """Replies that sleeping threads wait for."""
        self.watchers = 0
        """Number of threads that wait for any change."""
        self.listeners = 0
        """Number of answers that event loops expect, and no thread waits for."""
        self.lock = lock
        """The attachment's lock."""

    def watch(self) -> None:
        """Counts one more thread that waits for any change."""
        self.watchers += 1
        if self.channel is not None:
            self.channel.expect()

    def attend(self, reply: Reply, timeout: float | None) -> bool:
        """Waits up to `timeout` seconds for the answer, and returns whether it has come. Receives it in this thread
        where it comes over a lane and no other thread receives."""
        thread = threading.get_ident()
        channel: Receiver | None = None  # where it receives, or is about to
        deadline, left, slept = None, timeout, False
        try:
            if timeout is not None:
                deadline = time.monotonic() + timeout
            while True:
                with self.lock:
                    if slept:
                        self._slept(reply)
                    if reply.answered or (left is not None and left <= 0):
                        return reply.answered
                    channel = self.channel
                    slept = channel is None or not channel.take_role(thread)
                    if slept:
                        channel = None
                        self.sleepers.append(reply)
                if channel is None:
                    reply.sleep(left)
                else:
                    channel.receive_for(reply, deadline, thread)
                    if reply.answered:
                        return True
                if deadline is not None:
                    left = deadline - time.monotonic()
        except BaseException:  # KeyboardInterrupt, wherever it came
            over: list[bool] = []
            while not over:
                try:
                    self._give_back(reply, thread, channel, over)
                except KeyboardInterrupt:  # another one: the first is on its way already
                    continue
            raise

    def _give_back(self, reply: Reply, thread: int, channel: Receiver | None, over: list[bool]) -> None:
        """Returns the waiting thread's entry and role; appends to `over` when that is done."""
        with self.lock:
            if reply in self.sleepers:
                self._slept(reply)
            if channel is not None:
                channel.interrupted(thread)
            over.append(True)

    def _slept(self, reply: Reply) -> None:
        self.sleepers.remove(reply)
        if self.channel is not None and self.sleepers:
            self.channel.pass_role()

    def expect(self) -> None:
        """Notes that work depends on the responses without a wait for an answer."""
        with self.lock:
            if self.channel is not None:
                self.channel.expect()

    def listen(self, more: int) -> None:
        """See `ReplyWaiters`."""
        with self.lock:
            self.listeners += more
            if more > 0 and self.channel is not None:
                self.channel.expect()
