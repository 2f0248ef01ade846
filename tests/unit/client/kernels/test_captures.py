"""Captures of streams, against a fake daemon: the commands that are sent, and daemons of an older version."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from tests.support.client.fake_daemon import FakeDaemon

KINDS = {"record_event", "wait_event", "begin_capture", "end_capture", "launch_graph", "update_graph"}


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
