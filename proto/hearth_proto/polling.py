"""The thread that reads gRPC's sockets: the one that waits for the data, if gRPC can be configured so.

Since 1.80 a thread of gRPC's own reads in Python, too, and hands the data to the one that waits: another wake-up for
each message, which costs more than all that is done with it. Until 1.79, and where that is switched off, the waiting
thread reads. gRPC reads its environment once, when it is imported, so that this has to come first; a version that does
not know the switch any more would say so on stderr, and is left as it is.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

CLIENT = "event_engine_client"
"""The reader of connections that were opened here."""
LISTENER = "event_engine_listener"
"""The reader of connections that were accepted here."""
_EXPERIMENTS = "GRPC_EXPERIMENTS"
_SINCE, _BEFORE = (1, 80), (1, 86)
"""The versions that have the switch, as far as they are known."""


def import_grpc(experiment: str) -> None:
    """Imports gRPC with this switched off; nothing where it was imported before, or its user has said what he wants.
    The environment is as before afterwards, for processes that are started later."""
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
    """Returns the version of the gRPC that would be imported; (0, 0) if it has none. A client's first result must come
    quickly: nothing is imported for this."""
    try:
        spec = PathFinder.find_spec("grpc")
        [folder] = (spec and spec.submodule_search_locations) or [""]
        with open(f"{folder}/_grpcio_metadata.py") as file:  # noqa: PTH123 - pathlib takes long to load
            # __version__ = """1.85.1"""
            major, minor, _ = file.read().split('"""')[1].split(".", 2)
        return int(major), int(minor)
    except (OSError, ValueError, IndexError):
        return 0, 0
