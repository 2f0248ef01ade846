"""Publish, Unpublish, AttachBuffer and ListPublished.

The front keeps the names; memory passes between device processes.

Attaching in the publisher's process takes one request to that process. For the first session of another process, the
publisher's process exports the memory as an open file. The front passes the file on and does not keep it: once the
other process has mapped the memory, it depends on no other process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import structlog

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2
from hearthd.front.errors import Context
from hearthd.front.links.exported_files import ExportedFiles
from hearthd.front.links.link import DeviceLink
from hearthd.front.rpc.server_call import Behaviour
from hearthd.front.rpc.shielded_task import ShieldedTask
from hearthd.front.rpc.unary import WithChannel
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.publications import (
    MAX_PUBLICATIONS,
    BufferAttachment,
    Publication,
    PublicationRegistry,
    not_published,
)
from hearthd.front.sessions.session import Session
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.supervisor.supervisor import Supervisor
from hearthd.front.tenancy.tenants import EVERYONE, Right
from hearthd.shared.published_names import check_name

log = structlog.get_logger("hearthd.publish")

FILE = "published"
"""The kind of the messages that carry memory from and to device processes."""


class PublishService:
    """The methods of DeviceService for published buffers."""

    def __init__(self, sessions: SessionTable, supervisor: Supervisor, with_channel: WithChannel) -> None:
        self.registry = PublicationRegistry()
        self._sessions = sessions
        self._with_channel = with_channel
        self._files = ExportedFiles(FILE)
        self._shielded = ShieldedTask()
        supervisor.prepare.append(self._watch)

    def behaviours(self) -> Mapping[str, Behaviour]:
        """Returns the methods for DeviceService's table."""
        methods = {
            "Publish": self._publish,
            "Unpublish": self._unpublish,
            "AttachBuffer": self._attach,
            "ListPublished": self._list,
        }
        return {name: partial(self._serve, name, method) for name, method in methods.items()}

    async def _serve(self, name: str, behaviour: Any, request: Any, context: Context) -> Any:
        """Runs a method to its end even if its caller disconnects, because memory must not be left without an owner.

        If the same session sends the same Publish or AttachBuffer request again meanwhile, the second call waits for
        the first.
        """
        session = self._sessions.find(request.target.session_token)
        work = partial(behaviour, request, session)
        with_channel = partial(self._with_channel, request.target, work, name)
        request_key = None
        if name in ("Publish", "AttachBuffer"):
            request_key = (name, session.id, request.SerializeToString(deterministic=True))
        return await self._shielded.run(with_channel, request_key)

    # ---- methods ----

    async def _publish(self, request: Any, session: Session, channel: Channel) -> Any:
        """Publishes a buffer.

        If the buffer was published before, and only the answer was lost with its connection, answers again.
        """
        if await self._is_published(request, session, channel):
            return device_pb2.PublishResponse()
        try:
            publication = self.registry.reserve(
                session.tenant.name,
                request.target.device,
                request.name,
                channel.link,
                channel,
                grants=request.tenants,
                description=request.description,
                limit=session.tenant.quotas.published if session.tenant is not EVERYONE else MAX_PUBLICATIONS,
                replace=request.replace,
            )
        except Refusal as refusal:
            raise self._explain_conflict(refusal, session, request) from None
        body = {"op": "publish", "memory": publication.number, "buffer": request.buffer, "name": publication.name}
        try:
            answer = await channel.link.ask(Kind.EXPORT, body, channel.number)
        except BaseException:
            self._end(publication)
            raise
        if not publication.named:  # its session or its process has ended meanwhile
            raise not_published(publication.tenant, publication.device, publication.name)
        previous = self.registry.confirm(publication, answer["size"], time.time())
        if previous is not None:
            self._forget_if_ended(previous)
            self._audit("unpublish", session, previous, attached=previous.sessions)
        self._audit("publish", session, publication, grants=sorted(publication.grants))
        return device_pb2.PublishResponse()

    def _explain_conflict(self, refusal: Refusal, session: Session, request: Any) -> Refusal:
        """Adds to the refusal of a name in use the session that published the name, and its remaining lease."""
        publication = self.registry.by_name(session.tenant.name, request.target.device, request.name)
        if refusal.reason is not Reason.NAME_IN_USE or publication is None:
            return refusal
        holder = next((session for session in self._sessions if session.id == publication.channel.session_id), None)
        if holder is None:
            return refusal
        client = repr(holder.client_name) if holder.client_name else "without a name"
        location = f" in process {holder.client_process}" if holder.client_process else ""
        details = {**refusal.details, "session": holder.id, "client": holder.client_name}
        state = "which is connected"
        if not holder.connections:
            lease_left = self._sessions.lease_left(holder)
            state = f"which is not connected: the name ends with its session in {lease_left:.0f} s, unless it returns"
            details["lease_left_s"] = f"{lease_left:.1f}"
        message = f"{refusal.message} by session {holder.id} of the client {client}{location}, {state}"
        return Refusal(refusal.reason, message, fix=refusal.fix, details=details)

    async def _is_published(self, request: Any, session: Session, channel: Channel) -> bool:
        """Returns True if the session publishes this very buffer at present, with the same parameters."""
        publication = self.registry.by_name(session.tenant.name, request.target.device, request.name)
        if publication is None or not publication.matches(channel, request.tenants, request.description):
            return False
        body = {"op": "published", "memory": publication.number, "buffer": request.buffer}
        answer = await channel.link.ask(Kind.EXPORT, body, channel.number)
        return bool(answer["same"]) and publication.named

    async def _unpublish(self, request: Any, session: Session, channel: Channel) -> Any:
        """Ends a publication. Any session of its tenant may do so, as any of them may attach the buffer."""
        name = session.tenant.name
        check_name(request.name, "a published buffer")
        publication = self.registry.find(name, name, request.target.device, request.name)
        self._end(publication)
        self._audit("unpublish", session, publication, attached=publication.sessions)
        return device_pb2.UnpublishResponse()

    async def _attach(self, request: Any, session: Session, channel: Channel) -> Any:
        """Attaches a buffer.

        If the buffer is attached under this handle, and only the answer was lost, answers again, even if the name has
        ended since.
        """
        check_name(request.name, "a published buffer")
        caller, link = session.tenant.name, _link(channel)
        owner, device = request.tenant or caller, request.target.device
        earlier = self.registry.attached(session.id, link, request.buffer)
        if earlier is not None and earlier.key == (owner, device, request.name):
            answer = await link.ask(Kind.IMPORT, _import_body(earlier, request.buffer), channel.number)
            if answer.get("again"):
                return _attached(earlier, answer, link)
        publication = self.registry.find(caller, owner, device, request.name)
        attachment = self.registry.attach(publication, session.id, link, request.buffer)
        try:
            answer = await self._import(publication, attachment, channel, request.buffer)
        except BaseException:
            self._detach(attachment.number, link)
            raise
        # With `again` the buffer is attached already: the first answer was lost with its connection, and the first
        # attachment counts.
        if answer.get("again"):
            self._detach(attachment.number, link)
        else:
            self._audit("attach", session, publication, foreign=link is not publication.home)
        return _attached(publication, answer, link)

    async def _list(self, request: Any, session: Session, channel: Channel) -> Any:
        publications = self.registry.attachable_by(session.tenant.name, request.target.device)
        if not session.tenant.may(Right.ATTACH):  # publications that the session may not attach are hidden from it
            publications = [publication for publication in publications if publication.tenant == session.tenant.name]
        return device_pb2.ListPublishedResponse(
            buffers=[
                device_pb2.PublishedBuffer(
                    name=publication.name,
                    tenant=publication.tenant,
                    size=publication.size,
                    description=publication.description,
                    # The attachments of tenants that the owner has granted access are not shown to other tenants.
                    attached=(
                        publication.sessions
                        if publication.tenant == session.tenant.name
                        else publication.attached_by(session.id)
                    ),
                )
                for publication in publications
            ]
        )

    # ---- memory ----

    async def _import(
        self, publication: Publication, attachment: BufferAttachment, channel: Channel, buffer: int
    ) -> dict[str, Any]:
        """Makes the memory available under the session's handle, and returns the answer of its process."""
        link = _link(channel)
        body = {**_import_body(publication, buffer), "attachment": attachment.number}
        answer = await link.ask(Kind.IMPORT, body, channel.number)
        if not answer.get("missing"):
            return answer
        if link is publication.home:
            raise not_published(publication.tenant, publication.device, publication.name)
        number = 0
        if publication.size:
            number = self._files.next_number()
            file = await self._export(publication)
            try:
                _send_file(link, number, file)
            finally:
                os.close(file)
        return await link.ask(Kind.IMPORT, {**body, "file": number}, channel.number)

    async def _export(self, publication: Publication) -> int:
        """Returns the memory as an open file, from the process that published it.

        Raises NOT_PUBLISHED if that process is lost: the caller has lost nothing, and the publisher may publish again.
        """
        home: DeviceLink = publication.home
        body = {"op": "export", "memory": publication.number}
        try:
            _, file = await self._files.ask(home, body, publication.channel.number, "the published buffer")
        except Refusal:
            if home.loss is None:
                raise
            raise not_published(publication.tenant, publication.device, publication.name) from None
        return file

    # ---- end ----

    def _end(self, publication: Publication) -> None:
        """Ends the name, and with it the publication if no session has attached it."""
        if publication.named:
            self.registry.end(publication)
            self._forget_if_ended(publication)

    def _detach(self, number: int, link: DeviceLink) -> None:
        publication = self.registry.detach(number, link)
        if publication is not None:
            self._forget_if_ended(publication)

    def _forget_if_ended(self, publication: Publication) -> None:
        if publication.unused:
            _send_operation(publication.home, "forget", publication)

    def _notify_bearers(self, publications: list[Publication]) -> None:
        for publication in publications:
            _send_operation(publication.bearer, "bear", publication)

    async def _watch(self, link: DeviceLink) -> None:
        """Registers for the reports of a process that starts, and for its end.

        The process reports attachments and publications that end there by themselves, and memory that it no longer
        maps.
        """
        link.listen(Kind.IMPORTED, partial(self._on_imported, link))
        self._files.watch(link)
        link.closed.add_done_callback(lambda _: self._on_process_lost(link))

    def _on_imported(self, link: DeviceLink, frame: Frame) -> None:
        if frame.id:
            return  # the answer to a request that is no longer awaited
        body = json.loads(frame.payload)
        for number in body.get("detached", ()):
            self._detach(number, link)
        for publication in self.registry.end_all(body.get("ended", ()), link):
            log.info("publisher_gone", name=publication.name, tenant=publication.tenant, device=publication.device)
            self._forget_if_ended(publication)
        unmapped = [self.registry.process_unmapped(number, link) for number in body.get("left", ())]
        self._notify_bearers([publication for publication in unmapped if publication is not None])

    def _on_process_lost(self, link: DeviceLink) -> None:
        publications = [publication for publication in self.registry if publication.home is not link]
        self._notify_bearers(self.registry.process_lost(link))
        for publication in publications:
            self._forget_if_ended(publication)

    def _audit(self, event: str, session: Session, publication: Publication, **fields: Any) -> None:
        self._sessions.audit.record(
            event, session, name=publication.name, owner=publication.tenant, device=publication.device, **fields
        )


def _link(channel: Channel) -> DeviceLink:
    return cast(DeviceLink, channel.link)


def _import_body(publication: Publication, buffer: int) -> dict[str, Any]:
    """Returns an IMPORT request that asks whether the buffer is attached; with `attachment`, it attaches the buffer."""
    return {"memory": publication.number, "buffer": buffer, "size": publication.size}


def _attached(publication: Publication, answer: dict[str, Any], link: DeviceLink) -> device_pb2.AttachBufferResponse:
    return device_pb2.AttachBufferResponse(
        size=publication.size,
        description=publication.description,
        protected=answer.get("protected", False),
        generation=link.generation,
    )


def _send_operation(link: DeviceLink, operation: str, publication: Publication) -> None:
    link.send_json(Kind.EXPORT, {"op": operation, "memory": publication.number})


def _send_file(link: DeviceLink, number: int, file: int) -> None:
    """Sends an open file to a process. Raises QUEUE_FULL if the process accepts none at the moment, or the loss."""
    try:
        link.give(FILE, {"file": number}, file)
    except OSError as error:
        raise link.loss or Refusal(
            Reason.QUEUE_FULL, f"the memory could not be passed on: {error}", fix="try again", retry_after_s=0.1
        ) from error
