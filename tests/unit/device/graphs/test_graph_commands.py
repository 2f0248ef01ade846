"""Graph commands where the backend lacks conditional nodes of several bodies, or must load code for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.backend.graph_nodes import BRANCHES
from hearthd.entry import device_main
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.link import DeviceLink
from tests.support.device.rig import Rig, compiled
from tests.support.device.strict import Strict, endless, prepare

BUFFER, GRAPH = 1, 2


def main(*arguments: Any) -> None:
    """Runs a device process whose CPU backend has conditional nodes of one body only."""
    from hearthd.device.cpu import server

    class Server(server.CpuServer):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            self.properties.features.remove(BRANCHES)

    server.CpuServer = Server  # type: ignore[misc]
    device_main(*arguments)


@pytest.fixture
def link() -> Iterator[DeviceLink]:
    made = DeviceLink(DeviceSpec(0, "cpu", 0, memory_limit=1 << 20), main)
    yield made
    made.close()


def test_a_device_without_branches_refuses_them_by_name(link: DeviceLink) -> None:
    """The graph is not made, and its error has the first refusal."""
    link.open(2)
    for command in (
        c.Command(allocate=c.Allocate(buffer=BUFFER, size=4)),
        c.Command(fill=c.Fill(buffer=BUFFER, size=4, pattern=b"\0")),
        c.Command(begin_capture=c.BeginCapture(graph=GRAPH)),
        c.Command(begin_conditional=c.BeginConditional(buffer=BUFFER)),
        c.Command(end_conditional=c.EndConditional()),
    ):
        kind = command.WhichOneof("kind")
        assert not link.call(channel=2, **{kind: getattr(command, kind)}).HasField("error")
    for part, refused in (
        ("switch", {"begin_conditional": c.BeginConditional(buffer=BUFFER, switch=True)}),
        ("switch", {"begin_branch": c.BeginBranch(value=1)}),
        ("else", {"begin_branch": c.BeginBranch(otherwise=True)}),
    ):
        refusal = from_status(link.call(channel=2, **refused).error)
        assert refusal.reason == Reason.UNSUPPORTED and refusal.details["feature"] == BRANCHES
        assert refusal.message.startswith(f"device 0 (cpu) has no {part} in graphs") and "CUDA 12.8" in refusal.message
        assert BRANCHES in refusal.fix
    not_made = from_status(link.call(channel=2, end_capture=c.EndCapture(graph=GRAPH)).error)
    assert not_made.reason == Reason.CAPTURE_INVALID and not_made.details["cause"] == Reason.UNSUPPORTED
    assert "has no switch in graphs" in not_made.message and BRANCHES in not_made.fix


# ---- the load of code for conditional nodes ----


class Loading(Strict):
    """A server that loads code for conditional nodes. `refusals` is the number of loads that it refuses."""

    refusals = 0
    conditionals_loaded = 0

    def load_conditionals(self) -> None:
        assert not self.running
        if self.refusals:
            self.refusals -= 1
            raise Refusal(Reason.OUT_OF_MEMORY, "Loading a module failed: the device is out of memory.")
        self.conditionals_loaded += 1


@pytest.fixture
def rig() -> Iterator[Rig[Loading]]:
    made = Rig(DeviceSpec(0, "cpu", 0, cache_dir=compiled()), Loading)
    yield made
    made.server.gate.set()
    made.close()


def begin_conditional(rig: Rig[Loading], graph: int, channel: int = 1) -> int:
    """Begins a capture with a conditional node. Returns the number of the call, which is answered after the load."""
    assert not rig.call(channel=channel, begin_capture=c.BeginCapture(graph=graph)).HasField("error")
    return rig.start(channel=channel, begin_conditional=c.BeginConditional(buffer=2))


def discard(rig: Rig[Loading], graph: int) -> None:
    assert not rig.call(end_capture=c.EndCapture(graph=graph, discard=True)).HasField("error")


def wait_for_loads(rig: Rig[Loading], count: int) -> None:
    while rig.gauges()["loads_waiting"] != count:
        pass


def test_a_refused_load_for_conditional_nodes_is_tried_again_by_the_next(rig: Rig[Loading]) -> None:
    prepare(rig)
    rig.server.refusals = 1
    assert from_status(rig.answer(begin_conditional(rig, 1)).error).reason is Reason.OUT_OF_MEMORY
    discard(rig, 1)
    for graph in (2, 3):
        assert not rig.answer(begin_conditional(rig, graph)).HasField("error")
        assert not rig.call(end_conditional=c.EndConditional()).HasField("error")
        discard(rig, graph)
    assert rig.server.conditionals_loaded == 1


def test_a_load_for_conditional_nodes_waits_up_to_the_time_limit(rig: Rig[Loading]) -> None:
    endless(rig)
    call = begin_conditional(rig, 1)
    wait_for_loads(rig, 1)
    rig.process.device.idle_work.limit = 0.01
    refusal = from_status(rig.answer(call).error)
    assert refusal.reason is Reason.QUEUE_FULL and "load of conditional nodes" in refusal.message
    assert "kernel add_one of session other" in refusal.message
    assert rig.gauges()["loads_waiting"] == 0 and not rig.process.device.tracks.held
    discard(rig, 1)
    rig.process.device.idle_work.limit = 0.0
    call = begin_conditional(rig, 2)
    wait_for_loads(rig, 1)
    rig.server.gate.set()
    assert not rig.answer(call).HasField("error") and rig.server.conditionals_loaded == 1


def test_a_closed_session_leaves_no_load_for_conditional_nodes(rig: Rig[Loading]) -> None:
    endless(rig)
    rig.open(3)
    assert not rig.call(channel=3, allocate=c.Allocate(buffer=2, size=4)).HasField("error")
    for channel in (1, 3):
        begin_conditional(rig, 1, channel)
    wait_for_loads(rig, 2)
    for channel, left in ((3, 1), (1, 0)):
        rig.send(Kind.CLOSE, channel=channel)
        rig.until(Kind.CLOSED)
        assert rig.gauges()["loads_waiting"] == left
    assert not rig.process.device.tracks.held and rig.server.conditionals_loaded == 0
    rig.open(1)
