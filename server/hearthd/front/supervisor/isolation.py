"""The policy that assigns sessions to the processes of a device, and the time limits of supervision. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hearth_proto.v1 import node_pb2
from hearthd.front.supervisor.lingering_sessions import GRACE

STARTING = node_pb2.DEVICE_STATE_STARTING
SERVING = node_pb2.DEVICE_STATE_SERVING
LOST = node_pb2.DEVICE_STATE_LOST
FENCED = node_pb2.DEVICE_STATE_FENCED
STALLED = node_pb2.DEVICE_STATE_STALLED

STATE_NAMES = {STARTING: "starting", SERVING: "serving", LOST: "lost", FENCED: "fenced", STALLED: "stalled"}


@dataclass(frozen=True)
class IsolationPolicy:
    """Time limits of the supervisor, in seconds, and the sharing of processes by sessions."""

    start_timeout: float = 60.0
    ping_timeout: float = 10.0
    ping_interval: float = 2.0
    max_restarts: int = 5
    restart_window: float = 60.0
    shutdown_timeout: float = 5.0
    max_faults: int = 5
    """Maximum number of lost processes that may be attributed to a session within `restart_window`. Beyond, the session
    may share no process."""
    serving_wait: float = 5.0
    """Maximum time, in seconds, that a call waits for a process that is being replaced."""
    grace: float = GRACE
    """Seconds that work of a closed session may run on before the process that it alone uses is ended."""
    by_tenant: bool = False
    """True if each tenant has separate processes. False: all sessions that are not dedicated share one process."""
    idle_timeout: float = 60.0
    """Time, in seconds, after which a process without sessions ends, unless it is the process that all sessions share.
    0: never."""
    max_processes: int = 8
    """Maximum number of processes on each device."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of all configured tenants, by name. They determine the tenants' shares of a device's processes."""
    context_memory: int = 0
    """Bytes of device memory that each process uses before it allocates anything."""
    scrub: bool = False
    """True if memory is cleared before it is reused."""
    spare: bool = False
    """True if each device keeps one more process ready, for a new key or to replace a process that was lost."""


class WorkerKey(NamedTuple):
    """The sessions that a worker serves: all sessions, those of one tenant, or one session of a tenant."""

    tenant: str = ""
    session: str = ""

    @property
    def dedicated(self) -> bool:
        """True if the worker serves one session only."""
        return bool(self.session)


ALL_SESSIONS = WorkerKey()
"""Key of the worker that all sessions share, where no tenant and no session has a separate one."""

IMMEDIATE_RESTARTS = 2
"""Number of lost processes that are replaced without a pause."""

PAUSE_S, MAX_PAUSE_S = 0.1, 2.0


class ProcessLoss(NamedTuple):
    """The loss of a process: its time, and the session to which it is attributed."""

    time: float
    culprit: str | None = None


def weight(losses: Iterable[ProcessLoss]) -> int:
    """Returns the weight of losses against the device.

    Several losses attributed to one session count once, because the quarantine deals with that session.
    """
    losses = list(losses)
    return sum(loss.culprit is None for loss in losses) + len({loss.culprit for loss in losses} - {None})


def pause(losses: Collection[ProcessLoss], dedicated: bool) -> float:
    """Returns the pause, in seconds, before the next process is started: 0 at first, then doubling.

    `dedicated` is True if only one session uses the process; all its losses then count. Otherwise repeated losses
    attributed to one session count once, so that other sessions do not wait because of them.
    """
    excess = (len(losses) if dedicated else weight(losses)) - IMMEDIATE_RESTARTS
    return 0.0 if excess <= 0 else min(MAX_PAUSE_S, PAUSE_S * 2 ** (excess - 1))
