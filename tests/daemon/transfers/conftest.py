"""Fixtures of the tests of transfers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hearth
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import session_of
from tests.support.client.lane_timeouts import long_timeouts
from tests.support.daemon.cutter import Cutter


@pytest.fixture(autouse=True)
def _long_timeouts() -> Iterator[None]:
    with long_timeouts():
        yield


@pytest.fixture
def by_way_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[hearth.Node, Cutter], None]:
    """Returns a function that routes a client's stripes, and nothing else, through a cutter."""

    def divert(node: hearth.Node, cutter: Cutter) -> None:
        transport: Any = session_of(node).transport
        ask = transport.open_bulk

        def open_bulk(request: device_pb2.OpenBulkRequest) -> device_pb2.OpenBulkResponse:
            answer = ask(request)
            answer.host, port = cutter.address.rsplit(":", 1)
            answer.port = int(port)
            return answer

        monkeypatch.setattr(transport, "open_bulk", open_bulk)

    return divert
