"""Copies of ordinary arrays through the ring, by several threads: the device moves some pieces while others are copied.

The calling thread works as well, and does all the work if no helper is free. If the ring is stalled or its connection
ends, the transfer stops after the pieces that were sent, and the rest takes another route. All commands of a transfer
name the same split copy: the daemon cancels all of them or none.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hearth.errors import HearthError, TimeoutError
from hearth.session.late_errors import current_origin
from hearth.session.reply import CompletionHandler, reported_elsewhere, segment_gone
from hearth.transfer.copy_threads import crew, threads
from hearth.transfer.plan import short
from hearth.transfer.ring_buffer import SLOT_BYTES, SLOTS, Piece, Slot, piece_bytes, piece_starts
from hearth.transport.spin_wait import DOWN, UP

if TYPE_CHECKING:
    from hearth.progress import Progress
    from hearth.session.connection import Connection
    from hearth.transfer.plan import BufferRegion
    from hearth.transfer.shared_memory import Shared
    from hearth_proto.v1 import commands_pb2

MAX_REQUESTED = SLOTS - 2
"""Maximum number of pieces that a download requests ahead. While it waits for a kernel, other transfers use the
remaining slots."""
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _Transfer(ABC):
    """Base class of both directions. The lock is never held while data is sent or copied."""

    _COMMAND: ClassVar[str]

    def __init__(
        self, connection: Connection, shared: Shared, region: BufferRegion, host: Bytes, progress: Progress | None
    ) -> None:
        self._connection = connection
        self._origin = current_origin(self._COMMAND, region.stream, region.buffer)
        self._shared = shared
        self._host = host
        self._progress = progress
        self._threads = threads()
        width = region.rows.width if region.rows is not None else 1
        self._starts = piece_starts(len(host), piece_bytes(len(host)), width)
        """The first byte of each piece."""
        self.split = (connection.mint(), len(host)) if self._possible and len(self._starts) > 1 else None
        """`BufferRegion.split` of all commands of the transfer, also of those that other routes send."""
        self._region = region._replace(split=self.split)
        self._lock = threading.Lock()
        self._next = 0
        """Index of the first piece that no thread has taken: all pieces before it are sent, or will be."""
        self._stopped = False
        self._over = False
        """True once no thread waits for the transfer."""
        self._error: BaseException | None = None
        self._copied = 0
        self._reporting = threading.Lock()
        self._reported = 0

    @property
    def _possible(self) -> bool:
        """True if a piece fits a slot."""
        return self._starts.step <= SLOT_BYTES

    @abstractmethod
    def _work(self) -> None:
        """Copies pieces until none is left. Runs in the calling thread and in its helpers."""

    def run(self) -> int:
        """Copies the pieces in this thread and in its helpers.

        Returns the number of bytes moved, from the beginning; 0 if the segments were lost. Raises the first error that
        occurs before the end.
        """
        if not self._possible:
            return 0
        try:
            crew.run(self._work, min(self._threads, len(self._starts)) - 1, self._stop)
        finally:
            with self._lock:
                self._over, first_error = True, self._error  # later failures are reported elsewhere
            self._shared.ring.reclaim(self)
        if isinstance(first_error, HearthError):
            if self._shared.lost(first_error):
                return 0
            raise first_error.again()
        if first_error is not None:
            raise first_error
        return min(self._next * self._starts.step, len(self._host))

    def _stop(self, error: BaseException | None = None) -> None:
        """Stops sending; `error` is the cause, if any."""
        with self._lock:
            self._stopped = True
            if self._error is None or not isinstance(error, Exception | None):
                self._error = error
        self._shared.ring.wake()

    def _needs_pieces(self) -> bool:
        return not self._stopped and self._next < len(self._starts)

    def _take_piece(self) -> Piece | None:
        """Takes the next piece, for which the caller already has a slot; None: no piece is left."""
        with self._lock:
            piece, last = self._pick(), not self._needs_pieces()
        if last:
            self._shared.ring.wake()
        return piece

    def _pick(self) -> Piece | None:
        if not self._needs_pieces():
            return None
        start = self._starts[self._next]
        self._next += 1
        return Piece(start, min(self._starts.step, len(self._host) - start))

    def _region_of(self, piece: Piece) -> BufferRegion:
        region = self._region.skip(piece.start)
        if region.rows is None:
            return region
        return region._replace(rows=region.rows._replace(rows=piece.size // region.rows.width))

    def _send(self, slot: Slot, command: commands_pb2.Command, ending: CompletionHandler, one_way: bool) -> None:
        slot.sent = True
        try:
            self._shared.attachment.submit_serialized(command.SerializeToString(), ending, one_way=one_way)
        except HearthError:  # the command was not queued
            slot.sent = False
            raise
        except BaseException:
            self._shared.ring.discard(slot)
            raise

    def _report(self, size: int) -> None:
        with self._lock:
            self._copied += size
        if self._progress is None:
            return
        with self._reporting:
            if self._copied > self._reported:
                self._reported = self._copied
                self._progress(self._reported, len(self._host))


class RingUpload(_Transfer):
    """Copy from `host` to a buffer, which ends when the bytes were read and sent.

    A later failure is reported like that of a one-way command. `waits`: the copy waits for slots that other transfers
    hold.
    """

    _COMMAND = "write"

    def __init__(
        self,
        connection: Connection,
        shared: Shared,
        region: BufferRegion,
        host: Bytes,
        progress: Progress | None,
        waits: bool = True,
    ) -> None:
        super().__init__(connection, shared, region, host, progress)
        self._waits = waits

    def _work(self) -> None:
        ring = self._shared.ring
        try:
            while self._needs_pieces():
                slot = ring.acquire(self, wait=self._needs_pieces if self._waits else None)
                if slot is None:
                    return self._stop()
                piece = self._take_piece()
                if piece is None:
                    return ring.release(slot)
                slot.segment.bytes[: piece.size] = self._host[piece.start : piece.start + piece.size]
                command = self._region_of(piece).shared(UP, piece.size, slot.number)
                self._send(slot, command, CompletionHandler(partial(self._ended, slot)), one_way=True)
                self._report(piece.size)
        except BaseException as error:
            self._stop(error)

    def _ended(self, slot: Slot, _: commands_pb2.Result | None, error: HearthError | None) -> None:
        self._shared.ring.release(slot)
        if error is None:
            return
        with self._lock:
            is_first, over, stopped = self._error is None, self._over, self._stopped
        self._stop(error)
        if is_first and stopped and error.reason == "CANCELLED":
            return  # the rest, which took another route, is cancelled as well and reports it
        if is_first and over and not reported_elsewhere(self._shared.attachment.session.error, error):
            error = segment_gone(error) if self._shared.lost(error) else error
            self._connection.defer(error, self._origin)


class RingDownload(_Transfer):
    """Copy from a buffer into `host`, within `timeout` seconds (None: without a limit)."""

    _COMMAND = "read"

    def __init__(
        self,
        connection: Connection,
        shared: Shared,
        region: BufferRegion,
        host: Bytes,
        progress: Progress | None,
        timeout: float | None,
    ) -> None:
        super().__init__(connection, shared, region, host, progress)
        self._timeout = timeout
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._arrived: SimpleQueue[tuple[Slot, Piece] | None] = SimpleQueue()
        self._requested = 0
        """Number of pieces that were requested and have not been copied to `host`."""

    def run(self) -> int:
        """Returns the number of bytes received, from the beginning. Raises the copy's error, or `TimeoutError`."""
        try:
            return super().run()
        finally:
            self._connection.kernel_output.deliver()

    def _work(self) -> None:
        """Requests and copies pieces until all requested pieces have arrived and no more will be requested."""
        try:
            self._request_pieces()
            while (arrival := self._await()) is not None:
                slot, piece = arrival
                self._host[piece.start : piece.start + piece.size] = slot.segment.bytes[: piece.size]
                self._shared.ring.release(slot)
                self._report(piece.size)
                with self._lock:
                    self._requested -= 1
                self._request_pieces()
        except BaseException as error:
            self._stop(error)

    def _request_pieces(self) -> None:
        """Requests as many pieces as there are slots. Waits for a slot if no piece is in flight."""
        ring = self._shared.ring
        while self._needs_pieces() and self._requested < MAX_REQUESTED:
            waits = not self._requested
            slot = ring.acquire(self, wait=self._may_wait if waits else None)
            if slot is None:
                with self._lock:
                    self._stopped = self._stopped or (waits and not self._requested)
                break
            piece = self._take_piece()
            if piece is None:
                ring.release(slot)
                break
            command = self._region_of(piece).shared(DOWN, piece.size, slot.number)
            self._send(slot, command, CompletionHandler(partial(self._ended, slot, piece), reports=True), one_way=False)
        with self._lock:
            done = not self._requested and not self._needs_pieces()
        if done:
            self._dismiss()

    def _may_wait(self) -> bool:
        return self._needs_pieces() and not self._requested and time.monotonic() < self._deadline

    def _take_piece(self) -> Piece | None:
        with self._lock:
            piece = self._pick() if self._requested < MAX_REQUESTED else None
            self._requested += piece is not None
        self._shared.ring.wake()  # a thread that waited because no piece was in flight need not wait any more
        return piece

    def _await(self) -> tuple[Slot, Piece] | None:
        """Returns the next piece that has arrived; None: there are no more. Raises `TimeoutError`."""
        if self._deadline == math.inf:
            return self._arrived.get()
        try:
            return self._arrived.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except Empty:
            raise TimeoutError(
                f"no answer within {self._timeout:g} s; the work continues.",
                fix="wait again, or with a longer timeout.",
            ) from None

    def _ended(self, slot: Slot, piece: Piece, result: commands_pb2.Result | None, error: HearthError | None) -> None:
        if result is not None and result.read.size != piece.size:
            error = short(result.read.size, piece.size)
        with self._lock:
            if error is None and not self._over and self._error is None:
                slot.sent = False  # the slot is reclaimed if no thread returns it
                return self._arrived.put((slot, piece))
            first_error, over = self._error, self._over
        self._shared.ring.release(slot)
        if error is None:
            return
        self._stop(error)
        if not (over or first_error is not None) or self._shared.attachment.session.error is error:
            return
        if self._shared.lost(error):
            return  # not a failure: the other pieces take another route, or no thread waits for them
        same = (error.reason, error.message)
        if not isinstance(first_error, HearthError) or (first_error.reason, first_error.message) != same:
            self._connection.defer(error, self._origin)

    def _stop(self, error: BaseException | None = None) -> None:
        super()._stop(error)
        self._dismiss()

    def _dismiss(self) -> None:
        """Wakes every thread that waits for pieces, so that it stops."""
        for _ in range(self._threads):
            self._arrived.put(None)
