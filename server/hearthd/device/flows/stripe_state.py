"""State of transfers over stripes: the chunks that have arrived or have been sent, and the choice of the next stripe.

Device-handle thread only.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from hearth_proto.frames import Kind, encode
from hearth_proto.stripes import StripeCut, taken
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.flows.stripe_window import StripeStaging, StripeWindow


class StripeChunk(NamedTuple):
    """A chunk that has arrived over a stripe, or is to be sent: `size` bytes of `host`, at byte `offset`."""

    transfer: int
    offset: int
    host: HostBuffer
    size: int
    since: float
    """Monotonic time at which the memory was granted to the client, or the chunk was queued for sending."""


class StripeLike(Protocol):
    """Interface of a stripe (`hearthd.device.channels.stripes.Stripe`) for transfers."""

    def grant(self, transfer: int, host: HostBuffer) -> None:
        """Lends memory for one more chunk of the transfer, and gives the client a credit for it."""
        ...

    def revoke(self, transfer: int) -> list[HostBuffer]:
        """Takes back and returns the memory that was lent to the transfer and is not in use."""
        ...

    def put(self, frame: bytes) -> None:
        """Queues a small frame for the client, without blocking."""
        ...

    def put_chunk(self, transfer: int, offset: int, host: HostBuffer, size: int) -> None:
        """Queues `size` bytes of `host` for sending, as the chunk of a download that starts at byte `offset`.

        The stripe returns the memory when the chunk has been sent, or when the stripe ends.
        """
        ...


class Striped:
    """A transfer over stripes, in either direction."""

    def __init__(self, transfer: int, chunk: int, stripe_staging: StripeStaging) -> None:
        self.transfer = transfer
        self.chunk = chunk
        self.stripe_staging = stripe_staging
        self.cut = StripeCut(0, chunk)
        self.started = False
        self.windows: dict[StripeLike, StripeWindow] = {}

    def begin(self, size: int) -> None:
        """Sets the size of the transfer when its command runs. A second call has no effect."""
        if not self.started:
            self.started = True
            self.cut = StripeCut(size, self.chunk)

    def join(self, stripe: StripeLike) -> None:
        """Adds a stripe to the transfer."""
        self.windows.setdefault(stripe, StripeWindow())

    def abort(self, status: bytes) -> None:
        """Sends ABORT, with the reason, to the client over each stripe; `status` is an encoded Status."""
        frame = encode(Kind.ABORT, status, id=self.transfer)
        for stripe in self.windows:
            stripe.put(frame)

    def next_stripe(self) -> StripeLike | None:
        """Returns the stripe with the most room; None if no stripe has room."""
        best = max(self.windows.items(), key=lambda entry: entry[1].room, default=None)
        return best[0] if best is not None and best[1].room > 0 else None

    @property
    def under_way(self) -> int:
        """Number of chunks that wait for the network."""
        return sum(window.under_way for window in self.windows.values())

    @property
    def room(self) -> bool:
        """True if memory of one more chunk may be lent to wait for the network."""
        return self.stripe_staging.room(self.chunk, alone=not self.under_way)


class StripedUpload(Striped):
    """An upload over stripes."""

    def __init__(self, transfer: int, chunk: int, stripe_staging: StripeStaging) -> None:
        super().__init__(transfer, chunk, stripe_staging)
        self.arrived_chunks: deque[tuple[int, HostBuffer, int]] = deque()
        """Offset, memory and length of chunks that have arrived and have not been submitted to the device."""
        self._received: set[int] = set()

    @property
    def missing_credits(self) -> int:
        """Number of further credits that are needed to receive all chunks; credits already given are subtracted."""
        return self.cut.count - len(self._received) - self.under_way

    def grant(self, stripe: StripeLike, host: HostBuffer) -> None:
        """Lends memory to a stripe for one more chunk."""
        self.windows[stripe].under_way += 1
        self.stripe_staging.mark_lent(host)
        stripe.grant(self.transfer, host)

    def arrived(self, stripe: StripeLike, chunk: StripeChunk, seconds: float) -> None:
        """Accepts a chunk that has arrived `seconds` after its grant; drops a chunk that had arrived before.

        Raises ValueError for an invalid chunk.
        """
        host = chunk.host
        window = self.windows.get(stripe)
        if window is not None:
            window.done(seconds)
        try:
            index = self.cut.index(chunk.offset, chunk.size)
        except ValueError:
            self.stripe_staging.release(host)
            raise
        if index in self._received:
            self.stripe_staging.release(host)
            return
        self._received.add(index)
        self.stripe_staging.take_back(host)
        self.arrived_chunks.append((chunk.offset, host, chunk.size))

    def complete(self) -> None:
        """Reports on every stripe that all chunks have arrived.

        The TAKEN message of a chunk may be lost with the stripe over which the chunk arrived, and no credit follows
        with which the client could send it again.
        """
        for stripe in self.windows:
            stripe.put(taken(self.transfer, self.cut.size))

    def lose(self, stripe: StripeLike) -> None:
        """Removes a broken stripe; the caller frees the stripe's memory."""
        self.windows.pop(stripe, None)

    def drop(self) -> None:
        """Ends the transfer over stripes, and frees its memory. A second call has no effect."""
        for stripe in self.windows:
            for host in stripe.revoke(self.transfer):
                self.stripe_staging.release(host)
        self.windows.clear()
        while self.arrived_chunks:
            self.stripe_staging.release(self.arrived_chunks.popleft()[1])


class StripedDownload(Striped):
    """A download over stripes."""

    def __init__(self, transfer: int, chunk: int, stripe_staging: StripeStaging) -> None:
        super().__init__(transfer, chunk, stripe_staging)
        self._next = 0
        self._resend: deque[int] = deque()
        self._in_flight: dict[StripeLike, set[int]] = {}
        self._confirmed: set[int] = set()

    def join(self, stripe: StripeLike) -> None:
        """Adds a stripe to the transfer, and records the chunks that are sent over it."""
        super().join(stripe)
        self._in_flight.setdefault(stripe, set())

    @property
    def done(self) -> bool:
        """True if the client has all chunks."""
        return self.started and len(self._confirmed) == self.cut.count

    def peek(self) -> int | None:
        """Returns the index of the chunk to be sent next; None if all are under way."""
        while self._resend and self._resend[0] in self._confirmed:
            self._resend.popleft()
        if self._resend:
            return self._resend[0]
        return self._next if self._next < self.cut.count else None

    def issue(self, stripe: StripeLike, host: HostBuffer) -> None:
        """Assigns the next chunk to this stripe and this memory."""
        if self._resend:
            index = self._resend.popleft()
        else:
            index, self._next = self._next, self._next + 1
        self._in_flight[stripe].add(index)
        self.windows[stripe].under_way += 1
        self.stripe_staging.mark_lent(host)

    def fetched(self, stripe: StripeLike, index: int, host: HostBuffer) -> None:
        """Sends a chunk whose bytes have been copied to its memory."""
        if stripe not in self.windows:  # it has broken, or the transfer has ended
            self.stripe_staging.release(host)
        else:
            offset, size = self.cut.span(index)
            stripe.put_chunk(self.transfer, offset, host, size)

    def sent(self, stripe: StripeLike, seconds: float) -> None:
        """Records that a chunk has been written to the stripe; it is sent again if the stripe breaks first."""
        window = self.windows.get(stripe)
        if window is not None:
            window.done(seconds)

    def chunk_received(self, stripe: StripeLike, offset: int) -> None:
        """Records that the client has received a chunk.

        Raises ValueError if the chunk was not sent over this stripe.
        """
        index = self.cut.index(offset, self.cut.span(offset // self.chunk)[1])
        in_flight = self._in_flight.get(stripe)
        if in_flight is None or index not in in_flight:
            raise ValueError(f"the chunk at byte {offset} of transfer {self.transfer} was not sent here")
        in_flight.remove(index)
        self._confirmed.add(index)

    def lose(self, stripe: StripeLike) -> None:
        """Removes a broken stripe. Its chunks are sent again, unless the client has confirmed them."""
        self.windows.pop(stripe, None)
        self._resend.extend(sorted(self._in_flight.pop(stripe, ())))

    def drop(self) -> None:
        """Ends the transfer over stripes. Chunks under way are still sent."""
        self.windows.clear()
        self._in_flight.clear()
