"""CUDA graphs with a fake driver: the order of uploads and launches on different streams."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.device.fake_cuda import fake_cuda

CALLS = ("eventRecord", "streamWaitEvent", "graphUpload", "graphLaunch", "graphExecDestroy")


@pytest.fixture
def calls() -> list[tuple[Any, ...]]:
    """The calls of the driver among `CALLS`, with their arguments."""
    return []


@pytest.fixture
def graphs(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a `CudaGraphs` over a fake driver.

    Streams have the pointers 1, 2 and so on, events 101, 102 and so on.
    """
    with fake_cuda(monkeypatch) as cuda:
        cuda.runtime.streamCreateWithPriority.side_effect = range(1, 100)
        cuda.runtime.eventCreateWithFlags.side_effect = range(101, 200)
        cuda.runtime.graphInstantiate.side_effect = range(201, 300)
        for name in CALLS:
            getattr(cuda.runtime, name).side_effect = lambda *arguments, name=name: calls.append((name, *arguments))
        imported = importlib.import_module("hearthd.device.cuda.graphs")
        streams = importlib.import_module("hearthd.device.cuda.streams").CudaStreams()
        yield imported.CudaGraphs(SimpleNamespace(), streams, SimpleNamespace(load=None))


def test_the_first_launch_follows_the_upload_on_another_stream(graphs: Any, calls: list[tuple[Any, ...]]) -> None:
    """Later launches follow the first one, by the driver's own order."""
    graph, other = graphs.create([]), SimpleNamespace(pointer=50)
    assert calls == [("graphUpload", 201, 1), ("eventRecord", 101, 1)]
    calls.clear()
    graphs.launch(graph, other, 2)
    graphs.launch(graph, SimpleNamespace(pointer=51))
    launches = [("graphLaunch", 201, 50), ("graphLaunch", 201, 50), ("graphLaunch", 201, 51)]
    assert calls == [("streamWaitEvent", 50, 101), *launches]


def test_a_graph_returns_the_event_of_its_upload(graphs: Any, calls: list[tuple[Any, ...]]) -> None:
    """The event is returned whether the graph is launched or not."""
    for launched in (True, False, False):
        graph = graphs.create([])
        if launched:
            graphs.launch(graph, SimpleNamespace(pointer=50))
        graphs.destroy(graph)
        graphs.destroy(graph)  # a second call has no effect
    assert {call[1] for call in calls if call[0] == "eventRecord"} == {101}
    assert [call[1] for call in calls if call[0] == "graphExecDestroy"] == [201, 202, 203]
