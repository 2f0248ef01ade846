"""Steps of the profiled operations, and the functions at whose ends they begin. Pure.

A step lasts until the next step of the same operation begins. `docs/architecture.md` describes the same walk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ENTER, LEAVE = "enter", "leave"
START, END = 0, -1
"""Event numbers of the start of an operation, which is that of its first step, and of its end."""

CLIENT, DEVICE = "client", "device"
TO_DEVICE, TO_CLIENT = "to the device process", "to the client"
"""Parts of the path. The transport begins with the call that sends, and ends in the process that was woken."""

DRIVER: dict[str, dict[str, tuple[str, ...]]] = {
    "cpu": {
        "launch": ("hearthd.device.cpu.server:CpuServer.launch",),
        "upload": ("hearthd.device.cpu.server:CpuServer.upload",),
        "download": ("hearthd.device.cpu.server:CpuServer.download",),
    },
    "cuda": {
        "launch": (
            "hearthd.device.cuda.launch:CudaLauncher.launch",
            "hearthd.device.cuda.launch:CudaLauncher.bind_launch()",
        ),
        "upload": ("hearthd.device.cuda.copies:CudaCopies.upload",),
        "download": ("hearthd.device.cuda.copies:CudaCopies.download",),
    },
}
"""Functions that submit to the device, by backend. "()" stands for the function that the named one returns."""


@dataclass(frozen=True)
class Probe:
    """One end of a function, or of alternatives to it."""

    targets: tuple[str, ...]
    """Functions, one of which is called: module and qualified name, "module:Class.function", or a key of
    `DRIVER`."""
    edge: str
    """`ENTER` or `LEAVE`."""


@dataclass(frozen=True)
class Step:
    """A step of an operation."""

    part: str
    name: str
    files: str
    """Files of the code that runs, below `client/hearth` or `server/hearthd/device`."""
    begins: Probe | None
    """None: the start of the operation."""
    awaited: bool = True
    """False for work of the device process after the answer, which the client does not wait for."""

    @property
    def side(self) -> str:
        """The process in which the step begins: `CLIENT` or `DEVICE`."""
        return CLIENT if self.part in (CLIENT, TO_DEVICE) else DEVICE


@dataclass(frozen=True)
class Operation:
    """A profiled operation."""

    name: str
    steps: tuple[Step, ...]
    """In order of time, if the client waits for the answer: the steps with `awaited` follow each other without gaps."""
    waits: bool = True
    """False if the client sends the next operation without an answer; then both processes work at the same time."""

    def probes(self, side: str) -> Iterator[tuple[int, Probe]]:
        """Yields the number of each event of one side, and the probe that causes it."""
        for number, step in enumerate(self.steps):
            if step.begins is not None and step.side == side:
                yield number, step.begins


def _enter(*targets: str) -> Probe:
    return Probe(targets, ENTER)


def _leave(*targets: str) -> Probe:
    return Probe(targets, LEAVE)


_CALL = "hearth.kernels.base_function:BaseFunction.__call__"
_SEND = "hearth.transport.lane:Lane.send"
_SERVE = "hearthd.device.platform.event_loop:Loop._serve"
_RUN = "hearthd.device.platform.event_loop:Loop.run_once"
_WRITE = ("hearthd.device.channels.lane:LaneConnection._write", "hearthd.device.channels.lane:LaneConnection.settle")
"""The answer is written at once, or together with other frames of the same iteration of the loop."""
_RECORDS = "hearthd.device.launch.commands:LaunchCommands.run_records"

_ANSWER = (
    Step(TO_CLIENT, "send, wake-up of the client", "channels/lane.py, transport/lane.py", _enter(*_WRITE)),
    Step(
        CLIENT,
        "receive: split the frames, match the reply",
        "transport/lane.py, session/lane_channel.py, session/protocol.py",
        _leave("hearth.transport.lane:Lane.receive"),
    ),
)
_AFTER = (
    Step(
        DEVICE,
        "after the answer: copy for the front, accounting, housekeeping",
        "outbox.py, fast_path/inline_path.py, scheduler/*, process/device_process.py",
        _leave(*_WRITE),
        awaited=False,
    ),
    Step(DEVICE, "idle", "platform/event_loop.py", _enter(_RUN), awaited=False),
)
_ARRIVAL = (
    Step(TO_DEVICE, "send, wake-up of the device process", "transport/lane.py, platform/event_loop.py", _enter(_SEND)),
    Step(DEVICE, "read the socket", "channels/lane.py", _enter(_SERVE)),
)
_WAIT = Step(
    DEVICE,
    "accounting, and wait for the completion",
    "fast_path/inline_path.py, streams/stream_pool.py, process/device_process.py",
    _leave("hearthd.device.streams.stream_pool:StreamPool.on_complete"),
)
_HANDLE = "hearthd.device.channels.lane:LaneConnection._handle_complete"
_WAITED = _leave("hearth.session.waiters:Waiters.wait_for")

OPERATIONS = {
    "launch": Operation(
        "launch + synchronize",
        (
            Step(CLIENT, "launch: call, packing of the arguments", "kernels/base_function.py", None),
            Step(
                CLIENT,
                "launch: queue the record, hold it back for the Sync",
                "session/attachment.py, session/send_queue.py, session/lane_channel.py",
                _enter("hearth.session.attachment:Attachment.launch"),
            ),
            Step(
                CLIENT,
                "synchronize: build the Sync and the batch",
                "blocking/device.py, session/attachment.py, session/protocol.py, codec/batch.py",
                _enter("hearth.blocking.device:Device.synchronize"),
            ),
            *_ARRIVAL,
            Step(
                DEVICE,
                "decode the batch, check that the session is alone",
                "channels/lane.py, fast_path/inline_path.py, fast_path/plain_batch.py",
                _enter(_HANDLE),
            ),
            Step(
                DEVICE,
                "order: replay cache, position on the stream",
                "launch/commands.py, streams/stream_pool.py, streams/ordering.py",
                _enter("hearthd.device.launch.commands:LaunchCommands.relaunch"),
            ),
            Step(DEVICE, "launch call", "cuda/launch.py, cpu/launch.py", _enter("launch")),
            Step(
                DEVICE,
                "record an event behind the launch",
                "launch/commands.py, fast_path/inline_path.py, streams/stream_pool.py",
                _leave("launch"),
            ),
            _WAIT,
            Step(
                DEVICE,
                "answer: encode",
                "fast_path/completion.py, outbox.py",
                _enter("hearthd.device.fast_path.completion:InlineSync.end"),
            ),
            *_ANSWER,
            Step(CLIENT, "return from synchronize", "session/waiters.py, session/reply.py", _WAITED),
            *_AFTER,
        ),
    ),
    "copy": Operation(
        "set + get of 4 KiB",
        (
            Step(CLIENT, "set: checks, serialization", "arrays/base_array.py, arrays/host_copy.py", None),
            Step(
                CLIENT,
                "set: queue the Write, hold it back for the Read",
                "session/attachment.py, session/send_queue.py, session/lane_channel.py",
                _enter("hearth.session.attachment:Attachment.submit"),
            ),
            Step(
                CLIENT,
                "get: checks, serialization",
                "blocking/array.py, arrays/host_copy.py, transfer/router.py",
                _enter("hearth.blocking.array:DeviceArray.get"),
            ),
            Step(
                CLIENT,
                "get: build the batch",
                "session/attachment.py, session/protocol.py, codec/batch.py",
                _enter("hearth.session.attachment:Attachment.request_serialized"),
            ),
            *_ARRIVAL,
            Step(
                DEVICE,
                "decode the batch, check that the session is alone",
                "channels/lane.py, fast_path/inline_path.py, fast_path/mixed_batch.py",
                _enter(_HANDLE),
            ),
            Step(
                DEVICE,
                "write: checks, staging, position on the stream",
                "fast_path/temporaries.py, resources/staging.py",
                _enter("hearthd.device.fast_path.temporaries:Temporaries.write"),
            ),
            Step(DEVICE, "write: copy call", "cuda/copies.py, cpu/server.py", _enter("upload")),
            Step(
                DEVICE,
                "read: checks, staging, position on the stream",
                "fast_path/temporaries.py, fast_path/inline_path.py, fast_path/reads.py",
                _leave("upload"),
            ),
            Step(DEVICE, "read: copy call", "cuda/copies.py, cpu/server.py", _enter("download")),
            Step(
                DEVICE,
                "read: record an event behind the copy",
                "fast_path/reads.py, streams/stream_pool.py",
                _leave("download"),
            ),
            _WAIT,
            Step(
                DEVICE,
                "answer: copy, encode",
                "fast_path/reads.py, fast_path/plain_batch.py, outbox.py",
                _enter("hearthd.device.fast_path.reads:InlineRead.end"),
            ),
            *_ANSWER,
            Step(CLIENT, "copy into the host array, return from get", "session/reply.py, transfer/router.py", _WAITED),
            *_AFTER,
        ),
    ),
    "pipelined": Operation(
        "pipelined launch",
        (
            Step(CLIENT, "loop of the program", "", None),
            Step(CLIENT, "call, packing of the arguments", "kernels/base_function.py", _enter(_CALL)),
            Step(
                CLIENT,
                "queue the record",
                "session/attachment.py, session/send_queue.py, session/lane_channel.py",
                _enter("hearth.session.attachment:Attachment.launch"),
            ),
            Step(CLIENT, "send", "transport/lane.py", _enter(_SEND)),
            Step(CLIENT, "queue the record", "", _leave(_SEND)),
            Step(
                CLIENT,
                "wait for room in the queue",
                "session/attachment.py",
                _enter("hearth.session.attachment:Attachment._await_room"),
            ),
            Step(CLIENT, "queue the record", "", _leave("hearth.session.attachment:Attachment._await_room")),
            Step(CLIENT, "loop of the program", "", _leave(_CALL)),
            Step(
                DEVICE,
                "read the socket, split frames, queue them",
                "channels/lane.py, process/executor.py",
                _enter(_SERVE),
            ),
            Step(
                DEVICE,
                "order: replay cache, position on the stream",
                "launch/commands.py, streams/stream_pool.py, streams/ordering.py",
                _enter(_RECORDS),
            ),
            Step(DEVICE, "launch call", "cuda/launch.py, cpu/launch.py", _enter("launch")),
            Step(DEVICE, "order: replay cache, position on the stream", "", _leave("launch")),
            Step(
                DEVICE,
                "accounting, acknowledgements, completions",
                "process/device_process.py, scheduler/*, outbox.py, streams/stream_pool.py",
                _leave(_RECORDS),
            ),
            Step(DEVICE, "idle: wait for frames and completions", "platform/event_loop.py", _enter(_RUN)),
        ),
        waits=False,
    ),
}
