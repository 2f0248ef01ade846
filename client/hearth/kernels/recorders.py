"""Recorders of launches: they receive a stream's launches while a graph is captured or a list is prepared."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hearth.errors import LaunchError
from hearth.kernels.graph_program import lost_handle_error

if TYPE_CHECKING:
    from hearth.base_stream import LaunchCall
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection


class CaptureRecorder:
    """Records the launches of a stream from which a graph is captured.

    The recording ends with the attachment of that stream.
    """

    def __init__(self, connection: Connection) -> None:
        self.calls: list[LaunchCall] = []
        """The launches that were sent, in order."""
        self._connection = connection
        self._order = threading.Lock()

    def launched(self, attachment: Attachment, record: bytes, call: LaunchCall, _args: object) -> None:
        """Sends one launch, and notes it in the order of sending.

        Args:
            attachment: The attachment for which the launch was packed.
            record: The packed launch.
            call: The launch as the caller requested it.
            _args: Unused.
        """
        with self._order:
            attachment.launch(record)
            self.calls.append(call)

    def submitted(self, attachment: Attachment, command: bytes, calls: Sequence[LaunchCall]) -> None:
        """Sends the launch of a prepared list, and notes its launches.

        Args:
            attachment: The attachment to use.
            command: The serialized command.
            calls: The launches that the command runs, in order.
        """
        with self._order:
            attachment.count_up(object(), 1, lambda _: command)
            self.calls.extend(calls)

    def check_work(self) -> None:
        """Does nothing: copies and fills are captured as well."""

    def check_attachment(self, attachment: Attachment) -> None:
        """Raises an error, because the capture belongs to an earlier attachment.

        Args:
            attachment: The attachment that is about to be used.

        Raises:
            InvalidHandleError: Always.
        """
        raise lost_handle_error("the graph that was being recorded", self._connection, None)


class PreparedRecorder:
    """Collects the launches of a prepared list instead of sending them.

    The list ends with the attachment on which it began.
    """

    def __init__(self, connection: Connection) -> None:
        self.attachment = connection.attachment()
        self.packed: list[bytes] = []
        self.calls: list[LaunchCall] = []
        self.kept: list[object] = []
        """Arguments of the launches, kept alive until the daemon has checked the launches."""
        self._connection = connection

    def launched(self, attachment: Attachment, record: bytes, call: LaunchCall, args: object) -> None:
        """Collects one launch.

        Args:
            attachment: The attachment for which the launch was packed.
            record: The packed launch.
            call: The launch as the caller requested it.
            args: The kernel's arguments.

        Raises:
            InvalidHandleError: The attachment is not the one on which the list began.
        """
        self.check_attachment(attachment)
        self.packed.append(record)
        self.calls.append(call)
        self.kept.append(args)

    def check_work(self) -> None:
        """Raises `LaunchError`, because only launches can be prepared."""
        raise LaunchError(
            "only launches can be prepared.",
            reason="CAPTURE_INVALID",
            fix="copy, fill, allocate and read outside the block, or record a graph: with gpu.graph() as g.",
        )

    def check_attachment(self, attachment: Attachment) -> None:
        """Checks that the list can be continued.

        Args:
            attachment: The attachment that is about to be used.

        Raises:
            InvalidHandleError: The attachment is not the one on which the list began.
        """
        if attachment is not self.attachment:
            raise lost_handle_error("the list of launches that was being prepared", self._connection, None)
