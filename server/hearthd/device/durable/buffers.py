"""A durable buffer as its device process knows it, and what is said of those that are none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.durable.snapshot_policy import Areas, Which
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import Session
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import Track
from hearthd.device.transfers.staged import Direct

if TYPE_CHECKING:
    from hearthd.device.durable.snapshot import Snapshot


class Durable:
    """A buffer that has copies in the host's memory. `areas` is None until the front has granted them."""

    __slots__ = ("_on_end", "areas", "buffer", "ended", "key", "line", "refusal", "session", "writes")

    def __init__(self, key: int, session: Session, buffer: Buffer, on_end: Callable[[Durable], None]) -> None:
        self.key = key
        self.session = session
        self.buffer = buffer
        self.areas: Areas | None = None
        self.refusal: Refusal | None = None
        """Why the front has not."""
        self.line: deque[Snapshot] = deque()
        """Snapshots of it, in the order of their points: the first is under way."""
        self.writes = 0
        """Of its copies, on their way to the file."""
        self.ended = False
        self._on_end = on_end

    def end(self) -> None:
        """It is durable no more: freed, or no longer wanted. A second call does nothing."""
        if not self.ended:
            self.ended = True
            self._on_end(self)


class Vault(Protocol):
    """The front's side of it: see `hearthd.device.durable.commands`."""

    def file(self, session: Session) -> int | None:
        """The session's file; None: it is on its way."""
        ...

    def lend(self) -> Track | None:
        """A track for copies that are given to it ahead of their point; None: they have to wait for it."""
        ...

    def give_back(self, track: Track) -> None: ...
    def track(self) -> Track:
        """The track for copies that wait for nothing any more: all snapshots share it."""
        ...

    def commit(self, snapshot: Snapshot, copies: Iterable[tuple[int, Which]]) -> None:
        """Tells the front that these copies are complete, and the snapshot what it says."""
        ...

    def written(self, durable: Durable) -> None:
        """A write of one of its copies is over."""
        ...

    def over(self, snapshot: Snapshot, behind: Sequence[Callable[[], None]]) -> None:
        """Calls back those that wait for it, once its failure, if that is its end, has been noted."""
        ...


class Part:
    """One buffer's copy, `given` bytes of which have been given to the device."""

    __slots__ = ("areas", "direct", "durable", "given", "which")

    def __init__(self, durable: Durable, areas: Areas, direct: Direct) -> None:
        self.durable = durable
        self.areas = areas
        self.which = areas.begin()
        self.direct = direct
        self.given = 0


def behind(session: Session, stream: LogicalStream | None, callback: Callable[[], None]) -> Callable[[], None]:
    """`callback`, to be called when all else that it waits for is there: it then waits for the snapshots that are under
    way now, on `stream` or (None) on any."""
    snapshots = [each for each in session.snapshots if stream is None or each.stream is stream]
    if not snapshots:
        return callback
    left = len(snapshots) + 1

    def one() -> None:
        nonlocal left
        left -= 1
        if not left:
            callback()

    for snapshot in snapshots:
        snapshot.then(one)
    return one


def never_granted(durable: Durable, refusal: Refusal) -> Refusal:
    return Refusal(
        Reason.DEPENDENCY_FAILED,
        f"buffer {durable.buffer.handle} was never made durable: {refusal.message}",
        fix=refusal.fix,
        details={**refusal.details, "buffer": durable.buffer.handle, "cause": refusal.reason},
    )


def not_written(error: OSError) -> Refusal:
    return Refusal(
        Reason.OUT_OF_MEMORY,
        f"the host's memory took no copy of a durable buffer: {error.strerror or error}; the copy before it stands",
        fix="free host memory, or lower sessions.durable_bytes",
        details={"error": str(error)},
    )
