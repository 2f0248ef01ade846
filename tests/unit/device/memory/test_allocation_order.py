"""An allocation that waits for memory is not overtaken by a later one."""

from __future__ import annotations

from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

MIB = 1 << 20


def test_waiting_allocations_are_served_in_order() -> None:
    rig = Rig(DeviceSpec(0, "cpu", 0, memory_limit=3 * MIB), CpuServer)
    rig.batch(
        *(c.Command(allocate=c.Allocate(buffer=buffer, size=MIB)) for buffer in (1, 2, 3)),
        c.Command(create_stream=c.CreateStream(stream=5)),
        # The free of buffer 1 waits for a write whose bytes have not arrived.
        c.Command(stream=5, write=c.Write(buffer=1, size=MIB, transfer=9)),
        c.Command(stream=5, free=c.Free(buffers=[1])),
    )
    first = rig.start(allocate=c.Allocate(buffer=4, size=MIB))
    rig.batch(
        c.Command(create_stream=c.CreateStream(stream=6)),
        c.Command(stream=6, free=c.Free(buffers=[2])),
        c.Command(stream=6, allocate=c.Allocate(buffer=6, size=MIB)),
    )
    assert not rig.answer(first).HasField("error")
    rig.upload(9, bytes(MIB), MIB // 4)
    assert not rig.call(stream=6, sync=c.Sync()).HasField("error")
    assert rig.call(memory_usage=c.MemoryUsage()).memory_usage.allocations == 3
    rig.close()
