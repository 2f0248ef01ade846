"""The process that device processes are forked from: what it has imported by then they need not import.

Its imports take as long as the front's, so it is started before anything else is (`begin`), with a guess at the backend
where that is not known yet; a wrong guess costs time and is put right by the device processes themselves.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver as _forkserver
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from hearthd.scratch import Scratch

PRELOAD = ("hearthd.device.main",)
PRELOAD_OF = {"cuda": ("cupy", "hearthd.device.cuda.server"), "cpu": ("hearthd.device.cpu.server",)}
"""By backend. What is not imported there is imported by every device process for itself."""
_DRIVER = Path("/dev/nvidiactl")


def preload(backend: str) -> None:
    """What the forkserver imports, from its next start on."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOAD, *PRELOAD_OF[backend]])


def begin(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Starts it for `hearthd serve` with these arguments."""
    preload(guess(arguments, environ))
    run()


def guess(arguments: Sequence[str], environ: Mapping[str, str], driver: Path = _DRIVER) -> str:
    """The backend that this command line and environment seem to ask for. Raises nothing: what is wrong with them is
    said by those who read them in earnest."""
    backend = _flag(arguments, "--backend") or environ.get("HEARTH_DEVICES_BACKEND", "")
    path = _flag(arguments, "--config", "-c") or environ.get("HEARTH_CONFIG", "")
    if not backend and path:
        import tomllib

        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            backend = tomllib.loads(Path(path).read_text())["devices"]["backend"]
    if isinstance(backend, str) and backend in PRELOAD_OF:
        return backend
    return "cuda" if driver.exists() else "cpu"


def _flag(arguments: Sequence[str], *names: str) -> str:
    """The last value of a flag; empty: it is not there."""
    found = ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = argument.partition("=")
        if name in names:
            found = value if equals else following
    return found


def run() -> None:
    """Starts the forkserver where none runs, and takes its socket out of the file system, where it would stay behind
    if this process were killed: the descriptor that is kept leads there as well."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))  # nothing lets that one through again
    resource_tracker.ensure_running()  # lets the other signals through, so it has to come first
    signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_FRONT)
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    server: Any = _forkserver._forkserver
    before = server._forkserver_pid, server._forkserver_address
    scratch = Scratch("hearth-forkserver-")
    config["tempdir"] = str(scratch.room())
    try:
        _forkserver.ensure_running()
        if server._forkserver_pid != before[0]:
            _leave(before[1])
            place = os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)
            server._forkserver_address = f"{_BY_DESCRIPTOR}{place}"
    finally:
        config.pop("tempdir", None)
        scratch.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_BY_DESCRIPTOR = "/proc/self/fd/"
_FOR_THE_FRONT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A Ctrl-C in a terminal, the end of the terminal, and many a service manager, signal the whole process group: only the
front shall act on it. The forkserver inherits that they are blocked, and its children ignore them; all are told to end
by the front. Blocked and not ignored while the forkserver is started, so that a signal that comes just then is not
lost."""


def _leave(address: str | None) -> None:
    """Lets go of the descriptor behind the address of a forkserver that has ended."""
    if address is not None and address.startswith(_BY_DESCRIPTOR):
        os.close(int(address.removeprefix(_BY_DESCRIPTOR)))


def pids() -> set[int]:
    """The forkserver and the resource tracker, as far as they run: this module waits for them."""
    owners = (_forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    return {pid for pid in owners if pid is not None}


def stop() -> None:
    """Ends the forkserver and the resource tracker, and waits for them."""
    address = _forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
    for owner, name in ((_forkserver, "_forkserver"), (resource_tracker, "_resource_tracker")):
        server: Any = getattr(owner, name, None)
        stop = getattr(server, "_stop", None)
        if stop is not None:
            with contextlib.suppress(OSError, ValueError):
                stop()
    _leave(address)
    _forkserver._forkserver._forkserver_address = None  # type: ignore[attr-defined]


def abandon() -> None:
    """The same, at once, where it has nothing to do after all."""
    pid = _forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    stop()
