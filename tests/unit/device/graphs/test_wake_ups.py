"""Programs that wait for room on a track are tried again when there is room, whichever call notices the completion
first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.launches import LayoutEntry, Record, pack, pack_layout
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuEvent
from hearthd.device.graphs.repeat import MAX_PER_ITERATION
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

CODE = b'extern "C" __global__ void add_one(int* x) { x[0] += 1; }'
RECORD = pack(
    Record(1, 0, (1, 1, 1), (1, 1, 1), 0, 0, 0, pack_layout([LayoutEntry(0, 8, pointer=True)]), (1,), bytes(8))
)
ROUNDS = 4
TIMEOUT_S = 10.0


class Gated(CpuServer):
    """Runs its work only after the gate opens, and does not signal completion while the gate is shut: the loop runs
    only when a frame arrives."""

    gate: threading.Event | None = None
    launched = 0

    def on_progress(self, wake: Callable[[], None] | None) -> bool:
        def unless_shut() -> None:
            if self.gate is None and wake is not None:
                wake()

        return super().on_progress(unless_shut)

    def launch(self, *arguments: Any, **more: Any) -> None:
        self.launched += 1
        super().launch(*arguments, **more)

    def shut(self) -> None:
        """Holds back work submitted from now on."""
        self.gate = threading.Event()
        self.streams[0].submit(self.gate.wait)

    def let_through(self) -> None:
        """Runs the work submitted so far, and no more, before it returns."""
        given, before = CpuEvent(), self.gate
        assert before is not None
        self.streams[0].record(given)
        self.shut()
        before.set()
        given.wait()

    def open(self) -> None:
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.set()


@pytest.fixture
def rig() -> Iterator[Rig[Gated]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), Gated)
    yield rig
    rig.server.open()
    rig.close()


def test_a_session_that_waits_for_room_is_not_forgotten(rig: Rig[Gated]) -> None:
    """A session that becomes active checks whether other sessions still have work. Completions that it notices give the
    other sessions room, and no later event reports them."""
    rig.send(Kind.OPEN, b"{}", channel=2)
    prepare(rig)
    rig.server.shut()
    rig.batch(c.Command(launch_prepared=c.LaunchPrepared(prepared=1, count=ROUNDS * MAX_PER_ITERATION)))
    while not rig.gauges()["commands_waiting"]:
        pass
    number = 0
    while (before := rig.server.launched) < ROUNDS * MAX_PER_ITERATION:
        rig.server.let_through()
        flush_beside(rig, number := number + 1)
        deadline = time.monotonic() + TIMEOUT_S
        while rig.server.launched == before:
            assert time.monotonic() < deadline, f"{before} launches, and there is room for more"
            time.sleep(1e-3)
    rig.server.open()
    assert int.from_bytes(rig.call(read=c.Read(buffer=1, size=4)).read.data, "little") == ROUNDS * MAX_PER_ITERATION


def test_a_program_continues_at_its_next_turn(rig: Rig[Gated]) -> None:
    """The program continues while the track has room, without an event and without letting the device become idle."""
    prepare(rig)
    rig.server.shut()
    rig.batch(c.Command(launch_prepared=c.LaunchPrepared(prepared=1, count=ROUNDS * MAX_PER_ITERATION)))
    deadline = time.monotonic() + TIMEOUT_S
    while rig.server.launched <= 2 * MAX_PER_ITERATION:
        assert time.monotonic() < deadline, f"{rig.server.launched} launches, and there is room for more"
        time.sleep(1e-3)
    rig.server.open()


def prepare(rig: Rig[Gated]) -> None:
    """Prepares list 1 with one launch on buffer 1, and waits until the device is idle."""
    rig.batch(
        c.Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=CODE)),
        c.Command(get_function=c.GetFunction(function=1, module=1, name="add_one")),
        c.Command(allocate=c.Allocate(buffer=1, size=4)),
        c.Command(fill=c.Fill(buffer=1, size=4, pattern=b"\0")),
    )
    assert not rig.call(prepare=c.Prepare(prepared=1, launches=RECORD)).HasField("error")
    assert not rig.call(sync=c.Sync()).HasField("error")


def flush_beside(rig: Rig[Gated], number: int) -> None:
    """Sends a command of another session that submits no work to the device."""
    ident = 1_000_000 + number
    rig.send(Kind.CALL, c.Command(request=1, flush=c.Flush()).SerializeToString(), channel=2, id=ident)
    assert c.Result.FromString(rig.until(Kind.RESULT, ident).payload).HasField("done")
