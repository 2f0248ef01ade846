"""The calls by which the nodes of a graph are enqueued."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, call

from hearthd.device.backend.graph_nodes import HostCopyNode
from hearthd.device.backend.replay import replay


def test_the_pieces_of_a_host_copy_are_enqueued_in_place_of_the_whole() -> None:
    server: Any = MagicMock()
    host, stream = object(), object()
    rows = HostCopyNode(True, 1000, host, 0, 40, rows=2, pitch=48)
    part = HostCopyNode(True, 1096, host, 80, 16)
    rest = HostCopyNode(True, 1112, host, 96, 24)
    replay(server, [HostCopyNode(True, 1000, host, 0, 40, 3, 48, (rows, part, rest))], stream)
    assert server.mock_calls == [
        call.upload_rows(1000, 48, host, 0, 40, 2, stream),
        call.upload_rows(1096, 0, host, 80, 16, 1, stream),
        call.upload_rows(1112, 0, host, 96, 24, 1, stream),
    ]
