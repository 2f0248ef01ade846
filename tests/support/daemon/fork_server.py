"""The process from which the tests' daemons are forked, with all modules of `hearthd serve` imported.

A new interpreter needs half a second of processor time to import the front, and the tests start hundreds of daemons. A
forked process runs the same program with the arguments, environment and descriptors that it is given. `forked.py` sends
the request and becomes the parent of the new process: it forks twice here and the intermediate process exits, while the
requesting process is a subreaper.

This process has one thread; gRPC, uvloop and multiprocessing are imported but not started.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import itertools
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import Any

from hearth_proto import grpc_import

MODULES = (
    "hearthd.cli.main", "hearthd.shared.sighup", "hearthd.front.supervisor.forkserver", "inspect",
    "hearthd.cli.serve", "hearthd.cli.audit", "hearthd.cli.health_check", "hearthd.front.config.loader",
    "hearthd.shared.log", "pydantic.type_adapter", "hearthd.front.daemon.main", "uvloop",
    "hearthd.front.opentelemetry",
    "hearthd.front.daemon.daemon", "hearthd.front.http.server", "hearthd.front.sockets",
    "hearthd.front.daemon.orphans", "multiprocessing.popen_forkserver",
)  # fmt: skip
"""Modules that `hearthd serve` imports."""

PRELOADED = ("hearthd.device.process.main", "hearthd.device.cpu.server", "hearthd.device.cpu.collective.shared_segment")
"""Modules that the daemon's own forkserver imports, except the module whose import makes the process inaccessible to
other processes."""

_BEYOND = 1 << 16
"""A number above every open descriptor of this process."""


def main(asking: socket.socket) -> None:
    """Serves requests until the other end is closed. A request is one message with two descriptors, for standard output
    and standard error; the answer is the pid of the new process."""
    # gRPC reads it when it is imported; set as in `hearthd.front.daemon.main`
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    grpc_import.import_grpc(grpc_import.LISTENER)
    for module in (*MODULES, *PRELOADED):
        importlib.import_module(module)
    assert _alone(), "a fork would lose a thread"
    gc.collect()
    gc.freeze()
    while True:
        request, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 2)
        if not request:
            return
        reading, writing = os.pipe()
        intermediate = os.fork()
        if intermediate == 0:
            pid = os.fork()
            if pid == 0:
                asking.detach()
                _become(descriptors, **json.loads(request))
                return
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.waitpid(intermediate, 0)
        for descriptor in (writing, *descriptors):
            os.close(descriptor)
        asking.send(os.read(reading, 100))
        os.close(reading)


def _become(descriptors: Sequence[int], arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Runs `python -m` with these arguments in this process, until the program ends."""
    for number, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, number)
    os.closerange(3, _BEYOND)
    os.environ.clear()
    os.environ.update(environment)
    _show(("-m", *arguments), environment)
    sys.argv[1:] = arguments[1:]
    util.spawnv_passfds = functools.partial(_spawn, util.spawnv_passfds, environment)  # type: ignore[attr-defined]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _spawn(
    spawn: Callable[..., int],
    environment: Mapping[str, str],
    path: bytes,
    args: Sequence[Any],
    passed_fds: Sequence[int],
) -> int:
    """Starts a helper process of `multiprocessing`: by a fork if this process has only one thread, otherwise by
    `spawn`."""
    command, code = os.fsdecode(args[-2]), os.fsdecode(args[-1])
    if command != "-c" or not _alone():
        return spawn(path, args, passed_fds)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for low, high in itertools.pairwise((2, *sorted(passed_fds), _BEYOND)):
                os.closerange(low + 1, high)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            tracker = resource_tracker._resource_tracker
            tracker._fd = tracker._pid = None  # type: ignore[attr-defined]
            _show((command, code), environment)
            exec(code, {})
            status = 0
        except SystemExit:
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # skips the exit handlers of the daemon, from which this process was forked
    return pid


def _alone() -> bool:
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _show(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Writes arguments and environment to the memory that /proc shows; this process reserved space for them when it
    started."""
    addresses = [int(part) for part in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]]
    line = [sys.executable, *arguments]
    variables = [f"{name}={value}" for name, value in environment.items()]
    for begin, end, shown in ((*addresses[:2], line), (*addresses[2:], variables)):
        text = b"".join(os.fsencode(part) + b"\0" for part in shown)
        assert len(text) < end - begin, "the text exceeds the reserved space"
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, len(text))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
