"""An upload over stripes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hearth.transfer.grpc_stream import GrpcUpload
from hearth.transfer.striped import Striped
from hearth.transport.stripe import Stripe
from hearth_proto.frames import Kind
from hearth_proto.stripes import StripeCut

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply
    from hearth.transfer.stripe_pool import Stripes


class StripedUpload(Striped):
    """An upload of `data` over stripes; `data` must not change until `result` has returned."""

    def __init__(
        self,
        connection: Connection,
        stripes: Stripes,
        reply: Reply,
        number: int,
        data: memoryview,
        open_stripes: Sequence[Stripe],
        chunk: int,
        generation: int,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(connection, stripes, reply, number, StripeCut(len(data), chunk), Kind.UPLOAD, generation)
        self._data = data
        self._progress = progress
        self._stripe_count = len(open_stripes)
        self._next = 0
        self._resend: deque[int] = deque()
        self._sending: dict[Stripe, set[int]] = {}
        self.begin(open_stripes)

    def result(self) -> int:
        """Waits until the daemon has all bytes, and returns their number. Raises `HearthError`."""
        with self._memory_in_use():
            if self._wait_done(self._progress, None):
                return len(self._data)
            limits = self._connection.limits
            return self._fall_back(
                lambda: GrpcUpload(self._connection, self.number, self._data, limits.max_chunk_bytes, self._progress)
            )

    def credit(self, stripe: Stripe, chunks: int) -> None:
        """Hands out chunks to a stripe: first those that a broken stripe left, then new ones.

        Args:
            stripe: Stripe over which the chunks may be sent.
            chunks: Number of further chunks.
        """
        with self._change:
            if stripe in self._credits:
                self._credits[stripe] += chunks
                self._assign_chunks(stripe)

    def chunk_acknowledged(self, stripe: Stripe, offset: int) -> None:
        """Counts a chunk that the daemon has received, or all chunks if `offset` is the total size.

        Args:
            stripe: Stripe over which the chunk was sent; a message from another stripe is ignored.
            offset: Offset of the chunk in bytes.
        """
        index = offset // self._cut.chunk
        with self._change:
            if offset == self._cut.size:
                self._complete()
            elif index in self._sending.get(stripe, ()):
                self._sending[stripe].discard(index)
                self._count(index)

    def stripe_lost(self, stripe: Stripe) -> None:
        """Removes a stripe that has ended, and hands out its unacknowledged chunks to the other stripes.

        Args:
            stripe: Stripe, which need not carry this transfer.
        """
        with self._change:
            if self._credits.pop(stripe, None) is None:
                return
            self._resend.extend(sorted(self._sending.pop(stripe, ())))
            for remaining in self._credits:
                self._assign_chunks(remaining)
            self._change.notify_all()

    def _assign_chunks(self, stripe: Stripe) -> None:
        while self._credits[stripe]:
            if self._resend:
                index = self._resend.popleft()
            elif self._next < self._cut.count:
                index, self._next = self._next, self._next + 1
            else:
                return
            self._credits[stripe] -= 1
            self._sending.setdefault(stripe, set()).add(index)
            stripe.put_chunk(self, index)

    def lend(self, stripe: Stripe, index: int) -> tuple[int, memoryview] | None:
        """Returns offset and bytes of a chunk, valid until `chunk_sent`; None once no thread may access the data.

        Args:
            stripe: Stripe whose thread sends the chunk.
            index: Index of the chunk.
        """
        offset, size = self._cut.span(index)
        with self._change:
            if self._access_ended:
                return None
            self._enter(stripe)
        return offset, self._data[offset : offset + size]

    def chunk_sent(self, stripe: Stripe) -> None:
        """Ends a stripe's access to the data that `lend` returned.

        Args:
            stripe: Stripe whose thread has sent the chunk, or failed to send it.
        """
        with self._change:
            self._exit(stripe)
