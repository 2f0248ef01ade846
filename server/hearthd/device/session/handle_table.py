"""Handle tables: a session's objects of one kind, by the handles that its client minted for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.replay_cache import ReplayCache

T = TypeVar("T")

MAX_TOMBSTONES = 1024
"""Most tombstones kept for one kind of handle; the oldest are dropped first."""


class HandleTable(Generic[T]):
    """Objects of one kind by handle."""

    def __init__(self, kind: str, replay_cache: ReplayCache[Any] | None = None) -> None:
        """`replay_cache` holds the launches that refer to objects of this kind."""
        self.kind = kind
        self._replay_cache = replay_cache
        self.items: dict[int, T] = {}
        self.bound = sys.maxsize
        """Number of handles that the table may have before it calls `extend`."""
        self.extend: Callable[[HandleTable[Any], int], int] = lambda table, more: sys.maxsize
        """Returns the next bound, at least `more` above the present number of handles. Raises
        Refusal(QUOTA_EXCEEDED)."""
        self.get = self.items.get
        self._tombstones: dict[int, Refusal] = {}
        """Tombstones: reasons of handles whose creation was refused, until the handles are destroyed."""

    def __len__(self) -> int:
        return len(self.items)

    def find(self, handle: int) -> T:
        """Returns the object of the handle. Raises the refusal of its failed creation, otherwise INVALID_HANDLE."""
        item = self.items.get(handle)
        if item is None:
            raise self.unknown(handle)
        return item

    def unknown(self, handle: int) -> Refusal:
        """Returns the refusal for a handle without an object.

        It is the reason of the handle's failed creation if there was one, otherwise INVALID_HANDLE.
        """
        refusal = self._tombstones.get(handle)
        if refusal is not None:
            return refusal
        return Refusal(
            Reason.INVALID_HANDLE,
            f"{self.kind} {handle} is not live in this session on this device",
            fix=f"use a {self.kind} that this session created on this device and has not freed",
            details={"kind": self.kind, "handle": handle},
        )

    def check_new(self, handle: int) -> None:
        """Checks that an object can be created under the handle, and removes the handle's tombstone.

        Raises Refusal: INVALID_ARGUMENT for 0, HANDLE_IN_USE for a live handle, QUOTA_EXCEEDED if the table is full.
        """
        if handle == 0:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"0 cannot be the handle of a {self.kind}",
                fix="mint handles from 1",
                details={"kind": self.kind},
            )
        if len(self.items) >= self.bound:
            self.check_room(1)
        if handle in self.items:
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"{self.kind} {handle} exists already in this session on this device",
                fix="mint a handle that was not used before",
                details={"kind": self.kind, "handle": handle},
            )
        if self._tombstones:
            self._tombstones.pop(handle, None)

    def check_room(self, more: int) -> None:
        """Raises Refusal(QUOTA_EXCEEDED) if the table may not have `more` additional handles."""
        if len(self.items) + more > self.bound:
            self.bound = self.extend(self, more)

    def mark_failed(self, handle: int, refusal: Refusal) -> None:
        """Records that the creation of a handle was refused.

        Later uses fail with the same reason, until the handle is created successfully. Has no effect on a live handle.
        """
        if handle == 0 or handle in self.items:
            return
        self._tombstones[handle] = Refusal(
            refusal.reason,
            f"{self.kind} {handle} was not made: {refusal.message}",
            fix=refusal.fix,
            details=refusal.details,  # without retry_after, because retrying the use does not create the object
        )
        if len(self._tombstones) > MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]

    def forget(self, handle: int) -> bool:
        """Removes the tombstone of the handle; returns True if there was one."""
        return self._tombstones.pop(handle, None) is not None

    def add(self, handle: int, item: T) -> T:
        """Stores the object under a new handle and returns it. Raises the refusals of `check_new`."""
        self.check_new(handle)
        self.items[handle] = item
        return item

    def pop(self, handle: int) -> T:
        """Removes and returns the object. Raises Refusal as `find` does.

        Clears the replay cache if launches in it may refer to the object.
        """
        item = self.find(handle)
        del self.items[handle]
        if self._replay_cache is not None and self._may_be_cached(item):
            self._replay_cache.forget()
        return item

    def has_tombstone(self, handle: int) -> bool:
        """True if the handle has a tombstone."""
        return handle in self._tombstones

    def pop_all(self, handles: Iterable[int]) -> tuple[list[T], Refusal | None]:
        """Removes and returns the objects of the handles.

        The second value is the refusal for the first unknown handle; None if all are known.
        """
        removed: list[T] = []
        items = self.items
        first_unknown: int | None = None
        for handle in handles:
            item = items.pop(handle, None)
            if item is not None:
                removed.append(item)
            elif not self.forget(handle) and first_unknown is None:
                first_unknown = handle
        if self._replay_cache is not None and any(map(self._may_be_cached, removed)):
            self._replay_cache.forget()
        return removed, None if first_unknown is None else self.unknown(first_unknown)

    def _may_be_cached(self, _item: T) -> bool:
        """True if launches in the replay cache may refer to the object."""
        return True
