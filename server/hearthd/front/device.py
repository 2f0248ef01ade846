"""One device and the processes that serve it, one after another: started, watched, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.front import refusals
from hearthd.front.channel import Channel
from hearthd.front.descriptors import Descriptors
from hearthd.front.launcher import DeviceProcess, Launcher
from hearthd.front.link import CollectiveSink, DeviceLink
from hearthd.front.loss import EXIT_GRACE, REPORT_GRACE, Cause, find_cause
from hearthd.front.sessions import Session
from hearthd.front.totals import Totals
from hearthd.spec import DeviceSpec

log = structlog.get_logger("hearthd.supervisor")

STARTING = node_pb2.DEVICE_STATE_STARTING
SERVING = node_pb2.DEVICE_STATE_SERVING
LOST = node_pb2.DEVICE_STATE_LOST
FENCED = node_pb2.DEVICE_STATE_FENCED

STATE_NAMES = {STARTING: "starting", SERVING: "serving", LOST: "lost", FENCED: "fenced"}


@dataclass(frozen=True)
class Policy:
    """How patient the supervisor is; seconds."""

    start_timeout: float = 60.0
    ping_timeout: float = 10.0
    ping_interval: float = 2.0
    max_restarts: int = 5
    restart_window: float = 60.0
    shutdown_timeout: float = 5.0
    serving_wait: float = 5.0
    """How long a call waits for a device that is being replaced."""


class Owner(Protocol):
    """Who is told of a device's changes: the supervisor."""

    on_collective: CollectiveSink | None

    def notify(self) -> None: ...

    async def changed(self) -> None: ...

    def device_lost(self, ordinal: int, why: str) -> None: ...

    async def before_serving(self, link: DeviceLink) -> None:
        """A process is ready: what has to be there before anybody uses it is brought back now."""


class Device:
    """One device of the node and the process that serves it now."""

    def __init__(self, spec: DeviceSpec, launcher: Launcher, policy: Policy, owner: Owner) -> None:
        self.spec = spec
        self.ordinal = spec.ordinal
        self.generation = spec.generation
        self.state: node_pb2.DeviceState = STARTING
        self.detail = "its first process is starting"
        self.properties = node_pb2.DeviceProperties(backend=spec.backend)
        self.pid = 0
        self.restarts: dict[str, int] = {}
        self.totals = Totals()
        self.last_pong = time.monotonic()
        self.link: DeviceLink | None = None
        self._launcher = launcher
        self._policy = policy
        self._owner = owner
        self._losses: deque[float] = deque()
        self._process: DeviceProcess | None = None
        self._stopping = False

    def describe(self) -> node_pb2.Device:
        return node_pb2.Device(
            ordinal=self.ordinal,
            state=self.state,
            generation=self.generation,
            properties=self.properties,
            pid=self.pid,
            detail=self.detail,
        )

    async def channel(self, session: Session, attaching: bool = False) -> Channel:
        """The session's channel to the process that serves now, opened where there is none. Waits a little for a
        process that is being replaced; raises `DEVICE_UNAVAILABLE` after that.

        Raises `DEVICE_LOST`, once, where the session's last process was lost and nobody has told it; an Execute
        stream (`attaching`) is told by the generation that it attaches to."""
        last = session.channels.get(self.ordinal)
        if last is not None and last.loss is not None and not last.told and not attaching:
            last.told = True
            raise last.loss
        while True:
            link = await self._serving()
            if session.closing:
                raise refusals.session_expired()
            channel = session.channels.get(self.ordinal)
            if channel is not None and channel.link is link and channel.alive:
                return channel
            if link.loss is None:
                channel = link.open_channel(session.opening())
                session.channels[self.ordinal] = channel
                return channel

    async def _serving(self) -> DeviceLink:
        deadline = time.monotonic() + self._policy.serving_wait
        while True:
            if self.state == SERVING and self.link is not None:
                return self.link
            left = deadline - time.monotonic()
            if left <= 0 or self.state == FENCED or self._stopping:
                raise self._unavailable()
            try:
                await asyncio.wait_for(self._owner.changed(), left)
            except TimeoutError:
                continue

    def _unavailable(self) -> Refusal:
        fenced = self.state == FENCED
        return Refusal(
            Reason.DEVICE_UNAVAILABLE,
            f"Device {self.ordinal} (generation {self.generation}) is {STATE_NAMES[self.state]}: {self.detail}.",
            fix="Use another device; the daemon's log says why this one failed." if fenced else "Try again.",
            details={"device": self.ordinal, "generation": self.generation, "state": STATE_NAMES[self.state]},
            retry_after_s=None if fenced else 0.5,
        )

    # ---- the life of its processes ----

    async def run(self) -> None:
        """Keeps a process serving until the device is stopped or fenced."""
        while not self._stopping:
            cause = await self._live()
            if self._stopping or not self._again(cause):
                return
            await asyncio.sleep(self._pause())
            self.generation += 1

    def _again(self, cause: Cause) -> bool:
        now = time.monotonic()
        self._losses.append(now)
        while self._losses and now - self._losses[0] > self._policy.restart_window:
            self._losses.popleft()
        self.restarts[cause.label] = self.restarts.get(cause.label, 0) + 1
        if len(self._losses) <= self._policy.max_restarts:
            return True
        self._set(
            FENCED,
            f"its process ended {len(self._losses)} times within {self._policy.restart_window:g} s, last because "
            f"{cause.text}",
        )
        log.error("device_fenced", device=self.ordinal, generation=self.generation, why=self.detail)
        return False

    def _pause(self) -> float:
        """At once at first; a process that fails again and again is given less and less."""
        quick = len(self._losses) - 2
        return 0.0 if quick <= 0 else min(2.0, 0.1 * 2 ** (quick - 1))

    async def _live(self) -> Cause:
        """One process from its start to its end; returns why it ended, with everyone told."""
        spec = dataclasses.replace(self.spec, generation=self.generation)
        begin = time.monotonic()
        try:
            process = await self._launcher.launch(spec)
        except Exception as error:  # a fork or the forkserver failed: no process, the same consequences
            cause = Cause("launch", f"it could not be started: {error}")
            self._lost(None, cause)
            return cause
        self._process, self.pid = process, process.pid
        if self._stopping:  # it was asked to while the process was being started
            process.kill()
        exited = asyncio.ensure_future(process.ended())
        link = DeviceLink(self.ordinal, self.generation, self._owner.on_collective)
        link.on_stats = partial(self.totals.observe, self.generation)
        try:
            if process.descriptors is not None:
                link.descriptors = Descriptors(process.descriptors, self.ordinal)
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=process.socket)
            self.link = link
            cause = await self._watch(link, exited, begin)
        except BaseException:
            process.kill()
            raise
        if self._stopping:
            await self._bury(process, exited, link.descriptors)
            link.fail(self._stopped(), [])
        else:
            if cause.label == "stuck":
                process.report()
                await asyncio.wait({exited}, timeout=REPORT_GRACE)
            if cause.label != "fault":  # that one has just said that it ends by itself
                process.kill()
            self._lost(link, cause)
            await self._bury(process, exited, link.descriptors)
        self._process, self.pid = None, 0
        return cause

    async def _watch(self, link: DeviceLink, exited: asyncio.Future[int | None], begin: float) -> Cause:
        """Waits for the process's readiness, then for its end."""
        ends: set[asyncio.Future[Any]] = {link.closed, link.fault, exited}
        await asyncio.wait({*ends, link.ready}, timeout=self._policy.start_timeout, return_when=asyncio.FIRST_COMPLETED)
        if not link.ready.done() or any(end.done() for end in ends):
            if any(end.done() for end in ends):
                return await find_cause(link, exited)
            return Cause("start_timeout", f"it was not ready within {self._policy.start_timeout:g} s of its start")
        self.properties = link.ready.result()
        await self._owner.before_serving(link)
        self.last_pong = time.monotonic()
        self._set(SERVING, "")
        log.info(
            "device_ready",
            device=self.ordinal,
            generation=self.generation,
            pid=self.pid,
            name=self.properties.name,
            seconds=round(time.monotonic() - begin, 3),
        )
        pinger = asyncio.create_task(self._ping(link))
        try:
            await asyncio.wait({*ends, pinger}, return_when=asyncio.FIRST_COMPLETED)
            if pinger.done() and not any(end.done() for end in ends):
                return Cause("stuck", f"it answered no ping for {self._policy.ping_timeout:g} s")
            return await find_cause(link, exited)
        finally:
            pinger.cancel()
            await asyncio.gather(pinger, return_exceptions=True)

    async def _ping(self, link: DeviceLink) -> None:
        """Returns when a ping was not answered in time."""
        while True:
            try:
                await asyncio.wait_for(link.ping(), self._policy.ping_timeout)
            except TimeoutError:
                return
            self.last_pong = time.monotonic()
            with contextlib.suppress(TimeoutError):  # so that little of what it has counted is lost with it
                await asyncio.wait_for(link.stats(), self._policy.ping_timeout)
            await asyncio.sleep(self._policy.ping_interval)

    def _lost(self, link: DeviceLink | None, cause: Cause) -> None:
        self._set(LOST, cause.text)
        log.error(
            "device_lost", device=self.ordinal, generation=self.generation, why=cause.text, kernels=list(cause.kernels)
        )
        refusal = cause.refusal(self.ordinal, self.generation)
        if link is not None:
            link.fail(refusal, list(cause.kernels))
        self.link = None
        self._owner.device_lost(self.ordinal, cause.text)

    async def _bury(
        self, process: DeviceProcess, exited: asyncio.Future[int | None], descriptors: Descriptors | None
    ) -> None:
        """Returns when the process is gone; what it held on the device is free by then."""
        _, pending = await asyncio.wait({exited}, timeout=EXIT_GRACE)
        if pending:
            process.kill()
            await exited
        process.socket.close()
        if descriptors is not None:
            descriptors.close()

    def _stopped(self) -> Refusal:
        return Refusal(Reason.DRAINING, "The daemon is stopping.", fix="Try again when it runs.", retry_after_s=1.0)

    def _set(self, state: node_pb2.DeviceState, detail: str) -> None:
        self.state, self.detail = state, detail
        self._owner.notify()

    async def stop(self, at_once: bool = False) -> None:
        """Asks the process to end; kills it where it does not."""
        self._stopping = True
        self._set(self.state, "the daemon is stopping")
        process, link = self._process, self.link
        if process is None:
            return
        if at_once or link is None or not link.ready.done():
            process.kill()
        else:
            link.send(Kind.SHUTDOWN)
            ended = asyncio.ensure_future(process.ended())
            _, pending = await asyncio.wait({ended}, timeout=self._policy.shutdown_timeout)
            if pending:
                log.warning("device_killed", device=self.ordinal, why="it did not end when asked to")
                process.kill()
        await process.ended()
