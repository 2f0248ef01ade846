"""Handle tables: a session's objects of one kind, by the numbers that its client minted for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.replay_cache import ReplayCache

T = TypeVar("T")

REFUSED = 1024
"""Handles of one kind that were never made and whose reason is known; the oldest are forgotten first."""


class HandleTable(Generic[T]):
    """Objects of one kind by handle."""

    def __init__(self, kind: str, replay_cache: ReplayCache[Any] | None = None) -> None:
        """`replay_cache`: launches that name such objects."""
        self.kind = kind
        self._replay_cache = replay_cache
        self.items: dict[int, T] = {}
        self.bound = sys.maxsize
        """Handles that there may be before `extend` is asked."""
        self.extend: Callable[[HandleTable[Any], int], int] = lambda table, more: sys.maxsize
        """The next bound, so many handles `more` at least. Raises Refusal(QUOTA_EXCEEDED)."""
        self.get = self.items.get
        self._refused: dict[int, Refusal] = {}
        """Why there is nothing behind handles whose creation was refused, until they are destroyed."""

    def __len__(self) -> int:
        return len(self.items)

    def find(self, handle: int) -> T:
        found = self.items.get(handle)
        if found is None:
            raise self.unknown(handle)
        return found

    def unknown(self, handle: int) -> Refusal:
        """What is said of a handle that stands for nothing: why it was not made, where it was to be."""
        refused = self._refused.get(handle)
        if refused is not None:
            return refused
        return Refusal(
            Reason.INVALID_HANDLE,
            f"{self.kind} {handle} is not live in this session on this device",
            fix=f"use a {self.kind} that this session created on this device and has not freed",
            details={"kind": self.kind, "handle": handle},
        )

    def check_new(self, handle: int) -> None:
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
        if self._refused:
            self._refused.pop(handle, None)

    def check_room(self, more: int) -> None:
        """Raises Refusal(QUOTA_EXCEEDED) where there may not be so many more."""
        if len(self.items) + more > self.bound:
            self.bound = self.extend(self, more)

    def never_made(self, handle: int, refusal: Refusal) -> None:
        """The creation of a handle was refused: so is whatever is asked of it. It may still be made. Nothing changes
        for one that is there."""
        if handle == 0 or handle in self.items:
            return
        self._refused[handle] = Refusal(
            refusal.reason,
            f"{self.kind} {handle} was not made: {refusal.message}",
            fix=refusal.fix,
            details=refusal.details,  # but not when to ask again: what is there no more does not come back by that
        )
        if len(self._refused) > REFUSED:
            del self._refused[next(iter(self._refused))]

    def forget(self, handle: int) -> bool:
        """Whether it was never made, which from now on is not known any more."""
        return self._refused.pop(handle, None) is not None

    def add(self, handle: int, item: T) -> T:
        self.check_new(handle)
        self.items[handle] = item
        return item

    def pop(self, handle: int) -> T:
        found = self.find(handle)
        del self.items[handle]
        if self._replay_cache is not None and self._named(found):
            self._replay_cache.forget()
        return found

    def refuses(self, handle: int) -> bool:
        """Whether the handle was `never_made`, which is known until it is or `forget` is called."""
        return handle in self._refused

    def pop_all(self, handles: Iterable[int]) -> tuple[list[T], Refusal | None]:
        """The objects behind the handles, which die; and why there is none behind one of them."""
        found: list[T] = []
        items = self.items
        wrong: int | None = None
        for handle in handles:
            item = items.pop(handle, None)
            if item is not None:
                found.append(item)
            elif not self.forget(handle) and wrong is None:
                wrong = handle
        if self._replay_cache is not None and any(map(self._named, found)):
            self._replay_cache.forget()
        return found, None if wrong is None else self.unknown(wrong)

    def _named(self, _item: T) -> bool:
        """Whether launches that are remembered may name it."""
        return True
