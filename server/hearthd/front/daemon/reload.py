"""Reload (SIGHUP): reads the configuration again, and applies the settings that can be changed while the daemon runs.

A file that cannot be used changes nothing. Signals that arrive during a reload cause one more reload.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from hearthd.front.audit.recorder import Audit
from hearthd.front.config.loader import Config, ConfigError, tenants
from hearthd.front.daemon.reload_plan import ReloadError, ReloadPlan, plan
from hearthd.front.daemon.systemd import Notifier
from hearthd.front.tenancy.tenants import Directory

log = structlog.get_logger("hearthd.reload")

Read = Callable[[], Config]
"""Reads the configuration from the same file, environment and flags as at the start. Raises `ConfigError`."""
Apply = Callable[[ReloadPlan, Directory], Awaitable[int]]
"""Applies the changes, and returns the number of sessions that were closed."""


class Reloader:
    """The reloads of a daemon. Belongs to the event loop; files are read in a thread."""

    def __init__(self, config: Config, read: Read | None, apply: Apply, audit: Audit, notifier: Notifier) -> None:
        """Creates the object. `read` is None if there is nothing from which the configuration could be read again."""
        self.config = config
        """The configuration in force."""
        self.refusal = ""
        """The reason why the last reload changed nothing. Empty: it was applied."""
        self._read = read
        self._apply = apply
        self._audit = audit
        self._notifier = notifier
        self._requested = False
        self._is_ready = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Starts a reload: immediately, after the reload that is under way, or when the daemon is ready."""
        self._requested = True
        if self._is_ready and self._task is None:
            self._task = asyncio.create_task(self._run(), name="reload")

    def daemon_ready(self) -> None:
        """Notes that the daemon is ready, and starts a reload that was requested before."""
        self._is_ready = True
        if self._requested:
            self.request()

    async def wait_until_idle(self) -> None:
        """Returns when no requested reload is left to be done."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Cancels the reload that is under way, and waits for its task. Later requests start none."""
        self._is_ready = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._requested:
                self._requested = False
                self._notifier.reloading()
                try:
                    await self._reload()
                except Exception:
                    self.refusal = "an error inside the daemon; its log has the traceback"
                    log.exception("reload_failed")
                finally:
                    self._notifier.reloaded()
        finally:
            self._task = None

    async def _reload(self) -> None:
        started_at = time.monotonic()
        await self._audit.reopen()
        if self._read is None:
            log.info("reloaded", changed="nothing: the daemon was started without a configuration to reload")
            return
        try:
            new, directory = await asyncio.to_thread(self._read_files)
            planned = plan(self.config, new)
            if planned.config.tenants != new.tenants:  # some changed tenants are not applied
                directory = await asyncio.to_thread(tenants, planned.config)
        except (ConfigError, ReloadError) as error:
            self.refusal = str(error)
            log.error("reload_refused", why=self.refusal, action="the configuration is unchanged")
            self._audit.record("reload_refused", why=self.refusal)
            return
        self.refusal = ""
        self.config = planned.config
        closed_sessions = await self._apply(planned, directory)
        summary: dict[str, Any] = {"changed": ", ".join(planned.changed) or "nothing"}
        summary |= {"tenants": planned.tenants} if planned.tenants else {}
        summary |= {"needs_restart": ", ".join(planned.deferred)} if planned.deferred else {}
        summary["sessions_ended"] = closed_sessions
        write = log.warning if planned.deferred else log.info
        write("reloaded", **summary, seconds=round(time.monotonic() - started_at, 3))
        self._audit.record("reload", **summary)

    def _read_files(self) -> tuple[Config, Directory]:
        """Reads configuration and tenants.

        Runs in a thread, because files and the user databases of some hosts may be slow.
        """
        assert self._read is not None
        new = self._read()
        return new, tenants(new)
