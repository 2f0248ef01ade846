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
"""Functions that submit to the device, by backend. "()" denotes the function that the named one returns."""


@dataclass(frozen=True)
class Probe:
    """One end of a function, or of alternatives to it."""

    targets: tuple[str, ...]
    """Functions, one of which is called: module and qualified name, "module:Class.function", or a key of
    `DRIVER`. Functions that do not exist are skipped, if another one does."""
    edge: str
    """`ENTER` or `LEAVE`."""


@dataclass(frozen=True)
class Step:
    """A step of an operation."""

    part: str
    name: str
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
_WRITE = "hearthd.device.channels.lane:LaneConnection.settle"
_RECORDS = "hearthd.device.launch.commands:LaunchCommands.run_records"

_ANSWER = (
    Step(TO_CLIENT, "send, wake-up of the client", _enter(_WRITE)),
    Step(
        CLIENT,
        "receive: split the frames, match the reply",
        _leave("hearth.transport.lane:Lane.receive"),
    ),
)
_AFTER = (
    Step(
        DEVICE,
        "after the answer: copy for the front, accounting, housekeeping",
        _leave(_WRITE),
        awaited=False,
    ),
    Step(DEVICE, "idle", _enter(_RUN), awaited=False),
)
_ARRIVAL = (
    Step(TO_DEVICE, "send, wake-up of the device process", _enter(_SEND)),
    Step(DEVICE, "read the socket", _enter(_SERVE)),
)
_WAIT = Step(
    DEVICE,
    "accounting, and wait for the completion",
    _leave("hearthd.device.streams.stream_pool:StreamPool.on_complete"),
)
_HANDLE = "hearthd.device.channels.lane:LaneConnection._handle_complete"
_WAITED = _leave("hearth.session.waiters:Waiters.wait_for")

OPERATIONS = {
    "launch": Operation(
        "launch + synchronize",
        (
            Step(CLIENT, "launch: call, packing of the arguments", None),
            Step(
                CLIENT,
                "launch: queue the record, hold it back for the Sync",
                _enter("hearth.session.attachment:Attachment.launch"),
            ),
            Step(
                CLIENT,
                "synchronize: build the Sync and the batch",
                _enter("hearth.blocking.device:Device.synchronize"),
            ),
            *_ARRIVAL,
            Step(
                DEVICE,
                "decode the batch, check that the session is alone",
                _enter(_HANDLE),
            ),
            Step(
                DEVICE,
                "order: replay cache, position on the stream",
                _enter("hearthd.device.launch.commands:LaunchCommands.relaunch", _RECORDS),
            ),
            Step(DEVICE, "launch call", _enter("launch")),
            Step(
                DEVICE,
                "record an event behind the launch",
                _leave("launch"),
            ),
            _WAIT,
            Step(
                DEVICE,
                "answer: encode",
                _enter(
                    "hearthd.device.scheduler.steps:Step.end",
                    "hearthd.device.process.executor:Executor.done",
                ),
            ),
            *_ANSWER,
            Step(CLIENT, "return from synchronize", _WAITED),
            *_AFTER,
        ),
    ),
    "copy": Operation(
        "set + get of 4 KiB",
        (
            Step(CLIENT, "set: checks, serialization", None),
            Step(
                CLIENT,
                "set: queue the Write, hold it back for the Read",
                _enter("hearth.session.attachment:Attachment.submit"),
            ),
            Step(
                CLIENT,
                "get: checks, serialization",
                _enter("hearth.blocking.array:DeviceArray.get"),
            ),
            Step(
                CLIENT,
                "get: build the batch",
                _enter("hearth.session.attachment:Attachment.request_serialized"),
            ),
            *_ARRIVAL,
            Step(
                DEVICE,
                "decode the batch, check that the session is alone",
                _enter(_HANDLE),
            ),
            Step(
                DEVICE,
                "write: checks, staging, position on the stream",
                _enter(
                    "hearthd.device.scheduler.temporaries:Temporaries.write",
                ),
            ),
            Step(DEVICE, "write: copy call", _enter("upload")),
            Step(
                DEVICE,
                "read: checks, staging, position on the stream",
                _leave("upload"),
            ),
            Step(DEVICE, "read: copy call", _enter("download")),
            Step(
                DEVICE,
                "read: record an event behind the copy",
                _leave("download"),
            ),
            _WAIT,
            Step(
                DEVICE,
                "answer: copy, encode",
                _enter(
                    "hearthd.device.scheduler.temporaries:Temporaries._answer",
                    "hearthd.device.transfers.copy_commands:CopyCommands._arrived",
                ),
            ),
            *_ANSWER,
            Step(CLIENT, "copy into the host array, return from get", _WAITED),
            *_AFTER,
        ),
    ),
    "pipelined": Operation(
        "pipelined launch",
        (
            Step(CLIENT, "loop of the program", None),
            Step(CLIENT, "call, packing of the arguments", _enter(_CALL)),
            Step(
                CLIENT,
                "queue the record",
                _enter("hearth.session.attachment:Attachment.launch"),
            ),
            Step(CLIENT, "send", _enter(_SEND)),
            Step(CLIENT, "queue the record", _leave(_SEND)),
            Step(
                CLIENT,
                "wait for room in the queue",
                _enter("hearth.session.attachment:Attachment._await_room"),
            ),
            Step(CLIENT, "queue the record", _leave("hearth.session.attachment:Attachment._await_room")),
            Step(CLIENT, "loop of the program", _leave(_CALL)),
            Step(
                DEVICE,
                "read the socket, split frames, queue them",
                _enter(_SERVE),
            ),
            Step(
                DEVICE,
                "order: replay cache, position on the stream",
                _enter(_RECORDS),
            ),
            Step(DEVICE, "launch call", _enter("launch")),
            Step(DEVICE, "order: replay cache, position on the stream", _leave("launch")),
            Step(
                DEVICE,
                "accounting, acknowledgements, completions",
                _leave(_RECORDS),
            ),
            Step(DEVICE, "idle: wait for frames and completions", _enter(_RUN)),
        ),
        waits=False,
    ),
}
