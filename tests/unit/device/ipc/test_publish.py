"""Published buffers of one device process; the test acts as the front."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, from_text
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig


def ask(rig: Rig[Any], kind: Kind, answer: Kind, channel: int, **body: Any) -> dict[str, Any]:
    ident = next(rig.ids)
    rig.send(kind, json.dumps(body).encode(), channel=channel, id=ident)
    answered: dict[str, Any] = json.loads(rig.until(answer, ident).payload)
    return answered


def test_query_whether_a_buffer_is_attached_attaches_nothing() -> None:
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


def forget(rig: Rig[Any]) -> None:
    rig.send(Kind.EXPORT, json.dumps({"op": "forget", "memory": 7}).encode())


def close(rig: Rig[Any]) -> None:
    rig.send(Kind.CLOSE, channel=1)
    rig.until(Kind.CLOSED)
    rig.open(1)


@pytest.mark.parametrize("end", [None, forget, close])
def test_export_that_waits_for_memory_is_refused_if_its_publication_ends(
    end: Callable[[Rig[Any]], None] | None,
) -> None:
    size = 1 << 20
    rig = Rig(DeviceSpec(0, "cpu", 0, memory_limit=64 * size, memory_granted=size), CpuServer)
    try:
        rig.call(allocate=c.Allocate(buffer=1, size=size))
        assert ask(rig, Kind.EXPORT, Kind.EXPORTED, 1, op="publish", memory=7, buffer=1, name="w") == {"size": size}
        body = {"op": "export", "memory": 7, "file": 3}
        rig.send(Kind.EXPORT, json.dumps(body).encode(), id=99)
        while "wants" not in json.loads(rig.until(Kind.HELD).payload):
            pass
        if end is not None:
            end(rig)
        rig.send(Kind.LIMIT, json.dumps({"bytes": 64 * size, "granted": True}).encode())
        answer = json.loads(rig.until(Kind.EXPORTED, 99).payload)
        if end is None:
            assert answer == {"size": size}
        else:
            assert from_text(answer["error"]).reason is Reason.NOT_PUBLISHED
    finally:
        rig.stop()
