"""This rank's operations that have not been launched: what the front is told of them, and what it says."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.collective_parts import Part
from hearthd.device.communicators import CHECK_S, Memberships, Send
from hearthd.device.context import Device
from hearthd.device.membership import decode_status
from hearthd.device.tables import Session

MOST_PRESENTED = 512
"""Operations, those of a batch counted one by one, that are presented and not known to be done. The driver makes who
gives it a thousand or so wait until some are done, and nobody may wait here for what waits for peers."""

REMEMBERED = 1024
"""Operations that were launched lately: the same number again is refused."""

SessionOf = Callable[[int], Session | None]
"""The session of a channel."""


class Key(NamedTuple):
    """An operation's name on this device; `group` is empty for a group of this daemon's devices."""

    channel: int
    group: str
    devices: tuple[int, ...]
    sequence: int

    def __str__(self) -> str:
        return f"operation {self.sequence} of group {self.group or list(self.devices)}"


class Pending:
    """An operation of this rank that has not been launched."""

    __slots__ = ("comm", "deadline", "error", "index", "key", "presented", "weight")

    def __init__(self, key: Key, weight: int) -> None:
        self.key = key
        self.weight = weight
        self.presented = False
        self.deadline = math.inf
        """By when it has to be done; counted from when it is presented."""
        self.comm: str | None = None
        """The communicator on which it may go."""
        self.index = 0
        """Its number there; 0: the front has given it none."""
        self.error: Refusal | None = None


class Presented:
    """Belongs to the device-handle thread."""

    def __init__(self, device: Device, members: Memberships, send: Send) -> None:
        self._device = device
        self._members = members
        self._send = send
        self._pending: dict[Key, Pending] = {}
        self._going: dict[Pending, None] = {}
        """Those of them that have been told to go."""
        self._launched: OrderedDict[Key, None] = OrderedDict()
        self._weight = 0
        """Of what is presented and not known to be done."""
        self._next_check = 0.0

    def add(self, key: Key, weight: int) -> Pending:
        """An operation has been submitted. Raises Refusal(INVALID_ARGUMENT) where that has happened before."""
        if key in self._pending or key in self._launched:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"{key} was submitted before",
                fix="count a group's operations from 1, each number once",
                details={"sequence": key.sequence},
            )
        pending = self._pending[key] = Pending(key, max(weight, 1))
        return pending

    def crowded(self, pending: Pending) -> bool:
        """Whether it has to wait until others are done before it can be presented."""
        return self._weight > 0 and self._weight + pending.weight > MOST_PRESENTED

    def present(self, pending: Pending, parts: Sequence[Part], seconds: float) -> None:
        """Tells the front that this rank is there; it has so many seconds to be done."""
        key = pending.key
        pending.presented = True
        pending.deadline = time.monotonic() + seconds
        self._weight += pending.weight
        self._send(
            {
                "op": "present",
                "channel": key.channel,
                "group": key.group,
                "devices": list(key.devices),
                "sequence": key.sequence,
                "signature": [part.signature for part in parts],
                "timeout": seconds,
            }
        )

    def launched(self, pending: Pending) -> None:
        """It is on the device; `settled` is to be called when it is known how it ended."""
        del self._pending[pending.key]
        self._going.pop(pending, None)
        self._launched[pending.key] = None
        while len(self._launched) > REMEMBERED:
            self._launched.popitem(last=False)

    def settled(self, pending: Pending) -> None:
        """It is not presented any more: done, or failed."""
        if pending.presented:
            pending.presented = False
            crowded = self._weight + pending.weight > MOST_PRESENTED // 2
            self._weight -= pending.weight
            if crowded:
                self._device.kick(None)

    def failed(self, pending: Pending, refusal: Refusal) -> None:
        """It will not be launched: refused, skipped, given up."""
        if self._pending.get(pending.key) is not pending:
            return
        del self._pending[pending.key]
        self._going.pop(pending, None)
        self.settled(pending)
        self._missed(pending.key, pending.comm, refusal.message)

    def _missed(self, key: Key, comm: str | None, why: str) -> None:
        """The others were told to go on, and would wait for this rank."""
        member = self._members.get(comm) if comm is not None else None
        if member is not None:
            reason = f"device {self._device.spec.ordinal} has no part in {key}: {why}"
            self._members.broken(member, reason, key.sequence)

    # ---- what the front says ----

    def answered(self, message: dict[str, Any], session_of: SessionOf) -> None:
        """`go`, or `fail`. Raises KeyError, TypeError or ValueError for what is neither."""
        key = Key(
            int(message["channel"]),
            str(message.get("group") or ""),
            tuple(map(int, message["devices"])),
            int(message["sequence"]),
        )
        pending = self._pending.get(key)
        if message["op"] == "go":
            self._go(key, pending, str(message["comm"]), int(message.get("index") or 0))
        elif pending is not None and pending.comm is None and pending.error is None:
            pending.error = decode_status(message.get("status"))
        self._kick(session_of(key.channel))

    def _go(self, key: Key, pending: Pending | None, comm: str, index: int) -> None:
        member = self._members.get(comm)
        if member is not None and index and not member.flights.number(index):
            return  # said before
        if pending is None or not pending.presented or pending.error is not None:
            if index:
                self._missed(key, comm, "it was given up before")
        elif pending.comm is None:
            pending.comm, pending.index = comm, index
            self._going[pending] = None

    def leave(self, channel: int, group: str, session_of: SessionOf) -> None:
        """A group over several daemons is none of the session's any more."""
        for key, pending in self._pending.items():
            if key.channel == channel and key.group == group and pending.error is None:
                pending.error = Refusal(
                    Reason.COMMUNICATOR_FAILED,
                    f"{key} cannot start: the group was left",
                    fix="create a new group",
                    details={"sequence": key.sequence},
                )
        self._forget(lambda key: key.channel == channel and key.group == group)
        self._kick(session_of(channel))

    def close(self, session: Session) -> None:
        """The session is over; what it had here has been abandoned."""
        self._forget(lambda key: key.channel == session.channel)

    def _forget(self, whose: Callable[[Key], bool]) -> None:
        for key in [key for key in self._launched if whose(key)]:
            del self._launched[key]

    def _kick(self, session: Session | None) -> None:
        if session is not None:
            self._device.kick(session)

    # ---- the loop ----

    def check(self) -> None:
        """Reports what was told to go, and could not start in time: its peers wait for it."""
        now = time.monotonic()
        if now < self._next_check or not self._going:
            return
        self._next_check = now + CHECK_S
        for pending in self._going:
            member = self._members.get(pending.comm) if pending.comm is not None else None
            if member is not None and pending.deadline <= now:
                why = f"{pending.key} was told to go, and could not start in time on device {self._device.spec.ordinal}"
                self._members.broken(member, why, pending.key.sequence, timed_out=True)

    def sleep(self, asleep: float | None) -> float | None:
        """How long the loop may sleep, where it would otherwise so long."""
        if self._going:
            return CHECK_S if asleep is None else min(asleep, CHECK_S)
        return asleep
