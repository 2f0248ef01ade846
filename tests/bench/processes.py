"""Child processes: workers, the daemon under test, the baseline's server. The parent process never loads CUDA."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import worker

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 180.0
"""Timeout of one worker in seconds."""


class BenchError(Exception):
    """Raised if a side could not be measured."""


def memory_kib(pid: int) -> dict[str, int]:
    """Returns a process's memory in KiB, by the names of smaps_rollup: Rss, Pss (each process's share of shared
    memory), Private_Dirty. Raises `OSError` if the process has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment without Hearth's settings, and with caches that are empty at the start of the
    run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
    kept["CUPY_CACHE_DIR"] = str(folder / "cupy")
    return kept | dict(extra or {})


class Child:
    """A process in a separate group, which is ended together with everything that it started."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], python: str = sys.executable) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [python, *command],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._buffer = b""

    def line(self, wanted: Callable[[str], bool], timeout: float) -> str:
        """Returns the next line for which `wanted` is true. Raises `BenchError` if the process ends, or writes nothing
        before the timeout."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                head, newline, rest = self._buffer.partition(b"\n")
                if newline:
                    self._buffer = rest
                    text = head.decode(errors="replace")
                    if wanted(text):
                        return text
                    continue
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BenchError(f"{self._name()} said nothing for {timeout:g} s; {self.said()}")
                more = os.read(self.process.stdout.fileno(), 1 << 16)
                if not more:
                    raise BenchError(f"{self._name()} ended with {self.process.wait()}; {self.said()}")
                self._buffer += more

    def go(self, start: float) -> None:
        """Signals a worker that is `ready` to start at the given `time.monotonic()`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{start}\n".encode())
        self.process.stdin.flush()

    def result(self) -> Any:
        """Returns the worker's result."""
        return json.loads(self.line(lambda text: text.startswith(worker.RESULT), TIMEOUT).removeprefix(worker.RESULT))

    def end(self, politely: float = 0.0) -> None:
        """Ends the process. If `politely` is given, sends SIGTERM first and waits for that number of seconds."""
        if politely and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(politely)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _name(self) -> str:
        return " ".join(str(part) for part in self.process.args[1:4])  # type: ignore[index]

    def said(self) -> str:
        """Returns the last lines of its stderr as text."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return "it said: " + " | ".join(lines[-4:]) if lines else "it said nothing on stderr"


@dataclass(frozen=True)
class Daemon:
    """A running daemon."""

    tcp: str
    unix: str
    child: Child
    http: str = ""

    def device_pids(self) -> list[int]:
        """Returns the ids of its device processes; requires that it serves HTTP."""
        with urllib.request.urlopen(f"http://{self.http}/status", timeout=20) as answer:
            return [device["pid"] for device in json.load(answer)["devices"] if device["pid"]]

    def resident_mib(self) -> float:
        """Returns the resident memory of the front in MiB."""
        with contextlib.suppress(OSError):
            return memory_kib(self.child.process.pid)["Rss"] / 1024
        raise BenchError(f"the daemon has ended; {self.obituary()}")

    def obituary(self) -> str:
        """Returns the cause of its end; empty while it runs."""
        status = self.child.process.poll()
        return "" if status is None else f"the daemon ended with {status}; {self.child.said()}"


def start_worker(function: str, arguments: Mapping[str, Any], env: Mapping[str, str]) -> Child:
    """Starts a worker; `function` is "module:function" below tests.bench."""
    return Child(["-m", "tests.bench.worker", f"tests.bench.{function}", json.dumps(dict(arguments))], env)


def run_worker(function: str, arguments: Mapping[str, Any], env: Mapping[str, str]) -> Any:
    """Runs one worker; returns its result."""
    return run_together(function, [arguments], env, barrier=False)[0]


def run_together(
    function: str, arguments: Sequence[Mapping[str, Any]], env: Mapping[str, str], *, barrier: bool
) -> list[Any]:
    """Runs a worker for each of `arguments` concurrently; with `barrier` they start at the same time."""
    children: list[Child] = []
    try:
        children.extend(start_worker(function, each, env) for each in arguments)
        if barrier:
            for child in children:
                child.line(lambda text: text == worker.READY, TIMEOUT)
            start = time.monotonic() + 0.1
            for child in children:
                child.go(start)
        results = [child.result() for child in children]
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(20)
        return results
    finally:
        for child in children:
            child.end()


@contextlib.contextmanager
def daemon(
    folder: Path,
    backend: str,
    cpu_count: int,
    settings: Mapping[str, str] | None = None,
    *,
    http: str = "",
    module: str = "hearthd",
) -> Iterator[Daemon]:
    """Runs a daemon on separate sockets. `settings` are variables of its environment; `http` is the address at which it
    serves HTTP, if any; `module` is the main module, which takes the arguments of `hearthd`."""
    with tempfile.TemporaryDirectory(prefix="daemon-", dir=folder) as own:
        socket = f"{own}/hearth.sock"
        env = environment(folder, {"HEARTH_CACHE_DIR": str(folder / "cache"), **(settings or {})})
        command = ["-m", module, "serve", "--grpc", "127.0.0.1:0", "--http", http, "--unix", socket]
        command += ["--lanes", "127.0.0.1:0", "--backend", backend, "--cpu-count", str(cpu_count)]
        command += ["--log-level", "warning"]
        child = Child(command, env)
        try:
            said = child.line(lambda text: text.startswith("hearthd ready"), 120)
            addresses = dict(part.partition("=")[::2] for part in said.split() if "=" in part)
            yield Daemon(addresses["grpc"], f"unix:{socket}", child, addresses.get("http", ""))
        finally:
            child.end(politely=20)


@contextlib.contextmanager
def echo_server(folder: Path) -> Iterator[tuple[str, str]]:
    """Runs the bare grpc.aio server of the baselines; yields its TCP target and its Unix target."""
    with tempfile.TemporaryDirectory(prefix="echo-", dir=folder) as own:
        child = Child(["-m", "tests.bench.echo_server", f"{own}/echo.sock"], environment(folder))
        try:
            said = child.line(lambda text: text.startswith("ready "), 30)
            yield f"127.0.0.1:{said.split()[1]}", f"unix:{own}/echo.sock"
        finally:
            child.end(politely=5)
