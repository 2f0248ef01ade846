"""Automatic tracing (HEARTH_TRACE): traces every device that a program uses, into one file for Perfetto.

A trace begins with the first use of a device and ends when its node is closed or Python exits; the file is then
rewritten with all traces that have ended so far. ``%p`` in the file name is replaced by the process id, so that several
processes write separate files; if the name has no ``%p``, the child of a fork appends its own process id.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
import weakref
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hearth.errors import ArgumentError, HearthError
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.lease import NodeSession

VARIABLE = "HEARTH_TRACE"
MAX_EVENTS = 200_000
"""Maximum number of events of each device and session, which is the daemon's own limit; further events are only
counted."""
END_S = 30.0
"""Seconds that the end of a trace waits for the device's work. If a kernel does not end in that time, its device's
trace is lost."""


_FAST_WRITE_S = 0.2
_PAUSE_FACTOR = 10
"""Pause between writes, as a multiple of the duration of the last write; limits the cost in a program with many
sessions."""


class SessionTraces:
    """Traces of a session: one for each device, from its first use on."""

    def __init__(self, session: NodeSession, file: TraceFile) -> None:
        self._node = session.opened.node
        self._session_id = session.session_id
        self._names = {device.ordinal: device.properties.name for device in session.opened.devices}
        self._file = file
        self._running: weakref.WeakKeyDictionary[Connection, Attachment] = weakref.WeakKeyDictionary()
        self._pid = os.getpid()
        for connection in session.connections.values():
            connection.recorder = self

    def attached(self, connection: Connection, attachment: Attachment) -> None:
        """Starts the trace of a device that is used for the first time, or again after its process was lost.

        In the latter case, the trace before was lost with the process.

        Args:
            connection: The connection to the device.
            attachment: Its new attachment.
        """
        if connection in self._running:
            self._file.lost += 1
        self._start(connection, attachment)

    def pause(self, connection: Connection) -> None:
        """Ends the automatic trace of a device when the program begins a trace. Blocks.

        A device has one trace at a time.

        Args:
            connection: The connection to the device.
        """
        attachment = self._running.pop(connection, None)
        if attachment is not None:
            self._end(connection, attachment)

    def resume(self, connection: Connection, result: commands_pb2.TraceResult | None) -> None:
        """Starts the automatic trace again after the program's trace has ended.

        Args:
            connection: The connection to the device.
            result: The program's trace, which is added to the file; None: it was lost.
        """
        if result is not None:
            self._add_result(connection, result)
        attachment = connection._attachment
        if attachment is not None and attachment.alive:
            self._start(connection, attachment)

    def finish(self) -> None:
        """Ends the traces and writes the file, before the session closes.

        Blocks until the devices' work is done, up to `END_S` for each. Never raises.
        """
        if os.getpid() != self._pid:
            return
        running = list(self._running.items())
        self._running.clear()
        for connection, attachment in running:
            connection.recorder = None
            self._end(connection, attachment)
        if running:
            self._file.write()

    def _start(self, connection: Connection, attachment: Attachment) -> None:
        command = commands_pb2.Command()
        command.start_trace.max_events = MAX_EVENTS
        attachment.request(command).abandon()
        self._running[connection] = attachment

    def _end(self, connection: Connection, attachment: Attachment) -> None:
        try:
            command = commands_pb2.Command(end_trace=commands_pb2.EndTrace())
            self._add_result(connection, attachment.request(command).wait(END_S).trace)
        except HearthError as error:
            self._file.lost += 1
            warnings.warn(
                f"{VARIABLE}: the trace of device {connection.ordinal} was lost: {error}", RuntimeWarning, stacklevel=2
            )

    def _add_result(self, connection: Connection, result: commands_pb2.TraceResult) -> None:
        name = self._names.get(connection.ordinal, "")
        self._file.add(
            f"{self._node}, device {connection.ordinal}: {name} (process {self._pid}, session {self._session_id})",
            result,
        )


class TraceFile:
    """The traces of this process so far. Safe from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._results: list[tuple[str, commands_pb2.TraceResult]] = []
        self._dirty = False
        self._not_before = 0.0
        self.lost = 0
        """Number of traces that were lost."""

    def add(self, name: str, result: commands_pb2.TraceResult) -> None:
        """Adds the trace of a device.

        Args:
            name: Name under which the device is shown.
            result: The trace.
        """
        with self._lock:
            self._results.append((name, result))
            self._dirty = True

    def write(self, *, last: bool = False) -> None:
        """Writes the file, unless the last write was recent and slow.

        Warns if the file cannot be written, and does not raise, because the program's own work is done.

        Args:
            last: Writes in any case: there will be no further write.
        """
        from hearth.profiling.base_trace import document
        from hearth.profiling.trace_file import merge, write

        with self._lock:
            started = time.monotonic()
            if not self._dirty or (started < self._not_before and not last):
                return
            try:
                merged_document = merge(document(name, result) for name, result in self._results)
                merged_document["otherData"]["lost"] = self.lost
                write(self.path, merged_document)
                self._dirty = False
            except (OSError, MemoryError) as error:
                warnings.warn(f"{VARIABLE}: {self.path} could not be written: {error}", RuntimeWarning, stacklevel=2)
            duration = time.monotonic() - started
            if duration > _FAST_WRITE_S:
                self._not_before = started + (1 + _PAUSE_FACTOR) * duration


_IMPORTED_BY = os.getpid()
"""Id of the process that has imported this module; a forked child has another."""
_files: dict[str, TraceFile] = {}
"""The files of this process, by their names as the user gave them."""
_sessions: weakref.WeakSet[NodeSession] = weakref.WeakSet()


def follow(session: NodeSession, path: str) -> SessionTraces:
    """Traces a session's devices into a file.

    Args:
        session: The session.
        path: The file name, in which ``%p`` is replaced by the process id.

    Returns:
        The session's traces.

    Raises:
        ArgumentError: The file cannot be written.
    """
    file = _files.setdefault(path, TraceFile(_path_of(path)))
    check(file.path, path)
    _sessions.add(session)
    _finish_at_exit()
    return SessionTraces(session, file)


def _path_of(path: str) -> Path:
    """Returns the path of the file that this process writes; a forked child has a separate file."""
    file = Path(path.replace("%p", str(os.getpid())))
    if os.getpid() != _IMPORTED_BY and "%p" not in path:
        return file.with_name(f"{file.stem}.{os.getpid()}{file.suffix}")
    return file


def check(file: Path, path: str) -> None:
    """Checks that a file can be written.

    Args:
        file: Path of the file.
        path: The path as the user gave it, for the error.

    Raises:
        ArgumentError: The path is a folder, or its folder does not exist or is not writable.
    """
    if file.is_dir():
        problem = "is a directory"
    elif not file.parent.is_dir():
        problem = f"is in {str(file.parent)!r}, which is not a directory"
    elif not os.access(file.parent, os.W_OK | os.X_OK):
        problem = f"is in {str(file.parent)!r}, which is not writable"
    else:
        return
    raise ArgumentError(
        f"{path!r} (from {VARIABLE}) {problem}.",
        fix=f"use a file, e.g. {VARIABLE}=/tmp/trace-%p.json, or unset it.",
    )


@cache
def _finish_at_exit() -> None:
    """Registers `_finish`, once in each process: for Python's exit, and for the end of a process of `multiprocessing`.

    Such a process does not run Python's exit functions.
    """
    atexit.register(_finish)
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, _finish, exitpriority=10)


def _finish() -> None:
    """Closes sessions and writes files."""
    for session in list(_sessions):
        session.close()
    for file in _files.values():
        file.write(last=True)


def _after_fork() -> None:
    _finish_at_exit.cache_clear()
    _sessions.clear()
    _files.clear()


os.register_at_fork(after_in_child=_after_fork)
