"""Attachments of ``HEARTH_LAUNCH_BLOCKING=1``: each launch waits until it is done, so that it raises its own error.

Covers launches of kernels, graphs and prepared lists, and fills and copies on the device, as ``CUDA_LAUNCH_BLOCKING``
does for CUDA's launches. Does not cover work that is recorded for a graph, collectives, which the other devices must
join, and `hearth.aio`, where plain calls do not wait. For debugging: nothing runs at the same time on one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from hearth.blocking.attachment import BlockingAttachment
from hearth_proto import launches
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.codec.encode import Plain
    from hearth.session.reply import Reply

_STREAM = 4
"""Position of the stream's handle among the fields of a record's header."""
_WORK = ("fill", "copy", "write_pointers")
"""Kinds of one-way commands that are waited for."""


class LaunchBlockingAttachment(BlockingAttachment):
    """An attachment whose launches wait until the work of their stream is done."""

    _captured: Mapping[int, int] = MappingProxyType({})
    """Streams from which graphs are recorded, each with the stream where its capture began: their work does not run."""
    _events: Mapping[int, int] = MappingProxyType({})
    """Events that were recorded in a capture, each with the stream where the capture began."""

    def launch(self, record: bytes) -> None:
        """Queues one packed launch, and waits until it is done."""
        super().launch(record)
        self._finish(launches.HEADER.unpack_from(record)[_STREAM])

    def submit(self, command: commands_pb2.Command | Plain, worth: int = 1) -> None:
        """Queues a one-way command of relative cost `worth`, and waits for it if it is work of the device."""
        super().submit(command, worth)
        if self._follow(command.SerializeToString()) in _WORK:
            self._finish(command.stream)

    def count_up(self, key: object, n: int, command: Callable[[int], bytes]) -> None:
        """Queues `n` launches of a graph or of a prepared list, and waits until they are done."""
        super().count_up(key, n, command)
        self._finish(commands_pb2.Command.FromString(command(n)).stream)

    def request(self, command: commands_pb2.Command | Plain, *, reports: bool = False, barrier: bool = False) -> Reply:
        """Queues a command and returns its reply; see `Attachment.request`."""
        reply = super().request(command, reports=reports, barrier=barrier)
        self._follow(command.SerializeToString())
        return reply

    def _follow(self, data: bytes) -> str | None:
        """Notes the streams and events of recordings, and returns the kind of a command."""
        command = commands_pb2.Command.FromString(data)
        kind: str | None = command.WhichOneof("kind")
        stream = command.stream
        if kind == "begin_capture":
            self._captured = {**self._captured, stream: stream}
        elif kind == "end_capture":
            self._captured = {captured: origin for captured, origin in self._captured.items() if origin != stream}
            self._events = {event: origin for event, origin in self._events.items() if origin != stream}
        elif kind == "record_event" and stream in self._captured:
            self._events = {**self._events, command.record_event.event: self._captured[stream]}
        elif kind == "wait_event" and command.wait_event.event in self._events:
            self._captured = {**self._captured, stream: self._events[command.wait_event.event]}
        return kind

    def _finish(self, stream: int) -> None:
        """Waits until the work of a stream is done. Raises the first failure of the stream."""
        if stream not in self._captured:
            super().request(commands_pb2.Command(stream=stream, sync=commands_pb2.Sync()), reports=True).wait()
