"""Imports gRPC with two settings, which gRPC reads from the environment once, when it is imported.

- Sockets are read by the thread that waits for the data, if this version of gRPC can be configured so. Since 1.80, a
  thread of gRPC reads them, also in Python, and hands the data to the waiting thread. That costs another wake-up for
  each message, which takes longer than all other processing of it. Versions that do not know the setting would complain
  on stderr, so it is not set for them.
- No fork handlers are installed. The Python part of gRPC does not use them by default, but its core installs them by
  default, and they run at a fork of a process with open streams. Then a thread of the parent process sometimes ends it
  with SIGSEGV (2 of 120 forks of a loaded machine; without the handlers 0 of 240). See
  https://github.com/grpc/grpc/pull/41588.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

CLIENT = "event_engine_client"
"""gRPC experiment that affects connections opened by this process."""
LISTENER = "event_engine_listener"
"""gRPC experiment that affects connections accepted by this process."""
FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
"""Environment variable that enables gRPC's fork handlers."""
_EXPERIMENTS = "GRPC_EXPERIMENTS"
_SINCE, _BEFORE = (1, 80), (1, 86)
"""Range of gRPC versions that are known to have the experiments: the first one, and the exclusive end."""


def import_grpc(experiment: str) -> None:
    """Imports gRPC with `experiment` switched off and without fork handlers.

    Does nothing if gRPC is already imported. Environment variables that the user has set are left unchanged; those set
    here are removed afterwards, so that child processes do not inherit them.

    Args:
        experiment: `CLIENT` or `LISTENER`.
    """
    if "grpc" in sys.modules:
        return
    settings = {} if FORK_SUPPORT in os.environ else {FORK_SUPPORT: "0"}
    if _EXPERIMENTS not in os.environ and _SINCE <= grpc_version() < _BEFORE:
        settings[_EXPERIMENTS] = f"-{experiment}"
    os.environ.update(settings)
    try:
        import grpc  # noqa: F401
    finally:
        for name in settings:
            del os.environ[name]


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
