"""Combinations of event loop and connection in which asynchronous clients are tested."""

from __future__ import annotations

from typing import Any

from hearth import aio
from tests.support.daemon.harness import DaemonProcess

WAYS = ("lanes", "grpc", "tcp")
LARGE = 400_000
"""Number of elements of eight bytes: more than fit into a batch."""


def connect(daemon: DaemonProcess, way: str = "lanes", **options: Any) -> Any:
    return aio.connect(daemon.grpc if way == "tcp" else daemon.unix, lanes=way != "grpc", **options)
