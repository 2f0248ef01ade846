"""Recorders of launches: they take a stream's launches while a graph is captured or a list is prepared."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hearth.errors import LaunchError
from hearth.kernels.graph_program import lost

if TYPE_CHECKING:
    from hearth.base_stream import LaunchCall
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection


class CaptureRecorder:
    """Records the launches of a stream that a graph is captured from. It ends with the attachment of that stream."""

    def __init__(self, connection: Connection) -> None:
        self.calls: list[LaunchCall] = []
        """The launches that were sent, in order."""
        self._connection = connection
        self._order = threading.Lock()

    def launched(self, attachment: Attachment, record: bytes, call: LaunchCall, _args: object) -> None:
        """Sends the launch, and notes it in the order in which it was sent."""
        with self._order:
            attachment.launch(record)
            self.calls.append(call)

    def submitted(self, attachment: Attachment, command: bytes, calls: Sequence[LaunchCall]) -> None:
        """Sends a prepared list, and notes its launches."""
        with self._order:
            attachment.count_up(object(), 1, lambda _: command)
            self.calls.extend(calls)

    def check_work(self) -> None:
        """Raises nothing: copies and fills are captured as well."""

    def check_attachment(self, attachment: Attachment) -> None:
        """Raises `InvalidHandleError`: another attachment has no capture to go on with."""
        raise lost("the graph that was being recorded", self._connection, None)


class PreparedRecorder:
    """Collects the launches of a prepared list instead of sending them. It ends with the present attachment."""

    def __init__(self, connection: Connection) -> None:
        self.attachment = connection.attachment()
        self.packed: list[bytes] = []
        self.calls: list[LaunchCall] = []
        self.kept: list[object] = []
        """Arguments: they have to live until the daemon checks the launches."""
        self._connection = connection

    def launched(self, attachment: Attachment, record: bytes, call: LaunchCall, args: object) -> None:
        """Takes the launch instead of sending it."""
        self.check_attachment(attachment)
        self.packed.append(record)
        self.calls.append(call)
        self.kept.append(args)

    def check_work(self) -> None:
        """Raises `LaunchError`: nothing but launches can be prepared."""
        raise LaunchError(
            "only launches can be prepared.",
            reason="CAPTURE_INVALID",
            fix="copy, fill, allocate and read outside the block, or record a graph: with gpu.graph() as g.",
        )

    def check_attachment(self, attachment: Attachment) -> None:
        """Raises `InvalidHandleError` for another attachment than the one of the start."""
        if attachment is not self.attachment:
            raise lost("the list of launches that was being prepared", self._connection, None)
