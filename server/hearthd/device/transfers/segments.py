"""Segments: memory that clients share with this process, from announcement to release, by session.

A segment is a client's memfd, mapped and page-locked here, so that the device copies directly from and to it. The
client chooses its number, and uses the number in commands after the announcement has been answered. Page-locking is
done on another thread. In CUDA, unlocking waits for the device, so it is done while the device is idle.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Callable
from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.flows.segment import Segment, SessionRef, signals_in
from hearthd.device.flows.segment_policy import check_room, check_sealed, check_size
from hearthd.device.platform.log import ProcessLog
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.segment_mapper import Post, SegmentMapper

_PAGE = os.sysconf("SC_PAGE_SIZE")
_F_GET_SEALS = fcntl.F_GET_SEALS

Then = Callable[[Refusal | None], None]

RETIRED = 8
RETIRED_BYTES = 2 << 30
"""Limits of the number of segments, and of their bytes, that wait to be unlocked. Beyond these limits, launches are
held back until the device is idle."""


class Segments:
    """Segments of one device process. Device-handle thread only."""

    def __init__(self, device: DeviceContext, post: Post) -> None:
        self._device = device
        self._mapper = SegmentMapper(device.server.register_host, device.server.unregister_host, post)
        self.journal: ProcessLog | None = None
        self._named: dict[SessionRef, dict[int, Segment]] = {}
        """Segments by number, for each session."""
        self._count: Counter[SessionRef] = Counter()
        """Number of segments that are not unmapped yet, by session."""
        self._bytes: Counter[str] = Counter()
        """Size of the segments that are not unmapped yet, in bytes, by tenant."""
        self._retired: dict[Segment, None] = {}
        """Segments that wait for the device to become idle."""
        self._warned = False

    @property
    def bytes(self) -> int:
        """Size of all segments that are not unmapped yet, in bytes."""
        return sum(self._bytes.values())

    def gauges(self) -> dict[str, int]:
        """Returns the number and size (in bytes) of the segments that are not unmapped yet, for the metrics."""
        return {"segments": sum(self._count.values()), "segment_bytes": self.bytes}

    def find(self, session: DeviceSession, ident: int) -> Segment:
        """Returns the session's segment with this number.

        Raises Refusal(INVALID_HANDLE) if there is none, or it is not ready.
        """
        named = self._named.get(session)
        segment = named.get(ident) if named is not None else None
        if segment is None or not segment.ready:
            raise Refusal(
                Reason.INVALID_HANDLE,
                f"segment {ident} is not shared by this session with this device process",
                fix="send it (SEGMENT) on a connection that OpenBulk gave, and wait for the answer; a segment is "
                "released with its connection, and with the device process",
                details={"kind": "segment", "handle": ident},
            )
        return segment

    # ---- mapping ----

    def accept(
        self, session: DeviceSession, ident: int, announced: object, file: int, max_bytes: int, then: Then
    ) -> Segment:
        """Accepts a client's memfd as the segment with this number.

        Takes ownership of the descriptor, unless it raises Refusal. Calls `then(None)` when the segment is ready, or
        `then(refusal)` if it could not be mapped.

        The file is not accessed before it is known to be a memfd, because access to another kind of file may block.
        """
        check_sealed(_seals(file))
        size = check_size(announced, os.fstat(file).st_size)
        if os.fstatvfs(file).f_bsize != _PAGE:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                "a segment's memfd is of huge pages, which may be missing when they are first used",
                fix="leave MFD_HUGETLB out",
            )
        named = self._named.setdefault(session, {})
        if ident == 0 or ident in named:
            raise _not_new(ident)
        check_room(size, self.bytes, max_bytes, self._count[session])
        if session.pinned_bytes:
            check_room(size, self._bytes[session.tenant], session.pinned_bytes, 0)
        segment = named[ident] = Segment(ident, size, session, self._retire)
        self._count[session] += 1
        self._bytes[session.tenant] += size
        self._mapper.map(
            file,
            size,
            lambda: not segment.over,
            partial(self._mapped, segment, then),
            partial(self._failed, segment, then),
        )
        return segment

    def _mapped(self, segment: Segment, then: Then, address: int, locked: int, reason: str) -> None:
        segment.mapped(address, locked)
        if reason and not self._warned and self.journal is not None:
            self._warned = True
            self.journal.warning("segments_not_locked", why=reason, size=segment.size)
        if segment.over:  # the client has released it meanwhile
            self._release(segment)
            return
        segment.ready = True
        if segment.signals and segment.pinned:
            segment.session.signals = signals_in(segment, self._device.server)
        then(None)

    def _failed(self, segment: Segment, then: Then, refusal: Refusal) -> None:
        over = segment.over
        self._forget(segment)
        self._uncount(segment)
        if not over:
            then(refusal)

    # ---- use by graphs (see `hearthd.device.launch.holdings`) ----

    def hold(self, segment: Segment) -> None:
        """Keeps the segment mapped until the matching `unhold`, even after the client has released it."""
        segment.hold()

    def unhold(self, segment: Segment) -> None:
        """Ends one `hold`, after all work that has been submitted."""
        tracks = self._device.tracks
        tracks.after_all(tracks.all, segment.drop)

    # ---- release ----

    def release(self, segment: Segment) -> None:
        """Releases a segment whose number the client no longer uses; it is unmapped after its last use.

        A second call has no effect.
        """
        if not segment.over:
            self._forget(segment)
            segment.end()

    def close(self, session: DeviceSession) -> None:
        """Releases all segments of a closing session."""
        for segment in tuple(self._named.get(session, {}).values()):
            self.release(segment)
        self._named.pop(session, None)

    def _forget(self, segment: Segment) -> None:
        signals = segment.session.signals
        if signals is not None and signals.segment is segment:
            segment.session.signals = None
        named = self._named.get(segment.session)
        if named is not None and named.get(segment.ident) is segment:
            del named[segment.ident]
            if not named:
                del self._named[segment.session]

    def _retire(self, segment: Segment) -> None:
        if segment.ready:  # otherwise it is being mapped, and is released after that
            self._release(segment)

    def _release(self, segment: Segment) -> None:
        segment.view = memoryview(b"")
        if segment.locked:
            self._retired[segment] = None
            size = sum(retired.size for retired in self._retired)
            urgent = len(self._retired) > RETIRED or size > RETIRED_BYTES
            self._device.idle_work.run_on_thread(partial(self._unmap, segment), urgent=urgent)
        else:
            self._unmap(segment, lambda: None)

    def _unmap(self, segment: Segment, on_unlocked: Callable[[], None]) -> None:
        """Unmaps a segment. `on_unlocked` is called as soon as the device need not be idle any more."""
        self._retired.pop(segment, None)
        on_unmapped = partial(self._uncount, segment)
        self._mapper.unmap(segment.address, segment.size, segment.locked, on_unlocked, on_unmapped)

    def _uncount(self, segment: Segment) -> None:
        session = segment.session
        _subtract(self._count, session, 1)
        _subtract(self._bytes, session.tenant, segment.size)


def _subtract(counter: Counter, key: object, amount: int) -> None:  # type: ignore[type-arg]
    counter[key] -= amount
    if not counter[key]:
        del counter[key]


def _seals(file: int) -> int:
    """Returns the seals of a file; -1 if the file cannot have seals."""
    with contextlib.suppress(OSError):
        return fcntl.fcntl(file, _F_GET_SEALS)
    return -1


def _not_new(ident: int) -> Refusal:
    if not ident:
        return Refusal(Reason.INVALID_ARGUMENT, "0 cannot be the number of a segment", fix="mint numbers from 1")
    return Refusal(
        Reason.HANDLE_IN_USE,
        f"segment {ident} exists already in this session on this device",
        fix="mint a number that was not used before",
        details={"kind": "segment", "handle": ident},
    )
