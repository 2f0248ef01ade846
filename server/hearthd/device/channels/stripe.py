"""Stripe: a client's connection into the device process that carries only the bytes of transfers.

Two threads move the bytes between the socket and memory lent by the device-handle thread: one receives, one sends. They
access no other state. `post` passes their events to the device-handle thread.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from hearth_proto.frames import STRIPE_OFFSET, FrameError, Kind, encode
from hearth_proto.pipes import STALL_S, Part, Pipe, PipeEnded, take_frames, tune
from hearth_proto.stripes import CHUNK_BYTES, HEAD, OFFSET, StripeHead, chunk_head, credit, read_head
from hearth_proto.tls_pipe import TlsPipe
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.channels.stripe_tls import Guard

OPEN_TIMEOUT_S = 5.0
"""Seconds that the handshake may take, and that a stripe waits for its channel to be opened."""

MAX_UNHANDLED = 64
"""Limit of received frames that the device-handle thread has not handled yet; the receiving thread blocks beyond it."""

UNREAD = 4096
"""Limit of unsent frames; a client that requests more without reading is disconnected."""

REMEMBERED = 256
"""Number of ended transfers remembered because chunks of them may still arrive."""

_KINDS = frozenset({Kind.UPLOAD, Kind.DOWNLOAD, Kind.STRIPE, Kind.TAKEN})


class OutgoingChunk(NamedTuple):
    """A chunk to be sent. `queued` is the monotonic time at which it was queued."""

    transfer: int
    offset: int
    host: HostBuffer
    size: int
    queued: float


class StripeOwner(Protocol):
    """Receiver of the stripe's events. All methods are called on the device-handle thread."""

    def ready(self, stripe: Stripe) -> None:
        """Called once, when the connection is established, TLS included. `Stripe.begin` is called now or later."""
        ...

    def announced(self, stripe: Stripe, kind: int, transfer: int, chunk: int) -> None:
        """Called when the client will send (UPLOAD) or receive (DOWNLOAD) chunks of a transfer over this stripe.

        `chunk` is the largest size of its chunks in bytes, which is not checked against `max_chunk` yet.
        """
        ...

    def arrived(self, stripe: Stripe, transfer: int, offset: int, size: int, host: HostBuffer, seconds: float) -> None:
        """Called when a chunk has arrived in the memory `host`, which the owner takes back.

        The chunk of `size` bytes belongs at byte `offset` of the transfer. `seconds` is the time from the grant of the
        memory to the arrival. If `size` exceeds that of `host`, the client has violated the protocol: the chunk was
        dropped, and `seconds` is 0.
        """
        ...

    def chunk_received(self, stripe: Stripe, transfer: int, offset: int) -> None:
        """Called when the client confirms that it has received the chunk at byte `offset` of the transfer."""
        ...

    def sent(self, stripe: Stripe, chunk: OutgoingChunk, seconds: float) -> None:
        """Called when a chunk has been written to the socket, `seconds` after it was queued.

        The owner takes the chunk's memory back.
        """
        ...

    def stripe_ended(self, stripe: Stripe, reason: str, buffers: list[HostBuffer]) -> None:
        """Called when the stripe has ended, as the last event.

        `reason` is the error that ended the stripe; empty if either side closed it. The owner takes back the memory of
        `buffers`.
        """
        ...


class Stripe:
    """A stripe. `grant`, `revoke`, `put`, `put_chunk` and `begin` are called on the device-handle thread."""

    def __init__(
        self,
        end: socket.socket,
        channel: int,
        max_chunk: int,
        guard: Guard | None,
        owner: StripeOwner,
        post: Callable[[Callable[[], object]], None],
        stall: float = STALL_S,
    ) -> None:
        """Starts the receiving thread.

        `stall` is the time, in seconds, for which the client may stop in the middle of sending or receiving a frame.
        """
        self.channel = channel
        self.max_chunk = max_chunk
        self.started = False
        self._stall = stall
        self._end = end
        self._guard = guard
        self._owner = owner
        self._post = post
        self._pipe: Pipe | None = None
        self._out: SimpleQueue[bytes | OutgoingChunk | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._granted: dict[int, deque[tuple[HostBuffer, float]]] = {}
        self._revoked: OrderedDict[int, int] = OrderedDict()
        self._credits = 0
        self._unhandled = threading.Semaphore(MAX_UNHANDLED)
        self._closed = threading.Event()
        self._interrupted: list[HostBuffer] = []
        """Memory that a thread was using when the connection broke."""
        self._sender: threading.Thread | None = None
        threading.Thread(target=self._main, name="stripe-in", daemon=True).start()

    # ---- called on the device-handle thread ----

    def begin(self) -> None:
        """Notifies the client that it may use the stripe, because the channel is open."""
        self.started = True
        self.put(encode(Kind.LIVE))

    def grant(self, transfer: int, host: HostBuffer) -> None:
        """Lends memory for one more chunk of the transfer."""
        with self._lock:
            self._granted.setdefault(transfer, deque()).append((host, time.monotonic()))
            self._credits += 1
        self._out.put(credit(transfer, 1))

    def revoke(self, transfer: int) -> list[HostBuffer]:
        """Takes back and returns the memory that was lent to the transfer and is not in use.

        Chunks of it that still arrive are dropped.
        """
        with self._lock:
            granted = self._granted.pop(transfer, None)
            if not granted:
                return []
            self._credits -= len(granted)
            self._revoked[transfer] = self._revoked.get(transfer, 0) + len(granted)
            while len(self._revoked) > REMEMBERED:
                self._revoked.popitem(last=False)
            return [host for host, _ in granted]

    def put(self, frame: bytes) -> None:
        """Queues a small frame. Closes the stripe if the client does not read its frames."""
        if self._out.qsize() < UNREAD:
            self._out.put(frame)
        else:
            self.close()

    def put_chunk(self, transfer: int, offset: int, host: HostBuffer, size: int) -> None:
        """Queues `size` bytes of lent memory for sending; `sent` or `stripe_ended` returns the memory."""
        self._out.put(OutgoingChunk(transfer, offset, host, size, time.monotonic()))

    def close(self) -> None:
        """Ends the stripe; `stripe_ended` is called afterwards. Further calls have no effect."""
        self._closed.set()
        self._unhandled.release()
        with contextlib.suppress(OSError):  # the connection has ended already
            socket.socket.shutdown(self._end, socket.SHUT_RDWR)  # see `Pipe.shutdown`

    # ---- on the receiving thread ----

    def _main(self) -> None:
        reason = ""
        try:
            self._open()
            while not self._closed.is_set():
                self._frame()
        except PipeEnded:
            pass
        except (OSError, FrameError, ValueError) as error:
            reason = str(error)
        except Exception as error:  # an internal error ends this stripe only
            reason = f"an error inside the daemon: {type(error).__name__}: {error}"
        self.close()
        self._out.put(None)
        if self._sender is not None:
            self._sender.join()
        self._end.close()
        self._post(lambda: self._finish(reason))

    def _finish(self, reason: str) -> None:
        """Returns all memory that the stripe still holds to the owner. Device-handle thread."""
        buffers = [host for granted in self._granted.values() for host, _ in granted] + self._interrupted
        self._granted.clear()
        while not self._out.empty():
            item = self._out.get()
            if isinstance(item, OutgoingChunk):
                buffers.append(item.host)
        self._owner.stripe_ended(self, reason, buffers)

    def _open(self) -> None:
        tune(self._end)
        if self._guard is not None:
            self._end = inside = self._guard.open(self._end, time.monotonic() + OPEN_TIMEOUT_S)
            pipe: Pipe = TlsPipe(inside, self._stall)
        else:
            pipe = Pipe(self._end, self._stall)
        self._pipe = pipe
        if self._closed.is_set():
            raise PipeEnded
        self._sender = threading.Thread(target=self._send, args=(pipe,), name="stripe-out", daemon=True)
        self._sender.start()
        self._post_event(lambda: self._owner.ready(self))

    def _post_event(self, task: Callable[[], object]) -> None:
        self._unhandled.acquire()

        def run() -> None:
            self._unhandled.release()
            task()

        self._post(run)

    def _idle(self) -> bool:
        """True if no chunk is expected from the client."""
        return not self._credits

    def _frame(self) -> None:
        pipe, owner = self._pipe, self._owner
        assert pipe is not None
        head = bytearray(HEAD + OFFSET)
        view = memoryview(head)
        pipe.receive(view[:HEAD], self._idle)
        frame = read_head(head[:HEAD], self.max_chunk, _KINDS)
        pipe.receive(view[HEAD:])
        kind, transfer = frame.kind, frame.id
        if kind == Kind.STRIPE:
            (offset,) = STRIPE_OFFSET.unpack_from(head, HEAD)
            self._chunk(pipe, frame, offset)
        elif kind == Kind.TAKEN:
            (offset,) = STRIPE_OFFSET.unpack_from(head, HEAD)
            self._post_event(partial(owner.chunk_received, self, transfer, offset))
        else:
            (chunk,) = CHUNK_BYTES.unpack_from(head, HEAD)
            self._post_event(partial(owner.announced, self, kind, transfer, chunk))

    def _chunk(self, pipe: Pipe, frame: StripeHead, offset: int) -> None:
        size = frame.length - OFFSET
        claimed = self._claim(frame.id)
        if claimed is None or size > claimed[0].size:
            if claimed is not None:
                self._post_event(partial(self._owner.arrived, self, frame.id, offset, size, claimed[0], 0.0))
            pipe.skip(size)
            return
        host, granted = claimed
        try:
            pipe.receive(host.view[:size])
        except BaseException:
            self._interrupted.append(host)
            raise
        self._post_event(partial(self._owner.arrived, self, frame.id, offset, size, host, time.monotonic() - granted))

    def _claim(self, transfer: int) -> tuple[HostBuffer, float] | None:
        """Returns the memory for a chunk and the time at which it was lent; None if the chunk is no longer wanted.

        Raises `FrameError` if no credit was ever given for the chunk.
        """
        with self._lock:
            granted = self._granted.get(transfer)
            if granted:
                self._credits -= 1
                return granted.popleft()
            revoked = self._revoked.get(transfer, 0)
            if not revoked:
                raise FrameError(f"a chunk of transfer {transfer} arrived without a credit")
            if revoked > 1:
                self._revoked[transfer] = revoked - 1
            else:
                del self._revoked[transfer]
            return None

    # ---- on the sending thread ----

    def _send(self, pipe: Pipe) -> None:
        try:
            while self._send_next(pipe):
                pass
        except OSError:
            pipe.shutdown()  # the receiving thread then ends, and joins this thread

    def _send_next(self, pipe: Pipe) -> bool:
        """Waits for the next frames and sends them, and keeps no reference to them. Returns False at the end."""
        taken_frames = take_frames(self._out)
        if taken_frames is None:
            return False
        parts, chunk = taken_frames
        if chunk is None:
            pipe.send(parts)
        else:
            self._send_chunk(pipe, parts, chunk)
        return True

    def _send_chunk(self, pipe: Pipe, parts: list[Part], chunk: OutgoingChunk) -> None:
        parts.append(chunk_head(chunk.transfer, chunk.offset, chunk.size))
        parts.append(chunk.host.view[: chunk.size])
        try:
            pipe.send(parts)
        except BaseException:
            self._interrupted.append(chunk.host)
            raise
        self._post(partial(self._owner.sent, self, chunk, time.monotonic() - chunk.queued))
