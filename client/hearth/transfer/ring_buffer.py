"""The ring: slots of shared memory through which ordinary arrays go, piece by piece. No I/O here, nothing of a session.

A slot is taken by a transfer, sent with a command, and given back when that was answered. A transfer that breaks off in
between, at any point, leaves no slot behind: `reclaim`.
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
FEW = 4
"""Slots that are made for copies that could do without."""
PIECE_LEAST = 1 << 20
"""A command costs the device process tens of microseconds, in which it could move a MiB."""
_ROUND = 64 << 10
STALL_S = 0.25
"""A ring from which nothing comes back for so long is held up, behind a kernel for one: it is not waited for."""


class Piece(NamedTuple):
    """A piece of a transfer: bytes of host memory."""

    start: int
    size: int


class Cut:
    """`size` bytes in pieces of at most `most`: of rows of `width` bytes whole ones, but one at least."""

    def __init__(self, size: int, most: int, width: int = 1) -> None:
        self._size = size
        self.each = max(1, most // width) * width
        """Bytes of every piece but the last."""

    def __len__(self) -> int:
        return (self._size + self.each - 1) // self.each

    def __getitem__(self, index: int) -> Piece:
        start = index * self.each
        if not 0 <= start < self._size:
            raise IndexError(index)
        return Piece(start, min(self.each, self._size - start))


def piece_bytes(size: int, threads: int) -> int:
    """Returns the best size of a piece: large enough to be worth a command, small enough to keep all threads and the
    device busy."""
    share = -(-size // (4 * threads))
    return min(SLOT_BYTES, max(PIECE_LEAST, -(-share // _ROUND) * _ROUND))


class Slot:
    """Memory for one piece at a time."""

    __slots__ = ("holder", "number", "segment", "sent")

    def __init__(self, segment: Segment, number: int) -> None:
        self.segment = segment
        self.number = number
        """Number by which commands name the segment."""
        self.holder: object = None
        """The transfer that has it."""
        self.sent = False
        """True if a command with the slot may be under way: then its answer gives the slot back."""


class Ring:
    """Slots for all transfers of one attachment. `make` gives another, or None where there is to be none; it may wait,
    and is called by the thread that needs one. Safe from any thread."""

    def __init__(self, make: Callable[[], Slot | None], count: int = SLOTS, stall: float = STALL_S) -> None:
        self._make = make
        self._most = count
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
        """True if a slot is available at once, or soon: the first few are made when they are needed."""
        return bool(self._free) or len(self._slots) + self._making < FEW

    @property
    def made(self) -> int:
        """Slots that there are."""
        return len(self._slots)

    def take(self, holder: object, *, wait: Callable[[], bool] | None = None) -> Slot | None:
        """A slot for `holder`; None where there is none. With `wait`, which says whether it is still wanted, it is
        waited for as long as others come back."""
        while True:
            with self._change:
                slot = self._pick(holder)
                if slot is not None:
                    return slot
                if len(self._slots) + self._making >= self._most:
                    if wait is None or not self._await(wait):
                        return None
                    continue
                self._making += 1
            try:
                slot = self._make()
            except BaseException:
                self._made(None, holder, again=True)
                raise
            if self._made(slot, holder):
                return slot

    def _pick(self, holder: object) -> Slot | None:
        if not self._free:
            return None
        slot = self._free[-1]  # the one whose memory is warmest; it has a holder before it leaves the list
        slot.holder, slot.sent = holder, False
        self._free.pop()
        return slot

    def _made(self, slot: Slot | None, holder: object, again: bool = False) -> bool:
        with self._change:
            self._making -= 1
            if slot is not None:
                slot.holder, slot.sent = holder, False
                if self._most:
                    self._slots.append(slot)
            elif not again:
                self._most = min(self._most, len(self._slots) + self._making)
            self._change.notify_all()
        return slot is not None

    def _await(self, wait: Callable[[], bool]) -> bool:
        """Waits for a change; returns whether to check again. With the lock held."""
        returns, deadline = self._returns, time.monotonic() + self._stall
        while wait() and (self._slots or self._making):
            if self._free or self._returns != returns or len(self._slots) + self._making < self._most:
                return True
            left = deadline - time.monotonic()
            if left <= 0 and not self._making:
                return False
            self._change.wait(max(left, self._stall / 10))
        return False

    def give(self, slot: Slot) -> None:
        """Frees a slot. A slot that was given up stays away; a second call does nothing. Never waits for long."""
        with self._change:
            if slot.holder is None or not any(each is slot for each in self._slots):
                return
            slot.holder, slot.sent = None, False
            self._free.append(slot)
            self._returns += 1
            self._change.notify_all()  # one alone might not want it any more

    def end(self) -> None:
        """No more slots: each is gone when its transfer is done with it."""
        with self._change:
            self._make, self._most = lambda: None, 0
            self._slots, self._free = [], []
            self._change.notify_all()

    def wake(self) -> None:
        """Wakes the waiting threads, which check whether they still need a slot."""
        with self._change:
            self._change.notify_all()

    def reclaim(self, holder: object) -> None:
        """The transfer takes and sends nothing more: what it did not send is free."""
        with self._change:
            for slot in self._slots:
                if slot.holder is holder and not slot.sent:
                    slot.holder = None
                    if not any(each is slot for each in self._free):
                        self._free.append(slot)
                    self._returns += 1
            self._change.notify_all()

    def give_up(self, slot: Slot) -> None:
        """Drops a slot for which it is unknown whether a command is under way: it is never used again, and another may
        take its place."""
        with self._change:
            self._slots = [each for each in self._slots if each is not slot]
            self._free = [each for each in self._free if each is not slot]
            self._change.notify_all()
