"""Memory and running kernels by session, from the last reports of a device's processes. Pure.

A process that serves several tenants runs their code, so its reports are not trusted: entries of unusable types are
left out, and a session counts only if the front knows that it uses the process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

MAX_KERNELS = 32
"""Maximum number of running kernels that are kept for one process."""
_MAX_NAME = 200


@dataclass(frozen=True)
class KernelInFlight:
    """A kernel that was running when its process reported."""

    kernel: str
    session: str
    """Id of the session that launched it."""
    seconds: float
    """Time, in seconds, for which it has been running at least."""
    queued: int
    """Number of launches queued behind it on the same stream; at most 15 are known."""


class SessionReports:
    """The last reports of the processes of one device, by generation."""

    def __init__(self) -> None:
        self._memory: dict[int, dict[int, int]] = {}
        self._running: dict[int, tuple[KernelInFlight, ...]] = {}

    def on_report(self, generation: int, stats: Mapping[str, Any]) -> None:
        """Handles a report. Unusable entries are left out."""
        sessions = stats.get("sessions")
        entries = sessions.items() if isinstance(sessions, dict) else ()
        self._memory[generation] = {
            int(channel): size
            for channel, size in entries
            if isinstance(channel, str) and channel.isascii() and channel.isdigit() and type(size) is int and size > 0
        }
        running = stats.get("running")
        kernels = (_kernel(kernel) for kernel in (running[:MAX_KERNELS] if isinstance(running, list) else ()))
        self._running[generation] = tuple(kernel for kernel in kernels if kernel is not None)

    def remove_process(self, generation: int) -> None:
        """Removes a process that has ended."""
        self._memory.pop(generation, None)
        self._running.pop(generation, None)

    def memory(self, generation: int, channel: int) -> int:
        """Returns the bytes in buffers of the session with this channel, as requested."""
        return self._memory.get(generation, {}).get(channel, 0)

    def running(self, generation: int, sessions: Collection[str]) -> list[KernelInFlight]:
        """Returns the running kernels of a process, longest first.

        `sessions`: ids of the sessions that use the process; kernels of other sessions are left out.
        """
        return [kernel for kernel in self._running.get(generation, ()) if kernel.session in sessions]


def _kernel(entry: Any) -> KernelInFlight | None:
    if not isinstance(entry, dict):
        return None
    kernel, session = entry.get("kernel"), entry.get("session")
    seconds, queued = entry.get("seconds"), entry.get("queued")
    if not isinstance(kernel, str) or not isinstance(session, str) or type(queued) is not int:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return None
    return KernelInFlight(kernel[:_MAX_NAME], session, float(seconds), max(0, queued))
