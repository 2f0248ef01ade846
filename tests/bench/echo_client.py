"""gRPC's synchronous client, which Hearth's client uses too, for the baseline's server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def connect(target: str) -> Iterator[Any]:
    """Yields a channel whose stubs send and return bytes."""
    import grpc

    with grpc.insecure_channel(target, options=(("grpc.enable_http_proxy", 0),)) as channel:
        yield channel


def path(method: str) -> str:
    """Returns a method's full name."""
    # imported here, so that measurements of Hearth's client alone do not import gRPC
    from tests.bench.echo_server import SERVICE

    return f"/{SERVICE}/{method}"
