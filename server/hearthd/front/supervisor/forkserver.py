"""The forkserver: the process from which device processes are forked, with their modules already imported.

Its imports take as long as those of the front. `begin` therefore starts it before anything else, with a guess at the
backend if the backend is not known yet. After a wrong guess, device processes import the missing modules themselves,
which takes longer.
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
"""Modules to import, by backend. A device process imports modules that are missing here by itself."""
_DRIVER = Path("/dev/nvidiactl")


def preload(backend: str) -> None:
    """Sets the modules that the forkserver imports from its next start on."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOAD, *PRELOAD_OF[backend]])


def begin(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Starts the forkserver for `hearthd serve` with these arguments."""
    preload(guess(arguments, environ))
    run()


def guess(arguments: Sequence[str], environ: Mapping[str, str], driver: Path = _DRIVER) -> str:
    """Returns the backend that the command line and environment seem to select.

    Raises nothing: errors in them are reported by the code that parses them later.
    """
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
    """Returns the last value of a flag. Empty: the flag is not given."""
    last_value = ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = argument.partition("=")
        if name in names:
            last_value = value if equals else following
    return last_value


def run() -> None:
    """Starts the forkserver if none runs, and removes its socket from the file system.

    The socket would stay there if this process were killed. It remains reachable through a descriptor that is kept
    open.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))  # ensure_running does not unblock SIGHUP
    resource_tracker.ensure_running()  # unblocks the other signals, so it is called first
    signal.pthread_sigmask(signal.SIG_BLOCK, _FRONT_SIGNALS)
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    server: Any = _forkserver._forkserver
    previous = server._forkserver_pid, server._forkserver_address
    scratch = Scratch("hearth-forkserver-")
    # The directory is named by descriptor: a socket's path has at most 107 bytes, and `TMPDIR` may be longer.
    directory = os.open(scratch.room(), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    config["tempdir"] = f"{_BY_DESCRIPTOR}{directory}"
    try:
        _forkserver.ensure_running()
        if server._forkserver_pid != previous[0]:
            _close_address(previous[1])
            descriptor = os.open(server._forkserver_address, os.O_PATH | os.O_CLOEXEC)
            server._forkserver_address = f"{_BY_DESCRIPTOR}{descriptor}"
    finally:
        config.pop("tempdir", None)
        os.close(directory)
        scratch.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_BY_DESCRIPTOR = "/proc/self/fd/"
_FRONT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that only the front may act on. Ctrl-C in a terminal, the closing of a terminal and many service managers
signal the whole process group. The forkserver inherits these signals as blocked, its children ignore them, and the
front ends them all. The front blocks the signals while it starts the forkserver instead of ignoring them, so that a
signal that arrives at that moment is not lost."""


def _close_address(address: str | None) -> None:
    """Closes the descriptor in the address of a forkserver that has ended."""
    if address is not None and address.startswith(_BY_DESCRIPTOR):
        os.close(int(address.removeprefix(_BY_DESCRIPTOR)))


def pids() -> set[int]:
    """Returns the pids of the forkserver and the resource tracker if they run. This module waits for both processes."""
    owners = (_forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid)  # type: ignore[attr-defined]
    return {pid for pid in owners if pid is not None}


def pid() -> int | None:
    """Returns the pid of the forkserver. None: none has been started, or the last one has been reaped."""
    number: int | None = _forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return number


def suspended() -> bool:
    """Returns True if the forkserver is stopped (SIGSTOP) and cannot answer until it is continued."""
    server = pid()
    return server is not None and state_of(server) in ("T", "t")


def state_of(process: int) -> str:
    """Returns the state of a process as one letter, as in `ps`. Empty: there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def has_ended(time_limit: float) -> bool:
    """Returns True if the forkserver has ended, or ends within `time_limit` seconds.

    Blocks. Does not reap the process.
    """
    server = pid()
    return server is None or _has_ended(server, time_limit)


def reap() -> int | None:
    """Reaps a forkserver that has ended, so that the next `run` starts another.

    Returns its exit code, negative for a signal. None: it still runs, or another caller has reaped it.
    """
    server: Any = _forkserver._forkserver
    with server._lock:
        number = server._forkserver_pid
        if number is None or not _has_ended(number, 0):
            return None
        code = _wait(number)
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = server._forkserver_pid = None
    return code


def kill() -> None:
    """Kills the forkserver. Device processes continue to run, and the next `run` starts another forkserver."""
    server = pid()
    if server is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def stop() -> None:
    """Ends the forkserver and the resource tracker, and waits for them.

    A process that does not end by itself, for example because it is stopped, is killed.
    """
    server: Any = _forkserver._forkserver
    tracker: Any = resource_tracker._resource_tracker
    with server._lock:
        address, number = server._forkserver_address, server._forkserver_pid
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)  # the end of this pipe asks the forkserver to end
        server._forkserver_alive_fd = server._forkserver_pid = server._forkserver_address = None
    _close_address(address)
    with tracker._lock:
        children = (number, tracker._pid)
        if tracker._fd is not None:
            os.close(tracker._fd)
        tracker._fd = tracker._pid = None
    deadline = time.monotonic() + _END_TIMEOUT_S
    for child in children:
        if child is not None:
            stopped = state_of(child) in ("T", "t")
            if not _has_ended(child, 0 if stopped else deadline - time.monotonic()):
                os.kill(child, signal.SIGKILL)
            _wait(child)


def abandon() -> None:
    """Kills and reaps the forkserver immediately. Used if no device process is needed after all."""
    kill()
    stop()


_END_TIMEOUT_S = 2.0
"""Time, in seconds, for the forkserver and the resource tracker to end by themselves."""


def _has_ended(child: int, time_limit: float) -> bool:
    """Returns True if the child has ended, or ends within `time_limit` seconds. Does not reap the child."""
    try:
        descriptor = os.pidfd_open(child)
    except OSError:  # there is no such process, or no free descriptor
        return state_of(child) in ("", "Z", "X")
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(0.0, time_limit) * 1000))
    finally:
        os.close(descriptor)


def _wait(child: int) -> int | None:
    """Waits for a child that has ended or is about to, and returns its exit code. None: it has been reaped already."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:
        return None
