"""Stripe: a client's connection into the device process that carries only the bytes of transfers.

Two threads move the bytes between the socket and memory lent by the device-handle thread: one receives, one sends. They
access no other state. `post` passes their events to the device-handle thread, where `Stripes` handles them; it also
adopts the connections that the front hands over.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from hearth_proto.frames import STRIPE_OFFSET, FrameError, Kind, encode
from hearth_proto.pipes import STALL_S, Part, Pipe, PipeEnded, take_frames, tune
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.stripes import CHUNK_BYTES, HEAD, OFFSET, StripeHead, chunk_head, credit, read_head, taken
from hearth_proto.tls_pipe import TlsPipe
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.channels.stripe_tls import Guard, Guards
from hearthd.device.flows.stripe_state import StripeChunk
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.platform.event_loop import Loop
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.platform.log import ProcessLog
from hearthd.device.platform.spin_policy import at_most
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.transfers import Transfers

STRIPE = "stripe"
"""Kind of the message on the descriptors socket that carries a stripe."""

MAX_STRIPES = 32
"""Limit of stripes of one session."""

MAX_CHUNK = 16 << 20

OPEN_TIMEOUT_S = 5.0
"""Seconds that the handshake may take, and that a stripe waits for its channel to be opened."""

MAX_UNHANDLED = 64
"""Limit of received frames that the device-handle thread has not handled yet; the receiving thread blocks beyond it."""

UNREAD = 4096
"""Limit of unsent frames; a client that requests more without reading is disconnected."""

REMEMBERED = 256
"""Number of ended transfers remembered because chunks of them may still arrive."""

_KINDS = frozenset({Kind.UPLOAD, Kind.DOWNLOAD, Kind.STRIPE, Kind.TAKEN})


class Stripe:
    """A stripe. `grant`, `revoke`, `put`, `put_chunk` and `begin` are called on the device-handle thread."""

    def __init__(
        self,
        end: socket.socket,
        channel: int,
        max_chunk: int,
        guard: Guard | None,
        owner: Stripes,
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
        self._out: SimpleQueue[bytes | StripeChunk | None] = SimpleQueue()
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
        self._out.put(StripeChunk(transfer, offset, host, size, time.monotonic()))

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
            pipe = self._open()
            while not self._closed.is_set():
                self._frame(pipe)
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
            if isinstance(item, StripeChunk):
                buffers.append(item.host)
        self._owner.stripe_ended(self, reason, buffers)

    def _open(self) -> Pipe:
        tune(self._end)
        if self._guard is not None:
            self._end = inside = self._guard(self._end, time.monotonic() + OPEN_TIMEOUT_S)
            pipe: Pipe = TlsPipe(inside, self._stall)
        else:
            pipe = Pipe(self._end, self._stall)
        if self._closed.is_set():
            raise PipeEnded
        self._sender = threading.Thread(target=self._send, args=(pipe,), name="stripe-out", daemon=True)
        self._sender.start()
        self._post_event(lambda: self._owner.ready(self))
        return pipe

    def _post_event(self, task: Callable[[], object]) -> None:
        self._unhandled.acquire()

        def run() -> None:
            self._unhandled.release()
            task()

        self._post(run)

    def _idle(self) -> bool:
        """True if no chunk is expected from the client."""
        return not self._credits

    def _frame(self, pipe: Pipe) -> None:
        owner = self._owner
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
        if claimed is None:
            pipe.skip(size)
            return
        host, granted = claimed
        chunk = StripeChunk(frame.id, offset, host, size, granted)
        if size > host.size:
            self._post_event(partial(self._owner.arrived, self, chunk, 0.0))
            pipe.skip(size)
            return
        try:
            pipe.receive(host.view[:size])
        except BaseException:
            self._interrupted.append(host)
            raise
        self._post_event(partial(self._owner.arrived, self, chunk, time.monotonic() - granted))

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

    def _send_chunk(self, pipe: Pipe, parts: list[Part], chunk: StripeChunk) -> None:
        parts.append(chunk_head(chunk.transfer, chunk.offset, chunk.size))
        parts.append(chunk.host.view[: chunk.size])
        try:
            pipe.send(parts)
        except BaseException:
            self._interrupted.append(chunk.host)
            raise
        self._post(partial(self._owner.sent, self, chunk, time.monotonic() - chunk.since))


class Stripes:
    """Stripes by channel. Device-handle thread only."""

    def __init__(
        self,
        loop: Loop,
        sessions: Callable[[int], DeviceSession | None],
        transfers: Transfers,
        journal: ProcessLog,
        descriptors: DescriptorSocket,
    ) -> None:
        self._loop = loop
        self._sessions = sessions
        self._transfers = transfers
        self._journal = journal
        self.stall = STALL_S
        """Seconds for which the client of a later stripe may pause in the middle of a frame."""
        self._guards = Guards()
        self._by_channel: dict[int, set[Stripe]] = {}
        self._waiting: dict[Stripe, float] = {}
        """Stripes whose channel has not been opened yet, each with the monotonic time until which it is kept: the link
        and the descriptors socket are not ordered."""
        transfers.on_close = self._closed
        transfers.stripes = lambda: sum(map(len, self._by_channel.values()))
        descriptors.register(STRIPE, self.handed_over)

    def opened(self, channel: int) -> None:
        """Begins the stripes that were waiting for this channel."""
        for stripe in [waiting for waiting in self._waiting if waiting.channel == channel]:
            del self._waiting[stripe]
            stripe.begin()

    def max_sleep(self, limit: float | None) -> float | None:
        """Returns the longest time in seconds that the loop may sleep, at most `limit`; None: no limit.

        Closes stripes whose channel was not opened in time.
        """
        if not self._waiting:
            return limit
        now = time.monotonic()
        for stripe, deadline in tuple(self._waiting.items()):
            if now >= deadline:
                del self._waiting[stripe]
                self._journal.warning("stripe", channel=stripe.channel, error="its channel was never opened")
                stripe.close()
        return at_most(max(0.0, min(self._waiting.values(), default=now) - now), limit)

    def close(self) -> None:
        """Closes all stripes, because the process ends."""
        for stripes in self._by_channel.values():
            for stripe in stripes:
                stripe.close()

    def _closed(self, session: DeviceSession) -> None:
        for stripe in self._by_channel.get(session.channel, ()):
            stripe.close()

    def handed_over(self, body: dict[str, Any], files: list[int]) -> None:
        """Adopts the socket of a stripe, which the front has handed over on the descriptors socket.

        Closes the socket and logs a warning if the message is invalid or the session has too many stripes.
        """
        for surplus in files[1:]:
            os.close(surplus)
        if not files:
            self._journal.warning("stripe", error="it arrived without its socket")
            return
        end = socket.socket(fileno=files[0])
        try:
            channel, max_chunk = int(body["channel"]), int(body["max_chunk_bytes"])
            if not 0 < max_chunk <= MAX_CHUNK:
                raise ValueError(f"chunks of {max_chunk} bytes")
            guard = self._guards.make(body.get("tls"))
        except (KeyError, TypeError, ValueError, OSError) as error:  # ssl.SSLError is an OSError
            self._journal.warning("stripe", error=f"the front's message cannot be used: {error!r}")
            end.close()
            return
        stripes = self._by_channel.setdefault(channel, set())
        if len(stripes) >= MAX_STRIPES:
            self._journal.warning("stripe", channel=channel, error=f"the session has {MAX_STRIPES} already")
            end.close()
            return
        stripes.add(Stripe(end, channel, max_chunk, guard, self, self._loop.post, self.stall))

    # ---- events of a stripe ----

    def ready(self, stripe: Stripe) -> None:
        """Begins a stripe whose connection is established, TLS included.

        Keeps it waiting for at most `OPEN_TIMEOUT_S` if its channel is not open yet.
        """
        if self._sessions(stripe.channel) is not None:
            stripe.begin()
        else:
            self._waiting[stripe] = time.monotonic() + OPEN_TIMEOUT_S

    def announced(self, stripe: Stripe, kind: int, transfer: int, chunk: int) -> None:
        """Assigns the stripe to a transfer whose chunks the client will send (UPLOAD) or receive (DOWNLOAD) over it.

        If that is refused, sends the client ABORT with the reason. `chunk` is the largest size of the chunks in bytes.
        Closes the stripe if the client did not wait until the stripe had started.
        """
        session = self._sessions(stripe.channel)
        if session is None or not stripe.started:
            stripe.close()
            return
        try:
            if chunk > stripe.max_chunk:
                raise Refusal(
                    Reason.INVALID_ARGUMENT,
                    f"chunks of {chunk} bytes are announced; the maximum is {stripe.max_chunk}",
                    fix="cut the transfer into chunks of OpenBulkResponse.max_chunk_bytes at most",
                    details={"requested": chunk, "allowed": stripe.max_chunk},
                )
            if kind == Kind.UPLOAD:
                self._transfers.striped.announce(session, UploadFlow, transfer, chunk, stripe)
            else:
                self._transfers.striped.announce(session, DownloadFlow, transfer, chunk, stripe)
        except Refusal as refusal:
            stripe.put(encode(Kind.ABORT, refusal.to_status().SerializeToString(), id=transfer))

    def arrived(self, stripe: Stripe, chunk: StripeChunk, seconds: float) -> None:
        """Passes the chunk to its upload and confirms it to the client, or drops it if the upload does not want it.

        The chunk arrived `seconds` after the grant of the memory. If it is larger than its memory, the client has
        violated the protocol: the bytes were dropped, and `seconds` is 0.
        """
        session = self._sessions(stripe.channel)
        if session is not None and self._transfers.striped.chunk_arrived(session, stripe, chunk, seconds):
            stripe.put(taken(chunk.transfer, chunk.offset))
        else:
            self._transfers.stripe_staging.release(chunk.host)

    def chunk_received(self, stripe: Stripe, transfer: int, offset: int) -> None:
        """Notifies the download that the client has the chunk at byte `offset`.

        Closes the stripe if the chunk was never sent.
        """
        session = self._sessions(stripe.channel)
        if session is not None:
            try:
                self._transfers.striped.chunk_received(session, transfer, stripe, offset)
            except ValueError as error:
                self._journal.warning("stripe", channel=stripe.channel, session=session.id, error=str(error))
                stripe.close()

    def sent(self, stripe: Stripe, chunk: StripeChunk, seconds: float) -> None:
        """Returns the memory of a chunk that was written to the socket `seconds` after it was queued.

        Notifies the download.
        """
        self._transfers.stripe_staging.release(chunk.host)
        session = self._sessions(stripe.channel)
        if session is not None:
            self._transfers.striped.chunk_written(session, chunk.transfer, stripe, seconds)

    def stripe_ended(self, stripe: Stripe, reason: str, buffers: list[HostBuffer]) -> None:
        """Removes the stripe after its last event, returns its memory, and notifies its transfers.

        `reason` is the error that ended the stripe, which is logged; it is empty if either side closed the stripe.
        """
        self._waiting.pop(stripe, None)
        stripes = self._by_channel.get(stripe.channel, set())
        stripes.discard(stripe)
        if not stripes:
            self._by_channel.pop(stripe.channel, None)
        for host in buffers:
            self._transfers.stripe_staging.release(host)
        session = self._sessions(stripe.channel)
        if session is not None:
            self._transfers.lost(session, stripe)
        if reason:
            session_id = session.id if session is not None else ""
            self._journal.warning("stripe", channel=stripe.channel, session=session_id, error=f"closed: {reason}")
