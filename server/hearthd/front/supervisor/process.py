"""A device process and its link, from start to end."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from hearth_proto.frames import Kind
from hearth_proto.reasons import Refusal
from hearth_proto.v1 import node_pb2
from hearthd.front.links.fd_passing import Descriptors
from hearthd.front.links.link import CollectiveSink, DeviceLink
from hearthd.front.supervisor.crash import CrashFile
from hearthd.front.supervisor.exit_cause import EXIT_GRACE, REPORT_GRACE, ExitCause, find_cause
from hearthd.front.supervisor.forkserver import state_of
from hearthd.front.supervisor.launcher import Launcher, StartedProcess
from hearthd.shared.device_spec import CHANGEABLE, DeviceSpec

log = structlog.get_logger("hearthd.supervisor")

_CHECK_INTERVAL_S = 0.4
"""Interval, in seconds, between two checks that the process is not stopped. Health reports a stopped process within a
second."""
_TIME_STEPS = 10
"""Number of steps into which `done_within` divides its time limit."""

Observer = Callable[[int, dict[str, Any]], None]
"""Called with the generation of a process and the counts that it reports."""


class Process:
    """A device process: launches it, connects its link, watches it and reaps it."""

    def __init__(
        self, spec: DeviceSpec, started: StartedProcess, link: DeviceLink, started_at: float, crash: CrashFile
    ) -> None:
        self.spec = spec
        """The specification with which the process was started, with the changes that it has received since."""
        self.link = link
        self.pid = started.pid
        self.started_at = started_at
        self.last_pong = started_at
        self._batches_at_ping: dict[int, int] = {}
        """Number of the last batch that was passed to each channel, as of the last ping."""
        self._started = started
        self._crash = crash
        self._exited = asyncio.ensure_future(started.ended())
        self._stopped = self._silent = ""
        self.on_stall: Callable[[], None] = lambda: None
        """Called after each change of `stalled`."""

    @property
    def stalled(self) -> str:
        """The reason why a process that is ready makes no progress at the moment. Empty: it makes progress."""
        return self._stopped or self._silent

    @staticmethod
    async def start(
        spec: DeviceSpec, launcher: Launcher, on_collective: CollectiveSink | None, observe: Observer
    ) -> Process:
        """Starts a process and returns it before it is ready. Raises the error if it cannot be started."""
        started_at = time.monotonic()
        started = await launcher.launch(spec)
        link = DeviceLink(spec.ordinal, spec.generation, on_collective)
        link.on_stats = partial(observe, spec.generation)
        try:
            if started.descriptors is not None:
                link.descriptors = Descriptors(started.descriptors, spec.ordinal)
            link.share_chunks(spec.chunk_bytes)
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=started.socket)
            return Process(spec, started, link, started_at, CrashFile.of(spec.backend, link))
        except BaseException:
            started.kill()
            raise

    @property
    def generation(self) -> int:
        """The number of the process among those of its device."""
        return self.link.generation

    @property
    def properties(self) -> node_pb2.DeviceProperties:
        """The properties of the process's device. Available only after the process is ready."""
        return self.link.ready.result()

    @property
    def _end_futures(self) -> set[asyncio.Future[Any]]:
        return {self.link.closed, self.link.fault, self._exited}

    @property
    def ended(self) -> bool:
        """True if the process has ended or is about to end."""
        return any(end.done() for end in self._end_futures)

    def change(self, spec: DeviceSpec) -> None:
        """Sends the changeable fields of `spec` to the process, if any differs and the process is ready."""
        changes: dict[str, Any] = {name: getattr(spec, name) for name in CHANGEABLE}
        changed = dataclasses.replace(self.spec, **changes)
        if changed != self.spec and self.link.ready.done():
            self.spec = changed
            self.link.send_json(Kind.CHANGE, changes)

    async def until_ready(self, time_limit: float) -> ExitCause | None:
        """Waits until the process is ready.

        Returns the cause of its end if it ends before, or is not ready in `time_limit` seconds.
        """
        ready = self.link.ready
        await asyncio.wait({*self._end_futures, ready}, timeout=time_limit, return_when=asyncio.FIRST_COMPLETED)
        if self.ended:
            return await self._cause()
        if not ready.done():
            return ExitCause("start_timeout", f"it was not ready within {time_limit:g} s of its start")
        self.last_pong = time.monotonic()
        return None

    async def until(self, event: asyncio.Future[Any]) -> ExitCause | None:
        """Waits until `event` is done. Returns the cause of the process's end if it ends before."""
        await asyncio.wait({*self._end_futures, event}, return_when=asyncio.FIRST_COMPLETED)
        return await self._cause() if self.ended else None

    async def _cause(self) -> ExitCause:
        return self._crash.explain(await find_cause(self.link, self._exited))

    async def watch(self, interval: float, time_limit: float, event: asyncio.Future[Any]) -> ExitCause | None:
        """Waits like `until`, and sends a ping every `interval` seconds.

        A ping without an answer within `time_limit` seconds counts as the end of the process.
        """
        pinger = asyncio.create_task(self._ping(interval, time_limit))
        checker = asyncio.create_task(self._check_stopped())
        try:
            await asyncio.wait({*self._end_futures, pinger, event}, return_when=asyncio.FIRST_COMPLETED)
            if self.ended:
                return await self._cause()
            if pinger.done():
                return self._crash.explain(ExitCause("stuck", f"it answered no ping for {time_limit:g} s"))
            return None
        finally:
            pinger.cancel()
            checker.cancel()
            await asyncio.gather(pinger, checker, return_exceptions=True)

    async def _ping(self, interval: float, time_limit: float) -> None:
        """Sends pings. Returns when a ping was not answered in time."""
        while True:
            if not await self._answers_ping(time_limit):
                return
            self.last_pong = time.monotonic()
            self._batches_at_ping = {number: channel.batches.last for number, channel in self.link.channels.items()}
            # Reads the counters often, so that few counts are lost if the process is lost.
            await done_within(time_limit, self.link.stats())
            await asyncio.sleep(interval)

    async def _answers_ping(self, time_limit: float) -> bool:
        """Returns True if a ping is answered in `time_limit` seconds.

        After half of that time the process counts as stalled until it answers.
        """
        pong = asyncio.ensure_future(self.link.ping())
        try:
            if await done_within(time_limit / 2, asyncio.shield(pong)):
                return True
            self._stall(silent=f"its process has answered no ping for {time_limit / 2:g} s")
            return await done_within(time_limit / 2, asyncio.shield(pong))
        finally:
            pong.cancel()
            self._stall(silent="")

    async def _check_stopped(self) -> None:
        """Checks whether the process is stopped (SIGSTOP, a debugger), noticed long before a ping is missed."""
        while True:
            is_stopped = state_of(self.pid) in ("T", "t")
            self._stall(stopped="its process is stopped (SIGSTOP or a debugger)" if is_stopped else "")
            await asyncio.sleep(_CHECK_INTERVAL_S)

    def _stall(self, *, stopped: str | None = None, silent: str | None = None) -> None:
        stalled_before = self.stalled
        self._stopped = self._stopped if stopped is None else stopped
        self._silent = self._silent if silent is None else silent
        if self.stalled != stalled_before:
            log.warning("device_stalled" if self.stalled else "device_runs_again", pid=self.pid, why=self.stalled)
            self.on_stall()

    def working(self) -> set[str]:
        """Returns the sessions that had work in the process recently.

        Such work is a call or batch that is not answered, a batch since the last ping, or a lane, over which work may
        have come.
        """
        return {
            channel.session_id
            for number, channel in self.link.channels.items()
            if channel.calls
            or channel.lane is not None
            or len(channel.batches)
            or channel.batches.last != self._batches_at_ping.get(number, 0)
        }

    # ---- end ----

    async def end(self, cause: ExitCause) -> None:
        """Makes sure that a lost process ends now. `reap` waits for its end."""
        if cause.label == "stuck":
            self._started.report()
            await asyncio.wait({self._exited}, timeout=REPORT_GRACE)
        if cause.label != "fault":  # after a fault, the process has just reported that it ends by itself
            self._started.kill()

    async def shut_down(self, time_limit: float) -> bool:
        """Asks the process to finish the queued work and end.

        Kills it if it does not end within `time_limit` seconds, and then returns False.
        """
        ended_in_time = True
        if not self.link.ready.done() or self.ended:
            self._started.kill()
        else:
            self.link.send(Kind.SHUTDOWN)
            _, pending = await asyncio.wait({self._exited}, timeout=time_limit)
            if pending:
                ended_in_time = False
                self._started.kill()
        await self._exited
        return ended_in_time

    def kill(self) -> None:
        """Kills the process immediately; `reap` waits for its end. Does nothing if it has ended."""
        self._started.kill()

    async def reap(self, final_refusal: Refusal | None = None) -> None:
        """Returns when the process has ended; everything that it held on the device is then free.

        Calls that still wait fail with `final_refusal`.
        """
        _, pending = await asyncio.wait({self._exited}, timeout=EXIT_GRACE)
        if pending:
            self._started.kill()
            await self._exited
        self._started.socket.close()
        if self.link.descriptors is not None:
            self.link.descriptors.close()
        self._crash.close()
        if final_refusal is not None:
            self.link.fail(final_refusal, [])


async def done_within(seconds: float, work: Awaitable[object]) -> bool:
    """Returns True if the work is done within `seconds`. Raises the errors of the work.

    Time in which this process itself did not run (a paused or suspended machine, a debugger) must hardly count, because
    an answer may have arrived that was not read yet. The time limit is therefore divided into steps, and a step that
    takes longer counts as one step.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(_TIME_STEPS):
            done, _ = await asyncio.wait({task}, timeout=seconds / _TIME_STEPS)
            if done:
                task.result()
                return True
        return False
    finally:
        task.cancel()
