"""Captures of streams, against a fake daemon: the commands that are sent, and daemons of an older version."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from tests.support.client.fake_daemon import FakeDaemon

KINDS = {
    "record_event", "wait_event", "begin_capture", "end_capture", "launch_graph", "update_graph", "begin_conditional",
    "end_conditional", "begin_branch",
}  # fmt: skip


def sent(daemon: FakeDaemon, gpu: hearth.Device) -> list[str]:
    """Returns the kinds of the commands of captures that have arrived, in order."""
    gpu.default_stream.synchronize()
    return [kind for command in daemon.commands if (kind := command.WhichOneof("kind")) in KINDS]


def test_an_older_daemon_captures_one_stream(daemon: FakeDaemon, gpu: hearth.Device) -> None:
    """Commands that it would refuse, or read as others, are not sent; the capture continues."""
    stream = gpu.stream()
    stream.begin_capture()
    with pytest.raises(hearth.UnsupportedError, match="older version, which captures no events") as caught:
        stream.record()
    assert "update the daemon" in caught.value.fix
    graph = stream.end_capture()
    with gpu.graph(), pytest.raises(hearth.UnsupportedError, match="records no launches of graphs"):
        graph.launch()
    x = gpu.zeros(3, np.int32)
    node = hearth.GraphNode(graph, 0, "fill", "", (), None)
    with pytest.raises(hearth.UnsupportedError, match="does not change copies and fills"):
        node.set_args((x, 1))
    # the first event of each capture is the one that `done` queries
    assert sent(daemon, gpu) == ["record_event", "begin_capture", "end_capture"] * 2


def test_an_older_daemon_captures_no_memory_and_no_conditions(daemon: FakeDaemon, gpu: hearth.Device) -> None:
    condition = gpu.zeros((), np.uint32)
    with gpu.graph() as graph:
        with pytest.raises(hearth.LaunchError, match="older version, which allocates no memory") as caught:
            gpu.empty(3, np.int32)
        assert "update the daemon" in caught.value.fix
        with (
            pytest.raises(hearth.UnsupportedError, match="older version, which has no conditional nodes") as refused,
            graph.if_(condition),
        ):
            pass
        assert "update the daemon" in refused.value.fix
    assert sent(daemon, gpu) == ["record_event", "begin_capture", "end_capture"]


def test_conditions_are_sent_to_a_daemon_that_captures_them(daemon: FakeDaemon) -> None:
    """Each body is ended, also by an exception, and before the capture."""
    daemon.features += ["graph_memory", "graph_conditionals"]
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        with gpu.graph() as graph:
            condition = gpu.empty(4, np.int32)[3]
            with graph.while_(condition), graph.if_(condition):
                pass
            with pytest.raises(ZeroDivisionError), graph.if_(condition):
                raise ZeroDivisionError
        assert sent(daemon, gpu) == [
            "record_event", "begin_capture", "begin_conditional", "begin_conditional", "end_conditional",
            "end_conditional", "begin_conditional", "end_conditional", "end_capture",
        ]  # fmt: skip
    begun = [each.begin_conditional for each in daemon.commands if each.WhichOneof("kind") == "begin_conditional"]
    assert [(each.offset, each.loop) for each in begun] == [(12, True), (12, False), (12, False)]


def test_an_older_daemon_captures_conditions_without_branches(daemon: FakeDaemon) -> None:
    daemon.features += ["graph_memory", "graph_conditionals"]
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        condition = gpu.zeros((), np.uint32)
        with gpu.graph() as graph:
            with graph.if_(condition):
                pass
            for block in (graph.else_(), graph.switch_(condition), graph.case_(1)):
                with pytest.raises(hearth.UnsupportedError, match="has no else_ and no switch_") as refused, block:
                    pass
                assert "record an if_ for each body, or update the daemon" in refused.value.fix
        assert sent(daemon, gpu)[-3:] == ["begin_conditional", "end_conditional", "end_capture"]


def test_branches_are_sent_to_a_daemon_that_captures_them(daemon: FakeDaemon) -> None:
    daemon.features += ["graph_memory", "graph_conditionals", "graph_branches"]
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        with gpu.graph() as graph:
            condition = gpu.empty(4, np.int32)[2]
            with graph.if_(condition):
                pass
            with graph.else_():
                pass
            with graph.switch_(condition), graph.case_(np.int32(7)):
                pass
            for wrong in (-1, 256, 1.5, "1", True, None):
                block = graph.case_(wrong)  # type: ignore[arg-type]
                with pytest.raises(hearth.ArgumentError, match="is not the value of a case") as caught, block:
                    pass
                assert "from 0 to 255" in caught.value.fix
        assert sent(daemon, gpu)[2:-1] == [
            "begin_conditional", "end_conditional", "begin_branch", "end_conditional", "begin_conditional",
            "begin_branch", "end_conditional", "end_conditional",
        ]  # fmt: skip
        with pytest.raises(hearth.LaunchError, match="is not being recorded"), graph.else_():
            pass
    begun = [each.begin_conditional for each in daemon.commands if each.WhichOneof("kind") == "begin_conditional"]
    assert [(each.offset, each.loop, each.switch) for each in begun] == [(8, False, False), (8, False, True)]
    branches = [each.begin_branch for each in daemon.commands if each.WhichOneof("kind") == "begin_branch"]
    assert [(each.otherwise, each.value) for each in branches] == [(True, 0), (False, 7)]


def test_events_and_graphs_are_sent_to_a_daemon_that_captures_them(daemon: FakeDaemon) -> None:
    daemon.features.append("graph_composition")
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        stream, side = gpu.stream(), gpu.stream()
        stream.begin_capture()
        side.wait_event(stream.record())
        assert side.is_capturing()
        stream.wait_event(side.record())
        graph = stream.end_capture()
        with gpu.graph():
            graph.launch(3)
        assert sent(daemon, gpu) == [
            "record_event", "begin_capture", "record_event", "record_event", "wait_event", "record_event", "wait_event",
            "end_capture", "record_event", "begin_capture", "launch_graph", "end_capture",
        ]  # fmt: skip
