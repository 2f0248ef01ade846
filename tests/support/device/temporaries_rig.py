"""A device process in which temporaries are executed immediately or as operations, and sessions that compare the
resulting states."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.memory import CpuMemory
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuEvent, CpuStream
from hearthd.device.session.session import DeviceSession
from tests.support.device.lane_rig import Laned
from tests.support.device.rig import Command

COUNTED = ("allocations", "allocated_bytes", "frees", "freed_bytes", "persistent_hits", "fills", "filled_bytes",
           "upload_inline_bytes", "host_to_device_bytes", "host_to_device_operations", "launched",
           "out_of_memory")  # fmt: skip


class Watched(CpuServer):
    """A CPU device whose memory is zeroed at allocation and which records the streams that waited.
    `refused`: sizes that cannot be freed or filled. `freed`: sizes of the memory that was freed in stream order."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self.waits: list[CpuStream] = []
        self.refused: set[int] = set()
        self.freed: list[int] = []

    def allocate(self, size: int, stream: CpuStream) -> CpuMemory:
        memory = super().allocate(size, stream)
        if size:
            ctypes.memset(memory.address, 0, size)
        return memory

    def free(self, memory: CpuMemory, stream: CpuStream) -> None:
        super().free(memory, stream)
        stream.submit(lambda: self.freed.append(memory.size))
        if memory.size in self.refused:
            raise Refusal(Reason.INTERNAL, f"{memory.size} bytes were not freed")

    def fill(self, address: int, pattern: bytes, size: int, stream: CpuStream) -> None:
        if size in self.refused:
            raise Refusal(Reason.INTERNAL, f"{size} bytes were not filled")
        super().fill(address, pattern, size, stream)

    def wait(self, stream: CpuStream, event: CpuEvent) -> None:
        self.waits.append(stream)
        super().wait(stream, event)


class Ways(Laned):
    """A device process in which, with `at_once` False, all commands are executed as operations. `taken` names the
    commands that were executed immediately."""

    server: Watched

    def __init__(self, at_once: bool = True) -> None:
        self.at_once = at_once
        self.taken: list[str] = []
        self.channels = itertools.count(2)
        super().__init__(Watched)

    def started(self) -> None:
        handlers = self.process.executor.registry.at_once
        for kind, (handler, work) in tuple(handlers.items()):
            handlers[kind] = self._counting(kind, handler), work

    def _counting(self, kind: str, real: Callable[..., bool]) -> Callable[..., bool]:
        def run(*what: Any) -> bool:
            taken = self.at_once and real(*what)
            if taken:
                self.taken.append(kind)
            return taken

        return run

    def inside(self, task: Callable[[], Any]) -> Any:
        """Calls `task` on the device-handle thread; returns its result."""
        answers: list[Any] = []
        done = threading.Event()

        def run() -> None:
            answers.append(task())
            done.set()

        self.process.loop.post(run)
        assert done.wait(30)
        return answers[0]

    def session(self, channel: int) -> DeviceSession:
        session = self.process.executor.session(channel)
        assert session is not None
        return session


class Run:
    """A separate session, driven batch by batch."""

    def __init__(self, rig: Ways, quota: int = 0) -> None:
        self.rig = rig
        self.channel = next(rig.channels)
        info = f'{{"session": "s{self.channel}", "tenant": "t{self.channel}", "device_bytes": {quota}}}'
        rig.send(Kind.OPEN, info.encode(), channel=self.channel)
        self.seq = itertools.count(1)
        self._request = itertools.count(1)
        self.answers: list[bytes] = []
        self._tracks: dict[int, int] = {}
        """Numbers of the tracks that the session has used, by index."""
        self._before = rig.inside(self._counts)
        self.step(
            Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=rig.source)),
            Command(get_function=c.GetFunction(function=1, module=1, name="add")),
            Command(create_stream=c.CreateStream(stream=5)),
            Command(request=1, describe_module=c.DescribeModule(module=1)),
        )
        self.answers.clear()

    def step(self, *commands: c.Command) -> list[c.Result]:
        """Sends one batch that ends with a Sync of all streams; returns the results of its requests."""
        batch = c.Batch(seq=next(self.seq))
        asked = 0
        for each in (*commands, Command(request=1, sync=c.Sync(all_streams=True))):
            command = batch.commands.add()
            command.CopyFrom(each)
            if command.request:
                command.request = next(self._request)
                asked += 1
        message = device_pb2.ExecuteRequest(batch=batch)
        self.rig.send(Kind.BATCH, message.SerializeToString(), channel=self.channel)
        results = []
        for _ in range(asked):
            result = device_pb2.ExecuteResponse.FromString(self.rig.until(Kind.RESPONSE).payload).result
            if result.HasField("memory_usage"):  # the amount of pinned memory still lent depends on timing
                result.memory_usage.bytes_pinned = result.memory_usage.bytes_pinned_in_use = 0
            results.append(result)
        results.sort(key=lambda result: result.request)
        self.answers += [result.SerializeToString(deterministic=True) for result in results]
        return results

    def _counts(self) -> dict[str, int]:
        telemetry = self.rig.process.device.telemetry
        counts = {name: getattr(telemetry, name) for name in COUNTED}
        counts |= {f"operation {name}": count for name, count in telemetry.operations.items()}
        counts |= {f"error {name}": count for name, count in telemetry.errors.items()}
        return counts | {f"reason {name}": count for name, count in telemetry.reasons.items()}

    def state(self) -> dict[str, Any]:
        """Returns the state that must be equal in both ways. Tracks are numbered in the order in which the session
        first used them."""
        executor = self.rig.process.executor
        session = self.rig.session(self.channel)
        positions = self.rig.process.device.tracks.ordering.positions
        for track in session.tracks():
            self._tracks.setdefault(track.index, len(self._tracks))

        def used(index: int, position: int) -> tuple[int, int]:
            """Returns the track, and the distance in positions on it."""
            return (self._tracks[index], positions[index] - position) if index >= 0 else (-1, 0)

        buffers = {
            handle: (
                buffer.size,
                buffer.holders,
                buffer.freed,
                buffer.reservation is not None and buffer.reservation.memory.address <= buffer.address,
                used(buffer.usage.track, buffer.usage.position),
                sorted(used(index, position) for index, position in (buffer.usage.reads or {}).items()),
                buffer.failure is not None,
                buffer.lost is not None and buffer.lost.message,
            )
            for handle, buffer in sorted(session.buffers.items.items())
        }
        counts = self._counts()
        counters = ("allocations", "bytes_in_use", "bytes_peak", "bytes_reserved", "late_allocations", "frees")
        return {
            "session": [getattr(session, name) for name in counters],
            "kept": session.persistent.bytes,
            "held": executor.memory.reservations.bytes_held(session.tenant),
            "waiting": len(session.deferred),
            "unacknowledged": len(session.batches),
            "buffers": buffers,
            "counts": {name: count - self._before.get(name, 0) for name, count in counts.items()},
        }

    def close(self) -> None:
        self.rig.send(Kind.CLOSE, channel=self.channel)
        self.rig.until(Kind.CLOSED)
        reservations = self.rig.process.executor.memory.reservations
        assert self.rig.inside(lambda: reservations.bytes_held(f"t{self.channel}")) == 0
        assert self.rig.server.memory_held() == (0, 0)


def run(rig: Ways, program: Sequence[Sequence[c.Command]], quota: int) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Runs a program; returns the answers, and the state after each step."""
    session = Run(rig, quota)
    states = []
    for step in program:
        session.step(*step)
        states.append(rig.inside(session.state))
    session.close()
    return session.answers, states


# ---- commands ----


def allocate(handle: int, size: int, **more: Any) -> c.Command:
    return Command(allocate=c.Allocate(buffer=handle, size=size), **more)


def fill(handle: int, size: int, offset: int = 0, pattern: bytes = b"\1", **more: Any) -> c.Command:
    return Command(fill=c.Fill(buffer=handle, offset=offset, size=size, pattern=pattern), **more)


def free(*handles: int, **more: Any) -> c.Command:
    return Command(free=c.Free(buffers=handles), **more)


def write(handle: int, data: bytes, **more: Any) -> c.Command:
    return Command(write=c.Write(buffer=handle, data=data, **more))


def read(handle: int, size: int) -> c.Command:
    return Command(request=1, read=c.Read(buffer=handle, size=size))


def mode(mode: c.AllocationMode) -> c.Command:
    return Command(set_allocation_mode=c.SetAllocationMode(mode=mode))
