"""Child processes: workers, the daemon under test, the baseline's server. The parent itself never loads CUDA."""

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
"""Seconds for one worker."""


class BenchError(Exception):
    """A side could not be measured."""


def memory_kib(pid: int) -> dict[str, int]:
    """Returns a process's memory in KiB, by the names of smaps_rollup: Rss, Pss (shared memory counts as a share),
    Private_Dirty. Raises `OSError` where it has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without Hearth's settings, and with caches that are empty when the run starts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEARTH_")}
    kept["CUPY_CACHE_DIR"] = str(folder / "cupy")
    return kept | dict(extra or {})


class Child:
    """A process in a separate group, ended with everything that it started."""

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
        """The next line that is wanted. Raises `BenchError` where the process ends or is silent for too long."""
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
        """Lets a worker that is `ready` start at that `time.monotonic()`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{start}\n".encode())
        self.process.stdin.flush()

    def result(self) -> Any:
        """Returns the worker's result."""
        return json.loads(self.line(lambda text: text.startswith(worker.RESULT), TIMEOUT).removeprefix(worker.RESULT))

    def end(self, politely: float = 0.0) -> None:
        """Ends it: SIGTERM and `politely` seconds first, where given."""
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
        """The last lines of its stderr."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return "it said: " + " | ".join(lines[-4:]) if lines else "it said nothing on stderr"


@dataclass(frozen=True)
class Daemon:
    """A daemon that serves."""

    tcp: str
    unix: str
    child: Child
    http: str = ""

    def device_pids(self) -> list[int]:
        """Returns the ids of its device processes, where it serves HTTP."""
        with urllib.request.urlopen(f"http://{self.http}/status", timeout=20) as answer:
            return [device["pid"] for device in json.load(answer)["devices"] if device["pid"]]

    def resident_mib(self) -> float:
        """Resident memory of the front, in MiB."""
        with contextlib.suppress(OSError):
            return memory_kib(self.child.process.pid)["Rss"] / 1024
        raise BenchError(f"the daemon has ended; {self.obituary()}")

    def obituary(self) -> str:
        """Returns the cause of its end; empty while it serves."""
        status = self.child.process.poll()
        return "" if status is None else f"the daemon ended with {status}; {self.child.said()}"


def start_worker(function: str, arguments: Mapping[str, Any], env: Mapping[str, str]) -> Child:
    """`function` is "module:function" below tests.bench."""
    return Child(["-m", "tests.bench.worker", f"tests.bench.{function}", json.dumps(dict(arguments))], env)


def run_worker(function: str, arguments: Mapping[str, Any], env: Mapping[str, str]) -> Any:
    """Runs one worker; what it returned."""
    return run_together(function, [arguments], env, barrier=False)[0]


def run_together(
    function: str, arguments: Sequence[Mapping[str, Any]], env: Mapping[str, str], *, barrier: bool
) -> list[Any]:
    """Runs a worker for each of `arguments` at once, from a common start where there is a `barrier`."""
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
    folder: Path, backend: str, cpu_count: int, settings: Mapping[str, str] | None = None, *, http: str = ""
) -> Iterator[Daemon]:
    """A daemon on separate sockets; `settings` are variables of its environment, `http` where it serves HTTP."""
    with tempfile.TemporaryDirectory(prefix="daemon-", dir=folder) as own:
        socket = f"{own}/hearth.sock"
        env = environment(folder, {"HEARTH_CACHE_DIR": str(folder / "cache"), **(settings or {})})
        command = ["-m", "hearthd", "serve", "--grpc", "127.0.0.1:0", "--http", http, "--unix", socket]
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
    """The bare grpc.aio server of the baselines: its TCP and its Unix target."""
    with tempfile.TemporaryDirectory(prefix="echo-", dir=folder) as own:
        child = Child(["-m", "tests.bench.echo_server", f"{own}/echo.sock"], environment(folder))
        try:
            said = child.line(lambda text: text.startswith("ready "), 30)
            yield f"127.0.0.1:{said.split()[1]}", f"unix:{own}/echo.sock"
        finally:
            child.end(politely=5)
