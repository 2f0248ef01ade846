"""Flow control for the batches of one Execute stream on their way to the device process.

Batches are passed on in order, as far as the windows and queues allow. The others are held back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from hearth_proto.reasons import Refusal
from hearthd.front.sessions.attach import ExecuteWindow
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.command_queue import CommandQueue


class Intake:
    """The intake of one Execute stream. `stop` ends it."""

    def __init__(
        self, channel: Channel, queue: CommandQueue, window: ExecuteWindow, on_batch: Callable[[int], None]
    ) -> None:
        self._channel = channel
        self._queue = queue
        self._window = window
        self.unread = 0
        """Bytes of responses that wait for the client to read them."""
        self._on_batch = on_batch
        self.held: deque[bytes] = deque()
        """Batches that are held back, oldest first."""
        self._held_bytes = 0
        self._stopped = False
        self._room_task: asyncio.Task[None] | None = None
        self._change = asyncio.Event()
        """Set for a moment by each call of `advance` and `stop`."""

    async def enqueue(self, message: bytes) -> None:
        """Passes a batch on or holds it back. Returns when the next message may be read.

        Reading continues while batches are held back, because the acknowledgements of the client follow the batches,
        and batches may wait for them. A client that observes its window has no more batches under way than are taken
        here.
        """
        if self.try_pass_on(message):
            return
        self.held.append(message)
        self._held_bytes += len(message)
        self.advance()
        batches, held, window = self._channel.batches, self.held, self._window
        while not self._stopped and (
            len(batches) + len(held) > window.max_batches
            or (batches.bytes + self._held_bytes > window.max_unacked_bytes and len(held) > 1)
        ):
            await self._change.wait()

    def try_pass_on(self, message: bytes) -> bool:
        """Passes a batch on and returns True; returns False if the batch must wait, and `enqueue` holds it back."""
        if self.held or self._is_blocked():
            return False
        self._pass_on(message)
        return True

    async def finish(self) -> None:
        """Waits until every held batch that can still be passed on has been passed on.

        Called when the client sends no more.
        """
        replies = self._channel.replies
        while self.held and not self._stopped and not (replies is not None and replies.full):
            await self._change.wait()

    def advance(self) -> None:
        """Passes on as many of the held batches as is possible now."""
        while self.held and not self._stopped and not self._is_blocked():
            message = self.held.popleft()
            self._held_bytes -= len(message)
            self._pass_on(message)
        is_full = self._channel.link.paused or self._queue.full
        if self.held and is_full and self._room_task is None and not self._stopped:
            self._room_task = asyncio.create_task(self._wait_for_room(), name="execute-room")
        self._wake()

    def stop(self) -> None:
        """Stops the intake: no further batches are passed on."""
        self._stopped = True
        if self._room_task is not None:
            self._room_task.cancel()
        self._wake()

    def _pass_on(self, message: bytes) -> None:
        self._channel.send_batch(message)
        self._on_batch(len(message))

    def _is_blocked(self) -> bool:
        """Returns True if no batch can be passed on now."""
        channel, window = self._channel, self._window
        batches, replies = channel.batches, channel.replies
        return (
            len(batches) >= window.max_batches
            or batches.bytes >= window.max_unacked_bytes
            or self.unread >= window.max_queued_bytes
            or channel.link.paused
            or self._queue.full
            or (replies is not None and replies.full)
        )

    async def _wait_for_room(self) -> None:
        """Waits until the device process and the other sessions of the tenant leave room, then advances."""
        with contextlib.suppress(Refusal):  # the loss of the device process, which ends the stream anyway
            while self._channel.link.paused or self._queue.full:
                await self._channel.link.drain()
                await self._queue.wait_for_room()
        self._room_task = None
        self.advance()

    def _wake(self) -> None:
        self._change.set()
        self._change.clear()
