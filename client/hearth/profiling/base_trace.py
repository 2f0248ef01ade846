"""Abstract traces: the commands of a section of work with their times.

A trace is available as a list, and as a file for Perfetto or chrome://tracing. `BaseTrace` has everything that
`hearth.Trace` and `hearth.aio.Trace` have in common.
"""

from __future__ import annotations

import json
import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.errors import ArgumentError
from hearth_proto.traces import KernelActivity, TraceEvent, chrome_trace, events_of, kernels_of
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from hearth.session.attachment import Attachment
    from hearth.session.connection import Connection
    from hearth.session.reply import PendingResult

__all__ = ["BaseTrace", "KernelActivity", "TraceEvent", "document"]


class BaseTrace:
    """Abstract trace: its events, and the commands that begin and end it."""

    def __init__(self, connection: Connection, name: str, max_events: int | None = None) -> None:
        try:
            number = 0 if isinstance(max_events, bool) else operator.index(1 if max_events is None else max_events)
        except TypeError:
            number = 0
        if not 0 < number < 2**32:
            raise ArgumentError(
                f"max_events is {max_events!r}; it must be an integer from 1 to 2**32 - 1.",
                fix="pass an integer from 1 to 2**32 - 1, or None for the daemon's default.",
            )
        self._connection = connection
        self._name = name
        self._max_events = 0 if max_events is None else number
        self._attachment: Attachment | None = None
        self._result: commands_pb2.TraceResult | None = None
        self._events: list[TraceEvent] | None = None

    @property
    def events(self) -> list[TraceEvent]:
        """The commands, in the order of their arrival at the device process."""
        if self._events is None:
            self._events = list(events_of(self._done()))
        return self._events

    @property
    def kernels(self) -> list[KernelActivity]:
        """Kernel activity recorded by CUPTI; empty unless the daemon is configured to record it."""
        return list(kernels_of(self._done()))

    @property
    def dropped(self) -> int:
        """Number of commands that were not recorded because the trace was full."""
        return self._done().dropped

    @property
    def epoch_ns(self) -> int:
        """Unix time in nanoseconds, by the daemon's clock, that corresponds to time 0 of the events."""
        return self._done().epoch_ns

    def to_json(self) -> dict[str, Any]:
        """Returns the trace in Chrome's Trace Event Format, which Perfetto reads.

        See `hearth_proto.traces.chart_of` for the entries.
        """
        return document(self._name, self._done())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the result of `to_json` to a file, to be opened at https://ui.perfetto.dev or chrome://tracing.

        Args:
            path: The file, which is replaced.

        Raises:
            OSError: The file cannot be written.
            ArgumentError: The trace has not ended.
        """
        content = json.dumps(self.to_json(), separators=(",", ":"))
        Path(path).write_text(content, encoding="utf-8")

    def _pause(self) -> None:
        """Ends the process's automatic trace (HEARTH_TRACE) of the device, to make place for this one. Blocks."""
        if self._connection.recorder is not None:
            self._connection.recorder.pause(self._connection)

    def _resume(self) -> None:
        if self._connection.recorder is not None:
            self._connection.recorder.resume(self._connection, self._result)

    def _begin(self) -> PendingResult[None]:
        attachment = self._connection.attachment()
        self._result = self._events = None
        command = commands_pb2.Command()
        command.start_trace.max_events = self._max_events

        def set_attachment(_: commands_pb2.Result) -> None:
            self._attachment = attachment

        # If a trace is already running, this request fails, not the end of the trace.
        return self._connection.request(command, set_attachment, attachment)

    def _drop(self) -> None:
        """Ends the trace without waiting; its events are lost."""
        if self._attachment is None or self._attachment.alive:
            command = commands_pb2.Command(end_trace=commands_pb2.EndTrace())
            self._connection.request(command, lambda _: None, self._attachment).reply.abandon()

    def _end(self, error: BaseException | None) -> PendingResult[None] | None:
        """Ends the trace. Returns the request to wait for; None if there is none."""
        assert self._attachment is not None
        command = commands_pb2.Command(end_trace=commands_pb2.EndTrace())
        if error is not None and not self._attachment.alive:
            return None  # the block's exception takes precedence; the trace was lost with the device

        def read(result: commands_pb2.Result) -> None:
            self._result = result.trace

        return self._connection.request(command, read, self._attachment)

    def _done(self) -> commands_pb2.TraceResult:
        if self._result is None:
            raise ArgumentError(
                "the trace has not ended.", reason="PROFILE_INVALID", fix="read it after the with block."
            )
        return self._result

    def _repr_html_(self) -> str:
        from hearth import html_repr

        if self._result is None:
            return html_repr.pairs("Trace", [("state", "running")])
        sums: dict[tuple[str, str], list[int]] = {}
        for event in self.events:
            entry = sums.setdefault((event.name, event.kernel), [0, 0, 0, 0])
            entry[0] += 1
            entry[1] += event.device_ns
            entry[2] += event.bytes
            entry[3] += bool(event.error)
        duration = html_repr.duration
        ordered = sorted(sums.items(), key=lambda item: item[1][1], reverse=True)  # longest total device time first
        rows = [
            (name, kernel, n, duration(spent), duration(spent / n), html_repr.size(size) if size else "", failed or "")
            for (name, kernel), (n, spent, size, failed) in ordered
        ]
        title = f"Trace of {self._name}: {len(self.events)} commands"
        if self.dropped:
            title += f", {self.dropped} more dropped"
        return html_repr.table(title, ("command", "kernel", "count", "device time", "each", "bytes", "failed"), rows)

    def __repr__(self) -> str:
        state = "running" if self._result is None else f"{len(self._result.events)} events"
        return f"<hearth.Trace of {self._name}: {state}>"


def document(name: str, result: commands_pb2.TraceResult) -> dict[str, Any]:
    """Converts a trace to the document that `BaseTrace.to_json` returns.

    Args:
        name: Name of the device.
        result: The trace.

    Returns:
        The document.
    """
    return chrome_trace(
        name, events_of(result), list(kernels_of(result)), epoch_ns=result.epoch_ns, dropped=result.dropped
    )
