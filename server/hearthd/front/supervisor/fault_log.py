"""The device processes that were lost recently, restricted to what each viewer may know. Pure, except for the clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hearthd.front.supervisor.exit_cause import ExitCause
from hearthd.front.supervisor.isolation import ALL_SESSIONS, WorkerKey
from hearthd.front.tenancy.tenants import Tenant, sees_tenant

MAX_FAULTS = 32
"""Maximum number of faults kept for each device; the oldest is evicted."""
_MAX_KERNELS = 16
"""Maximum number of kernels, and of sessions, that are kept for each fault."""
_MAX_NAME = 200
_MAX_DETAIL = 1000
_HIDDEN_DETAIL = "a kernel of another tenant was in flight"


@dataclass(frozen=True)
class Fault:
    """The loss of one device process."""

    time_unix: float
    device: int
    generation: int
    reason: str
    """The label of the cause: `fault`, `signal`, `exit`, `link`, `stuck`, `start_timeout`, `launch`, `restart` or
    `abandoned`."""
    detail: str
    kernels: tuple[str, ...]
    """The kernels in flight, as far as the process could report them."""
    tenant: str
    """The tenant of the process. Empty: all tenants shared it, or it was not assigned yet."""
    involved: tuple[tuple[str, str], ...]
    """The sessions whose kernels were in flight, each with its tenant; "" if that is unknown."""

    def visible_to(self, viewer: Tenant) -> dict[str, Any] | None:
        """Returns the entry for JSON; None if the viewer may not see the fault.

        Each tenant of a shared process sees the loss, but neither the names of other tenants' kernels nor their
        sessions.
        """
        if not sees_tenant(viewer, self.tenant):
            return None
        tenants = {tenant for _, tenant in self.involved}
        may_see_kernels = not self.kernels or self.tenant or tenants == {viewer.name} or viewer.observes
        return {
            "time_unix": self.time_unix,
            "device": self.device,
            "generation": self.generation,
            "reason": self.reason,
            "detail": self.detail if may_see_kernels else _HIDDEN_DETAIL,
            "kernels": list(self.kernels) if may_see_kernels else [],
            "tenant": self.tenant,
            "sessions": [
                {"id": session, "tenant": tenant}
                for session, tenant in self.involved
                if tenant == viewer.name or viewer.observes
            ],
        }


class RecentFaults:
    """The recent faults of one device."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._faults: deque[Fault] = deque(maxlen=MAX_FAULTS)

    def __iter__(self) -> Iterator[Fault]:
        """Iterates over the faults, newest first."""
        return reversed(list(self._faults))

    def add(self, cause: ExitCause, generation: int, key: WorkerKey | None, involved: Mapping[str, str]) -> None:
        """Adds the loss of a process. `involved`: the sessions whose kernels were in flight, with their tenants."""
        self._faults.append(
            Fault(
                round(time.time(), 3),
                self._device,
                generation,
                cause.label,
                cause.text.removeprefix(f"device {self._device} was lost: ")[:_MAX_DETAIL],
                tuple(name[:_MAX_NAME] for name in cause.kernels[:_MAX_KERNELS]),
                (key or ALL_SESSIONS).tenant,
                tuple(involved.items())[:_MAX_KERNELS],
            )
        )


def visible_to(viewer: Tenant, devices: Iterable[RecentFaults], limit: int = MAX_FAULTS) -> list[dict[str, Any]]:
    """Returns the last `limit` faults of several devices that the viewer may see, newest first."""
    entries = [entry for faults in devices for fault in faults if (entry := fault.visible_to(viewer)) is not None]
    return sorted(entries, key=lambda fault: -float(fault["time_unix"]))[:limit]
