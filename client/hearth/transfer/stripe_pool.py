"""Stripes of one connection to a device: opened for the first large array, and kept for later ones.

If stripes are not available, bytes travel over Upload and Download streams. The client requests stripes again after a
while, unless the daemon has none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hearth.errors import HearthError
from hearth.transport.stripe import OPEN_S, TIMING, Address, Stripe, StripeTiming
from hearth_proto.v1 import device_pb2

if TYPE_CHECKING:
    from hearth.session.connection import Connection
    from hearth.transport.stripe import CarriedTransfer

_GATHER_S = 0.25
"""Seconds for which the first open stripe waits for the others before it is used."""
RETRY_S = 30.0
"""Seconds until stripes are requested again after none went live, or fewer than requested. Doubles each time that none
did, up to `_MAX_RETRY_S`."""
_MAX_RETRY_S = 600.0


class StripesView(NamedTuple):
    """State of a connection's stripes, for tests and diagnostics."""

    live: int
    """Number of open stripes."""
    refused: bool
    """True if the daemon has no stripes: they are not requested again."""


class Route(NamedTuple):
    """Open stripes for one transfer."""

    pool: Stripes
    stripes: list[Stripe]
    generation: int
    """Generation of the device process that the stripes lead to."""
    chunk: int
    """Size of the transfer's chunks, in bytes."""


class Stripes:
    """Pool of the stripes of one connection. Thread-safe."""

    def __init__(self, connection: Connection, retry_s: float = RETRY_S, timing: StripeTiming = TIMING) -> None:
        """Creates an empty pool. `retry_s`: seconds until stripes are requested again after none went live."""
        self.timing = timing
        """Time limits of the stripes, and of transfers over them."""
        self._connection = connection
        self._opening = threading.Lock()  # one thread opens stripes, and other threads wait for them
        self._change = threading.Condition()
        self._live: list[Stripe] = []
        self._pending: set[Stripe] = set()
        self._generation = 0
        self._rotation = 0
        self._not_before = 0.0
        self._first_retry_s = self._retry_s = retry_s
        self._refused = False
        self._closed = False
        self._transfers: dict[int, CarriedTransfer] = {}

    def open(self, generation: int, count: int) -> list[Stripe]:
        """Returns stripes to a device process; an empty list: none are available now. Blocks while stripes are opened.

        Args:
            generation: Generation of the device process.
            count: Maximum number of stripes.
        """
        with self._opening:
            with self._change:
                if generation < self._generation:
                    return []  # the requested process has ended
                if generation > self._generation:
                    self._close_all()
                    self._generation, self._not_before, self._retry_s = generation, 0.0, self._first_retry_s
                missing = count - len(self._live)
                may_open = not (self._refused or self._closed) and time.monotonic() >= self._not_before
            if missing > 0 and may_open:
                self._open(missing)
            with self._change:
                # Rotates, so that small transfers, which use few stripes, do not all use the same ones.
                self._rotation += 1
                start = self._rotation % len(self._live) if self._live else 0
                return (self._live[start:] + self._live[:start])[:count]

    def _open(self, count: int) -> None:
        target_count = len(self._live) + count
        request = device_pb2.OpenBulkRequest(
            session_token=self._connection.token,
            device=self._connection.ordinal,
            generation=self._generation,
            stripes=count,
        )
        try:
            answer = self._connection.transport.open_bulk(request)
        except HearthError as error:
            self._refused = error.reason == "UNSUPPORTED"
            self._postpone()
            return
        host = answer.host or host_of(self._connection.transport.target)
        address = Address(host, answer.port, answer.certificate, answer.max_chunk_bytes)
        deadline = time.monotonic() + OPEN_S
        with self._change:
            for ticket in answer.tickets:
                self._pending.add(Stripe(address, ticket, self, self.timing))
            while self._pending and (remaining := deadline - time.monotonic()) > 0:
                if self._live:
                    deadline = min(deadline, time.monotonic() + _GATHER_S)
                self._change.wait(remaining)
            if not self._live:
                self._postpone()
                return
            self._retry_s = self._first_retry_s
            if len(self._live) < target_count:
                self._not_before = time.monotonic() + self._retry_s

    def _postpone(self) -> None:
        self._not_before = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, _MAX_RETRY_S)

    def inspect(self) -> StripesView:
        """Returns the number of open stripes, and whether the daemon has none to offer."""
        return StripesView(len(self._live), self._refused)

    def add_transfer(self, number: int, transfer: CarriedTransfer, stripes: Sequence[Stripe]) -> list[Stripe]:
        """Routes incoming frames of the transfer `number` to `transfer` from now on.

        Args:
            number: Number of the transfer.
            transfer: Transfer that receives the frames.
            stripes: Stripes that will carry the transfer.

        Returns:
            The stripes among them that have already ended.
        """
        with self._change:
            self._transfers[number] = transfer
            return [stripe for stripe in stripes if stripe not in self._live]

    def drop(self, number: int) -> None:
        """Stops routing frames to the transfer.

        Args:
            number: Number of the transfer.
        """
        with self._change:
            self._transfers.pop(number, None)

    def close(self) -> None:
        """Closes all stripes for good."""
        with self._change:
            self._closed = True
            self._close_all()

    def forked(self) -> None:
        """Abandons the stripes in the child process of a fork: they belong to the parent, and continue there.

        Takes no lock.
        """
        self._closed = True
        self._live = []
        self._pending = set()

    def _close_all(self) -> None:
        for stripe in (*self._live, *self._pending):
            stripe.close()
        self._live.clear()

    # ---- events of a stripe; see `hearth.transport.stripe.StripeObserver` ----

    def stripe_opened(self, stripe: Stripe) -> None:
        """Adds a stripe that is open, and wakes the thread that opens stripes. Closes it if the pool is closed.

        Args:
            stripe: Stripe of this pool.
        """
        with self._change:
            self._pending.discard(stripe)
            if self._closed:
                stripe.close()
            else:
                self._live.append(stripe)
            self._change.notify_all()

    def stripe_ended(self, stripe: Stripe, _reason: str) -> None:
        """Removes a stripe that has ended, and notifies all transfers in flight.

        Args:
            stripe: Stripe of this pool.
            _reason: Description of the error, which is not used.
        """
        with self._change:
            self._pending.discard(stripe)
            if stripe in self._live:
                self._live.remove(stripe)
            transfers = list(self._transfers.values())
            self._change.notify_all()
        for transfer in transfers:
            transfer.stripe_lost(stripe)

    def has_transfers(self) -> bool:
        """True while any transfer is in flight. Takes no lock."""
        return bool(self._transfers)

    def find(self, transfer: int) -> CarriedTransfer | None:
        """Returns the transfer of this number; None: it has ended. Takes no lock.

        Args:
            transfer: Number of the transfer.
        """
        return self._transfers.get(transfer)


def host_of(target: str) -> str:
    """Returns the host of the daemon's gRPC address."""
    return target.rpartition(":")[0].strip("[]")
