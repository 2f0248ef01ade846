"""Published buffers of one device process; the test acts as the front."""

from __future__ import annotations

import json
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig


def ask(rig: Rig[Any], kind: Kind, answer: Kind, channel: int, **body: Any) -> dict[str, Any]:
    ident = next(rig.ids)
    rig.send(kind, json.dumps(body).encode(), channel=channel, id=ident)
    answered: dict[str, Any] = json.loads(rig.until(answer, ident).payload)
    return answered


def test_question_whether_a_buffer_is_attached_attaches_nothing() -> None:
    rig = Rig(DeviceSpec(0, "cpu", 0, memory_limit=1 << 20), CpuServer)
    try:
        rig.open(2)
        rig.call(allocate=c.Allocate(buffer=1, size=3))
        assert ask(rig, Kind.EXPORT, Kind.EXPORTED, 1, op="publish", memory=7, buffer=1, name="w") == {"size": 3}
        question = {"memory": 7, "buffer": 5, "size": 3}

        def attached() -> bool:
            answer = ask(rig, Kind.IMPORT, Kind.IMPORTED, 2, **question)
            assert "error" not in answer
            return "again" in answer

        assert not attached() and rig.gauges()["buffers_attached"] == 0
        assert "error" not in ask(rig, Kind.IMPORT, Kind.IMPORTED, 2, **question, attachment=8)
        assert attached() and rig.gauges()["buffers_attached"] == 1
        assert not rig.call(channel=2, free=c.Free(buffers=[5])).HasField("error")
        assert not attached() and rig.gauges()["buffers_attached"] == 0
    finally:
        rig.stop()
