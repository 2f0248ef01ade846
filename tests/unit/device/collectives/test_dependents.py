"""Work submitted to the device after a collective that fails there: its results reach no client."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto import descriptors
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import status_pb2
from tests.support.device.local_broker import device_process
from tests.support.device.peers import WRITTEN, FakeCommunicator, PeerRig, PeerServer, collective, operation
from tests.support.device.segment_client import hand_over

SOURCE = b'extern "C" __global__ void take(const int* a, int* b) { b[threadIdx.x] = a[threadIdx.x]; }'
LOST = Refusal(Reason.COMMUNICATOR_FAILED, "device 1 was lost")
ONE = c.Dim3(x=1)


def pointer(buffer: int, **more: Any) -> c.Argument:
    return c.Argument(pointer=c.Argument.Pointer(buffer=buffer, **more))


def take(source: int, destination: int, stream: int = 0, **more: Any) -> c.Command:
    arguments = [pointer(source, read_only=True), pointer(destination)]
    launch = c.Launch(function=1, grid=ONE, block=ONE, arguments=arguments, **more)
    return c.Command(launch=launch, stream=stream)


class Locking(PeerServer):
    """A server that can refuse to lock host memory (`lockable` False)."""

    lockable = True

    def register_host(self, address: int, size: int) -> None:
        if not self.lockable:
            raise MemoryError(f"cannot lock {size} bytes")
        super().register_host(address, size)


class Filed(PeerRig):
    """A rig with the front's files, for copies of durable buffers. It has `take` as function 1, and stream 5 in
    addition to the default stream."""

    server: Locking
    peer: FakeCommunicator
    comm: str

    def __init__(self) -> None:
        self.files, self.their_files = descriptors.pair()
        self.file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        super().__init__(Locking)
        descriptors.send(self.files, {"kind": "snapshot", "channel": 1}, [self.file])
        self.batch(
            c.Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE)),
            c.Command(get_function=c.GetFunction(function=1, module=1, name="take")),
            c.Command(create_stream=c.CreateStream(stream=5)),
        )
        for buffer in (1, 2, 3):
            assert self.reason(self.read(buffer, stream=5)) == ""
        assert self.reason(self.start(describe_module=c.DescribeModule(module=1))) == ""

    def _main(self) -> None:
        self.server = self._make(self._spec)
        self.process = device_process(self._theirs, self._spec, self.server, self.their_files)
        self.process.run()


@pytest.fixture(scope="module")
def made() -> Iterator[Filed]:
    rig = Filed()
    yield rig
    rig.close()
    rig.files.close()
    os.close(rig.file)


@pytest.fixture
def rig(made: Filed, request: pytest.FixtureRequest) -> Filed:
    """Prepares a running operation that writes buffer 2, on a separate communicator for each test."""
    comm = request.node.name
    made.peer, made.comm = made.join(comm), comm
    made.batch(collective(len(made.server.peers.joined), operation(source=1, destination=2)))
    made.go(made.hear("present"), 1, comm)
    return made


def lose(rig: Filed) -> None:
    """Makes the collective fail after all work that was sent has been submitted to the device."""
    assert rig.reason(rig.start(stream=5, flush=c.Flush())) == ""
    rig.abort(LOST, rig.comm)


def settle(rig: Filed) -> None:
    for stream in (0, 5):
        rig.answer(rig.sync(stream))
    rig.batch(*[c.Command(fill=c.Fill(buffer=buffer, size=64, pattern=b"\1")) for buffer in (2, 3)])
    assert rig.reason(rig.sync()) == ""


@pytest.mark.parametrize("times", [1, 3])
def test_a_launch(rig: Filed, times: int) -> None:
    rig.batch(*[take(2, 3, stream=5) for _ in range(times)])
    lose(rig)
    assert rig.reason(rig.read(3, stream=5)) == Reason.COMMUNICATOR_FAILED
    assert rig.reason(rig.read(1, stream=5)) == ""
    settle(rig)


def test_a_graph(rig: Filed) -> None:
    rig.batch(
        c.Command(begin_capture=c.BeginCapture(graph=1), stream=5),
        take(2, 3, stream=5),
        c.Command(end_capture=c.EndCapture(graph=1), stream=5),
        c.Command(launch_graph=c.LaunchGraph(graph=1, count=2), stream=5),
    )
    lose(rig)
    assert rig.reason(rig.read(3, stream=5)) == Reason.COMMUNICATOR_FAILED
    settle(rig)


def test_a_dispatch(rig: Filed) -> None:
    bindings = [
        c.Binding(role=c.Binding.ROLE_VALUE, value=pointer(2, read_only=True)),
        c.Binding(role=c.Binding.ROLE_OUTPUT, size=4),
    ]
    command = c.Dispatch(function=1, grid=ONE, block=ONE, bindings=bindings)
    dispatch = rig.start(stream=5, dispatch=command)
    lose(rig)
    result = rig.answer(dispatch)
    assert from_status(result.error).reason == Reason.DEPENDENCY_FAILED
    settle(rig)
    assert rig.call(stream=5, dispatch=command).dispatch.outputs == [b"\1\1\1\1"]


def test_a_grid(rig: Filed) -> None:
    grid = c.Argument.Pointer(buffer=2)
    dynamic = rig.start(stream=5, launch=take(1, 3, dynamic_grid=grid).launch)
    assert rig.reason(rig.start(flush=c.Flush())) == ""  # the launch has been decoded, and requests its grid
    rig.abort(LOST, rig.comm)
    assert rig.reason(dynamic) == Reason.DEPENDENCY_FAILED
    settle(rig)


def test_a_checkpoint(rig: Filed) -> None:
    """Checks that the previous copy stays valid, and that the front is never asked to use the new one."""
    call = rig.start(stream=5, set_durable=c.SetDurable(buffers=[2], durable=True))
    frame = rig.until(Kind.SNAPSHOT)
    assert json.loads(frame.payload)["reserve"]
    grant = json.dumps({"places": [[0, 4096]]}).encode()
    os.ftruncate(rig.file, 8192)
    rig.send(Kind.SNAPSHOT, grant, channel=1, id=frame.id)
    lose(rig)
    assert rig.reason(call) == Reason.COMMUNICATOR_FAILED
    assert not rig.came(Kind.SNAPSHOT)
    settle(rig)


def test_a_publication(rig: Filed) -> None:
    body = json.dumps({"op": "publish", "memory": 1, "buffer": 2, "name": "weights"}).encode()
    rig.send(Kind.EXPORT, body, channel=1, id=1)
    lose(rig)
    answer = json.loads(rig.until(Kind.EXPORTED, 1).payload)
    status = status_pb2.Status.FromString(base64.b64decode(answer["error"]))
    assert from_status(status).reason == Reason.DEPENDENCY_FAILED
    settle(rig)


@pytest.mark.parametrize("well", [True, False])
@pytest.mark.parametrize("locked", [True, False])
def test_a_read_into_shared_memory(rig: Filed, well: bool, locked: bool) -> None:
    """Checks that no answer is sent before the collective's outcome is known, because the data read depends on it."""
    rig.server.lockable = locked
    client = hand_over(rig.files)
    assert client.next().kind == Kind.LIVE
    memory = client.share(1, 64)
    command = c.Read(buffer=2, size=64, shared=c.Shared(segment=1))
    read = rig.start(stream=5, read=command)
    assert rig.reason(rig.start(stream=0, flush=c.Flush())) == ""
    rig.gauges()
    assert not rig.came(Kind.RESULT, read)
    if well:
        rig.peer.release()
        assert rig.answer(read).read.size == 64 and memory[:] == bytes([WRITTEN]) * 64
    else:
        rig.abort(LOST, rig.comm)
        assert rig.reason(read) == Reason.COMMUNICATOR_FAILED
    memory.close()
    client.end.close()
    settle(rig)


def test_dependents_of_successful_collective_are_answered(rig: Filed) -> None:
    rig.batch(take(2, 3, stream=5))
    read = rig.read(3, stream=5)
    assert rig.reason(rig.start(stream=5, flush=c.Flush())) == ""
    rig.peer.release()
    assert rig.reason(read) == ""
    assert not rig.process.device.tracks.pending_outcomes.open
    settle(rig)
