"""Transfers whose bytes go over stripes: which chunks have come or gone, and over which stripe the next one goes.

Belongs to the device-handle thread.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from hearth_proto.frames import HEADER, Kind
from hearth_proto.stripes import StripeCut, taken
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.flows.stripe_window import StripeStaging, StripeWindow


class StripeLike(Protocol):
    """What a transfer asks of a stripe."""

    def grant(self, transfer: int, host: HostBuffer) -> None: ...
    def revoke(self, transfer: int) -> list[HostBuffer]: ...
    def put(self, frame: bytes) -> None: ...
    def put_chunk(self, transfer: int, offset: int, host: HostBuffer, size: int) -> None: ...


class Striped:
    """What both ways have in common."""

    def __init__(self, transfer: int, chunk: int, stripe_staging: StripeStaging) -> None:
        self.transfer = transfer
        self.chunk = chunk
        self.stripe_staging = stripe_staging
        self.cut = StripeCut(0, chunk)
        self.begun = False
        self.windows: dict[StripeLike, StripeWindow] = {}
        self.dropped = False

    def begin(self, size: int) -> None:
        """Its command has its turn, and says how many bytes there are. A second time does nothing."""
        if not self.begun:
            self.begun = True
            self.cut = StripeCut(size, self.chunk)

    def join(self, stripe: StripeLike) -> None:
        """It may go over this one, too."""
        self.windows.setdefault(stripe, StripeWindow())

    def abort(self, status: bytes) -> None:
        """Tells the client why it ends before its end; payload: a Status."""
        frame = HEADER.pack(len(status), Kind.ABORT, 0, 0, self.transfer) + status
        for stripe in self.windows:
            stripe.put(frame)

    def next_stripe(self) -> StripeLike | None:
        """The one with the most room; None: there is none with any."""
        best = max(self.windows.items(), key=lambda each: each[1].room, default=None)
        return best[0] if best is not None and best[1].room > 0 else None

    @property
    def under_way(self) -> int:
        """Chunks that wait for the network."""
        return sum(window.under_way for window in self.windows.values())

    @property
    def room(self) -> bool:
        """Whether the memory of one more chunk may wait for the network."""
        return self.stripe_staging.room(self.chunk, alone=not self.under_way)


class StripedUpload(Striped):
    """Bytes on their way in."""

    def __init__(self, transfer: int, chunk: int, stripe_staging: StripeStaging) -> None:
        super().__init__(transfer, chunk, stripe_staging)
        self.landed: deque[tuple[int, HostBuffer, int]] = deque()
        """Offset, memory and length of the chunks that have come and were not given to the device."""
        self._got: set[int] = set()

    @property
    def wanted(self) -> int:
        """Credits that would bring something: those that are out may yet."""
        return self.cut.count - len(self._got) - self.under_way

    def grant(self, stripe: StripeLike, host: HostBuffer) -> None:
        """Lets one more chunk come, into this memory."""
        self.windows[stripe].under_way += 1
        self.stripe_staging.lend(host)
        stripe.grant(self.transfer, host)

    def arrived(self, stripe: StripeLike, offset: int, size: int, host: HostBuffer, seconds: float) -> None:
        """A chunk is in its memory; one that had come before is dropped. Raises ValueError for what is none."""
        window = self.windows.get(stripe)
        if window is not None:
            window.done(seconds)
        try:
            index = self.cut.index(offset, size)
        except ValueError:
            self.stripe_staging.give_back(host)
            raise
        if index in self._got:
            self.stripe_staging.give_back(host)
            return
        self._got.add(index)
        self.stripe_staging.take(host)
        self.landed.append((offset, host, size))

    def complete(self) -> None:
        """All of it has come. Says so on every stripe: the TAKEN of a chunk may be lost with the stripe that brought
        it, and no credit follows by which the client could send it again."""
        for stripe in self.windows:
            stripe.put(taken(self.transfer, self.cut.size))

    def lose(self, stripe: StripeLike) -> None:
        """It broke; its memory is given back by who says so."""
        self.windows.pop(stripe, None)

    def drop(self) -> None:
        """It is over, or goes another way. A second call does nothing."""
        self.dropped = True
        for stripe in self.windows:
            for host in stripe.revoke(self.transfer):
                self.stripe_staging.give_back(host)
        self.windows.clear()
        while self.landed:
            self.stripe_staging.give_back(self.landed.popleft()[1])


class StripedDownload(Striped):
    """Bytes on their way out."""

    def __init__(self, transfer: int, chunk: int, stripe_staging: StripeStaging) -> None:
        super().__init__(transfer, chunk, stripe_staging)
        self._next = 0
        self._again: deque[int] = deque()
        self._out: dict[StripeLike, set[int]] = {}
        self._taken: set[int] = set()

    def join(self, stripe: StripeLike) -> None:
        super().join(stripe)
        self._out.setdefault(stripe, set())

    @property
    def done(self) -> bool:
        """Whether the client has all of it."""
        return self.begun and len(self._taken) == self.cut.count

    def peek(self) -> int | None:
        """The chunk that goes next; None: all are on their way."""
        while self._again and self._again[0] in self._taken:
            self._again.popleft()
        if self._again:
            return self._again[0]
        return self._next if self._next < self.cut.count else None

    def issue(self, stripe: StripeLike, host: HostBuffer) -> None:
        """That one does, over this stripe, from this memory."""
        if self._again:
            index = self._again.popleft()
        else:
            index, self._next = self._next, self._next + 1
        self._out[stripe].add(index)
        self.windows[stripe].under_way += 1
        self.stripe_staging.lend(host)

    def fetched(self, stripe: StripeLike, index: int, host: HostBuffer) -> None:
        """Its bytes are there."""
        if self.dropped or stripe not in self.windows:
            self.stripe_staging.give_back(host)
        else:
            offset, size = self.cut.span(index)
            stripe.put_chunk(self.transfer, offset, host, size)

    def sent(self, stripe: StripeLike, seconds: float) -> None:
        """One has gone out; it may still have to go again."""
        window = self.windows.get(stripe)
        if window is not None:
            window.done(seconds)

    def taken(self, stripe: StripeLike, offset: int) -> None:
        """The client has one. Raises ValueError for what it was not sent."""
        index = self.cut.index(offset, self.cut.span(offset // self.chunk)[1])
        out = self._out.get(stripe)
        if out is None or index not in out:
            raise ValueError(f"the chunk at byte {offset} of transfer {self.transfer} was not sent here")
        out.remove(index)
        self._taken.add(index)

    def lose(self, stripe: StripeLike) -> None:
        """It broke: what it had is sent again, unless the client said that it came."""
        self.windows.pop(stripe, None)
        self._again.extend(sorted(self._out.pop(stripe, ())))

    def drop(self) -> None:
        """It is over, or goes another way. What is under way goes out all the same."""
        self.dropped = True
        self.windows.clear()
        self._out.clear()
