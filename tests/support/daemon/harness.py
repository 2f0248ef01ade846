"""A daemon in a separate process, and its observable state."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

import hearth
from hearthd.confinement.support import support
from tests.support.daemon.forked import Forked, ForkServer
from tests.support.daemon.tenants import new_token, token_hash
from tests.support.folders import short_folder

BACKEND = os.environ.get("HEARTH_TEST_BACKEND", "cpu")
"""The backend of every daemon of the tests: "cpu", or "cuda" on a machine with GPUs."""

on_cpu = pytest.mark.skipif(BACKEND != "cpu", reason="only the CPU backend has this (HEARTH_TEST_BACKEND)")
on_gpu = pytest.mark.skipif(BACKEND != "cuda", reason="only the CUDA backend has this (HEARTH_TEST_BACKEND)")

OBSERVER = "tests-observer"
OPEN = {"HEARTH_DEBUGGABLE": "1"} if os.geteuid() else {}
"""Makes the daemon's processes readable in /proc. Tests read it, and only the superuser can read it for protected
processes."""

MARK = "DAEMON_TEST_MARK"
"""An environment variable of every process that these daemons start: it identifies processes that outlive their
daemon."""

DEVICES = int(os.environ.get("HEARTH_TEST_DEVICES", "0"))
"""Number of devices of every daemon on the CPU backend, as on a host with this number of GPUs; 0: the number that the
test requests."""

UNRETRIEVED = ("never retrieved", "was destroyed but it is pending", "was never awaited")
"""Phrases that a daemon's log must not contain."""

START_S = 120.0
STOP_S = 20.0


class Page(NamedTuple):
    """The response to an HTTP request."""

    status: int
    body: str
    content_type: str


def environment(**more: str) -> dict[str, str]:
    """Returns this process's environment without the variables that configure a daemon or a client."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
    return {**kept, **more}


def toml(config: Mapping[str, Any]) -> str:
    """Returns sections as TOML text, with keys outside sections first."""
    lines = [f"{key} = {_value(value)}" for key, value in config.items() if not isinstance(value, Mapping)]
    for name, section in config.items():
        if isinstance(section, Mapping):
            lines += [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


_ENVIRONMENT = environment(**OPEN)


@functools.cache
def fork_server() -> ForkServer:
    """Returns the fork server of this process, which the first call starts."""
    server = ForkServer(_ENVIRONMENT, (MARK, "XDG_STATE_HOME", "PYTEST_CURRENT_TEST"))
    atexit.register(server.close)
    return server


def started(arguments: list[str], env: Mapping[str, str], stderr: IO[str] | int) -> subprocess.Popen[str]:
    """Starts `python -m` with these arguments: by a fork if the result is the same as with a new interpreter."""
    if BACKEND == "cpu" and fork_server().suits(env):
        return Forked(fork_server(), arguments, env, stderr)
    command = [sys.executable, "-m", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)


def hearthd(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command of `hearthd` until it ends."""
    with started(["hearthd", *arguments], env or environment(**OPEN), subprocess.PIPE) as process:
        try:
            stdout, stderr = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def alive(pid: int) -> bool:
    """Returns whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def marked(mark: str) -> list[int]:
    """Returns the pids of the processes whose environment has the mark."""
    variable = f"{MARK}={mark}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if variable in (entry / "environ").read_bytes().split(b"\0") and alive(int(entry.name)):
                    pids.append(int(entry.name))
    return pids


def needs_devices(daemon: DaemonProcess, count: int) -> None:
    """Skips the test if the daemon has fewer than `count` devices."""
    device_count = len(daemon.ordinals())
    if device_count < count:
        pytest.skip(f"needs {count} devices; the daemon has {device_count}")


def wait_until(condition: Callable[[], Any], subject: str = "it", seconds: float = 20.0) -> Any:
    """Polls until `condition` returns a true value, and returns that value; for conditions that no event announces.
    After half a second it polls less often, because a page of status costs the daemon milliseconds."""
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"{subject} was not reached within {seconds:g} s"
        time.sleep(0.005 if waited < 0.5 else 0.02)
    return value


_LIMIT = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
os.execv(sys.argv[2], sys.argv[2:])
"""


def _limited(open_files: int) -> list[str]:
    """Returns the start of a command line that lowers the limit of descriptors in the new process. The parent cannot do
    it, because it may already have more descriptors open."""
    return [sys.executable, "-I", "-S", "-c", _LIMIT, str(open_files)] if open_files else []


class DaemonProcess:
    """`hearthd serve` on free ports and a separate socket, or on those of a daemon that has ended (`after`). `config`
    holds sections of settings."""

    def __init__(
        self,
        cache: Path,
        config: Mapping[str, Any] | None = None,
        cpu_count: int = 2,
        after: DaemonProcess | None = None,
        open_files: int = 0,
        fresh: bool = False,
    ) -> None:
        """`open_files` is the limit of descriptors, soft and hard; 0: inherited. `fresh` starts a new interpreter, as
        users do, for tests that measure processes, memory or the start; otherwise the daemon may be forked
        (`fork_server.py`)."""
        self.mark = uuid.uuid4().hex
        self.token = ""
        """Default bearer token of HTTP requests. `status` and the methods that use it need the token of an operator."""
        self.folder = short_folder() if after is None else after.folder
        self.socket = self.folder / "hearth.sock"
        self.log_path = self.folder / "log"
        self.observer = new_token() if after is None else after.observer
        """The token of a tenant that may only read the status; used by `status` if the daemon has tenants."""
        self._tenants = bool((config or {}).get("tenants"))
        self.config_path = self.folder / "hearth.toml"
        self.config_path.write_text(toml(self.settings(cache, config or {})))
        arguments = ["--config", str(self.config_path), "--backend", BACKEND]
        arguments += ["--cpu-count", str(DEVICES or cpu_count)]
        grpc, http = ("127.0.0.1:0",) * 2 if after is None else (after.grpc, after.http)
        arguments += ["--grpc", grpc, "--http", http, "--unix", str(self.socket)]
        with self.log_path.open("w") as log:
            self.process = self._begin(["hearthd", "serve", *arguments], log, open_files, fresh)
        overdue = threading.Timer(START_S, self.process.kill)
        overdue.start()
        try:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
        finally:
            overdue.cancel()
        if not line.startswith("hearthd ready"):
            log_text = self.log()
            self.stop()
            raise AssertionError(f"the daemon did not start: {line!r}\n{log_text}")
        addresses = dict(pair.split("=", 1) for pair in line.split()[2:])
        self.grpc, self.http, self.unix = addresses["grpc"], addresses["http"], f"unix:{addresses['unix']}"
        self.lanes = addresses.get("lanes", "")

    def _begin(self, arguments: list[str], log: IO[str], open_files: int, fresh: bool) -> subprocess.Popen[str]:
        env = environment(**OPEN, **{MARK: self.mark, "XDG_STATE_HOME": str(self.folder / "state")})
        if not (fresh or open_files):
            return started(arguments, env, log)
        command = [*_limited(open_files), sys.executable, "-m", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)

    def settings(self, cache: Path, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the sections of the configuration file: those of `config`, and the defaults of the tests."""
        # Tenants share compiled modules, so that each kernel is compiled once for all tests.
        settings = {"cache": {"dir": str(cache), "shared": True}, "drain_timeout": "0s", **config}
        shared = settings.get("devices", {}).get("isolation") == "shared"
        if "tenants" in settings and (support().lacking or shared):  # the CPU backend would otherwise refuse tenants
            settings["devices"] = {"cpu_tenants": "trusted", **settings.get("devices", {})}
        if "tenants" in settings and support().lacking:
            settings["compile"] = {"tenants": "trusted", **settings.get("compile", {})}
        # tests read metrics directly after the action that changes them
        settings["http"] = {"metrics_max_age": "0s", **settings.get("http", {})}
        settings["listen"] = {"lanes": "127.0.0.1:0", **settings.get("listen", {})}
        if settings.get("tenants"):
            observer = {"name": OBSERVER, "tokens": [token_hash(self.observer)], "rights": ["observe"]}
            settings["tenants"] = [*settings["tenants"], observer]
        return settings

    # ---- output of the daemon ----

    def log(self) -> str:
        """Returns the complete lines of the log; the last one may be half written while the daemon runs."""
        running = self.process.poll() is None
        text = self.log_path.read_text(errors="replace")
        return text[: text.rfind("\n") + 1] if running else text

    def log_entries(self) -> list[dict[str, Any]]:
        """Returns the structured entries of the log."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def get(self, path: str, token: str = "") -> Page:
        """Gets a page over HTTP, also one with an error status."""
        token = token or self.token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://{self.http}{path}", headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=10) as answer:
                return Page(answer.status, answer.read().decode(), answer.headers.get("Content-Type", ""))
        except urllib.error.HTTPError as error:
            with error:
                return Page(error.code, error.read().decode(), error.headers.get("Content-Type", ""))

    def status(self) -> Any:
        page = self.get("/status", self.token or (self.observer if self._tenants else ""))
        assert page.status == 200, page
        return json.loads(page.body)

    def ordinals(self) -> list[int]:
        """Returns the ordinals of the daemon's devices."""
        return [device["ordinal"] for device in self.status()["devices"]]

    def device_pid(self, ordinal: int = 0) -> int:
        """Returns the process id of a device that serves. Never returns 0, with which `os.kill` would signal the test's
        own process group."""
        pid: int = self.status()["devices"][ordinal]["pid"]
        assert pid > 0, f"device {ordinal} has no process"
        return pid

    def generation(self, ordinal: int = 0) -> int:
        """Returns the generation of a device."""
        number: int = self.status()["devices"][ordinal]["generation"]
        return number

    def gauge(self, name: str, ordinal: int = 0) -> float:
        """Returns a gauge of a device process; -1 if its gauges are unknown. A serving process that is too busy to
        answer is asked again for up to 20 s."""
        deadline = time.monotonic() + 20
        while True:
            device = self.status()["devices"][ordinal]
            if device["gauges"] or device["state"] != "serving" or time.monotonic() > deadline:
                value: float = device["gauges"].get(name, -1)
                return value

    def metrics_with(self, name: str) -> str:
        """Returns the page of metrics, with at least one sample of a gauge of a device process. A process that is too
        busy to answer is asked again."""

        def complete() -> str:
            page = self.get("/metrics").body
            return page if f"\n{name}{{" in page else ""

        page: str = wait_until(complete, f"{name} among the metrics")
        return page

    def counter(self, name: str, ordinal: int | None = None) -> float:
        """Returns a counter of one device process, or the sum over all of them."""
        devices = self.status()["devices"]
        chosen = devices if ordinal is None else [devices[ordinal]]
        return sum(device["counters"].get(name, 0) for device in chosen)

    def connect(self, **options: Any) -> hearth.Node:
        return hearth.connect(self.unix, **options)

    # ---- end of the daemon ----

    def stop(self) -> int:
        """Sends SIGTERM, then SIGKILL if the daemon does not end; returns its exit code. A second call has no
        effect."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.returncode

    def left_behind(self) -> list[str]:
        """Returns everything that should not exist after `stop`: processes, sockets, and unexpected errors in the
        log."""
        deadline = time.monotonic() + STOP_S
        while (pids := marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.01)
        leftovers = [f"process {pid}: {command_of(pid)}" for pid in pids]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # a daemon that was killed cannot remove its socket; the next daemon removes it
        if self.process.returncode == 0:
            leftovers += [str(path) for path in (self.socket, Path(f"{self.socket}.lock")) if path.exists()]
        return leftovers + self.unretrieved()

    def unretrieved(self) -> list[str]:
        """Returns asyncio's reports of exceptions that were never retrieved, that is, of futures and tasks that the
        daemon lost."""
        if not self.log_path.exists():
            return []
        return [line for line in self.log().splitlines() if any(phrase in line for phrase in UNRETRIEVED)]

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


StartDaemon = Callable[..., DaemonProcess]
"""Starts a private daemon; keywords are sections of its configuration (see the fixture `start_daemon`)."""


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone"


def processor_seconds(pid: int) -> float:
    """Returns the user and system time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shared_memory() -> set[str]:
    """Returns the names in /dev/shm that a daemon may have created."""
    try:
        return {
            entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(("hearth", "psm_", "sem.mp-"))
        }
    except OSError:
        return set()
