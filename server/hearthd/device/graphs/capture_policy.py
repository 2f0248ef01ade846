"""Capture policy: the commands that a stream accepts while it records a graph, and the order of begin and end.

Between BeginCapture and EndCapture, a stream's launches, fills and copies are recorded, and so are its events, which
bring other streams into the capture and order their work. Copies from and to the host are recorded only if their bytes
lie in memory that the client shares: each launch of the graph copies from or to it again. Allocations and commands
without stream work are executed as usual. All other commands are refused without effect, so that the recording can
still be completed.
"""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal

RECORDED = frozenset(
    {
        "launches", "launch", "launch_prepared", "launch_graph", "copy", "fill", "record_event", "wait_event",
        "begin_conditional", "end_conditional", "begin_branch",
    }
)  # fmt: skip
"""Kinds of commands that become nodes of the graph, or order its nodes."""

SHARED = frozenset({"write", "read"})
"""Kinds of commands that become nodes of the graph if they name memory that the client shares."""

TRANSITIONS = frozenset({"begin_capture", "end_capture"})

EXECUTED = frozenset(
    {
        # Creation and destruction of handles. A client's garbage collector may destroy handles at any time; the
        # recording holds the objects that it uses. So the memory that nodes use lives as long as the graph.
        "allocate", "free", "create_stream", "destroy_stream", "destroy_event", "load_module", "unload_module",
        "get_function", "get_global", "create_tensor_map", "destroy_tensor_map", "destroy_graph", "prepare",
        "destroy_prepared",
        # Queries that involve no stream.
        "query_event", "elapsed_time", "publish_event", "attach_event", "describe_module", "describe_function",
        "occupancy", "memory_usage", "memory_cleanup", "set_allocation_mode", "start_trace", "end_trace", "cancel",
    }
)  # fmt: skip
"""Kinds of commands without stream work, which are executed as usual."""

REASONS = {
    "write": "every launch would write the bytes of the time of the recording",
    "write_pointers": "every launch would write the addresses of the time of the recording",
    "read": "no work has run yet whose result could be read",
    "sync": "no work has run yet that could be waited for",
    "flush": "no work has run yet that could be waited for",
    "start_profile": "a profile measures running work, and recorded work does not run",
    "end_profile": "a profile measures running work, and recorded work does not run",
    "dispatch": "the host takes part in it",
    "set_durable": "no work has run yet whose result could be copied",
    "checkpoint": "no work has run yet whose result could be copied",
    "update_graph": "it would apply between launches that have not taken place yet",
    "all_reduce": "the graph does not contain the parts of the other ranks",
    "sync_collective": "the graph does not contain the parts of the other ranks",
    "collective": "the graph does not contain the parts of the other ranks",
}
FIX = "do it on another stream, or before or after the recording"
FIXES = {
    "write": "copy from an array of hearth.empty_pinned, or from a part of one, of 64 KiB or more, over the daemon's "
    "Unix socket: each launch reads it again; or " + FIX,
    "read": "copy to an array of hearth.empty_pinned, or to a part of one, of 64 KiB or more, over the daemon's Unix "
    "socket, with x.get(out=a, blocking=False): each launch fills it again; or " + FIX,
}


class CaptureOrder:
    """State of the recording on one logical stream: no graph, or one graph.

    Each step either succeeds, or raises Refusal(CAPTURE_INVALID) without effect. `abort` returns to the initial state
    from any state.
    """

    __slots__ = ("graph", "stream")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.graph = 0
        """Handle of the graph that is being recorded; 0: none."""

    @property
    def recording(self) -> bool:
        """True while a graph is being recorded."""
        return self.graph != 0

    def begin(self, graph: int) -> None:
        """Begins the recording of `graph`."""
        if self.recording:
            raise self._refusal(
                f"stream {self.stream} records graph {self.graph} already; graph {graph} cannot be begun in it",
                "end or discard that one first, or record on another stream",
                graph,
            )
        self.graph = graph

    def end(self, graph: int, on_stream: int | None = None) -> None:
        """Ends the recording of `graph`, which is then kept or discarded.

        `on_stream` is the stream that ends it; None: the stream on which it was begun.
        """
        if not self.recording:
            raise self._refusal(f"stream {self.stream} records no graph", "begin the capture on this stream", graph)
        if graph != self.graph:
            raise self._refusal(
                f"stream {self.stream} records graph {self.graph}, not graph {graph}",
                "end each graph on the stream where it was begun",
                graph,
            )
        if on_stream is not None and on_stream != self.stream:
            raise self._refusal(
                f"the capture of graph {graph} cannot be ended on stream {on_stream}, which joined it by an event",
                f"end it on stream {self.stream}, where it was begun",
                graph,
            )
        self.graph = 0

    def abort(self) -> int:
        """Ends any recording. Returns the handle of its graph, or 0."""
        graph, self.graph = self.graph, 0
        return graph

    def records(self, kind: str, shared: bool = False) -> bool:
        """Returns True if a command of this kind is recorded now, and False if it is executed.

        `shared` is True for a command that names memory that the client shares. Raises Refusal(CAPTURE_INVALID) for any
        other command.
        """
        if not self.recording or kind in EXECUTED or kind in TRANSITIONS:
            return False
        if kind in RECORDED or (shared and kind in SHARED):
            return True
        reason = REASONS.get(kind, "it is not a launch, a copy within the device or a fill")
        raise self._refusal(
            f"{kind} on stream {self.stream} while it records graph {self.graph}: {reason}",
            FIXES.get(kind, FIX),
            self.graph,
            command=kind,
        )

    def _refusal(self, message: str, fix: str, graph: int, **details: object) -> Refusal:
        return Refusal(
            Reason.CAPTURE_INVALID, message, fix=fix, details={"stream": self.stream, "graph": graph, **details}
        )
