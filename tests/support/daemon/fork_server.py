"""The process that the tests' daemons are forked from, with all imported that `hearthd serve` imports.

A fresh interpreter takes half a second of processor time to import the front, and the tests start hundreds of daemons.
A forked process runs the same program with the arguments, environment and descriptors that it is given. `forked.py`
asks for it and becomes its parent: both forks here leave it behind, and the asking process is a subreaper meanwhile.

There is one thread, and gRPC, uvloop and multiprocessing are imported but not started.
"""

from __future__ import annotations

import contextlib
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

from hearth_proto import polling

MODULES = (
    "hearthd.cli.main", "hearthd.shared.sighup", "hearthd.front.supervisor.forkserver", "inspect", "typer",
    "hearthd.cli.audit", "hearthd.cli.health_check", "hearthd.front.config.loader", "hearthd.shared.log",
    "pydantic.type_adapter", "hearthd.front.daemon.main", "uvloop", "hearthd.front.opentelemetry",
    "hearthd.front.daemon.daemon", "hearthd.front.http.server", "hearthd.front.sockets",
    "hearthd.front.daemon.orphans", "multiprocessing.popen_forkserver",
)  # fmt: skip
"""Modules that `hearthd serve` imports."""

OF_SOME_VERSIONS = ("typer._adapters",)
"""Modules that only some of the allowed versions have."""
PRELOADED = ("hearthd.device.process.main", "hearthd.device.cpu.server", "hearthd.device.cpu.collective.shared_segment")
"""Modules that its own forkserver imports; without the one whose import closes the process to others."""

_BEYOND = 1 << 16
"""A number that no descriptor here has."""


def main(asking: socket.socket) -> None:
    """Serves requests until the other end is closed. A request is one message and two descriptors, for standard output
    and standard error; the answer is the pid."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read by gRPC at its import; as in `hearthd.front.daemon.main`
    polling.import_grpc(polling.LISTENER)
    for module in (*MODULES, *PRELOADED):
        importlib.import_module(module)
    for module in OF_SOME_VERSIONS:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    assert _alone(), "a fork would lose a thread"
    gc.collect()
    gc.freeze()
    while True:
        request, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 2)
        if not request:
            return
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                asking.detach()
                _become(descriptors, **json.loads(request))
                return
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for each in (writing, *descriptors):
            os.close(each)
        asking.send(os.read(reading, 100))
        os.close(reading)


def _become(descriptors: Sequence[int], arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Runs `python -m` with these arguments in this process, to its end."""
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
    spawn: Callable[..., int], environment: Mapping[str, str], path: bytes, args: Sequence[Any], kept: Sequence[int]
) -> int:
    """Starts a helper of `multiprocessing`: forked as long as this process has one thread, else by `spawn`."""
    command, code = os.fsdecode(args[-2]), os.fsdecode(args[-1])
    if command != "-c" or not _alone():
        return spawn(path, args, kept)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for low, high in itertools.pairwise((2, *sorted(kept), _BEYOND)):
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
            os._exit(status)  # nothing of what the daemon has begun is this process's to end
    return pid


def _alone() -> bool:
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _show(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Writes them where /proc shows them: this process has room for them there."""
    places = [int(each) for each in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]]
    line = [sys.executable, *arguments]
    variables = [f"{name}={value}" for name, value in environment.items()]
    for begin, end, shown in ((*places[:2], line), (*places[2:], variables)):
        text = b"".join(os.fsencode(each) + b"\0" for each in shown)
        assert len(text) < end - begin, "there is no room to show them"
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, len(text))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
