"""Limits of the number of handles of one session, and of all sessions of a tenant in this process.

A handle costs about 700 bytes of host memory, whatever object it names. Each table counts its handles up to a bound and
requests a larger bound here when it reaches it, so that the check of a new handle is one comparison.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.handle_table import HandleTable
from hearthd.device.session.session import DeviceSession

STEP = 1024
"""Number of handles by which a bound grows at most, after which the table requests a larger one."""


class HandleLimits:
    """The limits of one device process. `sessions` returns all sessions of the process."""

    def __init__(self, per_session: int, sessions: Callable[[], Iterable[DeviceSession]]) -> None:
        self._per_session = per_session or sys.maxsize
        self._sessions = sessions

    def limit(self, session: DeviceSession) -> None:
        """Limits the number of the session's handles from now on."""
        for table in session.tables:
            table.extend, table.bound = partial(self._bound, session), 0

    def _bound(self, session: DeviceSession, table: HandleTable[Any], more: int) -> int:
        """Returns how many handles a table may have before its next request, at least its present number plus `more`.

        Raises Refusal(QUOTA_EXCEEDED) if the session or its tenant may not have `more` additional handles.

        The unused bounds of all tables together are at most half of the remaining handles; the bounds of other tables
        are lowered accordingly.
        """
        grant = _divide(session.tables, self._per_session, more, "the session", "limits.max_handles")
        if session.handles:
            tables = [table for other in self._sessions() if other.tenant == session.tenant for table in other.tables]
            owner = f"tenant {session.tenant}"
            grant = min(grant, _divide(tables, session.handles, more, owner, "quotas.handles"))
        return len(table) + more + grant


def _divide(tables: Sequence[HandleTable[Any]], allowed: int, more: int, owner: str, setting: str) -> int:
    """Returns how many handles each table may have beyond its present ones and the `more` requested ones."""
    in_use = sum(map(len, tables))
    remaining = allowed - in_use - more
    grant = max(0, min(STEP, remaining // (2 * len(tables))))
    for table in tables:
        table.bound = min(table.bound, len(table) + grant)
    if remaining < 0:
        raise _too_many(owner, setting, in_use, more, allowed)
    return grant


def _too_many(owner: str, setting: str, in_use: int, more: int, allowed: int) -> Refusal:
    return Refusal(
        Reason.QUOTA_EXCEEDED,
        f"{owner} has {in_use} handles on this device and requests {more} more; the maximum is {allowed} ({setting})",
        fix=f"free buffers, streams, events and modules that are no longer needed, or have {setting} raised",
        details={"quota": "handles", "requested": more, "in_use": in_use, "allowed": allowed},
    )
