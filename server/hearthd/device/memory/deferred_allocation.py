"""Deferred allocation: one that does not fit waits for earlier frees before it fails."""

from __future__ import annotations

from collections.abc import Callable

from hearth_proto.reasons import Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.memory.reservations import Reservations
from hearthd.device.resources.grants import MemoryRequest
from hearthd.device.session.session import DeviceSession

DEFERRED_ALLOCATION = "late allocation"
"""Key that all deferred allocations of a session write, so that they run in order."""


def may_wait(refusal: Refusal) -> bool:
    """True if the allocation was refused because of memory that is in use now, so that it may succeed later."""
    return refusal.details.get("fits") == "not now"


class DeferredAllocation:
    """An allocation that has been refused once. Device-handle thread only."""

    def __init__(
        self, device: DeviceContext, reservations: Reservations, session: DeviceSession, reserve: Callable[[], None]
    ) -> None:
        self._device = device
        self._reservations = reservations
        self._session = session
        self._reserve = reserve
        self._last_free = session.last_free
        """Number of the latest free that was submitted before the allocation."""
        self._settled: bool | None = None
        """True once all freed memory has returned to the pool; None before the allocation waits for that."""
        self._request: MemoryRequest | None = None

    def run(self) -> bool:
        """Tries to allocate again.

        Returns False while more memory may become free. Raises the Refusal when no more will.
        """
        try:
            self._reserve()
        except Refusal as refusal:
            if may_wait(refusal) and (self._may_free_more() or self._might_be_granted(refusal)):
                return False
            raise
        return True

    def _may_free_more(self) -> bool:
        if next(iter(self._session.frees), self._last_free + 1) <= self._last_free:
            return True
        if self._settled is None:
            self._settled = not self._reservations.when_settled(self._retry)
        return not self._settled

    def _might_be_granted(self, refusal: Refusal) -> bool:
        """Requests memory from the front that other processes hold unused, after everything else has failed."""
        if "granted" not in refusal.details:
            return False
        if self._request is None:
            self._request = MemoryRequest(self._device.grants, lambda: self._device.kick(self._session))
        return self._request.waits(refusal)

    def _retry(self) -> None:
        """Tries the allocation one last time, after all freed memory has returned to the pool."""
        self._settled = True
        self._device.kick(self._session)
