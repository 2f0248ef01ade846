"""The daemon: start, service, drain and stop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import structlog

from hearth_proto import VERSION
from hearthd.front.addresses import Addresses
from hearthd.front.config import exposure
from hearthd.front.config.loader import Config
from hearthd.front.daemon.heap_trim import HeapTrimming
from hearthd.front.daemon.reload import Read
from hearthd.front.daemon.systemd import summary
from hearthd.front.daemon.wiring import DaemonParts
from hearthd.front.gpu.watch import GpuWatch
from hearthd.front.overload.readings import own_memory
from hearthd.front.sessions.session import SessionEnd
from hearthd.front.supervisor.isolation import SERVING, STALLED
from hearthd.front.supervisor.launcher import Launcher
from hearthd.shared.device_spec import Backend
from hearthd.shared.malloc import return_free_memory
from hearthd.shared.sighup import Hangup

log = structlog.get_logger("hearthd")

_REPEAT_WINDOW_S = 0.2
"""Time, in seconds, within which a second signal counts as the first one, sent both to the process and to its group."""
_NOTIFY_INTERVAL_S = 5.0
"""Interval, in seconds, between messages of a starting daemon to the service manager. Each message extends the time
limit by several intervals."""
_CLOSE_TIMEOUT = 0.5
"""Time, in seconds, for calls under way, and for sessions that are closed by the stop, to be notified."""


class Daemon:
    """The daemon of a node.

    Tests and embedders replace `launcher`. `read` reads the configuration again for a reload. `hangup` has handled
    SIGHUP until now.
    """

    def __init__(
        self,
        config: Config,
        backend: Backend,
        devices: list[int],
        launcher: Launcher | None = None,
        read: Read | None = None,
        hangup: Hangup | None = None,
    ) -> None:
        self.addresses = Addresses()
        self.parts = parts = DaemonParts(config, backend, devices, launcher, read)
        self.supervisor, self.sessions, self.access = parts.supervisor, parts.sessions, parts.access
        self.collectives, self.groups, self.credits = parts.collectives, parts.groups, parts.credits
        self.metrics, self.status, self.device_service = parts.metrics, parts.status, parts.device_service
        self.reloader = parts.reloader
        self._notifier, self._listeners, self._drain = parts.notifier, parts.listeners, parts.drain
        self._hangup = hangup or Hangup()
        self._tasks: list[asyncio.Task[None]] = []
        self._signals = 0
        self._last_signal_at = 0.0
        self._running = False
        self._stopped = False
        self._stop_requested = asyncio.Event()
        self._second_signal = asyncio.Event()

    # ---- start ----

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.reloader.config

    async def start(self) -> None:
        """Starts to listen and starts the devices.

        Returns after each device serves or has failed. Raises `ListenError`.
        """
        self._notifier.starting("Starting")
        try:
            self.access.open()
            services = (self.parts.node_service.handler(), self.device_service.handler())
            self.addresses = await self._listeners.open(services)
            self.supervisor.start()
            await asyncio.sleep(0)  # lets the devices start before the imports of HTTP block the event loop for a while
            http = await self._listeners.open_http()
            self.addresses = replace(self.addresses, http=http, http_unix=self.config.http_path)
        except BaseException:
            await self.stop(at_once=True)
            raise
        self._tasks = [
            asyncio.create_task(self._reap(), name="leases"),
            asyncio.create_task(self.parts.overload.run(), name="overload"),
            asyncio.create_task(GpuWatch(self.supervisor, self.status.readings).run(), name="gpus"),
            asyncio.create_task(self._notifier.watchdog(self.healthy), name="watchdog"),
        ]
        self._warn_of_exposure()
        log.info("listening", **{name: value for name, value in vars(self.addresses).items() if value})
        started = asyncio.create_task(self.supervisor.wait_until_started())
        try:
            while not started.done():  # each device has its own time limit (devices.start_timeout)
                self._notifier.starting(f"Starting: {summary(self.supervisor, self.sessions)}")
                await asyncio.wait({started}, timeout=_NOTIFY_INTERVAL_S)
        finally:
            started.cancel()

    def _warn_of_exposure(self) -> None:
        listening = self.addresses.grpc or self.addresses.unix
        open_address = exposure.unguarded_address(self.config)
        if open_address and listening:
            log.warning(
                "open_to_everybody",
                listen=listening,
                may=f"{exposure.reachable_by(open_address)} may do everything: there are no tenants",
                fix=exposure.FIX,
            )

    # ---- service ----

    def healthy(self) -> bool:
        """Returns True if the watchdog may be notified: every serving or stalled device has answered a recent ping."""
        policy = self.supervisor.policy
        max_silence = 2 * (policy.ping_timeout + policy.ping_interval)
        now = time.monotonic()
        return all(
            now - device.last_pong < max_silence for device in self.supervisor if device.state in (SERVING, STALLED)
        )

    async def _reap(self) -> None:
        """Closes sessions whose lease has run out, or whose credential has expired or was revoked.

        Also returns free memory to the system.
        """
        closing: set[asyncio.Task[list[int]]] = set()

        def start(close: Coroutine[Any, Any, list[int]]) -> None:
            task = asyncio.create_task(close)
            closing.add(task)
            task.add_done_callback(closing.discard)

        heap_trimming = HeapTrimming()
        while True:
            try:
                for session in self.sessions.expired():
                    start(self.sessions.expire(session))
                for session in self.access.revoked_sessions():
                    self.sessions.audit.record("session_revoked", session, why="its certificate was revoked")
                    reason = "its certificate was revoked by its authority"
                    start(self.sessions.close(session, reason, cause=SessionEnd.CREDENTIAL))
                if heap_trimming.is_due(len(self.sessions), own_memory(), time.monotonic()):
                    gc.collect()
                    await asyncio.to_thread(return_free_memory)
                    heap_trimming.record_trim(own_memory(), time.monotonic())
                self._send_status()
            except Exception:  # for example, there is no free descriptor; the leases are still checked
                log.exception("leases")
            await asyncio.sleep(min(1.0, self.sessions.lease / 4))

    def _send_status(self) -> None:
        if self._running:
            self._notifier.status(self.status_line())

    def status_line(self) -> str:
        """Returns the line that the service manager shows: devices, sessions, overload, and a refused reload."""
        refused = f". The last reload was refused: {self.reloader.refusal}" if self.reloader.refusal else ""
        overload = self.parts.overload.description
        loaded = f". Overloaded: {overload}" if overload else ""
        return f"Serving {summary(self.supervisor, self.sessions)}{loaded}{refused}"

    async def run(self) -> None:
        """Serves until a signal arrives. The first SIGTERM or SIGINT drains, the second stops immediately."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        if self._hangup.requested:
            self._on_hangup()
        try:
            starting = asyncio.create_task(self.start())
            stop_requested = asyncio.create_task(self._stop_requested.wait())
            await asyncio.wait({starting, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self._announce_ready()
                await stop_requested
                await self.drain()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            stop_requested.cancel()
        finally:
            await self.stop(at_once=self._second_signal.is_set())
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            loop.remove_signal_handler(signal.SIGHUP)
            # The default action would kill the process during its shutdown.
            signal.signal(signal.SIGHUP, self._hangup.note)

    def _announce_ready(self) -> None:
        log.info("ready", version=VERSION, devices=len(self.supervisor.devices), pid=os.getpid())
        print(f"hearthd ready {self.addresses}", flush=True)
        self._running = True
        self.supervisor.watch(self._send_status)
        self.parts.overload.listeners.append(self._send_status)
        self._notifier.ready(self.status_line())
        self.reloader.daemon_ready()
        gc.collect()
        return_free_memory()  # memory that only the start needed
        # Objects that exist now stay alive: visiting them again would stop all sessions for a tenth of a second.
        gc.freeze()

    def _on_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._signals and now - self._last_signal_at < _REPEAT_WINDOW_S:
            return
        self._signals, self._last_signal_at = self._signals + 1, now
        log.info("signal", name=number.name, action="drain" if self._signals == 1 else "stop immediately")
        self._stop_requested.set()
        if self._signals > 1:
            self._second_signal.set()
            self._drain.end_wait()

    def _on_hangup(self) -> None:
        if self._hangup.terminal_closed:
            self._on_signal(signal.SIGHUP)
        else:
            log.info("signal", name="SIGHUP", action="reload")
            self.reloader.request()

    # ---- end ----

    async def drain(self) -> None:
        """Waits up to `drain_timeout` seconds for running sessions to end.

        Returns earlier if all have ended, or at a second signal.
        """
        await self._drain.run(self.config.drain_timeout)

    async def stop(self, at_once: bool = False) -> None:
        """Ends sessions, devices and listeners, and removes the files that were created.

        A second signal ends what this still waits for. Further calls do nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        self._notifier.stopping("Stopping")
        self._drain.stop_admission()
        await self.reloader.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        grace = 0.0 if at_once else _CLOSE_TIMEOUT
        await self.sessions.close_all("the daemon is stopping", time_limit=grace)
        await self.groups.stop()
        self.collectives.stop()
        self.credits.stop()
        await asyncio.gather(self._stop_devices(at_once), self._listeners.close(grace))
        self._listeners.release()
        await self.access.close()
        self.status.close()
        if self._tasks:
            log.info("stopped")

    async def _stop_devices(self, at_once: bool) -> None:
        stopping = asyncio.create_task(self.supervisor.stop(at_once))
        second_signal = asyncio.create_task(self._second_signal.wait())
        await asyncio.wait({stopping, second_signal}, return_when=asyncio.FIRST_COMPLETED)
        second_signal.cancel()
        if not stopping.done():
            await asyncio.gather(*(device.stop(at_once=True) for device in self.supervisor))
        await stopping
