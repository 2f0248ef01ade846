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

ANSWER = 1.0
"""Time, in seconds, for the process to report the work that still runs."""


class SessionClose:
    """Watches the closed sessions of one process. Belongs to the event loop.

    `end` is called with the cause when the process must be ended now. `changed` is called when calls that wait (`wait`)
    may continue.
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
        self._asking: asyncio.Task[None] | None = None
        self._awaited = False
        self._over = False
        link.on_channel_closing, link.on_channel_closed = self._on_leave, self._on_gone

    @property
    def must_drain(self) -> bool:
        """True if new sessions must not use the process.

        That is the case while only closed sessions are left in it, with running work.
        """
        return self._lingering.must_drain(self._link.channels)

    def wait(self) -> None:
        """Notes that a new session waits for the process."""
        if not self._awaited:
            self._awaited = True
            self._ask()  # perhaps no work runs any more

    def stuck(self) -> list[tuple[LingeringSession, float]]:
        """Returns the sessions whose grace period has ended, each with the seconds since it was closed."""
        now = time.monotonic()
        return [(session, now - session.since) for session in self._lingering.stuck(now)]

    def close(self) -> None:
        """Stops watching, because the process ends or has ended."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    # ---- events ----

    def _on_leave(self, channel: int) -> None:
        known = self._link.channels.get(channel)
        if known is not None:
            self._lingering.add(channel, known.session_id, known.tenant, time.monotonic())
            self._update()

    def _on_gone(self, channel: int) -> None:
        self._lingering.remove(channel)
        self._update()

    def _update(self) -> None:
        """Decides what to do next, after an event or at the end of a grace period."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._over or self._link.loss is not None:
            return
        if self._awaited and not self.must_drain:
            self._awaited = False
            self._changed()
        now = time.monotonic()
        if self._lingering.must_query(now):
            self._ask()
            return
        stuck = self._lingering.stuck(now)
        if self._lingering.end(self._link.channels, now):
            self._over = True
            self._end(_cause(stuck, now))
            return
        for session in stuck:
            if not session.logged:
                session.logged = True
                self._warn(session, now)
        due = self._lingering.wake(now)
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(due - now + 1e-3, self._update)

    def _ask(self) -> None:
        if self._asking is None:
            self._asking = asyncio.create_task(self._query(), name=f"session-close-{self._link.ordinal}")

    async def _query(self) -> None:
        self._lingering.mark_queried(time.monotonic())
        stats: dict[str, Any] = {}
        with contextlib.suppress(TimeoutError, Refusal):
            async with asyncio.timeout(ANSWER):
                stats = await self._link.stats()
        self._lingering.on_answer(stats.get("leaving"))
        self._asking = None
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


def _cause(stuck: list[LingeringSession], now: float) -> ExitCause:
    kernels = tuple(dict.fromkeys(name for session in stuck for name in session.kernels))
    since = max(now - session.since for session in stuck)
    what = "; ".join(session.description for session in stuck[:3]) + ("; and more" if len(stuck) > 3 else "")
    return ExitCause(
        ABANDONED,
        f"{what} had not ended {since:.1f} s after the close, and no other session used the process",
        kernels,
        (("sessions", ", ".join(session.session for session in stuck)),),
    )
