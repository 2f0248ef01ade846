"""The daemon's handle that graphs and prepared launches have in common: its launches and its release."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth import base_stream as streams
from hearth.errors import ArgumentError, InvalidHandleError
from hearth.graphs.recorders import CaptureRecorder, lost_handle_error
from hearth.session.send_queue import COUNT_MAX

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.base_stream import BaseStream
    from hearth.launch_recorder import LaunchCall
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.memory import Kind, Space
    from hearth.session.reply import PendingResult


_RECORDED_MAX = 1 << 16
"""Maximum number of launches that one command records in a graph. No graph holds that many, so the daemon refuses them.
"""


class Program(ABC):
    """Abstract base of graphs and prepared launches: a handle of the device process, lost with it."""

    _kind: Kind
    _noun: str

    def __init__(self, connection: Connection, stream_type: type[BaseStream]) -> None:
        """Prepares the ``with`` block.

        Args:
            connection: Connection to the device.
            stream_type: Class of the stream that is current inside the block.
        """
        self._connection = connection
        self._stream_type = stream_type
        self._handle = 0
        self._space: Space | None = None
        self._closed = False
        self._last_launch: tuple[int, float | None, Callable[[int], bytes]] | None = None
        """Stream, timeout and command of the last launch."""

    def close(self) -> None:
        """Frees the graph or list on the device now; launches that were submitted earlier still run.

        A second call does nothing.
        """
        if not self._closed:
            self._closed = True
            if self._space is not None and not self._space.lost:
                self._space.deferred_frees.add(self._kind, self._handle)

    def __del__(self) -> None:
        if getattr(self, "_closed", True) is False:
            self.close()

    @abstractmethod
    def _begin(self) -> None:
        """Begins the ``with`` block. Does not block the thread."""

    @abstractmethod
    def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> PendingResult[Any] | None:
        """Ends the ``with`` block. Returns the request to wait for inside `_or_closed`; None if there is none."""

    @abstractmethod
    def _launch_command(self, stream: int, timeout: float | None) -> Callable[[int], bytes]:
        """Returns a function that serializes the command for a number of launches on a stream.

        It identifies the command while repeated launches are merged into it. It does not refer to this object, which
        may be dropped before the command is sent.
        """

    @abstractmethod
    def _calls_to_record(self) -> tuple[LaunchCall, ...]:
        """Returns the launches that one launch of this object adds to a graph that is being recorded."""

    def _launch(self, n: SupportsIndex, stream: BaseStream | None, timeout: float | None = None) -> None:
        attachment = self._usable()
        stream_handle = streams.resolve(stream, self._connection, attachment)
        target = stream if stream is not None else streams.current(self._connection)
        streams.check_captured(target, self._connection, launch=True)
        last = self._last_launch
        if last is None or last[0] != stream_handle or last[1] != timeout:
            self._last_launch = last = stream_handle, timeout, self._launch_command(stream_handle, timeout)
        command = last[2]
        times = count(n)
        if target is not None and isinstance(target._recorder, CaptureRecorder):
            calls = self._calls_to_record()
            rounds = min(times, _RECORDED_MAX // max(len(calls), 1))
            target._recorder.submitted(attachment, command(times), calls * rounds)
        else:
            attachment.count_up(command, times, command)

    def _usable(self) -> Attachment:
        """Returns the attachment on which the handle can be used. Raises the reason if it cannot be used."""
        connection = self._connection
        if connection.refusal is not None:
            raise connection.refusal.again()
        space = self._space
        if self._closed:
            raise InvalidHandleError(f"{self._noun} was closed.", fix="keep it until its last launch.")
        if space is None:
            raise ArgumentError(
                f"{self._noun} has not been recorded.",
                fix=f"record it first: with gpu.{self._kind}() as x.",
            )
        attachment = connection.attachment()
        if space.lost or attachment.space is not space:
            raise lost_handle_error(self._noun, connection, space)
        return attachment

    @contextmanager
    def _or_closed(self) -> Iterator[None]:
        """Context manager that closes the handle if the block raises."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _ready_to_enter(self) -> None:
        if self._handle or self._closed:
            raise ArgumentError(
                f"{self._noun} has already been recorded.",
                fix=f"create another one: gpu.{self._kind}().",
            )

    def _state(self) -> str:
        if self._closed:
            return ", closed"
        if self._space is None:
            return ", not recorded"
        return ", lost" if self._space.lost else ""


def count(n: SupportsIndex) -> int:
    """Checks a number of launches.

    Args:
        n: The number, of any integer type except bool.

    Returns:
        The number, from 1 to 2**64 - 1.

    Raises:
        ArgumentError: `n` is no such number.
    """
    try:
        number = 0 if isinstance(n, bool) else operator.index(n)  # also accepts NumPy's integers
    except TypeError:
        number = 0
    if not 1 <= number <= COUNT_MAX:
        raise ArgumentError(
            f"n is {n!r}; it must be an integer from 1 to 2**64 - 1.",
            fix="skip the launch when there is nothing to do." if n == 0 else "check how the value is computed.",
        )
    return number
