"""Resources that a daemon's processes hold, to be compared with an earlier state."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.daemon.harness import DaemonProcess, marked, wait_until


@dataclass(frozen=True)
class Held:
    """Resources of one process."""

    fds: dict[str, int]
    """Number of open files by kind."""
    threads: int
    private_kib: int
    """Memory that only this process uses, in KiB."""
    maps: int


def held_by(pid: int) -> Held:
    """Returns the resources of a process. Raises OSError if the process has ended."""
    folder = Path(f"/proc/{pid}")
    kinds: Counter[str] = Counter()
    for entry in (folder / "fd").iterdir():
        with contextlib.suppress(OSError):
            kinds[_kind(str(entry.readlink()))] += 1
    rollup = (folder / "smaps_rollup").read_text()
    private = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    threads = sum(1 for _ in (folder / "task").iterdir())
    return Held(dict(kinds), threads, private, len((folder / "maps").read_text().splitlines()))


def _kind(link: str) -> str:
    kind, bracket, _ = link.partition("[")  # "socket:[123]"
    if bracket:
        return kind
    return link if link.startswith(("/memfd", "anon_inode")) else "file"


@dataclass(frozen=True)
class State:
    """Resources of all processes of a daemon."""

    front: Held
    devices: list[Held]
    gauges: list[dict[str, float]]
    streams: list[int]
    """Number of streams of each device that are kept for reuse."""
    processes: int
    sessions: int


GAUGES = (
    "sessions", "buffers", "modules", "graphs", "prepared_lists", "commands_waiting", "memory_in_use_bytes",
    "staging_bytes", "durable_bytes", "profiles_open", "traces_running", "buffers_published", "buffers_attached",
)  # fmt: skip
"""Gauges of resources that belong to sessions: without sessions all of them are 0."""


def state_of(daemon: DaemonProcess, token: str = "") -> State:
    """Returns the resources of the front, of each shared device process, and the gauges of sessions. `token` is an
    operator's token, required if the daemon has tenants."""
    status = _status(daemon, token)
    devices = status["devices"]
    return State(
        held_by(daemon.process.pid),
        [held_by(device["pid"]) for device in devices],
        [{name: device["gauges"][name] for name in GAUGES if name in device["gauges"]} for device in devices],
        [int(device["gauges"].get("streams", 0)) for device in devices],
        len(marked(daemon.mark)),
        len(status["sessions"]),
    )


def _status(daemon: DaemonProcess, token: str) -> Any:
    """Returns a status with the gauges of all devices that serve. The front leaves out those of a process that is too
    busy to answer."""

    def complete() -> Any:
        status = json.loads(daemon.get("/status", token).body)
        serving = (device for device in status["devices"] if device["state"] == "serving")
        return status if all(device["gauges"] for device in serving) else None

    return wait_until(complete, "a status with all gauges")
