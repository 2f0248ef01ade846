"""Published buffers: their names, grants and attachments. This module is pure: it does no I/O and touches no memory.

A publication lives as long as its name or an attachment exists. Its memory is in the process that published it
(`home`). If that process frees the memory while other processes still map it, one of them becomes the bearer of the
publication, so that the memory is counted once, with a process that maps it. Processes are distinguished by identity.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.tenancy.tenants import Right, Tenant, sees_tenant
from hearthd.shared.published_names import check_name

ALL_TENANTS = "*"
"""Grant to all tenants, in place of the name of one."""
MAX_GRANTS = 256
MAX_DESCRIPTION = 4096
MAX_PUBLICATIONS = 1024
"""Maximum number of names of one tenant on one device."""
_MAX_AXES = 64
_MAX_DTYPE = 40
"""Maximum number of characters of a dtype's name."""

Process = Any
"""An object that represents a device process. It is only compared by identity."""


@dataclass(eq=False)
class BufferAttachment:
    """The attachment of a buffer by one session."""

    number: int
    session: str
    process: Process
    buffer: int
    """The session's handle of the attached buffer in `process`."""


@dataclass(eq=False)
class Publication:
    """A published buffer. It exists while it is named, and afterwards until its last attachment ends."""

    number: int
    tenant: str
    device: int
    name: str
    grants: frozenset[str]
    description: bytes
    home: Process
    channel: Any
    """The publisher's channel in `home`."""
    size: int = 0
    confirmed: bool = False
    """True once the process has published the buffer. Until then the name is only reserved."""
    since_unix: float = 0.0
    """Time when the buffer was published, in seconds since 1970."""
    named: bool = True
    bearer: Process = None
    """The process with which the memory is counted."""
    attachments: dict[int, BufferAttachment] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, str]:
        """Tenant, device and name, under which the registry finds the publication."""
        return self.tenant, self.device, self.name

    @property
    def unused(self) -> bool:
        """True if the buffer has no name and no attachment left."""
        return not self.named and not self.attachments

    @property
    def sessions(self) -> int:
        """Number of sessions that have attached the buffer."""
        return len({attachment.session for attachment in self.attachments.values()})

    def attached_by(self, session: str) -> int:
        """Returns 1 if the session has attached the buffer, else 0."""
        return int(any(attachment.session == session for attachment in self.attachments.values()))

    @cached_property
    def array(self) -> tuple[list[int], str] | None:
        """Shape and name of the dtype, from the publisher's description; None if it describes no array.

        Any program may publish, so the description may be anything.
        """
        try:
            description = json.loads(self.description)
            shape, dtype = description["shape"], description["dtype"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        valid = isinstance(shape, list) and len(shape) <= _MAX_AXES and all(type(axis) is int for axis in shape)
        if not valid or not isinstance(dtype, str) or not 0 < len(dtype) <= _MAX_DTYPE:
            return None
        return shape, dtype

    def matches(self, channel: Any, grants: Sequence[str], description: bytes) -> bool:
        """Returns True if the channel published it with these grants and this description."""
        return (
            self.confirmed
            and self.channel is channel
            and self.grants == frozenset(grants)
            and self.description == description
        )

    def is_open_to(self, tenant: str) -> bool:
        """Returns True if sessions of this tenant may attach the buffer: the publisher's tenant always may."""
        return tenant == self.tenant or tenant in self.grants or ALL_TENANTS in self.grants


class PublicationRegistry:
    """The publications of a node."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int, str], Publication] = {}
        self._publications: dict[int, Publication] = {}
        self._attachments: dict[int, Publication] = {}
        self._attached: dict[tuple[str, Process, int], int] = {}
        """Numbers of the latest attachments, by session, process and handle."""
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[Publication]:
        """Iterates over all publications, including attached ones without a name."""
        return iter(list(self._publications.values()))

    def reserve(
        self,
        tenant: str,
        device: int,
        name: str,
        home: Process,
        channel: Any,
        *,
        grants: Sequence[str] = (),
        description: bytes = b"",
        limit: int = MAX_PUBLICATIONS,
        replace: bool = False,
    ) -> Publication:
        """Reserves the name for a new publication.

        With `replace`, an earlier publication keeps its name until `confirm`.

        Raises NAME_IN_USE, QUOTA_EXCEEDED or INVALID_ARGUMENT.
        """
        check_name(name, "a published buffer")
        for grant in grants:
            check_name(grant, "a tenant", "tenants")
        if len(grants) > MAX_GRANTS:
            raise _invalid(
                f"{len(grants)} tenants are granted a buffer; the maximum is {MAX_GRANTS}",
                f'grant it to "{ALL_TENANTS}"',
                "tenants",
            )
        if len(description) > MAX_DESCRIPTION:
            raise _invalid(
                f"a description of {len(description)} bytes; the maximum is {MAX_DESCRIPTION}",
                "put it in a separate buffer",
                "description",
            )
        key = (tenant, device, name)
        previous = self._names.get(key)
        if previous is not None and not (replace and previous.confirmed):
            raise Refusal(
                Reason.NAME_IN_USE,
                f"a buffer of tenant {tenant} is published as {name!r} on device {device} already",
                fix="replace it (replace=True), unpublish it first, or use another name",
                details={"name": name, "device": device},
            )
        if limit and previous is None and self._count(tenant, device) >= limit:
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"{limit} buffers of tenant {tenant} are published on device {device}, which is the maximum",
                fix="unpublish some, or have the quota raised (published)",
                details={"quota": "published", "requested": limit + 1, "allowed": limit},
            )
        publication = Publication(
            next(self._numbers), tenant, device, name, frozenset(grants), description, home, channel, bearer=home
        )
        self._publications[publication.number] = publication
        if previous is None:
            self._names[key] = publication
        return publication

    def by_name(self, tenant: str, device: int, name: str) -> Publication | None:
        """Returns the publication that has the name, also while the name is only reserved."""
        return self._names.get((tenant, device, name))

    def confirm(self, publication: Publication, size: int, now: float = 0.0) -> Publication | None:
        """Marks a publication as published at the time `now`, in seconds since 1970.

        If its name has ended in the meantime, `find` still does not return it.

        Returns the publication that it replaces, whose name has ended; None if there is none.
        """
        publication.size = size
        publication.since_unix = now
        publication.confirmed = True
        previous = self._names.get(publication.key)
        if not publication.named or previous is publication:
            return None
        if previous is not None:
            self.end(previous)
        self._names[publication.key] = publication
        return previous

    def find(self, caller: str, tenant: str, device: int, name: str) -> Publication:
        """Returns the tenant's publication of this name, for a session of `caller`.

        Raises NOT_PUBLISHED, with the same message if there is no such publication and if the caller may not know of
        it.
        """
        publication = self._names.get((tenant, device, name))
        if publication is None or not publication.confirmed or not publication.is_open_to(caller):
            raise not_published(tenant, device, name)
        return publication

    def attachable_by(self, caller: str, device: int) -> list[Publication]:
        """Returns the publications that a session of `caller` may attach.

        The caller's own come first; apart from that, they are sorted by tenant and name.
        """
        attachable = (
            publication
            for publication in self._names.values()
            if publication.confirmed and publication.device == device and publication.is_open_to(caller)
        )
        return sorted(
            attachable, key=lambda publication: (publication.tenant != caller, publication.tenant, publication.name)
        )

    def visible_to(self, viewer: Tenant) -> list[Publication]:
        """Returns the publications in the status for a tenant, by device, tenant and name.

        Args:
            viewer: The tenant. It sees the publications of the tenants that it sees, and those that its sessions may
                attach.
        """
        may_attach = viewer.may(Right.ATTACH)
        visible = (
            publication
            for publication in self._names.values()
            if publication.confirmed
            and (sees_tenant(viewer, publication.tenant) or (may_attach and publication.is_open_to(viewer.name)))
        )
        return sorted(visible, key=lambda publication: (publication.device, publication.tenant, publication.name))

    def end(self, publication: Publication) -> None:
        """Releases the name. Existing attachments stay."""
        if publication.named:
            publication.named = False
            if self._names.get(publication.key) is publication:  # a replacement has it only once it is confirmed
                del self._names[publication.key]
        self._remove_if_unused(publication)

    def attach(self, publication: Publication, session: str, process: Process, buffer: int = 0) -> BufferAttachment:
        """Adds an attachment.

        It counts immediately, before the process has mapped the memory, so that the memory cannot be freed in between.
        """
        attachment = BufferAttachment(next(self._numbers), session, process, buffer)
        publication.attachments[attachment.number] = attachment
        self._attachments[attachment.number] = publication
        self._attached[session, process, buffer] = attachment.number
        return attachment

    def attached(self, session: str, process: Process, buffer: int) -> Publication | None:
        """Returns the publication that the session has attached under the handle, also if its name has ended.

        The session may have freed the buffer: the attachment counts until the process reports its end.
        """
        number = self._attached.get((session, process, buffer))
        return None if number is None else self._attachments[number]

    def detach(self, number: int, process: Process) -> Publication | None:
        """Removes an attachment that has ended or was never made.

        Returns its publication; None if `process` has no such attachment.
        """
        publication = self._attachments.get(number)
        if publication is None or publication.attachments[number].process is not process:
            return None
        attachment = publication.attachments.pop(number)
        del self._attachments[number]
        key = attachment.session, process, attachment.buffer
        if self._attached.get(key) == number:
            del self._attached[key]
        self._remove_if_unused(publication)
        return publication

    def end_all(self, numbers: Iterable[int], process: Process) -> list[Publication]:
        """Ends the publications with these numbers whose home is `process`, because their publishers have gone.

        Returns them.
        """
        publications = [self._publications.get(number) for number in numbers]
        ended = [publication for publication in publications if publication is not None and publication.home is process]
        for publication in ended:
            self.end(publication)
        return ended

    def process_unmapped(self, number: int, process: Process) -> Publication | None:
        """Notes that the process no longer maps the memory of a publication.

        Returns the publication if another process bears it from now on, else None.
        """
        publication = self._publications.get(number)
        if publication is None or publication.bearer is not process:
            return None
        other_processes = (
            attachment.process for attachment in publication.attachments.values() if attachment.process is not process
        )
        publication.bearer = next(other_processes, None)
        return publication if publication.bearer is not None else None

    def process_lost(self, process: Process) -> list[Publication]:
        """Ends the names and attachments of a process that has ended.

        Returns the publications that other processes bear from now on.
        """
        for publication in self:
            attachments = list(publication.attachments.values())
            for number in [attachment.number for attachment in attachments if attachment.process is process]:
                self.detach(number, process)
            if publication.home is process:
                self.end(publication)
        moved = (self.process_unmapped(publication.number, process) for publication in self)
        return [publication for publication in moved if publication is not None]

    def _count(self, tenant: str, device: int) -> int:
        """Returns the number of names of a tenant on a device."""
        return sum(other.tenant == tenant and other.device == device for other in self._names.values())

    def _remove_if_unused(self, publication: Publication) -> None:
        if publication.unused:
            self._publications.pop(publication.number, None)


def not_published(tenant: str, device: int, name: str) -> Refusal:
    """Returns the refusal of a name that is not published, or that the caller may not know of."""
    return Refusal(
        Reason.NOT_PUBLISHED,
        f"nothing that this session may attach is published as {name!r} by tenant {tenant} on device {device}",
        fix="use one of the names that `hearth published` or gpu.published() lists; to let another tenant attach "
        "an array, publish it with tenants=[...]",
        details={"name": name, "tenant": tenant, "device": device},
    )


def _invalid(message: str, fix: str, field: str) -> Refusal:
    return Refusal(Reason.INVALID_ARGUMENT, message, fix=fix, fields=[field])
