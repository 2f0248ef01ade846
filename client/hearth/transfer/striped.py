"""Transfers over stripes: chunks in any order, sent again over other stripes when a stripe breaks.

If no stripe is left, others are opened. If that fails, the bytes travel over Upload and Download streams, under the
same transfer number, so that their command keeps its place among the others.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from hearth import errors
from hearth.errors import HearthError, TransferError
from hearth.transfer.grpc_stream import GrpcDownload, GrpcUpload, cancel_transfer
from hearth.transport.stripe import Stripe
from hearth_proto.frames import Kind
from hearth_proto.stripes import StripeCut, announce
from hearth_proto.v1 import status_pb2

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.session.reply import Reply
    from hearth.transfer.stripe_pool import Route

REOPENINGS = 3
"""Maximum number of times that other stripes are opened without any progress in between."""
_LEAVE_S = 0.1
"""Seconds for which a thread may access the caller's memory after the end, before its stripe is closed."""
_POLL_S = 0.25
"""Interval, in seconds, of the check for progress, and of the check that the stripes of a download are alive while its
answer is awaited."""
_ANSWER_S = 1.0
"""Seconds to wait for the command's answer after the daemon has reported the end of a transfer."""


class StripedView(NamedTuple):
    """Progress of a transfer over stripes, for tests and diagnostics."""

    done: int
    """Number of chunks that have arrived."""
    chunks: int
    """Total number of chunks."""
    size: int
    """Total size of all chunks, in bytes."""


class Striped(ABC):
    """A transfer over stripes, in either direction, with the transfer number `number`."""

    def __init__(
        self,
        connection: Connection,
        route: Route,
        reply: Reply,
        number: int,
        memory: memoryview,
        kind: Kind,
        progress: Progress | None,
    ) -> None:
        self.number = number
        self._connection = connection
        self._pool = route.pool
        self._generation = route.generation
        self._stripe_count = len(route.stripes)
        """Maximum number of stripes that are opened instead of broken ones."""
        self._reply = reply
        self._memory = memory
        self._cut = StripeCut(len(memory), route.chunk)
        self._kind = kind
        self._progress = progress
        self._change = threading.Condition()
        self._credits: dict[Stripe, int] = {}
        """Stripes that carry the transfer, each with its number of unused credits."""
        self._done: set[int] = set()
        self._bytes = 0
        self._accessing: dict[Stripe, int] = {}
        """Number of threads that access the caller's memory, by stripe."""
        self._access_ended = False
        """True once no thread may access the caller's memory."""
        self._over = False
        self._error: HearthError | None = None
        self._fallback: GrpcUpload | GrpcDownload | None = None
        self._outages = connection.outages
        self._furthest, self._since = 0, time.monotonic()
        self._silent = False
        """True once the transfer's stripes were abandoned; no others are opened."""

    def inspect(self) -> StripedView:
        """Returns the progress of the transfer. Takes no lock."""
        return StripedView(len(self._done), self._cut.count, self._cut.size)

    def cancel(self) -> None:
        """Cancels the transfer: the waiting thread gets an error, and the daemon is notified. Does not block."""
        with self._change:
            if self._over:
                return
            self._over = True
            fallback = self._fallback
            self._change.notify_all()
        if fallback is not None:
            fallback.cancel()
            return
        cancel_transfer(self._connection, self.number)

    def begin(self, stripes: Sequence[Stripe]) -> None:
        """Announces the transfer on these stripes.

        Args:
            stripes: Open stripes; those that have ended meanwhile are removed.
        """
        with self._change:
            for stripe in stripes:
                self._credits[stripe] = 0
        ended = self._pool.add_transfer(self.number, self, stripes)
        for stripe in stripes:
            stripe.put(announce(self._kind, self.number, self._cut.chunk))
        for stripe in ended:
            self.stripe_lost(stripe)

    @abstractmethod
    def result(self) -> int:
        """Waits until all bytes have arrived, and returns their number. Raises `HearthError`."""

    # ---- waiting ----

    def _await(self, deadline: float | None) -> bool:
        """Waits for the end of the transfer. Returns False if no stripes are left. Raises `HearthError`."""
        reported, size = 0, self._cut.size
        while True:
            with self._change:
                while (
                    self._bytes == reported and self._bytes < size and self._credits and not (self._over or self._error)
                ):
                    remaining = None if deadline is None else deadline - time.monotonic()
                    if remaining is not None and remaining <= 0:
                        raise self._timeout_error()
                    if self._check_silence():
                        return False
                    self._change.wait(_POLL_S if remaining is None else min(remaining, _POLL_S))
                is_over, error, now, has_stripes = self._over, self._error, self._bytes, bool(self._credits)
            if self._progress is not None and now > reported:
                self._progress(now, size)
            reported = now
            if now == size:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                raise self._timeout_error()
            if is_over:
                raise TransferError("the transfer was cancelled.", reason="CANCELLED", fix="start it again.")
            if error is not None:
                if self._answered(_ANSWER_S):
                    return True
                raise error
            if not has_stripes:
                return self._answered(0.0)

    def _check_silence(self) -> bool:
        """True if nothing more is expected from the stripes, though none has ended; then closes them.

        Called with the lock held.
        """
        now = time.monotonic()
        if self._bytes != self._furthest or self._connection.outages == self._outages:
            self._furthest, self._since = self._bytes, now
        if now - self._since < self._pool.timing.silent:
            return False
        self._silent = True
        for stripe in self._credits:
            stripe.close()
        return True

    def _answered(self, seconds: float) -> bool:
        """True if the command succeeds within `seconds`.

        The end of the transfer may have been in transit when the stripes broke.
        """
        deadline = time.monotonic() + seconds
        while not self._reply.done and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._reply.done and self._reply.error is None

    def _wait_done(self, deadline: float | None) -> bool:
        """Waits for the end of the transfer, and opens other stripes as needed.

        Returns False if no stripes are available.
        """
        opened, previous_bytes = 0, -1
        while not self._await(deadline):
            if self._bytes > previous_bytes:
                opened, previous_bytes = 0, self._bytes
            opened += 1
            if not self._reopen(opened):
                return False
        return True

    def _reopen(self, times: int) -> bool:
        """Continues over other stripes, unless that was done too many `times` without progress.

        Returns False if no stripes are available.
        """
        if self._silent or times > REOPENINGS:
            return False
        stripes = self._pool.open(self._generation, self._stripe_count)
        if stripes:
            self.begin(stripes)
        return bool(stripes)

    def _fall_back(self, stream: Callable[[], GrpcUpload | GrpcDownload]) -> int:
        """Carries out the transfer over gRPC, which is always available; cancels it if this transfer was cancelled.

        Returns the number of bytes.
        """
        self._leave()
        fallback = stream()
        with self._change:
            self._fallback = fallback
            is_over = self._over
        if is_over:
            fallback.cancel()
        return fallback.result()

    @contextlib.contextmanager
    def _memory_in_use(self) -> Iterator[None]:
        """Context in which stripes may access the caller's memory: afterwards, no thread does, whatever happens."""
        try:
            yield
        except BaseException:
            self.cancel()
            raise
        finally:
            self._over = True
            self._leave()

    def _leave(self) -> None:
        self._pool.drop(self.number)
        deadline = time.monotonic() + _LEAVE_S
        with self._change:
            self._access_ended = True
            while self._accessing:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    for stripe in self._accessing:
                        stripe.close()
                    remaining = 1.0
                self._change.wait(remaining)

    def _enter(self, stripe: Stripe) -> None:
        self._accessing[stripe] = self._accessing.get(stripe, 0) + 1

    def _exit(self, stripe: Stripe) -> None:
        count = self._accessing.pop(stripe) - 1
        if count:
            self._accessing[stripe] = count
        if not self._accessing and self._access_ended:
            self._change.notify_all()

    def _timeout_error(self) -> HearthError:
        target = self._connection.transport.target
        return errors.TimeoutError(
            f"the daemon at {target} did not answer in time.",
            fix="check the daemon with `hearth status`, or use a longer timeout.",
        )

    # ---- events of a stripe; see `hearth.transport.stripe.CarriedTransfer` ----

    def aborted(self, status: bytes) -> None:
        """Makes the waiting thread raise the daemon's reason, unless the command succeeds within `_ANSWER_S` seconds.

        Args:
            status: Serialized `Status` with the reason.
        """
        try:
            error = errors.from_status(status_pb2.Status.FromString(status))
        except DecodeError:
            error = TransferError("the daemon aborted the transfer.", fix="start it again.")
        with self._change:
            self._error = self._error or error
            self._change.notify_all()

    # The first two happen to uploads only, the next two to downloads only.

    def credit(self, stripe: Stripe, chunks: int) -> None:  # noqa: B027
        """Adds credit for `chunks` further chunks of an upload on a stripe; does nothing for a download.

        Args:
            stripe: Stripe over which the chunks may be sent.
            chunks: Number of further chunks.
        """

    def chunk_acknowledged(self, stripe: Stripe, offset: int) -> None:  # noqa: B027
        """Counts the chunk of an upload at `offset`, which the daemon has received; does nothing for a download.

        Args:
            stripe: Stripe over which the message arrived.
            offset: Offset in bytes; the total size: the daemon has received all chunks.
        """

    def place(self, stripe: Stripe, offset: int, size: int) -> memoryview | None:
        """Returns the destination of a chunk of a download, valid until `chunk_placed`.

        Returns None if the bytes are to be dropped, as those that arrive for an upload are.

        Args:
            stripe: Stripe over which the chunk arrives.
            offset: Offset of the chunk in bytes.
            size: Size of the chunk in bytes.

        Raises:
            ValueError: The download has no such chunk.
        """
        return None

    def chunk_placed(self, stripe: Stripe, offset: int, size: int, is_complete: bool) -> None:  # noqa: B027
        """Counts a received chunk of a download; does nothing for an upload.

        Args:
            stripe: Stripe over which the chunk arrived.
            offset: Offset of the chunk in bytes.
            size: Size of the chunk in bytes.
            is_complete: False if not all bytes have arrived: the chunk is not counted.
        """

    @abstractmethod
    def stripe_lost(self, stripe: Stripe) -> None:
        """Removes a stripe that has ended.

        Args:
            stripe: Stripe, which need not carry this transfer.
        """

    def _complete(self) -> None:
        """Marks all chunks as done."""
        self._done.update(range(self._cut.count))
        self._bytes = self._cut.size
        self._change.notify_all()

    def _count(self, index: int) -> None:
        if index not in self._done:
            self._done.add(index)
            self._bytes += self._cut.span(index)[1]
            self._change.notify_all()


class StripedUpload(Striped):
    """An upload of `data` over stripes; `data` must not change until `result` has returned."""

    def __init__(
        self,
        connection: Connection,
        route: Route,
        reply: Reply,
        number: int,
        data: memoryview,
        progress: Progress | None,
    ) -> None:
        super().__init__(connection, route, reply, number, data, Kind.UPLOAD, progress)
        self._next = 0
        self._resend: deque[int] = deque()
        self._sending: dict[Stripe, set[int]] = {}
        self.begin(route.stripes)

    def result(self) -> int:
        """Waits until the daemon has all bytes, and returns their number. Raises `HearthError`."""
        with self._memory_in_use():
            if self._wait_done(None):
                return len(self._memory)
            limits = self._connection.limits
            return self._fall_back(
                lambda: GrpcUpload(self._connection, self.number, self._memory, limits.max_chunk_bytes, self._progress)
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
        return offset, self._memory[offset : offset + size]

    def chunk_sent(self, stripe: Stripe) -> None:
        """Ends a stripe's access to the data that `lend` returned.

        Args:
            stripe: Stripe whose thread has sent the chunk, or failed to send it.
        """
        with self._change:
            self._exit(stripe)


class StripedDownload(Striped):
    """A download over stripes into `memory`, cut short `timeout` seconds after its creation (None: never)."""

    def __init__(
        self,
        connection: Connection,
        route: Route,
        reply: Reply,
        number: int,
        memory: memoryview,
        timeout: float | None,
        progress: Progress | None,
    ) -> None:
        super().__init__(connection, route, reply, number, memory, Kind.DOWNLOAD, progress)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.begin(route.stripes)

    def result(self) -> int:
        """Receives the whole download, and returns the number of bytes. Raises `HearthError`."""
        memory, progress = self._memory, self._progress
        with self._memory_in_use():
            if self._wait_done(self._deadline) and self._bytes == len(memory) and self._wait_for_answer():
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
