"""Protocols of the objects that receive a stream's work while it is recorded instead of run.

Covers what streams require of them. The classes are in `hearth.graphs.recorders`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment


class LaunchCall(NamedTuple):
    """A launch as the caller requested it, without its arguments."""

    function: Any
    """The kernel: `hearth.kernels.base_function.BaseFunction`."""
    grid: Any
    block: Any
    shared_mem: int = 0
    mode: str = "checked"
    cooperative: bool | str = False
    cluster: Any = None
    iterations: int = 1
    attributes: Any = None
    """`hearth.LaunchAttributes`, or None."""


class LaunchRecorder(Protocol):
    """Receives the launches of a stream whose work is recorded instead of run: see `hearth.graphs.recorders`."""

    def launched(self, attachment: Attachment, record: bytes, call: LaunchCall, args: object) -> None:
        """Receives one launch.

        Args:
            attachment: The attachment for which the launch was packed.
            record: The packed launch.
            call: The launch as the caller requested it.
            args: The kernel's arguments.
        """

    def check_work(self) -> None:
        """Raises `LaunchError` if the stream accepts only launches."""

    def check_attachment(self, attachment: Attachment) -> None:
        """Checks that the recording can be continued.

        Args:
            attachment: The attachment that is about to be used.

        Raises:
            InvalidHandleError: The recording was made on an earlier attachment and lost with it.
        """


class WorkScope(Protocol):
    """A capture or the collecting of a prepared list, in the thread or task that has begun it."""

    @property
    def recording(self) -> bool:
        """True until the capture or block ends."""

    def check_outside(self, stream: str, *, launch: bool) -> None:
        """Decides about work on a stream outside, which would run immediately.

        Args:
            stream: Description of the stream.
            launch: True for launches of kernels, graphs and prepared lists; False for other work.

        Raises:
            LaunchError: The work is refused.
        """


class StreamCapture(Protocol):
    """A capture in progress, on one stream or on several that events have joined: see `hearth.graphs.recorders`."""

    @property
    def recording(self) -> bool:
        """True until the capture ends."""

    @property
    def origin(self) -> Any:
        """The stream (`hearth.base_stream.BaseStream`) on which the capture began; None if it no longer exists."""

    def join(self, stream: Any, event: Any) -> None:
        """Lets a stream wait for an event of the capture; a stream outside the capture joins it.

        Args:
            stream: The stream: `hearth.base_stream.BaseStream`.
            event: An event (`hearth.base_stream.BaseEvent`) that was recorded last in this capture.

        Raises:
            LaunchError: The capture has ended, or the stream cannot join it.
        """
