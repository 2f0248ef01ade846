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

MAX_CONCURRENT_RESTORES = 16
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
        """Sends the file to the channel's device process, if the process does not have it.

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
        self._session_copies: dict[tuple[str, int], SessionCopies] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bytes(self) -> int:
        """Bytes of host memory that are reserved for copies."""
        return sum(session_copies.index.bytes for session_copies in self._session_copies.values())

    # ---- sessions ----

    def on_session_closed(self, session_id: str) -> None:
        """Drops the copies of a session that was closed."""
        for key in [key for key in self._session_copies if key[0] == session_id]:
            self._session_copies.pop(key).close()

    def close(self) -> None:
        """Closes every file."""
        for session_copies in self._session_copies.values():
            session_copies.close()
        self._session_copies.clear()

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
        session_copies = self._session_copies.get((channel.session_id, link.ordinal))
        if session_copies is None:
            raise errors.session_expired()
        if "commit" in body:
            try:
                session_copies.index.commit((key, area) for key, area in body["commit"])
            except KeyError as error:
                raise Refusal(Reason.INTERNAL, f"Copy {error} is unknown.") from None
        else:
            self._drop(session_copies, session_copies.index.forget(body.get("forget", ())))
        return {}

    def _reserve(self, link: DeviceLink, channel: Channel, requests: list[list[int]]) -> dict[str, Any]:
        """Reserves areas for buffers, all or none. A request is a list [key, handle, size].

        Raises Refusal(QUOTA_EXCEEDED).
        """
        existing = self._session_copies.get((channel.session_id, link.ordinal))
        session = existing.session if existing is not None else self._find_session(channel.session_id)
        tenant = session.tenant
        check(
            charge([size for _, _, size in requests]),
            (
                StoreUse(
                    f"tenant {tenant.name} on device {link.ordinal}",
                    self._tenant_bytes(tenant.name, link.ordinal),
                    tenant.quotas.durable_bytes,
                ),
                StoreUse("the node", self.bytes, self._limit),
            ),
        )
        try:
            session_copies = existing or SessionCopies(session)
        except OSError as error:
            raise _no_memory_file(error) from None
        try:
            session_copies.hand_over(link, channel)
        except OSError as error:
            if existing is None:
                session_copies.close()
            raise _no_memory_file(error) from None
        self._session_copies[channel.session_id, link.ordinal] = session_copies
        copies = [session_copies.index.reserve(key, handle, size) for key, handle, size in requests]
        return {"places": [[copy.offset, copy.span] for copy in copies]}

    def _find_session(self, session_id: str) -> Session:
        for session in self._sessions:
            if session.id == session_id and not session.closing:
                return session
        raise errors.session_expired()

    def _tenant_bytes(self, tenant: str, ordinal: int) -> int:
        return sum(
            session_copies.index.bytes
            for (_, device), session_copies in self._session_copies.items()
            if device == ordinal and session_copies.session.tenant.name == tenant
        )

    # ---- restore ----

    async def restore(self, link: DeviceLink) -> None:
        """Restores, in a process that is ready, the durable buffers of its sessions.

        Returns when they are restored, or cannot be. If the process ends meanwhile, the next process is restored from
        the same copies.
        """
        self.attach(link)
        semaphore = asyncio.Semaphore(MAX_CONCURRENT_RESTORES)

        async def restore_session(session_copies: SessionCopies) -> None:
            async with semaphore:
                await self._restore(session_copies, link)

        on_device = [copies for (_, ordinal), copies in self._session_copies.items() if ordinal == link.ordinal]
        await asyncio.gather(*(restore_session(session_copies) for session_copies in on_device))

    async def _restore(self, session_copies: SessionCopies, link: DeviceLink) -> None:
        session, index = session_copies.session, session_copies.index
        if not link.serves(session):
            return
        self._drop(session_copies, index.discard_incomplete())
        copies = list(index.copies.values())
        if not copies:
            return
        channel = link.open_channel(session)
        size = sum(copy.size for copy in copies)
        body = {
            "copies": [[copy.key, copy.handle, copy.size, copy.offset, copy.span, copy.committed] for copy in copies]
        }
        try:
            session_copies.hand_over(link, channel)
            async with asyncio.timeout(RESTORE_TIMEOUT + size / BYTES_PER_SECOND):
                answer = await _await_answer(link, link.ask(Kind.RESTORE, body, channel.number))
        except ConnectionError as error:  # the process has ended, and its loss is not known yet
            log.warning("durable_again", session=session.id, device=link.ordinal, why=str(error))
            return
        except (OSError, TimeoutError) as error:
            log.error("durable_late", session=session.id, device=link.ordinal, bytes=size, error=repr(error))
            self._discard_restored(session_copies, link, channel)
            return
        except Refusal as refusal:
            log.warning("durable_again", session=session.id, device=link.ordinal, why=refusal.message)
            return
        failures = {int(key): str(reason) for key, reason in answer["failed"]}
        for copy in copies:
            if copy.key in failures:
                reason = failures[copy.key]
                log.error("durable_lost", session=session.id, device=link.ordinal, buffer=copy.handle, why=reason)
        self._drop(session_copies, index.forget(failures))
        channel.durable = [copy.handle for copy in copies]  # those that failed report the reason when they are used
        log.info("durable_restored", session=session.id, device=link.ordinal, buffers=len(copies), bytes=size)

    def _discard_restored(self, session_copies: SessionCopies, link: DeviceLink, channel: Channel) -> None:
        """Removes buffers that may be partly restored. The session starts with none."""
        if session_copies.session.channels.get(link.ordinal) is channel:
            del session_copies.session.channels[link.ordinal]
        self._spawn(channel.close(Refusal(Reason.BUFFER_LOST, "Its durable buffers could not be restored in time.")))
        if self._session_copies.get((session_copies.session.id, link.ordinal)) is session_copies:
            del self._session_copies[session_copies.session.id, link.ordinal]
            session_copies.close()

    def _drop(self, session_copies: SessionCopies, holes: list[Hole]) -> None:
        """Returns memory to the system, in a thread, because that takes some 0.1 s for each GiB."""
        if not holes or session_copies.file < 0:
            return
        open_file = contextlib.ExitStack()
        file = open_file.enter_context(session_copies.using())

        async def punch() -> None:
            with open_file:
                await asyncio.to_thread(_punch, file, holes)

        self._spawn(punch())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _await_answer(link: DeviceLink, request: Any) -> dict[str, Any]:
    """Returns the answer to `request`. Raises Refusal(DEVICE_LOST) if the link ends before the answer arrives."""
    answer = asyncio.ensure_future(request)
    try:
        await asyncio.wait({answer, link.closed}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise Refusal(Reason.DEVICE_LOST, "The device process ended during a restore.")
        body: dict[str, Any] = answer.result()
        return body
    finally:
        answer.cancel()


def _no_memory_file(error: OSError) -> Refusal:
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
