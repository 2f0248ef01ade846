"""Checks the rights of commands. Batches pass through the front undecoded, so that the rights are checked here."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from hearth_proto import rights
from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2


class Permissions:
    """Rights of a session that lacks at least one right.

    A session with every right has no such object, and its commands are not checked.
    """

    def __init__(self, granted: Collection[str]) -> None:
        self.granted = frozenset(granted)
        self.allowed = rights.allowed(self.granted)
        self.reported: set[str] = set()


def of(info: Mapping[str, Any]) -> Permissions | None:
    """Returns the permissions from the payload of OPEN; None if the session has every right."""
    return Permissions(info["rights"]) if "rights" in info else None


class PermissionHolder(Protocol):
    """A session, as the subject of the check."""

    channel: int
    tenant: str
    permissions: Permissions | None


class FrameSink(Protocol):
    """Queues frames for the front."""

    def put(self, kind: int, payload: bytes = b"", *, channel: int = 0) -> None:
        """Queues a frame of `kind` for the front; `channel` is the session's."""
        ...


_COPIES = (commands_pb2.COLLECTIVE_KIND_SEND, commands_pb2.COLLECTIVE_KIND_RECV)


def kind_of(kind: str, command: commands_pb2.Command) -> str:
    """Returns the kind of command whose rights a command needs: its own kind, or "copy" for a copy between devices.

    A copy between two devices of one session is a `Collective` of these devices with one operation, a send on one
    device and a receive on the other. It needs the rights of a copy within a device.
    """
    if kind != "collective":
        return kind
    collective = command.collective
    copies = not collective.group and len(collective.devices) == 2 and len(collective.operations) == 1
    return "copy" if copies and collective.operations[0].kind in _COPIES else kind


def check(out: FrameSink, session: PermissionHolder, kind: str) -> None:
    """Raises Refusal(PERMISSION_DENIED) for a command that the session may not send.

    For each kind of command, one frame is sent to the front, which writes the audit log.
    """
    permissions = session.permissions
    if permissions is None or kind in permissions.allowed:
        return
    lacking = rights.missing(rights.COMMANDS.get(kind, ()), permissions.granted)
    operation = "launch" if kind == "launches" else kind
    if operation not in permissions.reported:
        permissions.reported.add(operation)
        out.put(
            Kind.DENIED,
            json.dumps({"operation": operation, "right": ", ".join(lacking)}).encode(),
            channel=session.channel,
        )
    raise rights.permission_denied(operation, lacking, session.tenant)
