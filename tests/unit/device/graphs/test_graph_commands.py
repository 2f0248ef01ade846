"""Graph commands in a device process whose backend lacks conditional nodes of several bodies."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.backend.graph_nodes import BRANCHES
from hearthd.entry import device_main
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.link import DeviceLink

BUFFER, GRAPH = 1, 2


def main(link: socket.socket, spec: DeviceSpec) -> None:
    """Runs a device process whose CPU backend has conditional nodes of one body only."""
    from hearthd.device.cpu import server

    class Server(server.CpuServer):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            self.properties.features.remove(BRANCHES)

    server.CpuServer = Server  # type: ignore[misc]
    device_main(link, spec)


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
