"""Recorders of launches: they receive a stream's launches while a graph is captured or a list is prepared."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from hearth import stream_scope
from hearth.errors import InvalidHandleError, LaunchError

if TYPE_CHECKING:
    from hearth.base_stream import BaseEvent, BaseStream
    from hearth.launch_recorder import LaunchCall
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.memory import Space


def one_by_one(calls: Iterable[LaunchCall]) -> Iterator[LaunchCall]:
    """Returns launches of one iteration each.

    Args:
        calls: Launches of any number of iterations, in order.
    """
    for call in calls:
        single = call if call.iterations == 1 else call._replace(iterations=1)
        for _ in range(call.iterations):
            yield single


class CaptureRecorder:
    """Records the launches of the streams from which a graph is captured.

    The recording ends with the attachment of the stream where it began.
    """

    def __init__(self, connection: Connection, attachment: Attachment, stream: BaseStream, *, relaxed: bool) -> None:
        self.attachment = attachment
        self.calls: list[LaunchCall] = []
        """The launches that were sent, in order."""
        self.relaxed = relaxed
        """True if work on streams outside the capture runs immediately; False: it is refused."""
        self._connection = connection
        self._lock = threading.Lock()
        self._origin = weakref.ref(stream)
        self._joined: list[BaseStream] = []
        self._ended = False
        self._outer = stream_scope.captured_by_thread(connection)
        stream._enter_capture(self, self)
        stream_scope.begin_scope(connection, self)

    @property
    def recording(self) -> bool:
        """True until the capture ends, also because the stream where it began is dropped."""
        return not self._ended and self._origin() is not None

    @property
    def origin(self) -> BaseStream | None:
        """The stream on which the capture began; None if it no longer exists."""
        return self._origin()

    def join(self, stream: BaseStream, event: BaseEvent) -> None:
        """Lets a stream wait for an event of the capture; a stream outside the capture joins it.

        Args:
            stream: The stream.
            event: An event that was recorded last in this capture.

        Raises:
            LaunchError: The capture has ended; the stream is in another capture, or is the default stream.
        """
        if not self.recording:
            raise LaunchError(
                f"{event!r} was recorded in a capture that has ended.",
                reason="CAPTURE_INVALID",
                fix="record the event again.",
            )
        if stream._capture is self:
            return
        if stream.is_capturing():
            raise LaunchError(
                f"{stream!r} is in another capture; two captures cannot be joined.",
                reason="CAPTURE_INVALID",
                fix="record both parts in one capture, or launch the graphs one after the other.",
            )
        if stream._default:
            raise default_stream_error("join a capture")
        stream._handle_on(self._connection.attachment())
        stream._enter_capture(self, self)
        self._joined.append(stream)

    def end(self) -> None:
        """Takes all streams out of the capture."""
        self._ended = True
        for stream in (self._origin(), *self._joined):
            if stream is not None and stream._capture is self:
                stream._leave_capture()
        self._joined.clear()
        stream_scope.end_scope(self._connection, self, self._outer)

    def check_outside(self, stream: str, *, launch: bool) -> None:
        """Refuses work on a stream outside the capture, in the thread that captures, unless the capture is relaxed.

        Args:
            stream: Description of the stream.
            launch: Without effect: copies and fills are captured as well.

        Raises:
            LaunchError: The capture is not relaxed.
        """
        if self.relaxed:
            return
        raise LaunchError(
            f"{stream} is not in the capture on {self.origin!r}: the work would run now instead of being recorded.",
            reason="CAPTURE_INVALID",
            fix="let the stream join the capture, other.wait_event(stream.record()), end the capture first, or begin "
            'it with mode="relaxed", in which such work runs immediately.',
        )

    def launched(self, attachment: Attachment, record: bytes, call: LaunchCall, _args: object) -> None:
        """Sends one launch, and notes it in the order of sending.

        Args:
            attachment: The attachment for which the launch was packed.
            record: The packed launch.
            call: The launch as the caller requested it.
            _args: Unused.
        """
        with self._lock:
            attachment.launch(record)
            self.calls.append(call)

    def submitted(self, attachment: Attachment, command: bytes, calls: Sequence[LaunchCall]) -> None:
        """Sends the launch of a prepared list or of another graph, and notes its launches.

        Args:
            attachment: The attachment to use.
            command: The serialized command.
            calls: The launches that the command runs, in order.
        """
        with self._lock:
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
        self.arguments: list[object] = []
        """Arguments of the launches, kept alive until the daemon has checked the launches."""
        self.recording = True
        """True until the block ends."""
        self._connection = connection
        self._outer = stream_scope.captured_by_thread(connection)
        stream_scope.begin_scope(connection, self)

    def end(self) -> None:
        """Ends the block in which launches are collected."""
        self.recording = False
        stream_scope.end_scope(self._connection, self, self._outer)

    def check_outside(self, stream: str, *, launch: bool) -> None:
        """Refuses launches on other streams, in the thread that collects launches.

        Args:
            stream: Description of the stream.
            launch: True for launches of kernels, graphs and prepared lists; False for other work, which runs.

        Raises:
            LaunchError: `launch` is True.
        """
        if launch:
            raise LaunchError(
                f"launches are being prepared, and {stream} is not the stream of that block: the launch would run now "
                "instead of being collected.",
                reason="CAPTURE_INVALID",
                fix="name no stream in the block, and launch the list on the stream: prepared.launch(stream=stream).",
            )

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
        self.arguments.append(args)

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


def default_stream_error(action: str) -> LaunchError:
    """Builds the error of a capture on the default stream, which CUDA does not capture either.

    Args:
        action: The refused action, as it follows "cannot" in the message.

    Returns:
        The error.
    """
    return LaunchError(
        f"the default stream cannot {action}.",
        reason="CAPTURE_INVALID",
        fix="create a stream with gpu.stream(), or use the block with gpu.graph() as g.",
    )


def lost_handle_error(subject: str, connection: Connection, space: Space | None) -> InvalidHandleError:
    """Builds the error of a handle that was lost with its device process or connection.

    Args:
        subject: Name of the object, for the message.
        connection: The connection to the device.
        space: The space of the object; None: it had none yet.

    Returns:
        The error.
    """
    lost_with = f"generation {space.generation} of device {connection.ordinal}" if space else "the connection"
    return InvalidHandleError(
        f"{subject} was lost with {lost_with}.",
        fix="record it again; kernels and streams remain usable, but arrays must be created again.",
        details={} if space is None else {"generation": str(space.generation)},
    )
