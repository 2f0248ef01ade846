"""Every driver call is made on the device-handle thread; a call on any other thread fails the test."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import FrameReader, Kind, encode
from hearth_proto.launches import LaunchFlag, LayoutEntry, Record, pack, pack_layout
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.device.backend.server import ComputeServer
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.local_broker import device_process

SOURCE = b'extern "C" __global__ void twice(int* x) { x[threadIdx.x] *= 2; }'

Command = commands_pb2.Command

OFF_THREAD = {"compiler", "communicators", "register_host", "unregister_host"}
"""Members of ComputeServer that may be used on helper threads."""


class Owned:
    """A ComputeServer that records calls on other threads."""

    def __init__(self, server: ComputeServer) -> None:
        self._server = server
        self.owner = threading.get_ident()
        self.called: set[str] = set()
        self.strays: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._server, name)
        if name in OFF_THREAD or not callable(value):
            return value

        def checked(*args: Any, **kwargs: Any) -> Any:
            self.called.add(name)
            if threading.get_ident() != self.owner:
                self.strays.append(f"{name} on {threading.current_thread().name}")
            return value(*args, **kwargs)

        return checked


class Rig:
    """A device process's loop on a thread of this process, driven frame by frame."""

    def __init__(self) -> None:
        self.sock, self._theirs = socket.socketpair()
        self.sock.settimeout(60)
        self._spec = DeviceSpec(0, "cpu", 0, launch_timeout=30.0)
        self._reader = FrameReader()
        self._ids = itertools.count(1)
        self._seqs = itertools.count(1)
        self.thread = threading.Thread(target=self._main, name="device-handle")
        self.thread.start()
        self._until(Kind.READY)
        self.sock.sendall(encode(Kind.OPEN, b"{}", channel=1))

    def _main(self) -> None:
        self.server = Owned(CpuServer(self._spec))
        device_process(self._theirs, self._spec, self.server).run()

    def _until(self, kind: int) -> bytes:
        while True:
            for frame in self._reader.feed(self.sock.recv(1 << 20)):
                if frame.kind == kind:
                    return frame.payload

    def call(self, **kind: Any) -> commands_pb2.Result:
        command = Command(request=1, **kind)
        self.sock.sendall(encode(Kind.CALL, command.SerializeToString(), channel=1, id=next(self._ids)))
        return commands_pb2.Result.FromString(self._until(Kind.RESULT))

    def ok(self, **kind: Any) -> commands_pb2.Result:
        """Makes a call that must succeed."""
        result = self.call(**kind)
        assert not result.HasField("error"), result.error
        return result

    def batch(self, *commands: commands_pb2.Command) -> None:
        """Sends the next batch."""
        message = device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=next(self._seqs), commands=commands))
        self.sock.sendall(encode(Kind.BATCH, message.SerializeToString(), channel=1))

    def stop(self) -> None:
        self.sock.sendall(encode(Kind.CLOSE, channel=1))
        self._until(Kind.CLOSED)
        self.sock.sendall(encode(Kind.SHUTDOWN))
        self.thread.join(30)
        assert not self.thread.is_alive()
        self.sock.close()
        self._theirs.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    thread_rig = Rig()
    yield thread_rig
    thread_rig.stop()
    assert thread_rig.server.strays == []


def test_a_whole_session_stays_on_its_thread(rig: Rig) -> None:
    layout = pack_layout([LayoutEntry(0, 8, True)])
    record = pack(Record(1, 0, (1, 1, 1), (4, 1, 1), 0, 0, 0, layout, (1,), bytes(8)))
    batch = commands_pb2.Batch(
        seq=1,
        commands=[
            Command(load_module=commands_pb2.LoadModule(module=1, kind=1, code=SOURCE)),
            Command(get_function=commands_pb2.GetFunction(function=1, module=1, name="twice")),
            Command(allocate=commands_pb2.Allocate(buffer=1, size=16)),
            Command(allocate=commands_pb2.Allocate(buffer=2, size=16)),
            Command(create_stream=commands_pb2.CreateStream(stream=1)),
            Command(start_profile=commands_pb2.StartProfile(profile=1)),
            Command(fill=commands_pb2.Fill(buffer=1, size=16, pattern=struct.pack("<i", 3))),
            Command(launches=record * 3),
            Command(stream=1, copy=commands_pb2.Copy(destination=2, source=1, size=16)),
            Command(record_event=commands_pb2.RecordEvent(event=1)),
            Command(stream=1, wait_event=commands_pb2.WaitEvent(event=1)),
        ],
    )
    message = device_pb2.ExecuteRequest(batch=batch).SerializeToString()
    rig.sock.sendall(encode(Kind.BATCH, message, channel=1))
    read = rig.call(stream=1, read=commands_pb2.Read(buffer=2, size=16))
    assert not read.HasField("error"), read.error
    assert read.read.data == struct.pack("<4i", *[24] * 4)
    assert rig.call(end_profile=commands_pb2.EndProfile(profile=1)).profile.device_ns > 0
    assert rig.call(sync=commands_pb2.Sync(all_streams=True)).WhichOneof("kind") == "done"
    assert rig.call(free=commands_pb2.Free(buffers=[1, 2])).WhichOneof("kind") == "done"
    expected_calls = {
        "allocate",
        "free",
        "fill",
        "copy_rows",
        "launch",
        "load",
        "download",
        "record",
        "wait",
        "done",
        "create_stream",
    }
    assert expected_calls <= rig.server.called, "the test exercised all expected calls"


def test_graphs_dispatches_and_rows_stay_on_the_device_thread(rig: Rig) -> None:
    c = commands_pb2
    layout = pack_layout([LayoutEntry(0, 8, True)])

    def record(stream: int, block: int = 4, flags: int = 0) -> bytes:
        return pack(Record(1, stream, (1, 1, 1), (block, 1, 1), 0, flags, 0, layout, (1,), bytes(8)))

    one, rows = c.Dim3(x=1), c.Rows(width=4, rows=2, pitch=8)
    data = c.Binding(role=c.Binding.ROLE_INPUT_OUTPUT, size=16, data=struct.pack("<4i", 1, 2, 3, 4))
    for command in (
        {"load_module": c.LoadModule(module=1, kind=1, code=SOURCE)},
        {"get_function": c.GetFunction(function=1, module=1, name="twice")},
        {"allocate": c.Allocate(parts=[c.Allocate.Part(buffer=1, size=16), c.Allocate.Part(buffer=2, size=16)])},
        {"create_stream": c.CreateStream(stream=1, priority=-1)},
        {"write": c.Write(buffer=1, data=struct.pack("<2i", 5, 6), rows=rows)},
        {"copy": c.Copy(destination=2, source=1, size=4, rows=2, destination_pitch=4, source_pitch=8)},
        {"begin_capture": c.BeginCapture(graph=1)},
    ):
        rig.ok(**command)
    rig.batch(Command(launches=record(0)))
    rig.ok(end_capture=c.EndCapture(graph=1))
    rig.ok(launch_graph=c.LaunchGraph(graph=1, count=3))
    rig.ok(update_graph=c.UpdateGraph(graph=1, node=0, launch=record(0, block=1)))
    rig.ok(launch_graph=c.LaunchGraph(graph=1, count=1))
    rig.ok(prepare=c.Prepare(prepared=1, launches=record(1)))
    rig.ok(stream=1, launch_prepared=c.LaunchPrepared(prepared=1, count=2))
    rig.batch(Command(launches=record(1, flags=LaunchFlag.VALIDATE)))
    read = rig.ok(stream=1, read=c.Read(buffer=1, size=8, rows=rows)).read
    assert struct.unpack("<2i", read.data) == (5 * 2**7, 6 * 2**6)
    assert rig.ok(read=c.Read(buffer=2, size=8)).read.data == struct.pack("<2i", 5, 6)
    dispatched = rig.ok(dispatch=c.Dispatch(function=1, grid=one, block=c.Dim3(x=4), bindings=[data], timed=True))
    assert list(dispatched.dispatch.outputs) == [struct.pack("<4i", 2, 4, 6, 8)]
    for command in (
        {"occupancy": c.Occupancy(function=1, block=one)},
        {"memory_usage": c.MemoryUsage()},
        {"destroy_graph": c.DestroyGraph(graph=1)},
        {"destroy_prepared": c.DestroyPrepared(prepared=1)},
        {"unload_module": c.UnloadModule(module=1)},
        {"sync": c.Sync(all_streams=True)},
        {"free": c.Free(buffers=[1, 2])},
        {"memory_cleanup": c.MemoryCleanup()},
    ):
        rig.ok(**command)
    expected_calls = {
        "upload_rows", "download_rows", "copy_rows", "create_graph", "launch_graph", "update_graph", "destroy_graph",
        "blocks_per_multiprocessor", "elapsed_ns", "memory_info", "trim", "unload", "allocate_host", "free_host",
        "release_event",
    }  # fmt: skip
    assert expected_calls <= rig.server.called, f"not exercised: {expected_calls - rig.server.called}"
