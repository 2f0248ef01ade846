"""Selects the thread that reads gRPC's sockets: the waiting thread, if gRPC can be configured so.

Since 1.80, a thread of gRPC reads the sockets, also in Python, and passes the data to the waiting thread. This costs
another wake-up for each message, which takes longer than all other processing of the message. In versions up to 1.79,
and if the feature is switched off, the waiting thread reads. gRPC reads its environment once, when it is imported, so
the switch must be set before the import. Later versions without the switch would print a warning to stderr, and are
left unchanged.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

CLIENT = "event_engine_client"
"""gRPC experiment that affects connections opened by this process."""
LISTENER = "event_engine_listener"
"""gRPC experiment that affects connections accepted by this process."""
_EXPERIMENTS = "GRPC_EXPERIMENTS"
_SINCE, _BEFORE = (1, 80), (1, 86)
"""Range of gRPC versions that are known to have the switch: the first one, and the exclusive end."""


def import_grpc(experiment: str) -> None:
    """Imports gRPC with `experiment` switched off.

    Does nothing if gRPC is already imported, or if the user has set the environment variable. Restores the environment
    afterwards, for processes that are started later.
    """
    if "grpc" in sys.modules or _EXPERIMENTS in os.environ or not _has_switch():
        return
    os.environ[_EXPERIMENTS] = f"-{experiment}"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_EXPERIMENTS]


def _has_switch() -> bool:
    return _SINCE <= grpc_version() < _BEFORE


def grpc_version() -> tuple[int, int]:
    """Returns the version of the gRPC package that would be imported; (0, 0): unknown.

    Imports nothing, because a client's first result must not be delayed.
    """
    try:
        spec = PathFinder.find_spec("grpc")
        [folder] = (spec and spec.submodule_search_locations) or [""]
        with open(f"{folder}/_grpcio_metadata.py") as file:  # noqa: PTH123 - pathlib takes long to load
            # __version__ = """1.85.1"""
            major, minor, _ = file.read().split('"""')[1].split(".", 2)
        return int(major), int(minor)
    except (OSError, ValueError, IndexError):
        return 0, 0
