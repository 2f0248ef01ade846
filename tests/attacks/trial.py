"""An attack on a daemon that also serves a well-behaved tenant."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hearth_proto.calls import socket_path
from tests.attacks.rows import Budget, Row
from tests.attacks.target import Target
from tests.support.daemon.harness import DaemonProcess, environment
from tests.support.daemon.tenants import tenants

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = 0.05
"""Seconds between two samples of the front."""
SETTLE = 10.0
"""Seconds in which the front's resources must return to their previous level."""
END = 60.0
"""Seconds within which processes must end."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Outcome:
    """The cost of one attack."""

    before_mib: float
    growth_mib: float
    kept_mib: float
    descriptors: int
    """Maximum number of additional descriptors of the front."""
    descriptors_kept: int
    rate_before: float
    """Steps of the tenant per second before the attack."""
    rate: float
    p99_before_ms: float
    p99_ms: float
    longest_ms: float
    steps: int
    """Number of the tenant's steps that began during or after the attack."""
    errors: tuple[str, ...]
    """Errors of the tenant."""
    counts: dict[str, int]
    """Counts reported by the attacking processes, summed."""

    def breaches(self, budget: Budget, *, timed: bool = True) -> list[str]:
        """Returns the breaches of the budget, as sentences. Without `timed`, the tenant's rate and latency are not
        checked, because they depend on the load of the machine; a step after the attack suffices."""
        found = [f"the tenant had an error: {error}" for error in self.errors[:5]]
        if not (self.rate if timed else self.steps):
            found.append("the tenant made no step during the attack")
        if self.growth_mib > budget.growth_mib:
            found.append(f"the front grew by {self.growth_mib:.0f} MiB; allowed are {budget.growth_mib:g}")
        if self.kept_mib > budget.kept_mib:
            found.append(f"the front kept {self.kept_mib:.0f} MiB; allowed are {budget.kept_mib:g}")
        if self.descriptors_kept > budget.descriptors:
            found.append(f"the front kept {self.descriptors_kept} descriptors; allowed are {budget.descriptors}")
        if timed and self.p99_ms > budget.slower * self.p99_before_ms:
            found.append(
                f"the tenant's 99th percentile rose from {self.p99_before_ms:.1f} to {self.p99_ms:.1f} ms; "
                f"allowed is a factor of {budget.slower:g}"
            )
        if timed and self.rate < budget.rate * self.rate_before:
            found.append(
                f"the tenant's rate fell from {self.rate_before:.0f} to {self.rate:.0f} steps/s; "
                f"allowed is a factor of {budget.rate:g}"
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Trial:
    """A daemon with a working tenant, for attacks with the same configuration. A context manager."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        open_files: int = 0,
        via: str = "unix",
        cache: Path | None = None,
    ) -> None:
        """`open_files` is the daemon's limit of descriptors, 0: inherited; `via` is the listener that the tenant uses;
        `cache` is a folder of compiled kernels that trials share, None: an empty one."""
        self._config = dict(config or {})
        self._open_files = open_files
        self._via = via
        self._cache = cache
        self._parts = contextlib.ExitStack()

    @classmethod
    def of(cls, row: Row, cache: Path | None = None) -> Trial:
        return cls(row.config, row.open_files, row.via, cache)

    def __enter__(self) -> Trial:
        sections, tokens = tenants("worker", "other", **self._config)
        with contextlib.ExitStack() as parts:
            cache = self._cache or Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="hearth-attacks-")))
            self.daemon = DaemonProcess(cache, sections, 1, open_files=self._open_files, fresh=True)
            parts.callback(self._stop)
            address = self.daemon.unix if self._via == "unix" else self.daemon.grpc
            self.tokens = tokens
            self.target = target_of(self.daemon)
            self._tenant = parts.enter_context(_Tenant(address, tokens["worker"]))
            self._front = parts.enter_context(_Front(self.target.pid))
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def _stop(self) -> None:
        self.daemon.stop()
        left = self.daemon.left_behind()
        self.daemon.remove()
        assert not left, f"not released: {left}"

    def run(self, row: Row, seconds: float, *, calm: float | None = None) -> Outcome:
        """Runs `row` for `seconds`, after `calm` seconds (default: `seconds`) without an attack."""
        with _Strangers(row, self.target, seconds) as strangers:
            began = time.monotonic()
            time.sleep(seconds if calm is None else calm)
            self._front.sample()
            attacked = time.monotonic()
            counts = strangers.attack()
            self._front.sample()
            ended = time.monotonic()
        before = self._front.most(began, attacked)
        during = self._front.most(attacked, ended)
        kept = self._front.settled(before, row.budget)
        report = self._tenant.report(attacked)
        calm_ms = [1000 * took for at, took in report["steps"] if began <= at < attacked]
        loud_ms = [1000 * took for at, took in report["steps"] if attacked <= at < ended]
        return Outcome(
            before_mib=before.memory / 2**20,
            growth_mib=(during.memory - before.memory) / 2**20,
            kept_mib=(kept.memory - before.memory) / 2**20,
            descriptors=during.descriptors - before.descriptors,
            descriptors_kept=kept.descriptors - before.descriptors,
            rate_before=len(calm_ms) / (attacked - began),
            rate=len(loud_ms) / (ended - attacked),
            p99_before_ms=percentile(calm_ms, 0.99),
            p99_ms=percentile(loud_ms, 0.99),
            longest_ms=max(loud_ms, default=0.0),
            steps=sum(at >= attacked for at, _ in report["steps"]),
            errors=tuple(text for at, text in report["errors"] if at >= began),
            counts=counts,
        )


def target_of(daemon: DaemonProcess) -> Target:
    """Returns the addresses of a daemon that listens on all of them."""
    path = str(daemon.socket)
    return Target(
        grpc=daemon.grpc,
        http=daemon.http,
        stripes=daemon.lanes,
        unix=path,
        calls=socket_path(path),
        lanes=f"{path}.lane",
        identity=str(daemon.socket.with_name("hearth-identity.sock")),
        pid=daemon.process.pid,
    )


def percentile(values: Sequence[float], part: float) -> float:
    """Returns the value that the fraction `part` of `values` does not exceed; 0.0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


class _Strangers:
    """The processes of an attack, which wait until it starts."""

    def __init__(self, row: Row, target: Target, seconds: float) -> None:
        self._seconds = seconds
        command = [sys.executable, "-m", "tests.attacks.stranger", row.name, str(seconds), target.to_json()]
        self._processes = [
            subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment()
            )
            for _ in range(row.strangers)
        ]

    def __enter__(self) -> _Strangers:
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "an attack failed before it began"
        return self

    def attack(self) -> dict[str, int]:
        """Runs the whole attack; returns the summed counts of all processes."""
        counts: dict[str, int] = {}
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("begin\n")
            process.stdin.flush()
        for process in self._processes:
            text, _ = process.communicate(timeout=self._seconds + END)
            assert process.returncode == 0, "the process of an attack failed"
            for name, count in json.loads(text or "{}").items():
                counts[name] = counts.get(name, 0) + count
        return counts

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def child_environment() -> dict[str, str]:
    """Returns the environment of processes that import this package and the client."""
    return environment(PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


class _Tenant:
    """The process of the well-behaved tenant, which has completed its first step."""

    def __init__(self, target: str, token: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.well_behaved", target, token],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=child_environment(),
        )  # fmt: skip

    def __enter__(self) -> _Tenant:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", f"the tenant did not start: {line!r}"
        return self

    def report(self, since: float) -> dict[str, Any]:
        """Returns the steps and errors since the last report. Blocks until the tenant has made a step that began at
        `since` or later, for at most `END` seconds."""
        report, deadline = self._report(), time.monotonic() + END
        while not any(at >= since for at, _ in report["steps"]) and time.monotonic() < deadline:
            more = self._report()
            report = {name: report[name] + more[name] for name in report}
        return report

    def _report(self) -> dict[str, Any]:
        """Returns the steps and errors since the last report. Blocks until the current step has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("report\n")
        self._process.stdin.flush()
        overdue = threading.Timer(END, self._process.kill)
        overdue.start()
        try:
            line = self._process.stdout.readline()
        finally:
            overdue.cancel()
        assert line, f"the tenant ended early, or made no step for {END:g} s"
        found: dict[str, Any] = json.loads(line)
        return found

    def __exit__(self, *_: object) -> None:
        try:
            self._process.communicate("", timeout=END)
        finally:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class _Reading:
    memory: int
    descriptors: int


class _Front:
    """Samples the front's resident memory and descriptors in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._readings: list[tuple[float, _Reading]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Front:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE):
            self.sample()

    def sample(self) -> None:
        """Adds a reading, unless the front has ended."""
        with contextlib.suppress(OSError):
            self._readings.append((time.monotonic(), self._read()))

    def _read(self) -> _Reading:
        folder = Path(f"/proc/{self._pid}")
        return _Reading(
            int((folder / "statm").read_text().split()[1]) * _PAGE, sum(1 for _ in (folder / "fd").iterdir())
        )

    def most(self, begin: float, end: float) -> _Reading:
        """Returns the maximum of each value between `begin` and `end`."""
        inside = [reading for at, reading in self._readings if begin <= at <= end]
        assert inside, "the front was not sampled"
        return _Reading(max(each.memory for each in inside), max(each.descriptors for each in inside))

    def settled(self, before: _Reading, budget: Budget) -> _Reading:
        """Waits until the reading is within the budget relative to `before`, for at most `SETTLE` seconds; returns the
        last reading."""
        deadline = time.monotonic() + SETTLE
        while True:
            now = self._read()
            well = (
                now.memory - before.memory <= budget.kept_mib * 2**20
                and now.descriptors - before.descriptors <= budget.descriptors
            )
            if well or time.monotonic() > deadline:
                return now
            time.sleep(SAMPLE)
