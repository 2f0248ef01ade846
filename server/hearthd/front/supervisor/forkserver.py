"""The process that device processes are forked from: what it has imported by then they need not import.

Its imports take as long as the front's, so it is started before anything else is (`begin`), with a guess at the backend
where that is not known yet; a wrong guess costs time and is put right by the device processes themselves.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver as _forkserver
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from hearthd.shared.scratch_dir import Scratch

PRELOAD = ("hearthd.confinement.at_import", "hearthd.device.process.main")
PRELOAD_OF = {
    "cuda": ("cupy", "hearthd.device.cuda.server"),
    "cpu": ("hearthd.device.cpu.server", "hearthd.device.cpu.collective.shared_segment"),
}
"""Modules by backend. Every device process imports for itself what is not imported there."""
_DRIVER = Path("/dev/nvidiactl")


def preload(backend: str) -> None:
    """Sets the forkserver's imports, from its next start on."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOAD, *PRELOAD_OF[backend]])


def begin(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Starts it for `hearthd serve` with these arguments."""
    preload(guess(arguments, environ))
    run()


def guess(arguments: Sequence[str], environ: Mapping[str, str], driver: Path = _DRIVER) -> str:
    """The backend that this command line and environment seem to ask for. Raises nothing: errors in them are reported
    by the code that reads them in earnest."""
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
    # By descriptor: the path of a socket has at most 107 bytes, and `TMPDIR` may be longer.
    room = os.open(scratch.room(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    config["tempdir"] = f"{_BY_DESCRIPTOR}{room}"
    try:
        _forkserver.ensure_running()
        if server._forkserver_pid != before[0]:
            _leave(before[1])
            place = os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)
            server._forkserver_address = f"{_BY_DESCRIPTOR}{place}"
    finally:
        config.pop("tempdir", None)
        os.close(room)
        scratch.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_BY_DESCRIPTOR = "/proc/self/fd/"
_FOR_THE_FRONT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A Ctrl-C in a terminal, the end of the terminal, and many a service manager, signal the whole process group: only the
front shall act on it. The forkserver inherits that they are blocked, and its children ignore them; the front ends them
all. Blocked and not ignored while the forkserver is started, so that a signal that comes just then is not lost."""


def _leave(address: str | None) -> None:
    """Lets go of the descriptor behind the address of a forkserver that has ended."""
    if address is not None and address.startswith(_BY_DESCRIPTOR):
        os.close(int(address.removeprefix(_BY_DESCRIPTOR)))


def pids() -> set[int]:
    """The forkserver and the resource tracker, as far as they run: this module waits for them."""
    owners = (_forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    return {pid for pid in owners if pid is not None}


def pid() -> int | None:
    """The forkserver; None where none has been started, or the last one has been waited for."""
    found: int | None = _forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return found


def suspended() -> bool:
    """Returns True if it is stopped (SIGSTOP) and cannot answer until it is continued."""
    server = pid()
    return server is not None and state_of(server) in ("T", "t")


def state_of(process: int) -> str:
    """The state of a process, as in `ps`: one letter; empty where there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def gone(patience: float) -> bool:
    """Returns True if it has ended, or does so within `patience` seconds. Blocks; it is not reaped yet."""
    server = pid()
    return server is None or _ended(server, patience)


def collect() -> int | None:
    """Waits for a forkserver that has ended, so that the next `run` starts another; its exit code, negative for a
    signal. None where it still runs, or another caller was first."""
    server: Any = _forkserver._forkserver
    with server._lock:
        number = server._forkserver_pid
        if number is None or not _ended(number, 0):
            return None
        code = _wait(number)
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = server._forkserver_pid = None
    return code


def kill() -> None:
    """Ends it at once. Device processes live on, and the next `run` starts another."""
    server = pid()
    if server is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def stop() -> None:
    """Ends the forkserver and the resource tracker, and waits for them; one that does not end by itself, because it is
    stopped for one, is killed."""
    server: Any = _forkserver._forkserver
    tracker: Any = resource_tracker._resource_tracker
    with server._lock:
        address, number = server._forkserver_address, server._forkserver_pid
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)  # that asks it to end
        server._forkserver_alive_fd = server._forkserver_pid = server._forkserver_address = None
    _leave(address)
    with tracker._lock:
        numbers = (number, tracker._pid)
        if tracker._fd is not None:
            os.close(tracker._fd)
        tracker._fd = tracker._pid = None
    deadline = time.monotonic() + _END_S
    for each in numbers:
        if each is not None:
            stopped = state_of(each) in ("T", "t")
            if not _ended(each, 0 if stopped else deadline - time.monotonic()):
                os.kill(each, signal.SIGKILL)
            _wait(each)


def abandon() -> None:
    """Kills and reaps the forkserver at once, when it is not needed after all."""
    kill()
    stop()


_END_S = 2.0
"""Seconds that the forkserver and the resource tracker have to end by themselves."""


def _ended(child: int, patience: float) -> bool:
    """Returns True if the child has ended, or does so within `patience` seconds; it is not reaped."""
    try:
        descriptor = os.pidfd_open(child)
    except OSError:  # there is no such process, or no descriptor to be had
        return state_of(child) in ("", "Z", "X")
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, patience) * 1000))
    finally:
        os.close(descriptor)


def _wait(child: int) -> int | None:
    """The exit code of a child that has ended or is about to; None where it was waited for already."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:
        return None
