"""The durable store: copies of durable buffers, in memory files that outlive the device processes that fill them.

Each session has one file for each device. The front creates the file and hands it to the device process, but does not
map it. A device process reserves areas in it (SNAPSHOT with `reserve`), reports which copies are complete (`commit`,
all or none of one message) and which are no longer needed (`forget`). Each request is answered, by its id, after it has
taken effect; until then the process does not overwrite the previous copies. Whenever a process ends, the copies that
were committed last are therefore complete. The next process gets the file, and restores the buffers before it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
from collections.abc import Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

import structlog

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal, to_text
from hearthd.front import errors
from hearthd.front.durable.store_index import Hole, StoreIndex, StoreUse, charge, check
from hearthd.front.links.link import DeviceLink
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.session import Session

log = structlog.get_logger("hearthd.durable")

RESTORE_TIMEOUT = 30.0
BYTES_PER_SECOND = 100 << 20
"""Time limit of a restore: its size divided by this rate (bytes per second), plus `RESTORE_TIMEOUT` seconds."""

AT_ONCE = 16
"""Maximum number of sessions that are restored concurrently, because the socket for files holds only some hundred
messages."""

_PUNCH_HOLE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE, which requires FALLOC_FL_KEEP_SIZE."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class SessionCopies:
    """The copies of one session on one device."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.index = StoreIndex()
        self.file = os.memfd_create("hearth-durable", os.MFD_CLOEXEC)
        self.channel: Channel | None = None
        """The channel whose device process has the file. None: no process has it."""
        self._users = 0
        self._closed = False

    def hand_over(self, link: DeviceLink, channel: Channel) -> None:
        """Sends the file to the channel's device process, if that does not have it.

        Raises OSError if it cannot be sent at the moment.
        """
        if self.channel is not channel and link.descriptors is not None:
            link.descriptors.send("snapshot", {"channel": channel.number}, [self.file])
            self.channel = channel

    @contextlib.contextmanager
    def using(self) -> Iterator[int]:
        """Yields the file, and keeps it open while the context is entered."""
        self._users += 1
        try:
            yield self.file
        finally:
            self._users -= 1
            self._release()

    def close(self) -> None:
        """Closes the file, after the last context of `using` has been left."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        if self._closed and not self._users and self.file >= 0:
            os.close(self.file)
            self.file = -1


class DurableStore:
    """The durable store of the node. `limit`: bytes of host memory for all copies; 0: no limit."""

    def __init__(self, sessions: Iterable[Session], limit: int = 0) -> None:
        self._sessions = sessions
        self._limit = limit
        self._places: dict[tuple[str, int], SessionCopies] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bytes(self) -> int:
        """Bytes of host memory that are reserved for copies."""
        return sum(place.index.bytes for place in self._places.values())

    # ---- sessions ----

    def on_session_closed(self, session_id: str) -> None:
        """Drops the copies of a session that was closed."""
        for key in [key for key in self._places if key[0] == session_id]:
            self._places.pop(key).close()

    def close(self) -> None:
        """Closes every file."""
        for place in self._places.values():
            place.close()
        self._places.clear()

    # ---- messages of device processes ----

    def attach(self, link: DeviceLink) -> None:
        """Starts to serve a device process."""
        link.listen(Kind.SNAPSHOT, partial(self._on_snapshot, link))

    def _on_snapshot(self, link: DeviceLink, frame: Frame) -> None:
        channel = link.channels.get(frame.channel)
        if channel is None:
            return  # its session has been closed
        body = json.loads(frame.payload)
        try:
            answer = self._execute(link, channel, body)
        except Refusal as refusal:
            answer = {"error": to_text(refusal)}
        if frame.id:
            payload = json.dumps(answer, separators=(",", ":")).encode()
            link.send(Kind.SNAPSHOT, payload, channel=frame.channel, id=frame.id)

    def _execute(self, link: DeviceLink, channel: Channel, body: dict[str, Any]) -> dict[str, Any]:
        if "reserve" in body:
            return self._reserve(link, channel, body["reserve"])
        place = self._places.get((channel.session_id, link.ordinal))
        if place is None:
            raise errors.session_expired()
        if "commit" in body:
            try:
                place.index.commit((key, which) for key, which in body["commit"])
            except KeyError as error:
                raise Refusal(Reason.INTERNAL, f"Copy {error} is unknown.") from None
        else:
            self._drop(place, place.index.forget(body.get("forget", ())))
        return {}

    def _reserve(self, link: DeviceLink, channel: Channel, wanted: list[list[int]]) -> dict[str, Any]:
        """Reserves areas for buffers, all or none; each is given as [key, handle, size].

        Raises Refusal(QUOTA_EXCEEDED).
        """
        known = self._places.get((channel.session_id, link.ordinal))
        session = known.session if known is not None else self._find(channel.session_id)
        tenant = session.tenant
        check(
            charge([size for _, _, size in wanted]),
            (
                StoreUse(
                    f"tenant {tenant.name} on device {link.ordinal}",
                    self._of_tenant(tenant.name, link.ordinal),
                    tenant.quotas.durable_bytes,
                ),
                StoreUse("the node", self.bytes, self._limit),
            ),
        )
        try:
            place = known or SessionCopies(session)
        except OSError as error:
            raise _no_file(error) from None
        try:
            place.hand_over(link, channel)
        except OSError as error:
            if known is None:
                place.close()
            raise _no_file(error) from None
        self._places[channel.session_id, link.ordinal] = place
        copies = [place.index.reserve(key, handle, size) for key, handle, size in wanted]
        return {"places": [[copy.offset, copy.span] for copy in copies]}

    def _find(self, session_id: str) -> Session:
        for session in self._sessions:
            if session.id == session_id and not session.closing:
                return session
        raise errors.session_expired()

    def _of_tenant(self, tenant: str, ordinal: int) -> int:
        return sum(
            place.index.bytes
            for (_, device), place in self._places.items()
            if device == ordinal and place.session.tenant.name == tenant
        )

    # ---- restore ----

    async def restore(self, link: DeviceLink) -> None:
        """Restores, in a process that is ready, the durable buffers of its sessions.

        Returns when they are restored, or cannot be. If the process ends meanwhile, the next process is restored from
        the same copies.
        """
        self.attach(link)
        room = asyncio.Semaphore(AT_ONCE)

        async def one(place: SessionCopies) -> None:
            async with room:
                await self._restore(place, link)

        places = [
            place
            for (_, ordinal), place in self._places.items()
            if ordinal == link.ordinal and not place.session.closing and link.serves(place.session)
        ]
        await asyncio.gather(*(one(place) for place in places))

    async def _restore(self, place: SessionCopies, link: DeviceLink) -> None:
        session, index = place.session, place.index
        self._drop(place, index.discard_incomplete())
        copies = list(index.copies.values())
        if not copies or session.closing:
            return
        channel = session.channels[link.ordinal] = link.open_channel(session.open_payload(link.device_memory))
        size = sum(copy.size for copy in copies)
        body = {
            "copies": [[copy.key, copy.handle, copy.size, copy.offset, copy.span, copy.committed] for copy in copies]
        }
        try:
            place.hand_over(link, channel)
            async with asyncio.timeout(RESTORE_TIMEOUT + size / BYTES_PER_SECOND):
                answer = await _unless_over(link, link.ask(Kind.RESTORE, body, channel.number))
        except ConnectionError as error:  # the process has ended, and its loss is not known yet
            log.warning("durable_again", session=session.id, device=link.ordinal, why=str(error))
            return
        except (OSError, TimeoutError) as error:
            log.error("durable_late", session=session.id, device=link.ordinal, bytes=size, error=repr(error))
            self._discard_restored(place, link, channel)
            return
        except Refusal as refusal:
            log.warning("durable_again", session=session.id, device=link.ordinal, why=refusal.message)
            return
        failed = {int(key): str(why) for key, why in answer["failed"]}
        for copy in copies:
            if copy.key in failed:
                why = failed[copy.key]
                log.error("durable_lost", session=session.id, device=link.ordinal, buffer=copy.handle, why=why)
        self._drop(place, index.forget(failed))
        channel.durable = [copy.handle for copy in copies]  # those that failed report the reason when they are used
        log.info("durable_restored", session=session.id, device=link.ordinal, buffers=len(copies), bytes=size)

    def _discard_restored(self, place: SessionCopies, link: DeviceLink, channel: Channel) -> None:
        """Removes buffers that may be partly restored. The session starts with none."""
        if place.session.channels.get(link.ordinal) is channel:
            del place.session.channels[link.ordinal]
        self._spawn(channel.close(Refusal(Reason.BUFFER_LOST, "Its durable buffers could not be restored in time.")))
        if self._places.get((place.session.id, link.ordinal)) is place:
            del self._places[place.session.id, link.ordinal]
            place.close()

    def _drop(self, place: SessionCopies, holes: list[Hole]) -> None:
        """Returns memory to the system, in a thread, because that takes some 0.1 s for each GiB."""
        if not holes or place.file < 0:
            return
        using = contextlib.ExitStack()
        file = using.enter_context(place.using())

        async def punch() -> None:
            with using:
                await asyncio.to_thread(_punch, file, holes)

        self._spawn(punch())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _unless_over(link: DeviceLink, asking: Any) -> dict[str, Any]:
    """Returns the answer. Raises Refusal(DEVICE_LOST) if the link ends before it arrives."""
    answer = asyncio.ensure_future(asking)
    try:
        await asyncio.wait({answer, link.closed}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise Refusal(Reason.DEVICE_LOST, "The device process ended during a restore.")
        body: dict[str, Any] = answer.result()
        return body
    finally:
        answer.cancel()


def _no_file(error: OSError) -> Refusal:
    full = error.errno in (errno.EAGAIN, errno.EWOULDBLOCK)
    return Refusal(
        Reason.QUEUE_FULL if full else Reason.QUOTA_EXCEEDED,
        f"A durable buffer needs a memory file (memfd), which the system refuses: {error.strerror}.",
        fix="Try again." if full else "Raise the daemon's limit on open files (LimitNOFILE, ulimit -n).",
        retry_after_s=0.1 if full else None,
    )


def _punch(file: int, holes: list[Hole]) -> None:
    for offset, length in holes:
        if _libc.fallocate(file, _PUNCH_HOLE, offset, length):
            log.warning("durable_hole", error=os.strerror(ctypes.get_errno()), bytes=length)
