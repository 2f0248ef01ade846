"""Cancel commands: the end of their effect if they are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Command, Rig


@pytest.fixture
def rig() -> Iterator[Rig[CpuServer]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), CpuServer)
    rig.call(allocate=c.Allocate(buffer=1, size=64))
    yield rig
    rig.close()


@pytest.mark.parametrize("all_streams", [False, True])
def test_refused_cancel_drops_no_later_command(rig: Rig[CpuServer], all_streams: bool) -> None:
    """The cancel overtakes the commands before it, one of which destroys its stream."""
    rig.call(create_stream=c.CreateStream(stream=1))
    cancel = Command(stream=1, request=9, cancel=c.Cancel(all_streams=all_streams))
    rig.send(Kind.DROP, cancel.SerializeToString(), channel=1)
    rig.batch(Command(destroy_stream=c.DestroyStream(stream=1)), cancel)
    rig.barrier()
    session = rig.process.executor.session(1)
    assert session is not None and not session.dropping
    assert not rig.call(fill=c.Fill(buffer=1, size=64, pattern=b"\1")).HasField("error")
