"""gRPC's synchronous client, as Hearth's is, for the baseline's server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def connect(target: str) -> Iterator[Any]:
    """A channel whose stubs take and give bytes."""
    import grpc

    with grpc.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),)) as channel:
        yield channel


def path(method: str) -> str:
    """A method's full name."""
    from tests.bench.echo_server import SERVICE  # not where only Hearth's client is measured: it imports gRPC

    return f"/{SERVICE}/{method}"
