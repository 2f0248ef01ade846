"""A device process and its link, from its start to its end."""

from __future__ import annotations

import asyncio
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
from hearthd.shared.device_spec import DeviceSpec

log = structlog.get_logger("hearthd.supervisor")

_LOOK_S = 0.4
"""Seconds between two checks that the process runs at all: health reports it within a second."""
_STEPS = 10
"""Steps in which the patience with a process passes."""

Observer = Callable[[int, dict[str, Any]], None]
"""Called with the generation of a process and the counts that it reports."""


class Process:
    """Launched, linked, watched, reaped."""

    def __init__(self, started: StartedProcess, link: DeviceLink, begin: float, crash: CrashFile) -> None:
        self.link = link
        self.pid = started.pid
        self.begin = begin
        self.last_pong = begin
        self._given: dict[int, int] = {}
        """Last batch given to each channel, as of the last ping."""
        self._started = started
        self._crash = crash
        self._exited = asyncio.ensure_future(started.ended())
        self._stopped = self._silent = ""
        self.on_stall: Callable[[], None] = lambda: None
        """Called after each change of `stalled`."""

    @property
    def stalled(self) -> str:
        """Why a process that is ready gets nowhere just now; empty where it does."""
        return self._stopped or self._silent

    @staticmethod
    async def start(
        spec: DeviceSpec, launcher: Launcher, on_collective: CollectiveSink | None, observe: Observer
    ) -> Process:
        """A process that is not ready yet. Raises what keeps it from being started."""
        begin = time.monotonic()
        started = await launcher.launch(spec)
        link = DeviceLink(spec.ordinal, spec.generation, on_collective)
        link.on_stats = partial(observe, spec.generation)
        try:
            if started.descriptors is not None:
                link.descriptors = Descriptors(started.descriptors, spec.ordinal)
            link.share_chunks(spec.chunk_bytes)
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=started.socket)
            return Process(started, link, begin, CrashFile.of(spec.backend, link))
        except BaseException:
            started.kill()
            raise

    @property
    def generation(self) -> int:
        return self.link.generation

    @property
    def properties(self) -> node_pb2.DeviceProperties:
        """The properties of its device; only when the process is ready."""
        return self.link.ready.result()

    @property
    def _ends(self) -> set[asyncio.Future[Any]]:
        return {self.link.closed, self.link.fault, self._exited}

    @property
    def over(self) -> bool:
        """True if it has ended, or is about to."""
        return any(end.done() for end in self._ends)

    async def until_ready(self, patience: float) -> ExitCause | None:
        """Returns when it is ready; why it never will be otherwise."""
        ready = self.link.ready
        await asyncio.wait({*self._ends, ready}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if self.over:
            return await self._cause()
        if not ready.done():
            return ExitCause("start_timeout", f"it was not ready within {patience:g} s of its start")
        self.last_pong = time.monotonic()
        return None

    async def until(self, other: asyncio.Future[Any]) -> ExitCause | None:
        """Returns when `other` is done; why the process ended where it does so before."""
        await asyncio.wait({*self._ends, other}, return_when=asyncio.FIRST_COMPLETED)
        return await self._cause() if self.over else None

    async def _cause(self) -> ExitCause:
        return self._crash.explain(await find_cause(self.link, self._exited))

    async def watch(self, interval: float, patience: float, other: asyncio.Future[Any]) -> ExitCause | None:
        """Waits as `until` does, and sends a ping every `interval` seconds that has to be answered within
        `patience`."""
        pinger = asyncio.create_task(self._ping(interval, patience))
        looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait({*self._ends, pinger, other}, return_when=asyncio.FIRST_COMPLETED)
            if self.over:
                return await self._cause()
            if pinger.done():
                return self._crash.explain(ExitCause("stuck", f"it answered no ping for {patience:g} s"))
            return None
        finally:
            pinger.cancel()
            looking.cancel()
            await asyncio.gather(pinger, looking, return_exceptions=True)

    async def _ping(self, interval: float, patience: float) -> None:
        """Returns when a ping was not answered in time."""
        while True:
            if not await self._answers(patience):
                return
            self.last_pong = time.monotonic()
            self._given = {number: channel.batches.last for number, channel in self.link.channels.items()}
            await within(patience, self.link.stats())  # so that little of what it has counted is lost with it
            await asyncio.sleep(interval)

    async def _answers(self, patience: float) -> bool:
        """Returns True if a ping is answered in time; after half of it, the process is stalled until it answers."""
        pong = asyncio.ensure_future(self.link.ping())
        try:
            if await within(patience / 2, asyncio.shield(pong)):
                return True
            self._stall(silent=f"its process has answered no ping for {patience / 2:g} s")
            return await within(patience / 2, asyncio.shield(pong))
        finally:
            pong.cancel()
            self._stall(silent="")

    async def _look(self) -> None:
        """Sees whether the process is stopped (SIGSTOP, a debugger), long before it has missed a ping."""
        while True:
            halted = state_of(self.pid) in ("T", "t")
            self._stall(stopped="its process is stopped (SIGSTOP or a debugger)" if halted else "")
            await asyncio.sleep(_LOOK_S)

    def _stall(self, *, stopped: str | None = None, silent: str | None = None) -> None:
        before = self.stalled
        self._stopped = self._stopped if stopped is None else stopped
        self._silent = self._silent if silent is None else silent
        if self.stalled != before:
            log.warning("device_stalled" if self.stalled else "device_runs_again", pid=self.pid, why=self.stalled)
            self.on_stall()

    def working(self) -> set[str]:
        """Sessions that had work here lately: something is not answered, or came since the last ping, or may have come
        by a lane."""
        return {
            channel.session_id
            for number, channel in self.link.channels.items()
            if channel.calls
            or channel.lane is not None
            or len(channel.batches)
            or channel.batches.last != self._given.get(number, 0)
        }

    # ---- its end ----

    async def end(self, cause: ExitCause) -> None:
        """Makes sure that a process that is lost ends now; `reap` waits for it."""
        if cause.label == "stuck":
            self._started.report()
            await asyncio.wait({self._exited}, timeout=REPORT_GRACE)
        if cause.label != "fault":  # that one has just said that it ends by itself
            self._started.kill()

    async def shut_down(self, patience: float) -> bool:
        """Asks it to finish what is queued and to end; kills it where it does not, and says so."""
        obeyed = True
        if not self.link.ready.done() or self.over:
            self._started.kill()
        else:
            self.link.send(Kind.SHUTDOWN)
            _, pending = await asyncio.wait({self._exited}, timeout=patience)
            if pending:
                obeyed = False
                self._started.kill()
        await self._exited
        return obeyed

    def kill(self) -> None:
        self._started.kill()

    async def reap(self, final_refusal: Refusal | None = None) -> None:
        """Returns when it is gone; what it held on the device is free by then. `final_refusal`: for calls that still
        wait."""
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


async def within(seconds: float, work: Awaitable[object]) -> bool:
    """Returns True if the work is done in time; raises what it raises.

    Time in which this very process did not run (a machine that was paused or suspended, a debugger) counts little: the
    answer may be there by now, and was only not looked at. So the time passes in steps, and none counts for more than
    it was to last.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(_STEPS):
            done, _ = await asyncio.wait({task}, timeout=seconds / _STEPS)
            if done:
                task.result()
                return True
        return False
    finally:
        task.cancel()
