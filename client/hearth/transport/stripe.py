"""A stripe: one TCP connection directly to the device process, used only for the bytes of transfers.

Two threads per stripe, one for each direction, move bytes between the socket and the caller's memory.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hearth_proto import frames
from hearth_proto.frames import STRIPE_OFFSET, FrameError, Kind
from hearth_proto.pipes import STALL_S, Part, Pipe, PipeEnded, receive_within, take_frames, tune
from hearth_proto.stripes import HEAD, OFFSET, TICKET_NAME, StripeHead, chunk_head, read_head, taken

if TYPE_CHECKING:
    import ssl

OPEN_S = 4.0
"""Timeout, in seconds, for a new stripe to go live."""
_KINDS = frozenset({Kind.STRIPE, Kind.TAKEN, Kind.CREDIT, Kind.ABORT})


class StripeTiming(NamedTuple):
    """Time limits of stripes, in seconds."""

    stall: float = STALL_S
    """Time for which the device process may stall while a frame is partly sent or received."""
    idle: float = 60.0
    """Time without a frame after which an idle stripe is closed, because it holds threads at both ends."""
    silent: float = 5.0
    """Time without progress after which a transfer abandons its stripes, once the command stream was resumed: the cause
    of that outage may affect the stripes too, which have no pings."""


TIMING = StripeTiming()
"""The time limits of all stripes, outside of tests."""


class Address(NamedTuple):
    """Address of the device process, its certificate and its limit on chunks."""

    host: str
    port: int
    certificate: bytes
    """DER encoding of the only trusted certificate; empty: no TLS."""
    max_chunk: int


class OutgoingUpload(Protocol):
    """An upload as the sending thread uses it."""

    number: int

    def lend(self, stripe: Stripe, index: int) -> tuple[int, memoryview] | None:
        """Returns offset and bytes of a chunk, valid until `chunk_sent`; None: the chunk is no longer needed.

        Args:
            stripe: Stripe that sends the chunk.
            index: Index of the chunk in the transfer.
        """

    def chunk_sent(self, stripe: Stripe) -> None:
        """Called after `lend` returned a chunk, once its bytes are no longer accessed, even if sending it failed.

        Args:
            stripe: Stripe that has sent the chunk.
        """
        ...


class CarriedTransfer(Protocol):
    """A transfer in flight, as the receiving threads use it."""

    def credit(self, stripe: Stripe, chunks: int) -> None:
        """Called when the device process has room for `chunks` further chunks of an upload.

        Args:
            stripe: Stripe over which the chunks may be sent.
            chunks: Number of further chunks.
        """
        ...

    def chunk_acknowledged(self, stripe: Stripe, offset: int) -> None:
        """Called when the device process has received the chunk of an upload at `offset`.

        Args:
            stripe: Stripe over which the message arrived.
            offset: Offset in bytes; the total size: all chunks have been received.
        """
        ...

    def place(self, stripe: Stripe, offset: int, size: int) -> memoryview | None:
        """Returns the destination of a chunk's bytes, valid until `chunk_placed`; None: the bytes are dropped.

        Args:
            stripe: Stripe over which the chunk arrives.
            offset: Offset of the chunk in bytes.
            size: Size of the chunk in bytes.

        Raises:
            ValueError: The transfer has no such chunk.
        """

    def chunk_placed(self, stripe: Stripe, offset: int, size: int, is_complete: bool) -> None:
        """Called once per `place` that returned memory: the memory is no longer accessed.

        Args:
            stripe: Stripe over which the chunk arrived.
            offset: Offset of the chunk in bytes.
            size: Size of the chunk in bytes.
            is_complete: True if all bytes of the chunk have arrived.
        """
        ...

    def aborted(self, status: bytes) -> None:
        """Called when the device process has ended the transfer prematurely.

        Args:
            status: Serialized `Status` with the reason.
        """
        ...

    def stripe_lost(self, stripe: Stripe) -> None:
        """Called when a stripe has ended, whether or not it carried this transfer.

        Args:
            stripe: Stripe that has ended.
        """
        ...


class StripeObserver(Protocol):
    """Observer of a stripe, called in the stripe's threads."""

    def stripe_opened(self, stripe: Stripe) -> None:
        """Called in the receiving thread once the stripe is open.

        Args:
            stripe: Stripe that can be used from now on.
        """
        ...

    def find(self, transfer: int) -> CarriedTransfer | None:
        """Returns the transfer of this number; None: it has ended.

        Args:
            transfer: Number of the transfer.
        """

    def has_transfers(self) -> bool:
        """True while any transfer is in flight."""

    def stripe_ended(self, stripe: Stripe, reason: str) -> None:
        """Called in the receiving thread as its last step: the stripe has ended, or could not be opened.

        Args:
            stripe: Stripe that has ended.
            reason: Description of the error that ended it; empty without an error.
        """
        ...


class Stripe:
    """A stripe that opens itself in its receiving thread.

    That thread calls the owner's `stripe_opened` if the stripe opens, and `stripe_ended` at the end.
    """

    def __init__(self, address: Address, ticket: bytes, owner: StripeObserver, timing: StripeTiming = TIMING) -> None:
        self.max_chunk = address.max_chunk
        self._address = address
        self._ticket = ticket
        self._owner = owner
        self._timing = timing
        self._connection: socket.socket | None = None
        self._closed = False
        self._outgoing: SimpleQueue[bytes | tuple[OutgoingUpload, int] | None] = SimpleQueue()
        self._sender: threading.Thread | None = None
        self._last_frame_at = time.monotonic()
        threading.Thread(target=self._main, name="hearth-stripe-in", daemon=True).start()

    def put(self, frame: bytes) -> None:
        """Queues a small frame for the sending thread.

        Args:
            frame: Encoded frame.
        """
        self._outgoing.put(frame)

    def put_chunk(self, upload: OutgoingUpload, index: int) -> None:
        """Queues a chunk of an upload for the sending thread.

        Args:
            upload: Upload, which lends the chunk's bytes when they are sent.
            index: Index of the chunk in the transfer.
        """
        self._outgoing.put((upload, index))

    def close(self) -> None:
        """Ends the stripe for both sides; `stripe_ended` is called afterwards. A second call does nothing."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):  # the connection has already ended
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # see `Pipe.shutdown`

    # ---- receiving thread ----

    def _main(self) -> None:
        reason = ""
        try:
            pipe = self._open()
            self._sender = threading.Thread(target=self._send, args=(pipe,), name="hearth-stripe-out", daemon=True)
            self._sender.start()
            self._owner.stripe_opened(self)
            while not self._closed:
                self._frame(pipe)
        except (OSError, FrameError, ValueError) as error:
            reason = str(error) or type(error).__name__
        finally:
            self.close()
            self._outgoing.put(None)
            if self._sender is not None:
                self._sender.join()
            if self._connection is not None:
                self._connection.close()
            self._owner.stripe_ended(self, reason)

    def _open(self) -> Pipe:
        """Connects, presents the ticket and waits for the device process's first frame.

        Raises `OSError` or `FrameError`.
        """
        address, deadline = self._address, time.monotonic() + OPEN_S
        self._connection = connection = socket.create_connection((address.host, address.port), OPEN_S)
        tune(connection)
        if address.certificate:
            connection.sendall(frames.encode(Kind.TICKET, self._ticket[:TICKET_NAME]))
            connection.settimeout(max(1e-3, deadline - time.monotonic()))
            self._connection = connection = tls = _within_tls(connection, address.certificate)
            connection.sendall(frames.encode(Kind.TICKET, self._ticket[TICKET_NAME:]))
        else:
            tls = None
            connection.sendall(frames.encode(Kind.TICKET, self._ticket))
        head = receive_within(connection, HEAD, deadline)
        if read_head(head, 0, frozenset({Kind.LIVE})).id or self._closed:
            raise PipeEnded("the connection was closed while it was being opened")
        if tls is None:
            return Pipe(connection, self._timing.stall)
        from hearth_proto.tls_pipe import TlsPipe

        return TlsPipe(tls, self._timing.stall)

    def _frame(self, pipe: Pipe) -> None:
        head = bytearray(HEAD + OFFSET)
        view = memoryview(head)
        pipe.receive(view[:HEAD], self._is_kept_open)
        self._last_frame_at = time.monotonic()
        frame = read_head(head[:HEAD], self.max_chunk, _KINDS)
        carried = self._owner.find(frame.id)
        if frame.kind == Kind.CREDIT:
            if carried is not None:
                carried.credit(self, frame.flags)
        elif frame.kind == Kind.ABORT:
            status = bytearray(frame.length)
            pipe.receive(memoryview(status))
            if carried is not None:
                carried.aborted(bytes(status))
        else:
            pipe.receive(view[HEAD:])
            (offset,) = STRIPE_OFFSET.unpack_from(head, HEAD)
            if frame.kind == Kind.STRIPE:
                self._chunk(pipe, frame, offset, carried)
            elif carried is not None:
                carried.chunk_acknowledged(self, offset)

    def _is_kept_open(self) -> bool:
        """True if the stripe is kept open.

        That is so while a transfer is in flight, and for `StripeTiming.idle` seconds after the last frame.
        """
        return self._owner.has_transfers() or time.monotonic() - self._last_frame_at < self._timing.idle

    def _chunk(self, pipe: Pipe, frame: StripeHead, offset: int, carried: CarriedTransfer | None) -> None:
        size = frame.length - OFFSET
        destination = carried.place(self, offset, size) if carried is not None else None
        if carried is None or destination is None:
            pipe.skip(size)
        else:
            is_complete = False
            try:
                pipe.receive(destination)
                is_complete = True
            finally:
                del destination
                carried.chunk_placed(self, offset, size, is_complete)
        self._outgoing.put(taken(frame.id, offset))

    # ---- sending thread ----

    def _send(self, pipe: Pipe) -> None:
        try:
            while self._send_next(pipe):
                pass
        except OSError:
            pipe.shutdown()  # the receiving thread then ends, after it has joined this one

    def _send_next(self, pipe: Pipe) -> bool:
        """Waits for the next frames and sends them, and keeps no reference to them. Returns False at the end."""
        taken_frames = take_frames(self._outgoing)
        if taken_frames is None:
            return False
        parts, chunk = taken_frames
        if chunk is not None:
            self._send_chunk(pipe, parts, *chunk)
        else:
            pipe.send(parts)
        return True

    def _send_chunk(self, pipe: Pipe, parts: list[Part], upload: OutgoingUpload, index: int) -> None:
        chunk = upload.lend(self, index)
        if chunk is not None:
            offset, data = chunk
            try:
                pipe.send([*parts, chunk_head(upload.number, offset, len(data)), data])
            finally:
                del data, chunk
                upload.chunk_sent(self)
        elif parts:
            pipe.send(parts)


def _within_tls(connection: socket.socket, certificate: bytes) -> ssl.SSLSocket:
    """Wraps the connection in TLS, with `certificate` as the only trusted one. Raises `OSError`."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the peer is identified by the certificate's bytes, not by a name
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=certificate)
    tls = context.wrap_socket(connection)
    if tls.getpeercert(binary_form=True) != certificate:
        tls.close()
        raise ssl.SSLError("the device process presented another certificate than the daemon had announced")
    return tls
