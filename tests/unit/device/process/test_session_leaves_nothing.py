"""A session that ends in the middle of its work: no object of the device process refers to the session or to its
numbers."""

from __future__ import annotations

import gc
import json
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hearth_proto import descriptors
from hearth_proto.frames import PLACE, Kind, encode
from hearth_proto.reasons import Reason, from_status
from hearth_proto.stripes import announce
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.streams import CpuStream
from hearthd.device.session.session import DeviceSession
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.lane_rig import LIMITS, SOURCE, add, batch, sync
from tests.support.device.local_broker import device_process
from tests.support.device.peers import PeerServer, collective, operation
from tests.support.device.reachable import holders
from tests.support.device.rig import Rig
from tests.support.device.segment_client import hand_over
from tests.support.timing import LATE

CHANNEL = 7_000_001
HANDLE = 7_100_001
"""The first of the session's handles, for every kind of object."""
TRANSFER = 7_200_001
SESSION_NUMBERS = range(7_000_000, 8_000_000)
"""Numbers that no other session uses; any occurrence shows that something of the session remains."""
OTHER_CHANNEL = 3
FILE = 12
KIB = 1 << 10


class Leaving(Rig[PeerServer]):
    """A device process whose front is the test, which sends no automatic answers."""

    def __init__(self) -> None:
        self.files, self._their_files = descriptors.pair()
        self.gate = threading.Event()
        self.ends: list[socket.socket] = []
        self.seq = 0
        super().__init__(DeviceSpec(0, "cpu", 0, memory_limit=64 << 20, cpu_threads=1), PeerServer)
        self.file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        descriptors.send(self.files, {"kind": "snapshot", "channel": CHANNEL}, [self.file])
        self.send(Kind.OPEN, b'{"session": "leaves", "tenant": "some"}', channel=CHANNEL)
        self.ask(sync=c.Sync())
        session = self.process.executor.session(CHANNEL)
        assert session is not None
        self.session = weakref.ref(session)

    def _main(self) -> None:
        self.server = self._make(self._spec)
        self.process = device_process(self._theirs, self._spec, self.server, self._their_files)
        self.process.run()

    def begin(self, stream: int = 0, **kind: Any) -> int:
        """Starts a single call of the session, and returns its number."""
        ident = next(self.ids)
        command = c.Command(request=1, stream=stream, **kind)
        self.send(Kind.CALL, command.SerializeToString(), channel=CHANNEL, id=ident)
        return ident

    def ask(self, stream: int = 0, **kind: Any) -> c.Result:
        result = self.answer(self.begin(stream, **kind))
        assert not result.HasField("error"), result.error.message
        return result

    def send_batch(self, *commands: c.Command) -> None:
        self.seq += 1
        message = device_pb2.ExecuteRequest(batch=c.Batch(seq=self.seq, commands=commands))
        self.send(Kind.BATCH, message.SerializeToString(), channel=CHANNEL, id=self.seq)

    def prepare(self) -> None:
        """Creates a module, its function, two buffers with memory, a stream and an event."""
        self.ask(load_module=c.LoadModule(module=HANDLE, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE))
        self.ask(get_function=c.GetFunction(function=HANDLE, module=HANDLE, name="add"))
        for buffer in (HANDLE, HANDLE + 1):
            self.ask(allocate=c.Allocate(buffer=buffer, size=64 * KIB))
            self.ask(fill=c.Fill(buffer=buffer, size=64 * KIB, pattern=b"\1"))
        self.ask(create_stream=c.CreateStream(stream=HANDLE))
        self.ask(stream=HANDLE, record_event=c.RecordEvent(event=HANDLE))

    def hold_up(self, stream: int = 0) -> None:
        """Makes work submitted to the stream from now on wait for the gate."""
        session = self.session()
        assert session is not None
        on: CpuStream = session.streams.items[stream].track.stream
        on.submit(self.gate.wait)

    def leave(self) -> None:
        self.send(Kind.CLOSE, channel=CHANNEL)
        self.barrier()
        self.gate.set()
        self.until(Kind.CLOSED)
        self._frames.clear()

    def left(self) -> list[str]:
        """Returns the remaining references to the session or its handles. Tries repeatedly, because some are dropped
        only after a thread or a compile worker has ended."""
        deadline = time.monotonic() + LATE
        while True:
            self.barrier()
            gc.collect()
            references = self._find_references()
            if not references and self.session() is None:
                return []
            if time.monotonic() > deadline:
                return references or ["nothing that was found, but it is alive"]
            time.sleep(0.05)

    def _find_references(self) -> list[str]:
        session = self.session()
        return holders(
            self.process,
            lambda candidate: (
                candidate is session if not isinstance(candidate, int) else int(candidate) in SESSION_NUMBERS
            ),
        )

    def stop(self) -> None:
        self.gate.set()
        for peer in self.server.peers.joined:
            peer.release(1000)
        super().stop()
        for end in (*self.ends, self.files, self._their_files):
            end.close()
        os.close(self.file)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaving]:
    """Prevents the device process from freezing objects, so that a collection finds dropped objects without visiting
    all objects of the test run."""
    if not hasattr(DeviceSession, "__weakref__"):
        pytest.skip("compiled classes have no weak references")
    threshold = gc.get_threshold()
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda: None)
    leaving = Leaving()
    yield leaving
    leaving.stop()
    gc.set_threshold(*threshold)


Opened = Callable[[Leaving], None]


def handles(rig: Leaving) -> None:
    """Makes an object of every kind that has a handle."""
    rig.begin(start_profile=c.StartProfile(profile=HANDLE))
    rig.begin(get_global=c.GetGlobal(buffer=HANDLE + 2, module=HANDLE, name="nothing"))
    rig.begin(start_trace=c.StartTrace())
    launch = add(3, function=HANDLE, buffer=HANDLE)
    rig.begin(prepare=c.Prepare(prepared=HANDLE, launches=launch.launches))
    rig.send_batch(launch, launch)
    rig.begin(stream=HANDLE, begin_capture=c.BeginCapture(graph=HANDLE))
    launch = add(3, function=HANDLE, buffer=HANDLE, stream=HANDLE)
    rig.send_batch(launch)
    rig.begin(create_stream=c.CreateStream(stream=HANDLE + 1))
    rig.begin(stream=HANDLE + 1, begin_capture=c.BeginCapture(graph=HANDLE + 1))
    rig.begin(stream=HANDLE + 1, end_capture=c.EndCapture(graph=HANDLE + 1))
    rig.begin(set_allocation_mode=c.SetAllocationMode(mode=c.ALLOCATION_MODE_PERSISTENT))
    rig.begin(allocate=c.Allocate(buffer=HANDLE + 3, size=1 << 20))
    rig.begin(free=c.Free(buffers=[HANDLE + 3]))


def refused(rig: Leaving) -> None:
    """Creates failures that no answer has reported, and handles whose creation failed."""
    rig.send_batch(
        c.Command(stream=HANDLE, fill=c.Fill(buffer=HANDLE, size=1 << 30, pattern=b"\1")),
        c.Command(stream=HANDLE + 5, allocate=c.Allocate(buffer=HANDLE + 6, size=8)),
        c.Command(stream=HANDLE, copy=c.Copy(destination=HANDLE + 1, source=HANDLE, size=8)),
        c.Command(destroy_stream=c.DestroyStream(stream=HANDLE)),
    )


def kernels(rig: Leaving) -> None:
    """Starts work, and many commands that wait for it."""
    rig.hold_up()
    launch = add(3, function=HANDLE, buffer=HANDLE)
    rig.send_batch(*[launch] * 8, c.Command(record_event=c.RecordEvent(event=HANDLE + 1)))
    for wait in (False, True):
        rig.begin(query_event=c.QueryEvent(event=HANDLE + 1, wait=wait))
    rig.begin(stream=HANDLE, wait_event=c.WaitEvent(event=HANDLE + 1))
    rig.begin(elapsed_time=c.ElapsedTime(start=HANDLE, end=HANDLE + 1))
    rig.begin(read=c.Read(buffer=HANDLE, size=8))
    rig.begin(sync=c.Sync(all_streams=True))
    rig.begin(sync=c.Sync())
    record = c.Launch(function=HANDLE, grid=c.Dim3(x=1, y=1, z=1), block=c.Dim3(x=1, y=1, z=1), timeout_ns=10**12)
    record.arguments.add(pointer=c.Argument.Pointer(buffer=HANDLE))
    record.arguments.add(uint64=1)
    rig.begin(launch=record)
    rig.send_batch(*[launch] * 4000)
    rig.begin(free=c.Free(buffers=[HANDLE + 1]))


def compiles(rig: Leaving) -> None:
    """Loads modules that are not compiled yet, with commands that wait for them."""
    source = b'extern "C" __global__ void late(unsigned long long* sum, unsigned long long what) { *sum = %d; }'
    for number in range(3):
        module = HANDLE + 10 + number
        rig.begin(load_module=c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=source % number))
        rig.begin(get_function=c.GetFunction(function=module, module=module, name="late"))
        rig.begin(describe_module=c.DescribeModule(module=module))
        rig.send_batch(add(3, function=module, buffer=HANDLE))
    rig.begin(unload_module=c.UnloadModule(module=HANDLE + 10))


def transfers(rig: Leaving) -> None:
    """Starts uploads and downloads in every stage."""
    size = 32 * KIB
    some = device_pb2.UploadRequest(data=bytes(KIB)).SerializeToString()
    rig.begin(write=c.Write(buffer=HANDLE, size=size, transfer=TRANSFER))
    for transfer in (TRANSFER, TRANSFER + 1):  # the second one before its command
        rig.send(Kind.UPLOAD, some, channel=CHANNEL, id=transfer)
    rig.begin(stream=HANDLE, read=c.Read(buffer=HANDLE + 1, size=size, transfer=TRANSFER + 2))
    for transfer in (TRANSFER + 2, TRANSFER + 3):
        rig.send(Kind.DOWNLOAD, channel=CHANNEL, id=transfer)
    rig.send(Kind.ABORT, channel=CHANNEL, id=TRANSFER + 4)


def memory(rig: Leaving) -> None:
    """Starts an allocation that waits for memory, after the command that frees memory."""
    rig.hold_up()
    rig.begin(allocate=c.Allocate(buffer=HANDLE + 2, size=60 << 20))
    rig.send_batch(c.Command(fill=c.Fill(buffer=HANDLE + 2, size=8, pattern=b"\1")))
    rig.begin(free=c.Free(buffers=[HANDLE + 2]))
    rig.begin(stream=HANDLE, allocate=c.Allocate(buffer=HANDLE + 3, size=60 << 20))
    rig.begin(memory_cleanup=c.MemoryCleanup())


def places(rig: Leaving) -> None:
    """Requests areas in the front's file, which the front does not answer."""
    rig.begin(set_durable=c.SetDurable(buffers=[HANDLE], durable=True))
    rig.begin(sync=c.Sync())
    rig.until(Kind.SNAPSHOT)


def commits(rig: Leaving) -> None:
    """Reports a complete copy, which the front does not confirm, and requests another one."""
    rig.begin(set_durable=c.SetDurable(buffers=[HANDLE], durable=True))
    request = rig.until(Kind.SNAPSHOT)
    os.ftruncate(rig.file, 1 << 20)
    grant = json.dumps({"places": [[0, 64 * KIB]]}).encode()
    rig.send(Kind.SNAPSHOT, grant, channel=CHANNEL, id=request.id)
    rig.begin(checkpoint=c.Checkpoint(buffers=[HANDLE]))
    rig.begin(sync=c.Sync())
    assert "commit" in json.loads(rig.until(Kind.SNAPSHOT).payload)


def restores(rig: Leaving) -> None:
    """Starts a restore of the session."""
    copies = [[HANDLE, HANDLE + 7, 32 << 20, 0, 32 << 20, 0]]
    os.ftruncate(rig.file, 64 << 20)
    rig.send(Kind.RESTORE, json.dumps({"copies": copies}).encode(), channel=CHANNEL, id=9)


def shares(rig: Leaving) -> None:
    """Shares segments, and starts transfers in their memory."""
    client = hand_over(rig.files, CHANNEL)
    rig.ends.append(client.end)
    client.next()
    client.share(HANDLE, 128 * KIB)
    client.announce(HANDLE + 1, 128 * KIB)
    for kind, transfer in ((Kind.UPLOAD, TRANSFER), (Kind.DOWNLOAD, TRANSFER + 1)):
        client.end.sendall(encode(kind, PLACE.pack(HANDLE, 0, 32 * KIB), id=transfer))
    rig.hold_up()
    rig.begin(write=c.Write(buffer=HANDLE, size=32 * KIB, transfer=TRANSFER))
    rig.begin(read=c.Read(buffer=HANDLE, size=32 * KIB, transfer=TRANSFER + 1))
    hand_over(rig.files, CHANNEL).end.close()


def stripes(rig: Leaving) -> None:
    """Opens stripes, and starts transfers that make no progress on them."""
    for _ in range(2):
        end, process_end = socket.socketpair()
        rig.ends.append(end)
        body = {"kind": "stripe", "channel": CHANNEL, "max_chunk_bytes": 8 * KIB, "tls": None}
        descriptors.send(rig.files, body, [process_end.fileno()])
        process_end.close()
        rig.barrier()
        end.sendall(announce(Kind.UPLOAD, TRANSFER, 8 * KIB) + announce(Kind.DOWNLOAD, TRANSFER + 1, 8 * KIB))
    rig.begin(write=c.Write(buffer=HANDLE, size=32 * KIB, transfer=TRANSFER))
    rig.begin(stream=HANDLE, read=c.Read(buffer=HANDLE + 1, size=32 * KIB, transfer=TRANSFER + 1))


def lane(rig: Leaving) -> None:
    """Sends commands over a lane, and opens a second lane without use."""
    for _ in range(2):
        end, process_end = socket.socketpair()
        rig.ends.append(end)
        descriptors.send(rig.files, {"kind": "lane", "channel": CHANNEL, **LIMITS}, [process_end.fileno()])
        process_end.close()
    rig.barrier()
    rig.hold_up()
    rig.ends[0].sendall(batch(rig.seq + 1, add(3, function=HANDLE, buffer=HANDLE), sync(HANDLE)))


def names(rig: Leaving) -> None:
    """Publishes a buffer, exports another one, and attaches a buffer of another process."""
    publish = {"op": "publish", "memory": HANDLE, "buffer": HANDLE, "name": "weights"}
    rig.send(Kind.EXPORT, json.dumps(publish).encode(), channel=CHANNEL, id=1)
    rig.until(Kind.EXPORTED, 1)
    rig.hold_up()
    lend = {"op": "lend", "buffer": HANDLE + 1, "export": HANDLE, "file": 1}
    rig.send(Kind.EXPORT, json.dumps(lend).encode(), channel=CHANNEL, id=2)
    attach_file(rig)


def attach_file(rig: Leaving) -> None:
    """Attaches a buffer that another process has published, whose file arrives later."""
    attach = {"memory": 99, "size": 64, "buffer": HANDLE + 5, "attachment": 1, "file": FILE}
    rig.send(Kind.IMPORT, json.dumps(attach).encode(), channel=CHANNEL, id=3)
    rig.barrier()


def send_file(rig: Leaving) -> None:
    file = os.memfd_create("published", os.MFD_CLOEXEC)
    os.ftruncate(file, 64)
    descriptors.send(rig.files, {"kind": "published", "file": FILE}, [file])
    os.close(file)
    rig.barrier()


def collectives(rig: Leaving) -> None:
    """Starts operations that are presented, that may go, and that are launched."""
    kind = c.COLLECTIVE_KIND_ALL_REDUCE
    rig.send(
        Kind.COLLECTIVE, json.dumps({"op": "group", "channel": CHANNEL, "group": "ab", "rank": 0, "ranks": 2}).encode()
    )
    for sequence in range(HANDLE, HANDLE + 4):
        reduction = operation(kind, HANDLE, HANDLE + 1, count=4, dtype="float32", op=c.REDUCE_OP_SUM)
        rig.send_batch(collective(sequence, reduction, devices=(0, 1)))
    join = {"op": "join", "comm": "a-1", "unique_id": "aWQ=", "rank": 0, "ranks": 2, "group": ""}
    rig.send(Kind.COLLECTIVE, json.dumps(join).encode())
    go = {"op": "go", "channel": CHANNEL, "group": "", "devices": [0, 1], "comm": "a-1", "rank": 0, "ranks": 2}
    for index, sequence in enumerate(range(HANDLE, HANDLE + 2), 1):
        rig.send(Kind.COLLECTIVE, json.dumps({**go, "sequence": sequence, "index": index}).encode())
    while not rig.server.peers.joined:
        rig.barrier()
    rig.server.peers.joined[0].release(1000)


def beside_another(rig: Leaving) -> None:
    """Shares the device with another session, which stays open."""
    rig.send(Kind.OPEN, b'{"session": "stays", "tenant": "some"}', channel=OTHER_CHANNEL)
    fill = c.Command(fill=c.Fill(buffer=OTHER_CHANNEL, size=64, pattern=b"\1"))
    commands = [c.Command(allocate=c.Allocate(buffer=OTHER_CHANNEL, size=64)), *[fill] * 2000]
    message = device_pb2.ExecuteRequest(batch=c.Batch(seq=1, commands=commands))
    launch = add(3, function=HANDLE, buffer=HANDLE)
    rig.hold_up()
    rig.send_batch(*[launch] * 100)
    rig.send(Kind.BATCH, message.SerializeToString(), channel=OTHER_CHANNEL, id=1)
    for _ in range(20):
        rig.send_batch(*[launch] * 100, c.Command(record_event=c.RecordEvent(event=HANDLE + 1)))
        rig.begin(query_event=c.QueryEvent(event=HANDLE + 1))


@pytest.mark.parametrize(
    "opened",
    [
        handles, refused, kernels, compiles, transfers, memory, places, commits, restores, shares, stripes, lane, names,
        collectives, beside_another,
    ],
)  # fmt: skip
def test_session_that_ends_during_its_commands(rig: Leaving, opened: Opened) -> None:
    rig.prepare()
    opened(rig)
    rig.barrier()
    rig.leave()
    if opened is names:
        send_file(rig)  # the order of the two sockets is not defined
    assert rig.left() == []


def test_requests_after_the_end_of_a_session_are_refused(rig: Leaving) -> None:
    call = next(rig.ids)
    allocate = c.Command(request=1, allocate=c.Allocate(buffer=HANDLE, size=64 * KIB))
    publish = {"op": "publish", "memory": HANDLE, "buffer": HANDLE, "name": "weights"}
    rig.sock.sendall(
        encode(Kind.CLOSE, channel=CHANNEL)
        + encode(Kind.CALL, allocate.SerializeToString(), channel=CHANNEL, id=call)
        + encode(Kind.EXPORT, json.dumps(publish).encode(), channel=CHANNEL, id=1)
    )
    assert from_status(rig.answer(call).error).reason is Reason.SESSION_EXPIRED
    rig.until(Kind.EXPORTED, 1)
    rig.until(Kind.CLOSED)
    rig.forget()
    assert rig.left() == [] and rig.gauges()["memory_in_use_bytes"] == 0


def test_request_after_commands_of_ended_session_is_answered(rig: Leaving) -> None:
    """A session ends while it waits for a turn: a request after its commands is answered, and a file that arrived is
    closed."""
    rig.prepare()
    rig.send(Kind.TURN, flags=4)  # no work may be submitted to the device
    rig.send_batch(add(3, function=HANDLE, buffer=HANDLE))
    send_file(rig)
    attach_file(rig)
    publish = {"op": "publish", "memory": HANDLE, "buffer": HANDLE, "name": "weights"}
    rig.send(Kind.EXPORT, json.dumps(publish).encode(), channel=CHANNEL, id=1)
    waiting = rig.begin(sync=c.Sync())
    rig.send(Kind.CLOSE, channel=CHANNEL)
    assert rig.answer(waiting).HasField("error")
    rig.until(Kind.EXPORTED, 1)
    rig.until(Kind.IMPORTED, 3)
    rig.until(Kind.CLOSED)
    rig.forget()
    assert rig.left() == [] and not rig.process.executor.publishing.files
