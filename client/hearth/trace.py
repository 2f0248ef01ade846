"""Every command of a stretch of work with its times, as a list and as a file for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.errors import ArgumentError
from hearth_proto.collectives import SHAPES
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.attachment import Attachment
    from hearth.connection import Connection

HOST = 1
DEVICE = 2
KERNELS = 3
"""Process numbers in the file: one for what the host did, one for what the device did, one for CUPTI's kernels."""

_COLLECTIVE = "collective"
"""A batch; a single operation has the name of its kind."""
_COLLECTIVES = frozenset({_COLLECTIVE, *SHAPES})
_PROCESSES = {HOST: "host, {name}", DEVICE: "{name}", KERNELS: "kernels of {name} (CUPTI)"}


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One command. Times in nanoseconds since the trace's start, in this order: queued, submitted, started, ended.

    A command without work for the device was `submitted`, `started` and `ended` at once.
    """

    name: str
    """What it was: ``launch``, ``write``, ``read``, ``copy``, ``all_reduce``, ..."""
    stream: int
    seq: int
    """Its batch, and `index` its place there."""
    index: int
    queued_ns: int
    """When it arrived in the device process."""
    submitted_ns: int
    """When it was handed to the device, after what it had to wait for."""
    started_ns: int
    ended_ns: int
    bytes: int = 0
    """Moved by it."""
    kernel: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    error: str = ""
    """The reason, where it failed."""

    @property
    def device_ns(self) -> int:
        """Time on the device."""
        return self.ended_ns - self.started_ns


@dataclass(frozen=True, slots=True)
class KernelActivity:
    """One kernel as CUPTI saw it run, where the daemon is configured to ask; times as in `TraceEvent`."""

    name: str
    stream: int
    seq: int
    index: int
    started_ns: int
    ended_ns: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared_bytes: int


class Trace:
    """``with gpu.trace() as t: ...``, then `events`, or `save("trace.json")` to look at it.

    Has every command of this session on the device, of all streams and threads; the end waits for the work. A failure
    is in the trace and surfaces where it would without.
    """

    def __init__(self, connection: Connection, name: str, max_events: int | None = None) -> None:
        if max_events is not None and not 0 < max_events < 2**32:
            raise ArgumentError(
                f"max_events is {max_events}.", reason="INVALID_ARGUMENT", fix="give a number from 1 to 2**32 - 1."
            )
        self._connection = connection
        self._name = name
        self._max_events = max_events or 0
        self._attachment: Attachment | None = None
        self._result: commands_pb2.TraceResult | None = None
        self._events: list[TraceEvent] | None = None

    @property
    def events(self) -> list[TraceEvent]:
        """The commands in the order in which they arrived."""
        if self._events is None:
            self._events = [_event(event) for event in self._done().events]
        return self._events

    @property
    def kernels(self) -> list[KernelActivity]:
        """What CUPTI saw; empty unless the daemon is configured to ask it."""
        return [_kernel(kernel) for kernel in self._done().kernels]

    @property
    def dropped(self) -> int:
        """Commands that came when the trace was full."""
        return self._done().dropped

    @property
    def epoch_ns(self) -> int:
        """The daemon's clock (Unix time in nanoseconds) at which the times are 0."""
        return self._done().epoch_ns

    def to_json(self) -> dict[str, Any]:
        """The trace in Chrome's Trace Event Format, as Perfetto reads it.

        A track for each stream on the host and on the device, joined by arrows; times in microseconds. What a track
        shows never overlaps, as the format asks of it: on the host a command is shown from its arrival, or from when
        the one before it was out of the way, to its submission; ``args`` has all of its times.
        """
        return document(self._name, self._done())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_json` to a file; open it at https://ui.perfetto.dev or chrome://tracing."""
        content = json.dumps(self.to_json(), separators=(",", ":"))
        Path(path).write_text(content, encoding="utf-8")

    def __enter__(self) -> Trace:
        attachment = self._connection.attachment()
        if self._connection.recorder is not None:
            self._connection.recorder.pause(self._connection)
        self._result = self._events = None
        command = commands_pb2.Command()
        command.start_trace.max_events = self._max_events
        attachment.request(command).wait()  # that a trace runs already is said here, not at the end
        self._attachment = attachment
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._attachment is not None
        command = commands_pb2.Command(end_trace=commands_pb2.EndTrace())
        if error is not None and not self._attachment.alive:
            return  # it is the news; the trace was lost with the device
        try:
            self._result = self._connection.call(command, attachment=self._attachment).trace
        finally:
            if self._connection.recorder is not None:
                self._connection.recorder.resume(self._connection, self._result)

    def _done(self) -> commands_pb2.TraceResult:
        if self._result is None:
            raise ArgumentError(
                "the trace has not ended.", reason="PROFILE_INVALID", fix="read it after the with block."
            )
        return self._result

    def __repr__(self) -> str:
        state = "running" if self._result is None else f"{len(self._result.events)} events"
        return f"<hearth.Trace of {self._name}: {state}>"


def document(name: str, result: commands_pb2.TraceResult) -> dict[str, Any]:
    """As `Trace.to_json`, of the device `name`."""
    chart = _Chart(name)
    for number, event in enumerate(result.events, 1):
        chart.add(number, _event(event))
    for kernel in result.kernels:
        chart.add_kernel(_kernel(kernel))
    other = {"epoch_unix_ns": str(result.epoch_ns), "dropped": result.dropped, "device": name}
    return {"traceEvents": chart.entries, "displayTimeUnit": "ns", "otherData": other}


class _Chart:
    """Entries of the Trace Event Format: complete events (X), arrows (s, f) and names (M)."""

    def __init__(self, name: str) -> None:
        self.entries: list[dict[str, Any]] = []
        self._name = name
        self._tracks: dict[tuple[int, str], int] = {}
        self._ends: dict[tuple[int, str], float] = {}

    def add(self, number: int, event: TraceEvent) -> None:
        args: dict[str, Any] = {"seq": event.seq, "index": event.index}
        if event.bytes:
            args["bytes"] = event.bytes
        if event.grid is not None and event.block is not None:
            args["grid"], args["block"] = list(event.grid), list(event.block)
        if event.error:
            args["error"] = event.error
        for moment in ("queued", "submitted", "started", "ended"):
            args[f"{moment}_us"] = getattr(event, f"{moment}_ns") / 1e3
        name = event.kernel if event.name == "launch" and event.kernel else f"{event.name} {event.kernel}".rstrip()
        category = "error" if event.error else event.name
        stream = f"stream {event.stream}" if event.stream else "default stream"
        host = (HOST, stream)
        start = self._span(host, name, category, event.queued_ns, event.submitted_ns, args)
        if not event.device_ns:
            return
        # A collective runs on a stream of its own beside the work of this one.
        device = (DEVICE, f"{stream}, collectives" if event.name in _COLLECTIVES else stream)
        arrow = {"name": "submit", "cat": "submit", "id": number}
        self.entries.append({**arrow, "ph": "s", "ts": start, "pid": HOST, "tid": self._track(host)})
        start = self._span(device, name, category, event.started_ns, event.ended_ns, args)
        self.entries.append({**arrow, "ph": "f", "bp": "e", "ts": start, "pid": DEVICE, "tid": self._track(device)})

    def add_kernel(self, kernel: KernelActivity) -> None:
        args = {
            "grid": list(kernel.grid),
            "block": list(kernel.block),
            "registers": kernel.registers,
            "shared_bytes": kernel.shared_bytes,
            "seq": kernel.seq,
            "index": kernel.index,
        }
        stream = f"stream {kernel.stream}" if kernel.stream else "default stream"
        self._span((KERNELS, stream), kernel.name, "kernel", kernel.started_ns, kernel.ended_ns, args)

    def _span(
        self, track: tuple[int, str], name: str, category: str, start_ns: int, end_ns: int, args: dict[str, Any]
    ) -> float:
        """One complete event, behind the one before it on its track; where it starts, in microseconds."""
        number = self._track(track)
        start = max(start_ns / 1e3, self._ends[track])
        end = max(end_ns / 1e3, start)
        self._ends[track] = end
        self.entries.append(
            {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": start,
                "dur": end - start,
                "pid": track[0],
                "tid": number,
                "args": args,
            }
        )
        return start

    def _track(self, track: tuple[int, str]) -> int:
        """The number of a track; the first time, it is named, and its process where it is that one's first."""
        number = self._tracks.get(track)
        if number is not None:
            return number
        process, name = track
        if all(other != process for other, _ in self._tracks):
            title = _PROCESSES[process].format(name=self._name)
            self._name_entry("process_name", process, 0, {"name": title})
            self._name_entry("process_sort_index", process, 0, {"sort_index": process})
        number = self._tracks[track] = 1 + sum(other == process for other, _ in self._tracks)
        self._ends[track] = float("-inf")
        self._name_entry("thread_name", process, number, {"name": name})
        return number

    def _name_entry(self, what: str, process: int, track: int, args: dict[str, Any]) -> None:
        self.entries.append({"name": what, "ph": "M", "ts": 0, "pid": process, "tid": track, "args": args})


def _dim(dim: commands_pb2.Dim3) -> tuple[int, int, int]:
    return dim.x, dim.y, dim.z


def _event(event: commands_pb2.TraceEvent) -> TraceEvent:
    kind = event.kernel if event.name == _COLLECTIVE else ""
    return TraceEvent(
        name=kind or event.name,
        stream=event.stream,
        seq=event.seq,
        index=event.index,
        queued_ns=event.queued_ns,
        submitted_ns=event.submitted_ns,
        started_ns=event.started_ns,
        ended_ns=event.ended_ns,
        bytes=event.bytes,
        kernel="" if kind else event.kernel,
        grid=_dim(event.grid) if event.HasField("grid") else None,
        block=_dim(event.block) if event.HasField("block") else None,
        error=event.error,
    )


def _kernel(kernel: commands_pb2.KernelActivity) -> KernelActivity:
    return KernelActivity(
        name=kernel.name,
        stream=kernel.stream,
        seq=kernel.seq,
        index=kernel.index,
        started_ns=kernel.started_ns,
        ended_ns=kernel.ended_ns,
        grid=_dim(kernel.grid),
        block=_dim(kernel.block),
        registers=kernel.registers,
        shared_bytes=kernel.shared_bytes,
    )
