"""A device process for tests of the front: a thread that exchanges frames, and a launcher that starts it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from hearth_proto import frames
from hearth_proto.frames import Flag, Frame, Kind
from hearth_proto.reasons import Refusal
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2
from hearthd.shared.device_spec import DeviceSpec

ANSWERS: dict[str, Callable[[], commands_pb2.Result]] = {
    "query_event": lambda: commands_pb2.Result(event=commands_pb2.EventResult(done=True)),
    "elapsed_time": lambda: commands_pb2.Result(event=commands_pb2.EventResult(done=True, elapsed_ns=7)),
    "describe_module": lambda: commands_pb2.Result(module=commands_pb2.ModuleResult(functions=["f"], log="fine")),
    "describe_function": lambda: commands_pb2.Result(function=commands_pb2.FunctionResult(name="f", registers=3)),
    "get_global": lambda: commands_pb2.Result(**{"global": commands_pb2.GlobalResult(size=16)}),
    "memory_usage": lambda: commands_pb2.Result(memory_usage=commands_pb2.MemoryUsageResult(allocations=2)),
    "end_profile": lambda: commands_pb2.Result(profile=commands_pb2.ProfileResult(device_ns=5, wall_ns=9)),
    "dispatch": lambda: commands_pb2.Result(dispatch=commands_pb2.DispatchResult()),
    "end_capture": lambda: commands_pb2.Result(graph=commands_pb2.GraphResult()),
    "occupancy": lambda: commands_pb2.Result(occupancy=commands_pb2.OccupancyResult()),
    "end_trace": lambda: commands_pb2.Result(trace=commands_pb2.TraceResult()),
}


class FakeDevice:
    """A fake device process. Behaviour is set on the launcher before it starts, or on the instance while it runs."""

    def __init__(self, spec: DeviceSpec, launcher: FakeLauncher) -> None:
        self.spec = spec
        self.launcher = launcher
        self.socket, self.link = socket.socketpair()
        self.descriptors: socket.socket | None = None
        self.pid = 100000 + spec.ordinal
        self.commands: list[commands_pb2.Command] = []
        self.batches: list[commands_pb2.Batch] = []
        self.opened: dict[int, dict[str, Any]] = {}
        self.closed: list[int] = []
        self.limits: list[dict[str, Any]] = []
        self.changes: list[tuple[int, dict[str, Any]]] = []
        self.aborted: dict[int, bytes] = {}
        self.collectives: list[dict[str, Any]] = []
        self.uploads: dict[int, bytearray] = {}
        self.finished: set[int] = set()
        self.memory: dict[int, bytes] = {}
        self.exit_code: int | None = 0
        self.got_batch = threading.Condition()
        self._held: list[bytes] = []
        self._writes: dict[int, tuple[int, int, int]] = {}
        self.downloads: dict[tuple[int, int], dict[str, Any]] = {}
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int | None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=f"fake-device-{spec.ordinal}", daemon=True)
        self._thread.start()

    # ---- interface for the supervisor ----

    def kill(self) -> None:
        self.die(-9)

    def report(self) -> None:
        self.reported = True

    async def ended(self) -> int | None:
        return await asyncio.shield(self._exit)

    def die(self, exit_code: int | None = -11) -> None:
        """Ends without sending a FAULT frame."""
        self.exit_code = exit_code
        try:
            self.link.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def fault(self, refusal: Refusal) -> None:
        """Sends a FAULT frame with the reason, and ends when the front has received it."""
        self.exit_code = -11
        self.send(Kind.FAULT, refusal.to_status().SerializeToString())

    def become_ready(self) -> None:
        """Reports that the process is ready; for processes that were started while the launcher's `ready` was False."""
        properties = node_pb2.DeviceProperties(name="fake", backend="cpu", total_memory=1 << 30)
        self.send(Kind.READY, properties.SerializeToString())

    def join(self) -> None:
        self._thread.join(10)

    # ---- the thread ----

    def send(self, kind: int, payload: bytes = b"", **fields: int) -> None:
        try:
            self.link.sendall(frames.encode(kind, payload, **fields))
        except OSError:
            return

    def _run(self) -> None:
        reader = frames.FrameReader()
        if self.launcher.ready:
            self.become_ready()
        try:
            while data := self.link.recv(1 << 20):
                for frame in reader.feed(data):
                    if frame.kind == Kind.SHUTDOWN:
                        self.exit_code = 0
                        return
                    self.on_frame(frame)
        except OSError:
            pass
        finally:
            self.link.close()
            with contextlib.suppress(RuntimeError):  # the event loop is closed after a failed test
                self._loop.call_soon_threadsafe(self._on_exit)

    def _on_exit(self) -> None:
        if not self._exit.done():
            self._exit.set_result(self.exit_code)

    def _note(self, frame: Frame) -> None:
        body = json.loads(frame.payload)
        if frame.kind == Kind.CHANGE:
            self.changes.append((frame.channel, body))
        else:
            self.collectives.append(body)

    def on_frame(self, frame: Frame) -> None:
        channel = frame.channel
        if frame.kind == Kind.PING and not self.launcher.mute:
            self.send(Kind.PONG, id=frame.id)
        elif frame.kind == Kind.STATS and not self.launcher.mute:
            stats = {"counters": {"launches": 3, "bad name": 1}, "gauges": {"memory_used_bytes": 5, "sessions": 1}}
            self.send(Kind.STATS, json.dumps(stats).encode(), id=frame.id)
        elif frame.kind == Kind.OPEN:
            self.opened[channel] = json.loads(frame.payload)
        elif frame.kind == Kind.CLOSE:
            self.closed.append(channel)
            if self.launcher.closes:
                self.send(Kind.CLOSED, channel=channel)
        elif frame.kind == Kind.BATCH:
            self._on_batch(frame)
        elif frame.kind == Kind.CALL:
            self._on_call(frame)
        elif frame.kind == Kind.UPLOAD:
            self._on_upload(frame)
        elif frame.kind in (Kind.DOWNLOAD, Kind.CREDIT):
            flow = self.downloads.setdefault((channel, frame.id), {"credits": 0, "offset": 0, "data": None})
            flow["credits"] += frame.flags
            self._pump(channel, frame.id)
        elif frame.kind == Kind.ABORT:
            self.aborted[frame.id] = frame.payload
        elif frame.kind == Kind.LIMIT:
            self.limits.append(json.loads(frame.payload))
            limit = self.limits[-1]["bytes"]
            self.send(Kind.HELD, json.dumps({"limit": limit, "reserved": 0, "in_use": 0}).encode(), id=frame.id)
        elif frame.kind in (Kind.COLLECTIVE, Kind.CHANGE):
            self._note(frame)

    # ---- batches ----

    def _on_batch(self, frame: Frame) -> None:
        try:
            batch = device_pb2.ExecuteRequest.FromString(frame.payload).batch
            if not batch.seq:
                raise ValueError("no batch")
        except Exception as error:
            event = device_pb2.Event()
            event.protocol_error.message = str(error)
            self.send(Kind.RESPONSE, device_pb2.ExecuteResponse(event=event).SerializeToString(), channel=frame.channel)
            return
        out = frames.encode(Kind.ACK, channel=frame.channel, id=batch.seq)
        for command in batch.commands:
            if command.request:
                result = commands_pb2.Result(request=command.request, done=commands_pb2.Done())
                response = device_pb2.ExecuteResponse(result=result).SerializeToString()
                out += frames.encode(Kind.RESPONSE, response, channel=frame.channel)
        with self.got_batch:
            self.batches.append(batch)
            self.got_batch.notify_all()
        if self.launcher.hold_acks:
            self._held.append(out)
        else:
            self.link.sendall(out)

    def release_acks(self) -> None:
        """Sends the acks that were held back, and stops holding acks back."""
        self.launcher.hold_acks = False
        held, self._held = self._held, []
        self.link.sendall(b"".join(held))

    # ---- calls and transfers ----

    def _on_call(self, frame: Frame) -> None:
        command = commands_pb2.Command.FromString(frame.payload)
        kind = command.WhichOneof("kind") or ""
        self.commands.append(command)
        refusal = self.launcher.refusals.get(kind)
        if refusal is not None:
            result = commands_pb2.Result(request=frame.id, error=refusal.to_status())
        elif kind in self.launcher.unanswered:
            return
        elif kind == "write" and command.write.transfer:
            self._writes[command.write.transfer] = (frame.id, command.write.buffer, command.write.size)
            return
        elif kind == "read" and command.read.transfer:
            flow = self.downloads.setdefault(
                (frame.channel, command.read.transfer), {"credits": 0, "offset": 0, "data": None}
            )
            flow["data"] = self.memory.get(command.read.buffer, b"")[: command.read.size]
            size = len(flow["data"])
            self._pump(frame.channel, command.read.transfer)
            result = commands_pb2.Result(read=commands_pb2.ReadResult(size=size))
        elif kind == "write":
            self.memory[command.write.buffer] = command.write.data
            result = commands_pb2.Result(done=commands_pb2.Done())
        else:
            result = ANSWERS.get(kind, lambda: commands_pb2.Result(done=commands_pb2.Done()))()
        result.request = frame.id
        self.send(Kind.RESULT, result.SerializeToString(), channel=frame.channel, id=frame.id)

    def _on_upload(self, frame: Frame) -> None:
        data = self.uploads.setdefault(frame.id, bytearray())
        data += device_pb2.UploadRequest.FromString(frame.payload).data
        if not frame.flags & Flag.LAST:
            if not self.launcher.hold_credits:
                self.send(Kind.CREDIT, channel=frame.channel, id=frame.id, flags=1)
            return
        self.finished.add(frame.id)
        if frame.id in self._writes:
            call, buffer, _ = self._writes.pop(frame.id)
            self.memory[buffer] = bytes(data)
            result = commands_pb2.Result(request=call, done=commands_pb2.Done())
            self.send(Kind.RESULT, result.SerializeToString(), channel=frame.channel, id=call)

    def provide(self, channel: int, transfer: int, data: bytes) -> None:
        """Provides the bytes for a Download of a transfer, which a Read in a batch would have named."""
        flow = self.downloads.setdefault((channel, transfer), {"credits": 0, "offset": 0, "data": None})
        flow["data"] = data
        self._pump(channel, transfer)

    def _pump(self, channel: int, transfer: int) -> None:
        flow = self.downloads[channel, transfer]
        data = flow["data"]
        while data is not None and flow["credits"] and flow["offset"] <= len(data):
            chunk = data[flow["offset"] : flow["offset"] + self.launcher.chunk]
            response = device_pb2.DownloadResponse(offset=flow["offset"], data=chunk).SerializeToString()
            flow["offset"] += len(chunk)
            flow["credits"] -= 1
            last = flow["offset"] >= len(data)
            self.send(Kind.CHUNK, response, channel=channel, id=transfer, flags=Flag.LAST if last else 0)
            self.launcher.chunks_sent += 1
            if last:
                flow["data"] = None


class FakeLauncher:
    """Starts fake device processes, and holds the settings of their behaviour."""

    def __init__(self) -> None:
        self.ready = True
        self.mute = False
        self.closes = True
        self.hold_acks = False
        self.hold_credits = False
        self.chunk = 1000
        self.chunks_sent = 0
        self.refusals: dict[str, Refusal] = {}
        self.unanswered: set[str] = set()
        self.started: list[FakeDevice] = []
        self.stopped = False

    async def launch(self, spec: DeviceSpec) -> FakeDevice:
        device = FakeDevice(spec, self)
        self.started.append(device)
        return device

    async def stop(self) -> None:
        self.stopped = True
        for device in self.started:
            device.join()

    def current(self, ordinal: int = 0) -> FakeDevice:
        """Returns the process that currently serves a device."""
        return [device for device in self.started if device.spec.ordinal == ordinal][-1]
