"""Watches closed sessions of one device process until the work that they still run there has ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import structlog

from hearth_proto.reasons import Refusal
from hearthd.front.links.link import DeviceLink
from hearthd.front.supervisor.exit_cause import ABANDONED, ExitCause
from hearthd.front.supervisor.lingering_sessions import GRACE, LingeringSession, LingeringSessions

log = structlog.get_logger("hearthd.supervisor")

ANSWER_TIMEOUT = 1.0
"""Time, in seconds, for the process to report the work that still runs."""


class SessionClose:
    """Watches the closed sessions of one process. Belongs to the event loop.

    `end` is called with the cause when the process must be ended now. `changed` is called when calls that wait for the
    process (`note_waiter`) may continue.
    """

    def __init__(
        self,
        link: DeviceLink,
        end: Callable[[ExitCause], None],
        changed: Callable[[], None],
        *,
        grace: float = GRACE,
    ) -> None:
        self._link = link
        self._end = end
        self._changed = changed
        self._lingering = LingeringSessions(grace)
        self._timer: asyncio.TimerHandle | None = None
        self._query_task: asyncio.Task[None] | None = None
        self._has_waiter = False
        self._closed = False
        link.on_channel_closing, link.on_channel_closed = self._on_leave, self._on_gone

    @property
    def must_drain(self) -> bool:
        """True if new sessions must not use the process.

        That is the case while only closed sessions are left in it, with running work.
        """
        return self._lingering.must_drain(self._link.channels)

    def note_waiter(self) -> None:
        """Notes that a new session waits for the process."""
        if not self._has_waiter:
            self._has_waiter = True
            self._start_query()  # perhaps no work runs any more

    def overdue(self) -> list[tuple[LingeringSession, float]]:
        """Returns the sessions whose grace period has ended, each with the seconds since it was closed."""
        now = time.monotonic()
        return [(session, now - session.since) for session in self._lingering.overdue(now)]

    def close(self) -> None:
        """Stops watching, because the process ends or has ended."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._query_task is not None:
            self._query_task.cancel()

    # ---- events ----

    def _on_leave(self, channel: int) -> None:
        left_channel = self._link.channels.get(channel)
        if left_channel is not None:
            self._lingering.add(channel, left_channel.session_id, left_channel.tenant, time.monotonic())
            self._update()

    def _on_gone(self, channel: int) -> None:
        self._lingering.remove(channel)
        self._update()

    def _update(self) -> None:
        """Decides what to do next, after an event or at the end of a grace period."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed or self._link.loss is not None:
            return
        if self._has_waiter and not self.must_drain:
            self._has_waiter = False
            self._changed()
        now = time.monotonic()
        if self._lingering.must_query(now):
            self._start_query()
            return
        overdue = self._lingering.overdue(now)
        if self._lingering.must_end(self._link.channels, now):
            self._closed = True
            self._end(_cause(overdue, now))
            return
        for session in overdue:
            if not session.logged:
                session.logged = True
                self._warn(session, now)
        deadline = self._lingering.next_deadline(now)
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(deadline - now + 1e-3, self._update)

    def _start_query(self) -> None:
        if self._query_task is None:
            self._query_task = asyncio.create_task(self._query(), name=f"session-close-{self._link.ordinal}")

    async def _query(self) -> None:
        self._lingering.mark_queried(time.monotonic())
        stats: dict[str, Any] = {}
        with contextlib.suppress(TimeoutError, Refusal):
            async with asyncio.timeout(ANSWER_TIMEOUT):
                stats = await self._link.stats()
        self._lingering.on_answer(stats.get("leaving"))
        self._query_task = None
        self._update()

    def _warn(self, lingering: LingeringSession, now: float) -> None:
        log.warning(
            "session_runs_on",
            device=self._link.ordinal,
            generation=self._link.generation,
            session=lingering.session,
            tenant=lingering.tenant,
            kernels=list(lingering.kernels),
            closed_unix=round(time.time() - (now - lingering.since), 3),
            why="other sessions use its process, which ends after they have closed; until then its resources stay "
            "allocated",
        )


def _cause(overdue: list[LingeringSession], now: float) -> ExitCause:
    kernels = tuple(dict.fromkeys(name for session in overdue for name in session.kernels))
    longest = max(now - session.since for session in overdue)
    description = "; ".join(session.description for session in overdue[:3]) + ("; and more" if len(overdue) > 3 else "")
    return ExitCause(
        ABANDONED,
        f"{description} had not ended {longest:.1f} s after the close, and no other session used the process",
        kernels,
        {"sessions": ", ".join(session.session for session in overdue)},
    )
