"""Collectives in a complete front: DescribeGroups, metrics, and a process that cannot abort a communicator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason
from hearth_proto.v1 import node_pb2
from tests.support.front.collective_parts import present, reason_of
from tests.support.front.fake_device import FakeDevice
from tests.support.front.fixture import Front, front, refused, run, until


async def presented(hearth: Front, sequence: int = 1, **more: Any) -> list[FakeDevice]:
    """Has both ranks of [0, 1] present an operation, and returns their devices."""
    devices = [hearth.device(0), hearth.device(1)]
    for device in devices:
        await until(lambda device=device: channels(device, hearth.session))  # type: ignore[misc]
        (channel,) = channels(device, hearth.session)
        say(device, present(channel=channel, sequence=sequence, **more))
    return devices


def channels(device: FakeDevice, session: str) -> list[int]:
    return [number for number, opening in device.opened.items() if opening["session"] == session]


def say(device: FakeDevice, body: dict[str, Any]) -> None:
    device.send(Kind.COLLECTIVE, json.dumps(body).encode())


async def heard(device: FakeDevice, op: str) -> dict[str, Any]:
    await until(lambda: any(body["op"] == op for body in device.collectives))
    return next(body for body in device.collectives if body["op"] == op)


async def describe(hearth: Front, token: str = "") -> list[Any]:
    answer = await hearth.node.DescribeGroups(node_pb2.DescribeGroupsRequest(session_token=token or hearth.token))
    return list(answer.groups)


def test_flight_recorder_is_shown_to_its_session_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as hearth:
            other = await hearth.open()
            await hearth.open()
            streams = [await hearth.attach(device) for device in (0, 1)]
            assert await describe(hearth) == []
            zero, one = await presented(hearth)
            comm = (await heard(zero, "create_id"))["comm"]
            (group,) = await describe(hearth)
            assert group.state == "forming" and group.operations[0].state == "presented"
            say(zero, {"op": "id", "comm": comm, "unique_id": "u"})
            for device in (zero, one):
                await heard(device, "join")
                say(device, {"op": "joined", "comm": comm})
            for device in (zero, one):
                assert (await heard(device, "go"))["index"] == 1
                say(device, {"op": "progress", "comm": comm, "done": 1})
            recorder = hearth.daemon.collectives.coordinator.recorder
            await until(lambda: recorder.history(hearth.session, (0, 1)).operations[1].finished)  # type: ignore[union-attr]
            (group,) = await describe(hearth)
            assert group.group == b"" and [(each.node, each.device) for each in group.members] == [(0, 0), (0, 1)]
            assert group.state == "ready" and group.aborts == 0
            (operation,) = group.operations
            assert (operation.sequence, operation.what) == (1, "all_reduce 8 float32 sum")
            assert list(operation.presented) == [0, 1] and operation.error == ""
            assert 0 < operation.presented_unix_ns <= operation.launched_unix_ns <= operation.finished_unix_ns
            say(one, {"op": "failed", "comm": comm, "reason": "a cable", "timed_out": False, "sequence": 0})
            assert (await heard(zero, "abort"))["status"]
            (group,) = await describe(hearth)
            assert group.state == "failed" and group.aborts == 1 and "device 1 reports: a cable" in group.detail
            assert await describe(hearth, other) == []
            for token in ("", "nonsense"):
                request = node_pb2.DescribeGroupsRequest(session_token=token)
                assert (await refused(hearth.node.DescribeGroups(request))).reason == Reason.SESSION_EXPIRED
            for stream in streams:
                stream.cancel()

    run(scenario())


def test_a_wedged_process_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as hearth:
            await hearth.open()
            streams = [await hearth.attach(device) for device in (0, 1)]
            zero, one = await presented(hearth)
            await heard(zero, "create_id")
            say(one, {"op": "wedged", "comm": "n-1"})
            device = hearth.daemon.supervisor.devices[1]
            await until(lambda: device.generation == 2)
            refusal = await heard(zero, "fail")
            assert reason_of(refusal) == Reason.COMMUNICATOR_FAILED
            await heard(zero, "abort")
            assert sum(device.restarts.values()) == 1
            for stream in streams:
                stream.cancel()

    run(scenario())


def test_collectives_are_counted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as hearth:
            await hearth.open()
            streams = [await hearth.attach(device) for device in (0, 1)]
            zero, _ = await presented(hearth)
            comm = (await heard(zero, "create_id"))["comm"]
            page = page_of(hearth)
            assert 'hearth_communicators{state="joining"} 1.0' in page
            assert "# HELP hearth_communicators Live communicators" in page
            say(zero, {"op": "join_failed", "comm": comm, "status": "AAAA"})
            await heard(zero, "fail")
            page = page_of(hearth)
            assert "hearth_communicator_aborts_total 1.0" in page
            assert 'hearth_collective_failures_total{reason="communicator"} 1.0' in page
            assert 'hearth_collective_failures_total{reason="timeout"} 0.0' in page
            assert "hearth_collectives_waiting 0.0" in page
            for stream in streams:
                stream.cancel()

    run(scenario())


def page_of(hearth: Front) -> str:
    daemon = hearth.daemon
    return daemon.metrics.render(daemon.metrics.families(daemon.supervisor, daemon.sessions, {}, {}))[0].decode()
