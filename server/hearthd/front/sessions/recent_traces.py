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

MAX_TENANT_TRACES = 8
"""Maximum number of traces of one tenant."""
MAX_TENANT_BYTES = 16 << 20
"""Maximum size of all traces of one tenant, packed."""
MAX_TRACES = 32
MAX_BYTES = 48 << 20
"""Maximum size of all traces, packed."""
RETENTION_S = 3600.0
"""Time, in seconds, after which a trace is dropped."""


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
    """The recent traces of all devices. `find_session` also finds sessions that ended recently, by id."""

    def __init__(
        self, find_session: Callable[[str], Session | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find_session = find_session
        self._clock = clock
        self._traces: OrderedDict[str, RecentTrace] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Number of traces that are kept."""
        return len(self._traces)

    async def watch(self, link: Link) -> None:
        """Registers for the traces that a device process hands over."""
        link.listen(Kind.TRACED, partial(self._on_trace, link))

    def _on_trace(self, link: Link, frame: Frame) -> None:
        channel = link.channels.get(frame.channel)
        session = self._find_session(channel.session_id) if channel is not None else None
        if session is None:
            return
        header, _, packed = frame.payload.partition(b"\n")
        events, epoch_ns, lasted_ns = (_count(json.loads(header), name) for name in ("events", "epoch_ns", "lasted_ns"))
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
        if len(trace.packed) > MAX_TENANT_BYTES:
            return
        self._traces[trace.id] = trace
        self._expire()
        of_tenant = [other for other in self._traces.values() if other.tenant == trace.tenant]
        while len(of_tenant) > MAX_TENANT_TRACES or _total_size(of_tenant) > MAX_TENANT_BYTES:
            del self._traces[of_tenant.pop(0).id]
        while len(self._traces) > MAX_TRACES or _total_size(list(self._traces.values())) > MAX_BYTES:
            self._make_room()

    def _make_room(self) -> None:
        sizes: dict[str, int] = {}
        for trace in self._traces.values():
            sizes[trace.tenant] = sizes.get(trace.tenant, 0) + len(trace.packed)
        largest = max(sizes, key=lambda tenant: sizes[tenant])
        del self._traces[next(trace.id for trace in self._traces.values() if trace.tenant == largest)]

    def _expire(self) -> None:
        now = self._clock()
        while self._traces and now - next(iter(self._traces.values())).since > RETENTION_S:
            self._traces.popitem(last=False)

    def visible_to(self, viewer: Tenant) -> list[dict[str, Any]]:
        """Returns the traces that a viewer may see, newest first."""
        self._expire()
        return [trace.entry() for trace in reversed(self._traces.values()) if _may_see(viewer, trace)]

    def find(self, trace_id: str, viewer: Tenant) -> RecentTrace | None:
        """Returns a trace; None if there is none that this viewer may read.

        Only operators may read another tenant's trace.
        """
        self._expire()
        trace = self._traces.get(trace_id)
        if trace is None or not _may_see(viewer, trace):
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


def _may_see(viewer: Tenant, trace: RecentTrace) -> bool:
    return viewer.sees(trace.device) and sees_tenant(viewer, trace.tenant)


def _total_size(traces: list[RecentTrace]) -> int:
    return sum(len(trace.packed) for trace in traces)
