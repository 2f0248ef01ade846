"""Whom the processes of a device serve, and how patient the front is with them. Pure."""

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
    """Time limits of the supervisor, in seconds, and the sharing of processes among sessions."""

    start_timeout: float = 60.0
    ping_timeout: float = 10.0
    ping_interval: float = 2.0
    max_restarts: int = 5
    restart_window: float = 60.0
    shutdown_timeout: float = 5.0
    max_faults: int = 5
    """A session to which more processes are lost within `restart_window` may share none any more."""
    serving_wait: float = 5.0
    """Seconds that a call waits for a process that is being replaced."""
    grace: float = GRACE
    """Seconds that work of a closed session may run on before the process that it alone uses is ended."""
    by_tenant: bool = False
    """Each tenant has separate processes; otherwise all sessions that are not dedicated share one."""
    idle_timeout: float = 60.0
    """A process that holds nothing ends after this time, unless all sessions share it; 0: never."""
    max_processes: int = 8
    """Number on each device."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The weights of all configured tenants, by name: their shares of a device's processes."""
    context_memory: int = 0
    """Bytes of the device that each process takes before it allocates anything."""
    scrub: bool = False
    """Memory is cleared before it is reused."""
    spare: bool = False
    """A further process on each device is ready for a new key, or for one that lost its process."""


class WorkerKey(NamedTuple):
    """Sessions that a worker serves: all, those of one tenant, or one session of a tenant."""

    tenant: str = ""
    session: str = ""

    @property
    def dedicated(self) -> bool:
        return bool(self.session)


EVERYBODY = WorkerKey()

QUICK = 2
"""Lost processes that are replaced at once."""

PAUSE_S, PAUSE_MOST_S = 0.1, 2.0


class ProcessLoss(NamedTuple):
    """The loss of a process: its time, and the session to which it is attributed."""

    at: float
    culprit: str | None = None


def weight(losses: Iterable[ProcessLoss]) -> int:
    """Returns the weight of losses against the device. Repeated losses to one session are dealt with there, and count
    once."""
    losses = list(losses)
    return sum(loss.culprit is None for loss in losses) + len({loss.culprit for loss in losses} - {None})


def pause(losses: Collection[ProcessLoss], alone: bool) -> float:
    """Returns the seconds before the next process is started: none at first, then longer and longer. `alone`: one
    session has the process to itself, and waits for each of its faults; a session that shares it does not wait for
    faults of another."""
    late = (len(losses) if alone else weight(losses)) - QUICK
    return 0.0 if late <= 0 else min(PAUSE_MOST_S, PAUSE_S * 2 ** (late - 1))
