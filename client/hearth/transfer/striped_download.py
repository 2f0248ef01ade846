"""A download over stripes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hearth.transfer.grpc_stream import GrpcDownload
from hearth.transfer.striped import Striped
from hearth.transport.stripe import Stripe
from hearth_proto.frames import Kind
from hearth_proto.stripes import StripeCut

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply
    from hearth.transfer.stripe_pool import Stripes


_POLL_S = 0.25
"""Interval, in seconds, at which the wait for the answer checks that the stripes it depends on are alive."""


class StripedDownload(Striped):
    """A download over stripes into `memory`, cut short `timeout` seconds after its creation (None: never)."""

    def __init__(
        self,
        connection: Connection,
        stripes: Stripes,
        reply: Reply,
        number: int,
        memory: memoryview,
        open_stripes: Sequence[Stripe],
        chunk: int,
        generation: int,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(connection, stripes, reply, number, StripeCut(len(memory), chunk), Kind.DOWNLOAD, generation)
        self._memory = memory
        self._progress = progress
        self._stripe_count = len(open_stripes)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.begin(open_stripes)

    def result(self) -> int:
        """Receives the whole download, and returns the number of bytes. Raises `HearthError`."""
        memory, progress = self._memory, self._progress
        with self._memory_in_use():
            if self._wait_done(progress, self._deadline) and self._bytes == len(memory) and self._wait_for_answer():
                return len(memory)
            remaining = None if self._deadline is None else max(0.001, self._deadline - time.monotonic())
            return self._fall_back(lambda: GrpcDownload(self._connection, self.number, memory, remaining, progress))

    def _wait_for_answer(self) -> bool:
        """Waits for the command's answer, which the daemon sends when it knows that all chunks have arrived.

        The last acknowledgement may be lost with a stripe; then the daemon sends those chunks again, over the other
        stripes or new ones. Returns False if no stripes are available.
        """
        opened = 0
        while True:
            remaining = _POLL_S if self._deadline is None else min(_POLL_S, self._deadline - time.monotonic())
            if remaining <= 0:
                raise self._timeout_error()
            if self._reply.wait_answered(remaining):
                return True
            with self._change:
                if self._over or self._error is not None:
                    return True  # the answer contains the reason
                if self._credits and not self._check_silence():
                    continue
            opened += 1
            if not self._reopen(opened):
                return False

    def place(self, stripe: Stripe, offset: int, size: int) -> memoryview | None:
        """Returns the chunk's part of the destination; None once no thread may access that memory.

        Args:
            stripe: Stripe over which the chunk arrives.
            offset: Offset of the chunk in bytes.
            size: Size of the chunk in bytes.
        """
        with self._change:
            self._cut.index(offset, size)
            if self._access_ended:
                return None
            self._enter(stripe)
        return self._memory[offset : offset + size]

    def chunk_placed(self, stripe: Stripe, offset: int, size: int, is_complete: bool) -> None:
        """Counts the chunk if it has arrived completely; a chunk that arrives twice counts once.

        Args:
            stripe: Stripe over which the chunk arrived.
            offset: Offset of the chunk in bytes.
            size: Size of the chunk in bytes.
            is_complete: True if all bytes have arrived.
        """
        with self._change:
            if is_complete:
                self._count(self._cut.index(offset, size))
            self._exit(stripe)

    def stripe_lost(self, stripe: Stripe) -> None:
        """Removes a stripe that has ended; the daemon sends its chunks again over other stripes.

        Args:
            stripe: Stripe, which need not carry this transfer.
        """
        with self._change:
            self._credits.pop(stripe, None)
            self._change.notify_all()
