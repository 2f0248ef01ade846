"""Traces as lists of events and in Chrome's Trace Event Format, which Perfetto and chrome://tracing read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hearth_proto.collectives import SHAPES
from hearth_proto.v1 import commands_pb2

HOST = 1
DEVICE = 2
KERNELS = 3
"""Process numbers in the file: for events of the host, events of the device, and kernels reported by CUPTI."""

_COLLECTIVE = "collective"
"""Name of a batch of collectives; a single operation has the name of its kind."""
_COLLECTIVES = frozenset({_COLLECTIVE, *SHAPES})
_PROCESSES = {HOST: "host, {name}", DEVICE: "{name}", KERNELS: "kernels of {name} (CUPTI)"}


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """A command in a trace. Times are in nanoseconds since the trace's start: queued <= submitted <= started <= ended.

    For a command without work on the device, submitted, started and ended are equal.
    """

    name: str
    """Kind of command: ``launch``, ``write``, ``read``, ``copy``, ``all_reduce``, ..."""
    stream: int
    seq: int
    """Number of the command's batch; `index` is its position in the batch."""
    index: int
    queued_ns: int
    """Time at which the command arrived in the device process."""
    submitted_ns: int
    """Time at which the command was handed to the device, after its dependencies."""
    started_ns: int
    ended_ns: int
    bytes: int = 0
    """Number of bytes that the command moved."""
    kernel: str = ""
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    error: str = ""
    """Reason of the failure; empty: the command succeeded."""

    @property
    def device_ns(self) -> int:
        """Time on the device, in nanoseconds."""
        return self.ended_ns - self.started_ns


@dataclass(frozen=True, slots=True)
class KernelActivity:
    """A kernel as CUPTI recorded it, if the daemon is configured to use CUPTI; times as in `TraceEvent`."""

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


def events_of(result: commands_pb2.TraceResult) -> Iterator[TraceEvent]:
    """Returns the commands in the order of their arrival."""
    return map(_event, result.events)


def kernels_of(result: commands_pb2.TraceResult) -> Iterator[KernelActivity]:
    """Returns the kernels that CUPTI recorded."""
    return map(_kernel, result.kernels)


def chrome_trace(
    name: str, events: Iterable[TraceEvent], kernels: Iterable[KernelActivity], *, epoch_ns: int, dropped: int
) -> dict[str, Any]:
    """Returns the trace of a device in the Trace Event Format, for `json.dumps`.

    It contains the entries of `chart_of` and those of `file_metadata`.
    """
    return {
        "traceEvents": list(chart_of(name, events, kernels)),
        **file_metadata(name, epoch_ns=epoch_ns, dropped=dropped),
    }


def chart_of(name: str, events: Iterable[TraceEvent], kernels: Iterable[KernelActivity]) -> Iterator[dict[str, Any]]:
    """Yields the entries of ``traceEvents``.

    Each stream has one track on the host and one on the device, joined by arrows; times are in microseconds. Events of
    a track never overlap, as the format requires. On the host, a command is shown from its arrival, or from the end of
    the previous command if that is later, to its submission; ``args`` contains all of its times.
    """
    chart = _Chart(name)
    for number, event in enumerate(events, 1):
        chart.add(number, event)
        yield from chart.take_entries()
    for kernel in kernels:
        chart.add_kernel(kernel)
        yield from chart.take_entries()


def file_metadata(name: str, *, epoch_ns: int, dropped: int) -> dict[str, Any]:
    """Returns the entries of the file other than ``traceEvents``."""
    other_data = {"epoch_unix_ns": str(epoch_ns), "dropped": dropped, "device": name}
    return {"displayTimeUnit": "ns", "otherData": other_data}


class _Chart:
    """Entries of the Trace Event Format: complete events (X), arrows (s, f) and names (M)."""

    def __init__(self, name: str) -> None:
        self.entries: list[dict[str, Any]] = []
        self._name = name
        self._tracks: dict[tuple[int, str], int] = {}
        self._ends: dict[tuple[int, str], float] = {}

    def take_entries(self) -> list[dict[str, Any]]:
        """Returns and removes the entries added since the last call."""
        entries, self.entries = self.entries, []
        return entries

    def add(self, number: int, event: TraceEvent) -> None:
        args: dict[str, Any] = {"seq": event.seq, "index": event.index}
        if event.bytes:
            args["bytes"] = event.bytes
        if event.grid is not None and event.block is not None:
            args["grid"], args["block"] = list(event.grid), list(event.block)
        if event.error:
            args["error"] = event.error
        for phase in ("queued", "submitted", "started", "ended"):
            args[f"{phase}_us"] = getattr(event, f"{phase}_ns") / 1e3
        name = event.kernel if event.name == "launch" and event.kernel else f"{event.name} {event.kernel}".rstrip()
        category = "error" if event.error else event.name
        stream = f"stream {event.stream}" if event.stream else "default stream"
        host = (HOST, stream)
        start = self._span(host, name, category, event.queued_ns, event.submitted_ns, args)
        if not event.device_ns:
            return
        # A collective runs on a separate stream, concurrently with the work of this stream.
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
        """Adds a complete event after the previous one on its track. Returns its start in microseconds."""
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
        """Returns the number of a track.

        At its first use, adds entries that name the track and, if needed, its process.
        """
        number = self._tracks.get(track)
        if number is not None:
            return number
        process, name = track
        if all(other_process != process for other_process, _ in self._tracks):
            title = _PROCESSES[process].format(name=self._name)
            self._name_entry("process_name", process, 0, {"name": title})
            self._name_entry("process_sort_index", process, 0, {"sort_index": process})
        number = self._tracks[track] = 1 + sum(other_process == process for other_process, _ in self._tracks)
        self._ends[track] = float("-inf")
        self._name_entry("thread_name", process, number, {"name": name})
        return number

    def _name_entry(self, name: str, process: int, track: int, args: dict[str, Any]) -> None:
        self.entries.append({"name": name, "ph": "M", "ts": 0, "pid": process, "tid": track, "args": args})


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
