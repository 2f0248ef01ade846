"""Published buffers in one process: EXPORT frames for publishers, and IMPORT frames for sessions that attach.

EXPORT frames also serve exports, see `lend`.

Within the process, a published buffer is shared in place. When the first session of another process attaches it, its
contents are copied once into memory that other processes can map. The handles of this process follow one by one, each
after its session's work under way, and the last of them frees the old memory. No session writes meanwhile, so both
copies are equal, and neither waits for the other.

The front knows all holders and sends `forget` when a publication has ended; this module counts only the holders of this
process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.ipc.export import FILE, Exporting
from hearthd.device.ipc.front_link import FrontLink
from hearthd.device.ipc.lend import Lending
from hearthd.device.ipc.published import ATTACHED, PublishedBuffer, check_publishable
from hearthd.device.memory.reservations import Reservations
from hearthd.device.memory.shared_ownership import NOTHING, MappedAllocation, SharedAllocation, shared_place
from hearthd.device.operation import Operation, submit
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.session.buffer import Buffer, ReadOnly
from hearthd.device.session.session import DeviceSession


class Publishing:
    """Publishes and attaches buffers. Device-handle thread only."""

    def __init__(
        self, device: DeviceContext, reservations: Reservations, session_of: Callable[[int], DeviceSession | None]
    ) -> None:
        self._device = device
        self._session_of = session_of
        self._publications: dict[int, PublishedBuffer] = {}
        self._attachments: dict[object, int] = {}
        """Number of the attachment for each attached buffer of this process."""
        self._link = FrontLink(device, reservations)
        self._exporting = Exporting(self._link)
        self._lending = Lending(self._link)
        self.files: dict[int, int] = {}
        """Files that arrived before the frame that needs them, by number."""
        self._expected: dict[int, Frame] = {}

    def listen(self, control: Callable[[Kind, Callable[[Frame], None]], None], descriptors: DescriptorSocket) -> None:
        """Registers the handlers of the front's frames, and of the files that are sent separately."""
        control(Kind.EXPORT, self._export_frame)
        control(Kind.IMPORT, self._import_frame)
        self._link.descriptors = descriptors
        descriptors.register(FILE, self._file_arrived)

    def gauges(self) -> dict[str, int]:
        """Returns the numbers of published, attached and exported buffers of this process, for the metrics."""
        return {
            "buffers_published": sum(shared.publisher is not None for shared in self._publications.values()),
            "buffers_attached": len(self._attachments),
            "buffers_exported": len(self._lending),
        }

    def close(self, session: DeviceSession) -> None:
        """Ends the publications and exports of a session that has ended; attachments by other sessions remain."""
        self._lending.close(session)
        ended = [shared for shared in self._publications.values() if shared.publisher is session]
        for shared in ended:
            shared.publisher = None
            shared.allocation.leave(shared)
        if ended:
            self._link.report(ended=[shared.allocation.number for shared in ended])

    def _session(self, frame: Frame) -> DeviceSession:
        """Returns the session that the front's request is for. Raises Refusal(SESSION_EXPIRED) if it is closed."""
        session = self._session_of(frame.channel)
        if session is None:
            raise Refusal(Reason.SESSION_EXPIRED, "the session was closed before", fix="open a new one")
        return session

    # ---- publishing ----

    def _export_frame(self, frame: Frame) -> None:
        body = json.loads(frame.payload)
        op, number = body["op"], body.get("memory", 0)
        with self._link.answering(frame.id, op, Kind.EXPORTED):
            if op == "publish":
                self._publish(frame, number, body["buffer"], body["name"])
            elif op == "published":
                self._link.answer(frame.id, {"same": self._published(frame.channel, number, body["buffer"])})
            elif op == "export":
                self._exporting.export(frame.id, self._publications.get(number), body["file"])
            elif op == "forget":
                self._forget(number)
            elif op == "bear":
                self._take_accounting(number)
            elif op == "lend":
                self._lending.lend(frame.id, self._session(frame), body["buffer"], body["export"], body["file"])
            elif op == "release":
                self._lending.release(frame.channel, body["export"])
                self._link.answer(frame.id, {})

    def _publish(self, frame: Frame, number: int, handle: int, name: str) -> None:
        session = self._session(frame)
        buffer = session.buffers.find(handle)
        origin = self._link.origin(session, "publish", frame.id)
        run = partial(self._run_publish, frame.id, session, buffer, number, name)
        submit(Operation(origin, run, writes=(buffer,), needs=(buffer,)))

    def _published(self, channel: int, number: int, handle: int) -> bool:
        """True if this buffer of the session is published under this number."""
        session, shared = self._session_of(channel), self._publications.get(number)
        if session is None or shared is None:
            return False
        return shared.publisher is session and session.buffers.get(handle) is shared.buffer

    def _run_publish(self, call: int, session: DeviceSession, buffer: Buffer, number: int, name: str) -> bool:
        """Publishes a buffer, after all earlier commands that use it.

        The buffer is read-only from then on. Returns False if the command must wait.
        """
        if self._device.tracks.pending_outcomes.of_buffer(buffer.usage):
            return False  # the buffer's contents depend on the outcome of a collective
        check_publishable(buffer)
        allocation = shared_place(self._link.reservations, session, buffer)
        shared = self._publications[number] = PublishedBuffer(allocation, session, buffer)
        self._register_allocation(allocation, number)
        allocation.join(shared, session)
        buffer.read_only = ReadOnly(
            f"is published as {name!r}, or was published and is still attached by other sessions",
            "unpublish it and have the sessions that attached it free it, or write to a copy",
        )
        session.shares = True
        session.replay_cache.forget()  # forgets launches that write to the buffer
        self._link.after_uses(allocation.usage, partial(self._link.answer, call, {"size": buffer.size}))
        return True

    def _forget(self, number: int) -> None:
        """Ends a publication that has neither a name nor attachments; the publisher may write to the buffer again."""
        shared = self._publications.pop(number, None)
        if shared is None:
            return
        publisher, shared.publisher = shared.publisher, None
        if shared.buffer is not None and publisher is not None:
            shared.buffer.read_only = None
            publisher.replay_cache.forget()
        if shared in shared.allocation.holders:
            shared.allocation.leave(shared)

    def _take_accounting(self, number: int) -> None:
        """Accounts the memory to this process from now on."""
        shared = self._publications.get(number)
        allocation = shared.allocation if shared is not None else None
        if isinstance(allocation, MappedAllocation) and allocation.accounted_session is None:
            if allocation.memory is not NOTHING:
                self._device.server.count_shared(allocation.memory)
            allocation.account_to_session()
            self._device.grants.report_excess()

    # ---- attaching ----

    def _import_frame(self, frame: Frame) -> None:
        body = json.loads(frame.payload)
        file = body.get("file")
        if file and file not in self.files:
            self._expected[file] = frame  # the order of the two sockets is not defined
            return
        descriptor = self.files.pop(file, -1) if file else -1
        try:
            with self._link.answering(frame.id, "attach", Kind.IMPORTED):
                self._link.answer(frame.id, self._attach(frame, body, descriptor), Kind.IMPORTED)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _file_arrived(self, body: dict[str, Any], descriptors: list[int]) -> None:
        for surplus in descriptors[1:]:
            os.close(surplus)
        self.files[body["file"]] = descriptors[0]
        frame = self._expected.pop(body["file"], None)
        if frame is not None:
            self._import_frame(frame)

    def _attach(self, frame: Frame, body: dict[str, Any], descriptor: int) -> dict[str, Any]:
        """Attaches a published buffer to a session, and returns the answer. Raises Refusal."""
        session, number, size, handle = self._session(frame), body["memory"], body["size"], body["buffer"]
        shared = self._publications.get(number)
        existing = session.buffers.get(handle)
        if existing is not None and existing in self._attachments and existing.place.number == number:
            # The client repeats the request, because the first answer was lost with its connection.
            return {"protected": _protected(existing.place), "again": True}
        if "attachment" not in body:  # the front only queries the state
            return {}
        session.buffers.check_new(handle)
        if shared is None:
            if "file" not in body:
                return {"missing": True}
            memory = self._device.server.import_shared(descriptor, size) if size else NOTHING
            shared = self._publications[number] = PublishedBuffer(self._link.map(memory, size, None))
            self._register_allocation(shared.allocation, number)
        allocation = shared.allocation
        buffer = Buffer(handle, allocation.size)
        buffer.read_only = ATTACHED
        allocation.assign(buffer)
        allocation.join(buffer, session)
        self._attachments[buffer] = body["attachment"]
        session.buffers.add(handle, buffer)
        session.shares = True
        return {"protected": _protected(allocation)}

    # ---- release of memory ----

    def _register_allocation(self, allocation: SharedAllocation, number: int) -> None:
        allocation.number = number
        allocation.on_leave = self._holder_left

    def _holder_left(self, allocation: SharedAllocation, holder: object) -> None:
        attachment = self._attachments.pop(holder, None)
        if attachment is not None:
            self._link.after_uses(allocation.usage, partial(self._link.report, detached=[attachment]))
        shared = self._publications.get(allocation.number)
        if shared is not None and shared.allocation is allocation and not allocation.holders:
            del self._publications[allocation.number]


def _protected(allocation: SharedAllocation) -> bool:
    return allocation.shared is not None and allocation.shared.protected
