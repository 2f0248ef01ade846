"""Grants: the device memory that the front grants to this process, and requests for more.

The front sends `LIMIT {bytes}`. The process answers with HELD and the limit that it keeps, which is higher if it uses
more. A process whose next allocation does not fit sends HELD on its own initiative, with the amount that it wants; the
front answers with a LIMIT in any case, with more memory or `denied`. A process that is alone on its device is limited
only by the device, and sends no requests.
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
"""Called with True if more memory was granted."""


class ProcessGrants:
    """Device memory that the front has granted to this process. Device-handle thread only."""

    def __init__(self, spec: DeviceSpec, server: ComputeServer, outbox: Outbox) -> None:
        self.limit = spec.memory_granted
        """Granted memory in bytes; None: all memory of the device."""
        self._process_limit = spec.memory_limit
        self._scrub = spec.scrub
        self._server = server
        self._outbox = outbox
        self._quota = 0
        """The tenant's quota in bytes, if the last request was denied because of it; otherwise 0."""
        self._queued: list[tuple[int, Answered]] = []
        """Amounts and callbacks of requests to be sent in the next message."""
        self._unanswered: list[Answered] = []
        """Callbacks of the request that the front has not answered yet."""

    def allocate(self, size: int, stream: Stream) -> Memory:
        """Allocates from the server, within the limit.

        Clears memory that other tenants have used, in the order of the stream.

        Raises Refusal(OUT_OF_MEMORY), with "granted" in its details if the front might grant more.
        """
        if self.limit is None and not self._scrub:
            return self._server.allocate(size, stream)
        self.check(size)
        memory = self._server.allocate(size, stream)
        if self.limit is not None and self._server.memory_held()[0] > self.limit:
            # The pool's unused memory was fragmented, so the pool has taken more memory from the device.
            self._server.free(memory, stream)
            self._server.trim()
            raise not_granted(size, self._server.memory_info(), self.limit, self._process_limit)
        if self._scrub and memory.reserved:
            self._server.fill(memory.address, b"\0", memory.reserved, stream)
        return memory

    def check(self, size: int) -> None:
        """Raises Refusal as `allocate` does if `size` more bytes exceed the limit even after trimming."""
        if self.limit is None or not self._shortfall(size):
            return
        self._server.trim()
        if self._shortfall(size):
            info = self._server.memory_info()
            if self._quota:
                raise over_quota(size, self._quota, info.reserved, self.limit, self._server.memory_grain)
            raise not_granted(size, info, self.limit, self._process_limit)

    def make_room(self, size: int) -> None:
        """Makes room for memory outside the pool, by trimming the pool if necessary. Raises Refusal as `check` does."""
        if self._exceeds_limit(size):
            self._server.trim()
            if self._exceeds_limit(size):
                assert self.limit is not None
                raise not_granted(size, self._server.memory_info(), self.limit, self._process_limit)

    def report_excess(self) -> None:
        """Reports to the front if the process holds more than its limit, without requesting memory.

        Called after memory of another process has been accounted to this process.
        """
        if self._exceeds_limit(0):
            self.request(0, lambda granted: None)

    def _exceeds_limit(self, size: int) -> bool:
        """True if `size` more bytes outside the pool exceed the limit, regardless of unused pool memory."""
        grain = self._server.memory_grain
        return self.limit is not None and self._server.memory_held()[0] + -(-size // grain) * grain > self.limit

    def _shortfall(self, size: int) -> int:
        """Returns the number of bytes by which `size` more bytes would exceed the limit; 0 if they fit."""
        reserved, in_use = self._server.memory_held()
        if self.limit is None or (size <= reserved - in_use and reserved <= self.limit):
            return 0  # the pool has enough unused memory
        grain = self._server.memory_grain
        return max(0, reserved + -(-size // grain) * grain - self.limit)

    # ---- messages to and from the front ----

    def request(self, size: int, answered: Answered) -> None:
        """Requests room for `size` bytes from the front; `answered` is called with the result."""
        self._queued.append((size, answered))
        if not self._unanswered:
            self._send_request()

    def _send_request(self) -> None:
        grain = self._server.memory_grain
        requested = sum(-(-size // grain) * grain for size, _ in self._queued)
        self._unanswered = [answered for _, answered in self._queued]
        self._queued.clear()
        reserved, in_use = self._server.memory_held()
        more = max(1, reserved + requested - (self.limit or 0))
        self._outbox.put(Kind.HELD, _json({"wants": more, "reserved": reserved, "in_use": in_use}))

    def on_limit(self, frame: Frame) -> None:
        """Handles a LIMIT message of the front."""
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
        # A request is answered even if the limit does not rise: the pool may have held more than the front knew.
        if denied or granted or (before is not None and self.limit > before):
            callbacks, self._unanswered = self._unanswered, []
            if not denied:  # the grant may be enough for the queued requests, too
                callbacks += [answered for _, answered in self._queued]
                self._queued.clear()
            for answered in callbacks:
                answered(not denied)
            if self._queued and not self._unanswered:  # otherwise a callback has sent a request, and the next ones wait
                self._send_request()


class MemoryRequest:
    """Requests of one allocation to the front: repeated while the grant grows, and ended by the first denial."""

    def __init__(self, grants: ProcessGrants, wake: Callable[[], None]) -> None:
        self._grants = grants
        self._wake = wake
        self._waits = False
        self._denied = False

    def waits(self, refusal: Refusal) -> bool:
        """Returns True if the refused allocation should wait for the front's answer; `wake` is called when it arrives.

        The answer is requested unless a request is under way. Returns False if the front has denied memory, or if the
        refusal has another cause than the process's grant.
        """
        if self._denied or "granted" not in refusal.details:
            return False
        if not self._waits:
            self._waits = True
            self._grants.request(int(refusal.details["requested"]), self._answered)
        return True

    def _answered(self, granted: bool) -> None:
        self._waits, self._denied = False, not granted
        self._wake()


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()
