"""Runs the soak test and writes its report: `python -m tests.soak --seconds 3600 --clients 16 --report soak.json`.

With `--strangers 4` every client is a separate tenant, and four processes without a credential attack the daemon in the
meantime, with one attack of `tests.attacks` after another. HEARTH_TEST_BACKEND=cuda runs the soak against GPUs. The
exit code is 0 if there were no problems.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.attacks import rows
from tests.attacks.trial import target_of
from tests.soak.pauses import Pauses
from tests.soak.sample import cpu, sample
from tests.soak.trouble import KILLED, KINDS
from tests.soak.watch import DESCRIPTORS, Watch
from tests.support.daemon.harness import BACKEND, DaemonProcess, environment, shared_memory
from tests.support.daemon.tenants import tenant, tenants

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = {
    "sessions": {"lease": "5s"},
    "devices": {"max_restarts": 1_000_000, "restart_window": "1s"},
    "collectives": {"timeout": "120s"},  # long enough for a busy machine
    "log": {"format": "json"},
}
KILL_S = (15.0, 45.0)
"""Range of seconds between two kills of the same client."""
LOUD = ("error", "critical", "exception")
ATTACK_S = 10.0
"""Seconds of each attack, which is followed by the next one."""


class Child:
    """A client's process, which is started again after it was killed or has ended."""

    def __init__(self, kind: str, number: int, seed: int, target: str, token: str = "") -> None:
        self.kind = kind
        self._credential = {"HEARTH_TOKEN": token} if token else {}
        self._arguments = [kind, str(number), str(seed), target]
        self.totals: collections.Counter[str] = collections.Counter()
        self.errors: list[str] = []
        self.ended_badly = 0
        self.next_kill = time.monotonic() + random.uniform(*KILL_S)
        self._spent = 0.0
        self._start()

    def _start(self) -> None:
        self._last: dict[str, Any] = {"counts": {}, "errors": []}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.client", *self._arguments],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment(
                PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", **self._credential
            ),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                self._last = json.loads(line)

    def _collect(self) -> None:
        self._reader.join(10)
        self.totals.update(self._last["counts"])
        self.errors += self._last["errors"]

    def tend(self) -> None:
        """Kills the process at its scheduled time, and starts it again if it has ended."""
        if self.kind in KILLED and time.monotonic() > self.next_kill:
            self.next_kill = time.monotonic() + random.uniform(*KILL_S)
            self._spent += cpu(self.process.pid)
            self.process.kill()
            self.process.wait()
            self._collect()
            self.totals["killed"] += 1
            self._start()
        elif self.process.poll() is not None:
            self.ended_badly += 1
            self._collect()
            self._start()

    def cpu(self) -> float:
        return self._spent + cpu(self.process.pid)

    def pace(self, factor: float) -> None:
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(f"{factor}\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the process has ended, which `tend` handles

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.errors.append("it did not end when asked to")
            self.process.kill()
            self.process.wait()
        self._collect()


class Stranger:
    """A process without a credential that attacks the daemon; after its end it is replaced by another one."""

    def __init__(self, target: str, seed: int) -> None:
        self._target = target
        self._random = random.Random(seed)
        self.attacks: collections.Counter[str] = collections.Counter()
        self.failed: list[str] = []
        self._start()

    def _start(self) -> None:
        row = self._random.choice([row for row in rows.load() if not row.config and not row.open_files])
        self.attacks[row.name] += 1
        self._row = row.name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.attacks.stranger", row.name, str(ATTACK_S), self._target],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
        )  # fmt: skip

    def tend(self) -> None:
        """Starts the next attack if the last one has ended."""
        code = self.process.poll()
        if code is not None:
            if code:
                self.failed.append(f"the attack {self._row} ended with {code}")
            self._start()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def tenanted(clients: int) -> tuple[dict[str, Any], list[str], str]:
    """Returns the configuration with a tenant for each client, the clients' tokens, and an operator's token."""
    names = [f"soak-{number}" for number in range(clients)]
    sections, tokens = tenants(tenant("operator", rights=["admin"]), *names)
    devices = {**CONFIG["devices"], "max_processes": 2 * clients + 4}
    return {**CONFIG, **sections, "devices": devices}, [tokens[name] for name in names], tokens["operator"]


def trouble(log: str) -> list[str]:
    """Returns the lines of the daemon's log that indicate a defect: tracebacks, and errors other than losses of
    faulting devices."""
    found = []
    for line in log.splitlines():
        if not line.startswith("{"):
            found.append(line)
            continue
        entry = json.loads(line)
        expected = entry.get("event") in ("device_lost", "worker_lost", "process_lost")
        if (entry.get("level") in LOUD and not expected) or "Traceback" in line:
            found.append(line)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--strangers", type=int, default=0, help="processes that attack meanwhile")
    parser.add_argument("--devices", type=int, default=2, help="of the CPU backend")
    parser.add_argument("--cores", type=float, default=0.7, help="most processor time, clients and daemon together")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--report", type=Path, default=Path("soak.json"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-pauses", dest="pauses", action="store_false", help="no process is ever stopped")
    chosen = parser.parse_args()
    random.seed(chosen.seed)
    segments = shared_memory()
    config, tokens, operator = tenanted(chosen.clients) if chosen.strangers else (CONFIG, [""] * chosen.clients, "")
    with tempfile.TemporaryDirectory(prefix="hearth-soak-") as cache:
        daemon = DaemonProcess(Path(cache), config, chosen.devices)
        daemon.token = operator
        try:
            report = soak(daemon, chosen, tokens)
        finally:
            code = daemon.stop()
            log = daemon.log()
            left = daemon.left_behind()
            daemon.remove()
    report["log"] = trouble(log)[:200]
    left += [f"/dev/shm/{name}" for name in shared_memory() - segments]
    problems = report["problems"]
    problems += [f"the daemon's log: {line[:500]}" for line in report["log"][:20]]
    problems += [f"not released: {what}" for what in left]
    if code != 0:
        problems.append(f"the daemon ended with {code}")
    report["verdict"] = "good" if not problems else "bad"
    chosen.report.write_text(json.dumps(report, indent=1))
    print(json.dumps({key: report[key] for key in ("verdict", "problems", "totals", "processes")}, indent=1))
    print(f"report: {chosen.report}")
    return 0 if not problems else 1


def soak(daemon: DaemonProcess, chosen: argparse.Namespace, tokens: list[str]) -> dict[str, Any]:
    """Runs the soak test; returns its report. `tokens` has a token for each client, empty if the daemon has no
    tenants."""
    watch = Watch(daemon, attacked=bool(chosen.strangers))
    idle = descriptors(daemon)
    kinds = list(KINDS)
    children = [
        Child(kinds[n % len(kinds)], n, chosen.seed * 1000 + n, daemon.unix, token) for n, token in enumerate(tokens)
    ]
    target = target_of(daemon).to_json()
    strangers = [Stranger(target, chosen.seed * 1000 + n) for n in range(chosen.strangers)]
    began, factor, used_before, at = time.monotonic(), 20.0, 0.0, time.monotonic()
    problems: list[str] = []
    pauses = Pauses(daemon, lambda: [child.process.pid for child in children], chosen.seed) if chosen.pauses else None
    try:
        while (left := chosen.seconds - (time.monotonic() - began)) > 0 and daemon.process.poll() is None:
            time.sleep(min(left, chosen.interval))
            watch.take()
            for each in (*children, *strangers):
                each.tend()
            used = sum(child.cpu() for child in children) + sum(cpu(pid) for pid in watch.courses)
            rate = (used - used_before) / max(0.1, time.monotonic() - at)
            used_before, at = used, time.monotonic()
            factor = min(500.0, max(1.0, factor * max(0.5, min(2.0, rate / chosen.cores))))
            for child in children:
                child.pace(factor)
    finally:
        for stranger in strangers:
            stranger.stop()
        if pauses is not None:
            pauses.stop()
        for child in children:
            child.stop()
    ended = daemon.process.poll()
    if ended is not None:
        problems.append(f"the daemon ended unexpectedly with {ended}")
    else:
        tenants = chosen.clients if chosen.strangers else 1
        problems += at_rest(daemon, idle + DESCRIPTORS + OF_A_PROCESS * tenants * chosen.devices)
    summaries, grown = watch.verdict(chosen.seconds)
    totals: collections.Counter[str] = collections.Counter()
    for child in children:
        totals.update(child.totals)
        totals["pauses"] = pauses.count if pauses is not None else 0
        problems += [f"client {child.kind}: {error}" for error in child.errors[:10]]
        if child.ended_badly:
            problems.append(f"client {child.kind} ended unexpectedly {child.ended_badly} times")
    attacks: collections.Counter[str] = collections.Counter()
    for stranger in strangers:
        attacks.update(stranger.attacks)
        problems += stranger.failed
    problems += [f"{totals[name]} results {name}" for name in ("lost", "duplicated", "wrong") if totals[name]]
    return {
        "backend": BACKEND,
        "seconds": chosen.seconds,
        "clients": chosen.clients,
        "attacks": dict(attacks),
        "cpu_seconds": round(used_before, 1),
        "problems": problems + grown,
        "totals": dict(totals),
        "by_client": [{"kind": child.kind, **child.totals} for child in children],
        "processes": summaries,
        "watch": watch.report(),
        "gauges": {"first": watch.gauges[:1], "last": watch.gauges[-1:]},
    }


OF_A_PROCESS = 3
"""Descriptors of the front for each device process. Those for a tenant's process remain after its sessions have
ended."""


def descriptors(daemon: DaemonProcess) -> int:
    """Returns the number of the front's open descriptors."""
    taken = sample(daemon.process.pid)
    return taken.fds if taken is not None else 0


def at_rest(daemon: DaemonProcess, most: int) -> list[str]:
    """Returns the resources that are still held after all clients have ended and the leases of killed ones are over.

    Args:
        most: Maximum number of descriptors of the front.
    """
    deadline = time.monotonic() + 20.0
    names = ("sessions", "buffers", "modules", "memory_in_use_bytes")
    held: list[str] = []
    while time.monotonic() < deadline:
        status = daemon.status()
        held = [
            f"device {device['ordinal']} holds {name} = {device['gauges'][name]} without a session"
            for device in status["devices"]
            for name in names
            if device["gauges"].get(name)
        ]
        if status["sessions"]:
            held.append(f"{len(status['sessions'])} sessions are left")
        if (found := descriptors(daemon)) > most:
            held.append(f"the front holds {found} descriptors; allowed are {most}")
        if not held:
            return []
        time.sleep(0.2)
    return held


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
