"""CUDA graphs with a fake driver: the order of uploads and launches on different streams."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

CALLS = ("eventRecord", "streamWaitEvent", "graphUpload", "graphLaunch", "graphExecDestroy")


@pytest.fixture
def calls() -> list[tuple[Any, ...]]:
    """The calls of the driver among `CALLS`, with their arguments."""
    return []


@pytest.fixture
def graphs(calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a `CudaGraphs` over fakes of CuPy and cuda-bindings; other tests import the modules again.

    Streams have the pointers 1, 2 and so on, events 101, 102 and so on.
    """
    runtime: Any = MagicMock(CUDARuntimeError=RuntimeError)
    runtime.streamCreateWithPriority.side_effect = range(1, 100)
    runtime.eventCreateWithFlags.side_effect = range(101, 200)
    runtime.graphInstantiate.side_effect = range(201, 300)
    for name in CALLS:
        getattr(runtime, name).side_effect = lambda *arguments, name=name: calls.append((name, *arguments))
    api, bindings = ModuleType("cupy_backends.cuda.api"), ModuleType("cuda.bindings")
    driver: Any = MagicMock(CUDADriverError=RuntimeError)
    api.runtime, api.driver, bindings.driver = runtime, driver, MagicMock()  # type: ignore[attr-defined]
    modules: dict[str, Any] = {
        "cuda": ModuleType("cuda"),
        "cuda.bindings": bindings,
        "cupy_backends": ModuleType("cupy_backends"),
        "cupy_backends.cuda": ModuleType("cupy_backends.cuda"),
        "cupy_backends.cuda.api": api,
        "cupy_backends.cuda.api.runtime": runtime,
        "cupy_backends.cuda.api.driver": driver,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in [each for each in sys.modules if each.startswith("hearthd.device.cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    package = importlib.import_module("hearthd.device.cuda")
    attributes = dict(vars(package))
    imported = importlib.import_module("hearthd.device.cuda.graphs")
    streams = importlib.import_module("hearthd.device.cuda.streams").CudaStreams()
    yield imported.CudaGraphs(SimpleNamespace(), streams, SimpleNamespace(load=None))
    for name in [each for each in sys.modules if each.startswith("hearthd.device.cuda.")]:
        del sys.modules[name]
    vars(package).clear()
    vars(package).update(attributes)


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
    """Whether it is launched or not."""
    for launched in (True, False, False):
        graph = graphs.create([])
        if launched:
            graphs.launch(graph, SimpleNamespace(pointer=50))
        graphs.destroy(graph)
        graphs.destroy(graph)  # a second call has no effect
    assert {call[1] for call in calls if call[0] == "eventRecord"} == {101}
    assert [call[1] for call in calls if call[0] == "graphExecDestroy"] == [201, 202, 203]
