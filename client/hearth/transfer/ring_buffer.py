"""The ring: slots of shared memory through which ordinary arrays are copied in pieces. No I/O, independent of sessions.

A transfer takes a slot, sends it with a command, and returns it when the command was answered. A transfer that is
interrupted at any point leaves no slot behind: see `reclaim`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hearth.transport.memory_segments import Segment

SLOTS = 8
SLOT_BYTES = 8 << 20
INITIAL_SLOTS = 4
"""Number of slots that are made for copies that could take another route."""
MIN_PIECE_BYTES = 4 << 20
"""Minimum size, in bytes, of a piece: a command costs client and device process some 100 microseconds, in which a GPU
moves 5 MiB."""
_PIECES = 16
"""Number of pieces of a transfer, unless they would be too small or too large."""
_ROUND = 64 << 10
STALL_S = 0.25
"""Seconds without a returned slot after which the ring counts as stalled, for example by a long kernel, and is not
waited for."""


class Piece(NamedTuple):
    """Piece of a transfer: `size` bytes of host memory from byte `start` on."""

    start: int
    size: int


def piece_starts(size: int, max_piece: int, width: int = 1) -> range:
    """Divides `size` bytes into pieces of at most `max_piece` bytes, each of whole rows of `width` bytes, at least one.

    Args:
        size: Size of the transfer in bytes.
        max_piece: Maximum size of a piece in bytes.
        width: Size of a row in bytes.

    Returns:
        The first byte of each piece; the step of the range is the size of each piece except the last.
    """
    return range(0, size, max(1, max_piece // width) * width)


def piece_bytes(size: int) -> int:
    """Returns the best size of a piece, in bytes.

    It is large enough to justify a command, and small enough to keep all threads and the device busy.

    Args:
        size: Size of the transfer in bytes.
    """
    share = -(-size // _PIECES)
    return min(SLOT_BYTES, max(MIN_PIECE_BYTES, -(-share // _ROUND) * _ROUND))


class Slot:
    """Shared memory for one piece at a time."""

    __slots__ = ("holder", "number", "segment", "sent")

    def __init__(self, segment: Segment, number: int) -> None:
        self.segment = segment
        self.number = number
        """Number by which commands name the segment."""
        self.holder: object = None
        """The transfer that holds the slot; None: the slot is free."""
        self.sent = False
        """True if a command with the slot may be in flight: then its answer returns the slot."""


class Ring:
    """Slots for all transfers of one attachment.

    `make` returns a new slot, or None if there are no more; it may block, and is called by the thread that needs the
    slot. Thread-safe.
    """

    def __init__(self, make: Callable[[], Slot | None], count: int = SLOTS, stall: float = STALL_S) -> None:
        self._make = make
        self._max_slots = count
        self._stall = stall
        self._change = threading.Condition(threading.Lock())
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._making = 0
        self._returns = 0

    @property
    def idle(self) -> int:
        """Number of free slots."""
        return len(self._free)

    @property
    def ready(self) -> bool:
        """True if a slot is available now or soon: the first few slots are made on demand."""
        return bool(self._free) or len(self._slots) + self._making < INITIAL_SLOTS

    @property
    def slot_count(self) -> int:
        """Number of slots that exist."""
        return len(self._slots)

    def acquire(self, holder: object, *, wait: Callable[[], bool] | None = None) -> Slot | None:
        """Returns a slot for `holder`; None: there is none.

        Args:
            holder: Transfer that uses the slot.
            wait: Called repeatedly: blocks for a slot while it returns True and slots are still being returned; None:
                does not block for a slot.
        """
        while True:
            with self._change:
                slot = self._pick(holder)
                if slot is not None:
                    return slot
                if len(self._slots) + self._making >= self._max_slots:
                    if wait is None or not self._await(wait):
                        return None
                    continue
                self._making += 1
            try:
                slot = self._make()
            except BaseException:
                self._add_slot(None, holder, retryable=True)
                raise
            if self._add_slot(slot, holder):
                return slot

    def _pick(self, holder: object) -> Slot | None:
        if not self._free:
            return None
        slot = self._free[-1]  # the slot that is most likely cached; its holder is set before it leaves the list
        slot.holder, slot.sent = holder, False
        self._free.pop()
        return slot

    def _add_slot(self, slot: Slot | None, holder: object, retryable: bool = False) -> bool:
        with self._change:
            self._making -= 1
            if slot is not None:
                slot.holder, slot.sent = holder, False
                if self._max_slots:
                    self._slots.append(slot)
            elif not retryable:
                self._max_slots = min(self._max_slots, len(self._slots) + self._making)
            self._change.notify_all()
        return slot is not None

    def _await(self, wait: Callable[[], bool]) -> bool:
        """Waits for a change, with the lock held. Returns True if the caller should check again."""
        returns, deadline = self._returns, time.monotonic() + self._stall
        while wait() and (self._slots or self._making):
            if self._free or self._returns != returns or len(self._slots) + self._making < self._max_slots:
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0 and not self._making:
                return False
            self._change.wait(max(remaining, self._stall / 10))
        return False

    def release(self, slot: Slot) -> None:
        """Frees a slot. Does nothing for a slot that was dropped, or at a second call. Does not block for long.

        Args:
            slot: Slot that no command in flight uses.
        """
        with self._change:
            if slot.holder is None or slot not in self._slots:
                return
            slot.holder, slot.sent = None, False
            self._free.append(slot)
            self._returns += 1
            self._change.notify_all()  # a single notified thread might no longer need the slot

    def end(self) -> None:
        """Ends the ring: no more slots are available, and each is released when its transfer has ended."""
        with self._change:
            self._make, self._max_slots = lambda: None, 0
            self._slots, self._free = [], []
            self._change.notify_all()

    def wake(self) -> None:
        """Wakes the waiting threads, which check whether they still need a slot."""
        with self._change:
            self._change.notify_all()

    def reclaim(self, holder: object) -> None:
        """Frees the slots that `holder` has not sent, after it has stopped taking and sending slots.

        Args:
            holder: Transfer that has ended.
        """
        with self._change:
            for slot in self._slots:
                if slot.holder is holder and not slot.sent:
                    slot.holder = None
                    if slot not in self._free:
                        self._free.append(slot)
                    self._returns += 1
            self._change.notify_all()

    def discard(self, slot: Slot) -> None:
        """Drops a slot if it is unknown whether a command with it is in flight.

        The slot is never reused, and another one may be made instead.

        Args:
            slot: Slot of this ring.
        """
        with self._change:
            self._slots = [other for other in self._slots if other is not slot]
            self._free = [other for other in self._free if other is not slot]
            self._change.notify_all()
