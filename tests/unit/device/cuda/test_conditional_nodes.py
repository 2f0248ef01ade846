"""Conditional nodes with a fake driver."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from hearthd.device.backend.graph_nodes import Conditional, ConditionalNode
from tests.support.device.fake_cuda import fake_cuda


def test_a_failed_body_destroys_its_stream_and_those_of_deeper_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch) as cuda:
        cuda.runtime.streamCreateWithPriority.side_effect = range(1, 100)
        nodes = importlib.import_module("hearthd.device.cuda.conditional_nodes")
        monkeypatch.setattr(nodes, "checked", lambda _result: (MagicMock(),))
        monkeypatch.setattr(nodes, "_capture", lambda _stream: (MagicMock(), (), 0))
        monkeypatch.setattr(nodes, "_add_node", lambda *_arguments: [0])
        streams = importlib.import_module("hearthd.device.cuda.streams").CudaStreams()
        server: Any = MagicMock()
        conditionals = nodes.ConditionalNodes(server, streams)
        conditionals.load()
        monkeypatch.setattr(conditionals, "_set", lambda *_arguments: None)
        node, outer = ConditionalNode(0, Conditional.IF), SimpleNamespace(pointer=50)
        bodies: list[int] = []
        conditionals.add(node, outer, 2, {0: lambda stream: bodies.append(stream.pointer)})
        assert bodies == [3], "the stream of depth 2"

        def fail(_stream: object) -> None:
            raise ValueError

        with pytest.raises(ValueError):
            conditionals.add(node, outer, 1, {0: fail})
        destroyed = [call.args for call in cuda.runtime.streamDestroy.call_args_list]
        assert destroyed == [(2,), (3,)]
