"""Checks the rights of commands. Batches pass through the front undecoded, so that the rights are checked here."""

from __future__ import annotations

import json
from collections.abc import Collection

from hearth_proto import rights
from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2
from hearthd.device.outbox import Outbox


class Permissions:
    """Rights of a session that lacks at least one right.

    A session with every right has no such object, and its commands are not checked.
    """

    def __init__(self, channel: int, tenant: str, granted: Collection[str]) -> None:
        self._channel = channel
        self._tenant = tenant
        self._granted = frozenset(granted)
        self.allowed = rights.allowed(self._granted)
        self._reported: set[str] = set()

    def check(self, outbox: Outbox, kind: str) -> None:
        """Raises Refusal(PERMISSION_DENIED) for a kind of command that the session may not send.

        For each kind of command, one frame is sent to the front, which writes the audit log.
        """
        if kind in self.allowed:
            return
        lacking = rights.missing(rights.COMMANDS.get(kind, ()), self._granted)
        operation = "launch" if kind == "launches" else kind
        if operation not in self._reported:
            self._reported.add(operation)
            denied = json.dumps({"operation": operation, "right": ", ".join(lacking)}).encode()
            outbox.put(Kind.DENIED, denied, channel=self._channel)
        raise rights.permission_denied(operation, lacking, self._tenant)


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
