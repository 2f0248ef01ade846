"""HEARTH_TRACE: traces every device that a program uses, and saves it all in one file for Perfetto.

A trace begins with the first use of a device and ends where its node is closed, or Python exits; then the file is
written anew, whole, with what has ended so far. ``%p`` in the name stands for the process's number, so that programs
of several processes have a file for each; where a name has none, the child of a fork puts its own number at the end.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
import weakref
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
"""Events kept of a device and session, the daemon's own limit; further ones are only counted."""
END_S = 30.0
"""Seconds that the end waits for the device's work; a kernel that never ends costs its device's trace."""


_SHORT_S = 0.2
_REST = 10
"""Pause between writes, as a multiple of the time of the last: bounds their cost in a program of many sessions."""


class SessionTraces:
    """Traces of a session: one of each device, from its first use on."""

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
        """A device is used for the first time, or again after its process was lost, and its trace with that."""
        if connection in self._running:
            self._file.lost += 1
        self._start(connection, attachment)

    def pause(self, connection: Connection) -> None:
        """Ends the automatic trace of a device when the program begins one: a device has one trace at a time."""
        attachment = self._running.pop(connection, None)
        if attachment is not None:
            self._end(connection, attachment)

    def resume(self, connection: Connection, result: commands_pb2.TraceResult | None) -> None:
        """Begins the automatic trace again after the program's trace has ended, and adds its result to the file."""
        if result is not None:
            self._keep(connection, result)
        attachment = connection._attachment
        if attachment is not None and attachment.alive:
            self._start(connection, attachment)

    def finish(self) -> None:
        """The session is about to close: waits for the work of its devices, and writes the file. Never raises."""
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
            self._keep(connection, attachment.request(command).wait(END_S).trace)
        except HearthError as error:
            self._file.lost += 1
            warnings.warn(
                f"{VARIABLE}: the trace of device {connection.ordinal} is lost: {error}", RuntimeWarning, stacklevel=2
            )

    def _keep(self, connection: Connection, result: commands_pb2.TraceResult) -> None:
        name = self._names.get(connection.ordinal, "")
        self._file.add(
            f"{self._node}, device {connection.ordinal}: {name} (process {self._pid}, session {self._session_id})",
            result,
        )


class TraceFile:
    """The traces of this process so far. Safe from any thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._forked = False
        self._lock = threading.Lock()
        self._results: list[tuple[str, commands_pb2.TraceResult]] = []
        self._dirty = False
        self._not_before = 0.0
        self.lost = 0
        """Traces of devices that were lost."""

    @property
    def path(self) -> Path:
        """Path of the file that this process writes: a forked child has a separate one."""
        text = self._path.replace("%p", str(os.getpid()))
        if self._forked and "%p" not in self._path:
            path = Path(text)
            text = str(path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}"))
        return Path(text)

    def add(self, name: str, result: commands_pb2.TraceResult) -> None:
        """Adds the trace of a device, whose process is shown as `name`."""
        with self._lock:
            self._results.append((name, result))
            self._dirty = True

    def write(self, *, last: bool = False) -> None:
        """Writes the file, unless that was done just now and takes long: then the `last` time does. That it cannot is a
        warning, for the program's own work is done."""
        from hearth.profiling.base_trace import document
        from hearth.profiling.trace_file import merged, write

        with self._lock:
            started = time.monotonic()
            if not self._dirty or (started < self._not_before and not last):
                return
            try:
                made = merged(document(name, result) for name, result in self._results)
                made["otherData"]["lost"] = self.lost
                write(self.path, made)
                self._dirty = False
            except (OSError, MemoryError) as error:
                warnings.warn(f"{VARIABLE}: {self.path} was not written: {error}", RuntimeWarning, stacklevel=2)
            took = time.monotonic() - started
            if took > _SHORT_S:
                self._not_before = started + (1 + _REST) * took

    def forked(self) -> None:
        """Starts afresh in the child of a fork: the parent's trace and file stay the parent's."""
        self._forked = True
        self._lock = threading.Lock()
        self._results = []
        self._dirty = False
        self.lost = 0


_files: dict[str, TraceFile] = {}
_sessions: weakref.WeakSet[NodeSession] = weakref.WeakSet()


def follow(session: NodeSession, path: str) -> SessionTraces:
    """Traces the session's devices into the file. Raises `ArgumentError` where that could not be written."""
    file = _files.setdefault(path, TraceFile(path))
    check(file.path, path)
    _sessions.add(session)
    _Exit.prepare()
    return SessionTraces(session, file)


def check(file: Path, path: str) -> None:
    """Raises `ArgumentError` for a place that cannot be written to."""
    if file.is_dir():
        what = "is a folder"
    elif not file.parent.is_dir():
        what = f"is in {str(file.parent)!r}, which is no folder"
    elif not os.access(file.parent, os.W_OK | os.X_OK):
        what = f"is in {str(file.parent)!r}, where you may not write"
    else:
        return
    raise ArgumentError(
        f"{path!r} (from {VARIABLE}) {what}.",
        reason="INVALID_ARGUMENT",
        fix=f"give a file, e.g. {VARIABLE}=/tmp/trace-%p.json, or unset it.",
    )


class _Exit:
    """Sees to what is still open when Python exits, or a process of `multiprocessing` ends, which does without Python's
    exit functions."""

    process = 0

    @classmethod
    def prepare(cls) -> None:
        """Once in each process."""
        if cls.process == os.getpid():
            return
        cls.process = os.getpid()
        atexit.register(cls.finish)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:
            multiprocessing.Finalize(None, cls.finish, exitpriority=10)

    @staticmethod
    def finish() -> None:
        for session in list(_sessions):
            session.close()
        for file in _files.values():
            file.write(last=True)


def _after_fork() -> None:
    _sessions.clear()
    for file in _files.values():
        file.forked()


os.register_at_fork(after_in_child=_after_fork)
