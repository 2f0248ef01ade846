"""Grants: the device memory that the front grants to this process, and requests for more.

The front says `LIMIT {bytes}`; the answer, HELD, is the limit that the process keeps: more, where more is in use. A
process whose next allocation does not fit sends HELD by itself, with the amount that it wants; a LIMIT answers that in
any case, with more, or `denied`. A process that is alone on its device has no limit but the device's, and sends no
requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Refusal
from hearthd.device.backend.resources import Memory, Stream
from hearthd.device.backend.server import ComputeServer
from hearthd.device.outbox import Outbox
from hearthd.device.resources.budget import not_granted, over_quota
from hearthd.shared.device_spec import DeviceSpec

Answered = Callable[[bool], None]
"""Called with True if more was granted."""


class ProcessGrants:
    """Device memory that the front has granted to this process. Device-handle thread only."""

    def __init__(self, spec: DeviceSpec, server: ComputeServer, outbox: Outbox) -> None:
        self.limit = spec.memory_granted
        """Bytes; None: all that the device has."""
        self._most = spec.memory_limit
        self._scrub = spec.scrub
        self._server = server
        self._outbox = outbox
        self._quota = 0
        """The tenant's, where that was why the last request was denied."""
        self._next: list[tuple[int, Answered]] = []
        """Requests that wait for the next message: amounts and callbacks."""
        self._asked: list[Answered] = []
        """Callbacks of the request under way."""

    def allocate(self, size: int, stream: Stream) -> Memory:
        """Allocates from the server, within the limit. Clears memory that other tenants have used, in the stream's
        order.

        Raises Refusal(OUT_OF_MEMORY), with "granted" in its details where the front might grant more.
        """
        if self.limit is None and not self._scrub:
            return self._server.allocate(size, stream)
        self.check(size)
        memory = self._server.allocate(size, stream)
        if self.limit is not None and self._server.memory_held()[0] > self.limit:
            # What the pool had unused was in pieces, so it has taken more of the device.
            self._server.free(memory, stream)
            self._server.trim()
            raise not_granted(size, self._server.memory_info(), self.limit, self._most)
        if self._scrub and memory.reserved:
            self._server.fill(memory.address, b"\0", memory.reserved, stream)
        return memory

    def check(self, size: int) -> None:
        """Raises as `allocate` where `size` more bytes exceed the limit even after the pool was trimmed."""
        if self.limit is None or not self._missing(size):
            return
        self._server.trim()
        if self._missing(size):
            info = self._server.memory_info()
            if self._quota:
                raise over_quota(size, self._quota, info.reserved, self.limit, self._server.memory_grain)
            raise not_granted(size, info, self.limit, self._most)

    def make_room(self, size: int) -> None:
        """Makes room for memory outside of the pool: trims the pool for it. Raises as `check`."""
        if self._beyond(size):
            self._server.trim()
            if self._beyond(size):
                assert self.limit is not None
                raise not_granted(size, self._server.memory_info(), self.limit, self._most)

    def overtaken(self) -> None:
        """Reports to the front that the process holds more without a request: memory of another process counts here
        now."""
        if self._beyond(0):
            self.ask(0, lambda granted: None)

    def _beyond(self, size: int) -> bool:
        """True if `size` more bytes would exceed the limit, whatever the pool has unused."""
        grain = self._server.memory_grain
        return self.limit is not None and self._server.memory_held()[0] + -(-size // grain) * grain > self.limit

    def _missing(self, size: int) -> int:
        """Returns by how much `size` more bytes would exceed the limit."""
        reserved, in_use = self._server.memory_held()
        if self.limit is None or (size <= reserved - in_use and reserved <= self.limit):
            return 0  # the pool has it
        grain = self._server.memory_grain
        return max(0, reserved + -(-size // grain) * grain - self.limit)

    # ---- the front ----

    def ask(self, size: int, answered: Answered) -> None:
        """Requests room for `size` bytes from the front."""
        self._next.append((size, answered))
        if not self._asked:
            self._request()

    def _request(self) -> None:
        grain = self._server.memory_grain
        wanted = sum(-(-size // grain) * grain for size, _ in self._next)
        self._asked = [answered for _, answered in self._next]
        self._next.clear()
        reserved, in_use = self._server.memory_held()
        more = max(1, reserved + wanted - (self.limit or 0))
        self._outbox.put(Kind.HELD, _json({"wants": more, "reserved": reserved, "in_use": in_use}))

    def told(self, frame: Frame) -> None:
        """A LIMIT has come."""
        body = json.loads(frame.payload)
        target, denied, granted = int(body["bytes"]), bool(body.get("denied")), bool(body.get("granted"))
        before = self.limit
        reserved, in_use = self._server.memory_held()
        if reserved > target:
            self._server.trim()
            reserved, in_use = self._server.memory_held()
        self.limit = max(target, reserved)
        self._quota = int(body.get("quota", 0)) if denied else 0
        self._outbox.put(Kind.HELD, _json({"limit": self.limit, "reserved": reserved, "in_use": in_use}), id=frame.id)
        # A request is answered also where the limit does not rise: the pool may have held more than the front knew.
        if denied or granted or (before is not None and self.limit > before):
            asked, self._asked = self._asked, []
            if not denied:  # it may be enough for these, too
                asked += [answered for _, answered in self._next]
                self._next.clear()
            for answered in asked:
                answered(not denied)
            if self._next:
                self._request()


class MemoryRequest:
    """Requests of one allocation to the front: repeated while the grant grows, and ended by the first denial."""

    def __init__(self, grants: ProcessGrants, wake: Callable[[], None]) -> None:
        self._grants = grants
        self._wake = wake
        self._waits = False
        self._denied = False

    def waits(self, refusal: Refusal) -> bool:
        """True if the refused allocation should wait for the front's answer; `wake` is called when it has come."""
        if self._denied or "granted" not in refusal.details:
            return False
        if not self._waits:
            self._waits = True
            self._grants.ask(int(refusal.details["requested"]), self._answered)
        return True

    def _answered(self, granted: bool) -> None:
        self._waits, self._denied = False, not granted
        self._wake()


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
