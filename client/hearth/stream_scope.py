"""Current streams and captures of a thread or task, by device.

Covers the variable of the context and its changes. Does not cover streams: see `hearth.base_stream`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hearth.session.connection import Connection


class StreamScope(NamedTuple):
    """Streams that a ``with`` block made current, by device; `outer` is restored when the block ends.

    Immutable, so that several threads may enter a stream at the same time.
    """

    streams: dict[int, Any]
    """Streams (`hearth.base_stream.BaseStream`), by `id` of the connection."""
    outer: StreamScope | None
    captures: dict[int, Any]
    """Captures and prepared lists (`hearth.launch_recorder.WorkScope`) begun by this thread or task, by `id` of the
    connection."""


current_streams: ContextVar[StreamScope | None] = ContextVar("hearth_current_streams", default=None)


def captured_by_thread(connection: Connection) -> Any:
    """Returns the capture or prepared list that this thread or task has begun on the device and not ended.

    As in `StreamScope.captures`; None if there is none.

    Args:
        connection: The connection to the device.
    """
    scope = current_streams.get()
    capture = None if scope is None else scope.captures.get(id(connection))
    return capture if capture is not None and capture.recording else None


def begin_scope(connection: Connection, capture: object) -> None:
    """Notes that this thread or task has begun a capture, so that its work on other streams can be refused.

    Args:
        connection: The connection to the device.
        capture: The capture or prepared list.
    """
    scope = current_streams.get()
    streams, outer, captures = ({}, None, {}) if scope is None else scope
    current_streams.set(StreamScope(streams, outer, {**captures, id(connection): capture}))


def end_scope(connection: Connection, capture: object, outer: object | None) -> None:
    """Undoes `begin_scope`; does nothing in a thread or task that has not begun the capture.

    Args:
        connection: The connection to the device.
        capture: The capture that has ended.
        outer: The capture that this thread had begun earlier on the device; None: none.
    """
    scope = current_streams.get()
    if scope is None or scope.captures.get(id(connection)) is not capture:
        return
    captures = dict(scope.captures)
    del captures[id(connection)]
    if outer is not None:
        captures[id(connection)] = outer
    idle = not captures and not scope.streams and scope.outer is None
    current_streams.set(None if idle else scope._replace(captures=captures))
