"""Traces that clients have ended recently, kept for a time for viewers of the status page.

A device process hands over each trace that it reports (`Kind.TRACED`), packed, with the fields that a list of traces
shows. Traces outlive the process and the session. Their number and size are bounded for each tenant and in total, and a
trace is dropped after an hour.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hearth_proto.frames import Frame, Kind
from hearthd.front.sessions.link_interface import Link
from hearthd.front.tenancy.tenants import Right, Tenant, sees_tenant

if TYPE_CHECKING:
    from hearthd.front.sessions.session import Session

OF_TENANT = 8
TENANT_BYTES = 16 << 20
MOST = 32
MOST_BYTES = 48 << 20
KEPT_S = 3600.0


@dataclass(frozen=True)
class RecentTrace:
    """A trace that a client has ended."""

    id: str
    """A random id, which cannot be guessed."""
    device: int
    session: str
    tenant: str
    events: int
    started_unix: float
    seconds: float
    packed: bytes
    """A TraceResult, compressed with zlib."""
    since: float
    """The monotonic time at which the trace arrived."""

    def entry(self) -> dict[str, Any]:
        """Returns the fields of the trace that a list shows, for JSON."""
        names = ("id", "device", "session", "tenant", "events", "started_unix", "seconds")
        return {name: getattr(self, name) for name in names}


class RecentTraces:
    """The recent traces of all devices. `session` finds a session by its id, also a session that ended recently."""

    def __init__(self, session: Callable[[str], Session | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._traces: OrderedDict[str, RecentTrace] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Number of traces that are kept."""
        return len(self._traces)

    async def watch(self, link: Link) -> None:
        """Registers for the traces that a device process hands over."""
        link.listen(Kind.TRACED, partial(self._traced, link))

    def _traced(self, link: Link, frame: Frame) -> None:
        channel = link.channels.get(frame.channel)
        session = self._session(channel.session_id) if channel is not None else None
        if session is None:
            return
        head, _, packed = frame.payload.partition(b"\n")
        events, epoch_ns, lasted_ns = (_count(json.loads(head), name) for name in ("events", "epoch_ns", "lasted_ns"))
        self.add(
            RecentTrace(
                id=secrets.token_urlsafe(16),
                device=link.ordinal,
                session=session.id,
                tenant=session.tenant.name,
                events=events,
                started_unix=round(epoch_ns / 1e9, 3),
                seconds=round(lasted_ns / 1e9, 6),
                packed=packed,
                since=self._clock(),
            )
        )

    def add(self, trace: RecentTrace) -> None:
        """Adds a trace.

        To make room, drops the oldest traces of the same tenant, then the oldest of the tenant with the most bytes.
        """
        if len(trace.packed) > TENANT_BYTES:
            return
        self._traces[trace.id] = trace
        self._expire()
        mine = [each for each in self._traces.values() if each.tenant == trace.tenant]
        while len(mine) > OF_TENANT or _size(mine) > TENANT_BYTES:
            del self._traces[mine.pop(0).id]
        while len(self._traces) > MOST or _size(list(self._traces.values())) > MOST_BYTES:
            self._make_room()

    def _make_room(self) -> None:
        sizes: dict[str, int] = {}
        for each in self._traces.values():
            sizes[each.tenant] = sizes.get(each.tenant, 0) + len(each.packed)
        largest = max(sizes, key=lambda name: sizes[name])
        del self._traces[next(each.id for each in self._traces.values() if each.tenant == largest)]

    def _expire(self) -> None:
        now = self._clock()
        while self._traces and now - next(iter(self._traces.values())).since > KEPT_S:
            self._traces.popitem(last=False)

    def seen_by(self, viewer: Tenant) -> list[dict[str, Any]]:
        """Returns the traces that a viewer may see, newest first."""
        self._expire()
        return [each.entry() for each in reversed(self._traces.values()) if _sees(viewer, each)]

    def find(self, ident: str, viewer: Tenant) -> RecentTrace | None:
        """Returns a trace; None if there is none that this viewer may read.

        Only operators may read another tenant's trace.
        """
        self._expire()
        trace = self._traces.get(ident)
        if trace is None or not _sees(viewer, trace):
            return None
        return trace if trace.tenant in ("", viewer.name) or viewer.may(Right.ADMIN) else None


def _count(body: object, name: str) -> int:
    """Returns an integer field of a trace.

    Raises ValueError if it is invalid; a device process whose frames cannot be read is ended.
    """
    value = body.get(name) if isinstance(body, dict) else None
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} of a trace is {value!r}")
    return value


def _sees(viewer: Tenant, trace: RecentTrace) -> bool:
    return viewer.sees(trace.device) and sees_tenant(viewer, trace.tenant)


def _size(traces: list[RecentTrace]) -> int:
    return sum(len(each.packed) for each in traces)
