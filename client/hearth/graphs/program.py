"""The daemon's handle that graphs and prepared launches have in common, and its release."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth import base_stream as streams
from hearth.errors import ArgumentError, InvalidHandleError
from hearth.session.send_queue import COUNT_MAX

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.base_stream import BaseStream
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.memory import Kind, Space
    from hearth.session.reply import PendingResult


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

    def _usable(self) -> Attachment:
        """Returns the attachment on which the handle can be used. Raises the reason if it cannot be used."""
        connection = self._connection
        if connection.refusal is not None:
            raise connection.refusal.again()
        space = self._space
        if self._closed:
            raise InvalidHandleError(
                f"{self._noun} was closed.", reason="INVALID_HANDLE", fix="keep it until its last launch."
            )
        if space is None:
            raise ArgumentError(
                f"{self._noun} has not been recorded.",
                reason="INVALID_ARGUMENT",
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
                reason="INVALID_ARGUMENT",
                fix=f"create another one: gpu.{self._kind}().",
            )

    def _target(self, stream: BaseStream | None) -> BaseStream | None:
        return stream if stream is not None else streams.current(self._connection)

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
            reason="INVALID_ARGUMENT",
            fix="skip the launch when there is nothing to do." if n == 0 else "check how the value is computed.",
        )
    return number


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
        reason="INVALID_HANDLE",
        fix="record it again; kernels and streams remain usable, but arrays have to be created again.",
        details={} if space is None else {"generation": str(space.generation)},
    )
