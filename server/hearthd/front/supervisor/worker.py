"""A worker: a lineage of device processes that serve, one after another, the sessions that share them on one device."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Protocol

import structlog

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.front import opentelemetry
from hearthd.front.links.link import DeviceLink
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.session import Session
from hearthd.front.supervisor.exit_cause import ABANDONED, INTENDED, RESTART, ExitCause
from hearthd.front.supervisor.isolation import (
    ALL_SESSIONS,
    FENCED,
    LOST,
    SERVING,
    STALLED,
    STARTING,
    STATE_NAMES,
    IsolationPolicy,
    ProcessLoss,
    WorkerKey,
    pause,
    weight,
)
from hearthd.front.supervisor.lingering_sessions import LingeringSession
from hearthd.front.supervisor.process import Process
from hearthd.front.supervisor.session_close import SessionClose
from hearthd.shared.device_spec import DeviceSpec

log = structlog.get_logger("hearthd.supervisor")


class WorkerOwner(Protocol):
    """The device of a worker, as the worker uses it."""

    ordinal: int
    policy: IsolationPolicy

    def check_session(self, session: Session) -> None:
        """Raises the reason why the session may not use the device now."""

    async def enter(self, worker: Worker) -> DeviceSpec:
        """Waits for room on the device for one more process, and returns the specification of the process."""

    async def start_process(self, spec: DeviceSpec) -> Process:
        """Starts a process. Raises an error if it cannot be started; its room on the device is then free again."""

    def process_ready(self, process: Process) -> None:
        """Notes that a process is ready."""

    async def prepare(self, process: Process, worker: Worker) -> None:
        """Restores the state that sessions expect in the process. Called before the worker's sessions use it."""

    def worker_lost(self, worker: Worker, process: Process | None, cause: ExitCause, ready: bool) -> str | None:
        """Notifies sessions and the supervisor of the loss of a process.

        Returns the session to which the loss is attributed, if that is known and other sessions are concerned.
        """

    def replace(self, worker: Worker) -> bool:
        """Returns True if another worker takes the place of this one."""

    def reaped(self, process: Process) -> None:
        """Notes that a process has ended and that everything it held is free."""

    def worker_ended(self, worker: Worker) -> None:
        """Notes that the worker has ended for good."""

    def notify(self) -> None:
        """Notes that the state of the worker has changed."""
        ...

    async def changed(self) -> None:
        """Returns after the next change of any worker's state."""
        ...


class Worker:
    """The process of one key, which is replaced when it is lost.

    Without a key the worker is vacant: ready for the next key.
    """

    def __init__(self, owner: WorkerOwner, key: WorkerKey | None, quota: int = 0) -> None:
        self.key = key
        self.quota = quota
        """Maximum device memory, in bytes, that the worker's tenant may hold. 0: no limit."""
        self.state: node_pb2.DeviceState = STARTING
        self.detail = "its first process is starting"
        self.process: Process | None = None
        self.generation = 0
        """The generation of the present process, or of the last one."""
        self.losses: deque[ProcessLoss] = deque()
        self._owner = owner
        self._ending = asyncio.get_running_loop().create_future()
        self._adopted = asyncio.get_running_loop().create_future()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._session_close: SessionClose | None = None
        self._killed: tuple[Process, ExitCause] | None = None
        """The process that was killed on purpose, and the cause."""
        self._stopped: Refusal | None = None
        self._task: asyncio.Task[None] = asyncio.create_task(self._run(), name=f"device-{owner.ordinal}")

    @property
    def condition(self) -> node_pb2.DeviceState:
        """The state to show.

        A worker whose process makes no progress is stalled: its sessions stay, and wait for the process.
        """
        return STALLED if self._stalled else self.state

    @property
    def reason(self) -> str:
        """The reason for the `condition`. Empty if the worker serves."""
        return self._stalled or self.detail

    @property
    def _stalled(self) -> str:
        return self.process.stalled if self.process is not None and self.state == SERVING else ""

    @property
    def link(self) -> DeviceLink | None:
        """The link to the process that serves now. None: no process serves."""
        return self.process.link if self.process is not None and self.state == SERVING else None

    @property
    def pid(self) -> int:
        """The pid of the present process; 0: there is none."""
        return self.process.pid if self.process is not None else 0

    @property
    def ending(self) -> bool:
        """True once the worker was asked to end. It starts no further process."""
        return self._ending.done()

    @property
    def is_idle(self) -> bool:
        """True if the worker serves no session and could end."""
        return self.link is not None and not self.link.channels

    def overdue_sessions(self) -> list[tuple[LingeringSession, float]]:
        """Returns the closed sessions whose work still runs, each with the seconds since it was closed."""
        return self._session_close.overdue() if self._session_close is not None else []

    # ---- for sessions ----

    async def channel(self, session: Session) -> Channel | None:
        """Returns the session's channel to the process that serves now, and opens it if necessary.

        None: the worker ends, and the caller must use another worker.

        Waits for a process that starts or is being replaced, and for a process in which only closed sessions with
        running work are left. Raises `DEVICE_UNAVAILABLE` after the time limit.
        """
        waiting_since = time.monotonic()
        while not self.ending:
            link = self.link
            self._owner.check_session(session)
            if link is not None and link.loss is None:
                channel = session.channels.get(self._owner.ordinal)
                if channel is not None and channel.link is link and channel.alive:
                    return channel
                if self._session_close is None or not self._session_close.must_drain:
                    return link.open_channel(session)
                self._session_close.note_waiter()
                waiting_since = time.monotonic()  # waiting for the replacement has a separate time limit
            policy = self._owner.policy
            is_starting = self.state == STARTING and self.process is not None
            time_limit = policy.start_timeout if is_starting else policy.serving_wait
            time_left = waiting_since + time_limit - time.monotonic()
            if time_left <= 0 or self.state == FENCED:
                raise self.unavailable()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(time_left):
                    await self._owner.changed()
        if self._stopped is not None:
            raise self._stopped
        return None

    def unavailable(self) -> Refusal:
        """Returns the refusal for callers whose time limit has passed."""
        fenced = self.state == FENCED
        ordinal = self._owner.ordinal
        return Refusal(
            Reason.DEVICE_UNAVAILABLE,
            f"Device {ordinal} (generation {self.generation}) is {STATE_NAMES[self.state]}: {self.detail}.",
            fix="Use another device; the daemon's log has the reason." if fenced else "Try again.",
            details={"device": ordinal, "generation": self.generation, "state": STATE_NAMES[self.state]},
            retry_after_s=None if fenced else 0.5,
        )

    # ---- processes ----

    def adopt(self, key: WorkerKey, quota: int, losses: Iterable[ProcessLoss] = ()) -> None:
        """Serves `key` from now on. `losses`: the losses of the worker whose place this worker takes."""
        self.key, self.quota, self.losses = key, quota, deque(losses)
        if self.state == SERVING:
            self._set_state(STARTING, "its process is being taken over")
        self._adopted.set_result(None)

    async def _run(self) -> None:
        try:
            while not self.ending:
                await self._run_process()
                if self.state == FENCED:
                    break
                dedicated = self.key is not None and self.key.dedicated
                await asyncio.wait({self._ending}, timeout=pause(self.losses, dedicated))
        finally:
            if self.state != FENCED or self.ending:
                self._owner.worker_ended(self)

    async def _run_process(self) -> None:
        """Runs one process from its start to its end, and notifies the device of both."""
        entering = asyncio.ensure_future(self._owner.enter(self))
        await asyncio.wait({entering, self._ending}, return_when=asyncio.FIRST_COMPLETED)
        if not entering.done():
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
            return
        try:
            process = await self._owner.start_process(entering.result())
        except Exception as error:  # a fork or the forkserver failed; the consequences are those of a lost process
            self._lose(None, ExitCause("launch", f"it could not be started: {error}"), ready=False)
            return
        self.process, self.generation = process, process.generation
        self._session_close = SessionClose(
            process.link, partial(self._abandon, process), self._owner.notify, grace=self._owner.policy.grace
        )
        if self.ending:  # the worker was asked to end while the process was being started
            process.kill()
        ready = False
        try:
            cause = await process.until_ready(self._owner.policy.start_timeout)
            if cause is None:
                ready = True
                cause = await self._serve(process)
        except BaseException:
            process.kill()
            raise
        finally:
            self._session_close.close()
        if self.ending:
            if not await process.shut_down(self._owner.policy.shutdown_timeout):
                log.warning("device_killed", device=self._owner.ordinal, why="it did not end when asked to")
            await process.reap(self._stopped or _process_ending(self._owner.ordinal))
        else:
            assert cause is not None
            if self._killed is not None and self._killed[0] is process:
                cause = self._killed[1]
            await process.end(cause)
            self._lose(process, cause, ready)
            await process.reap()
        self.process = self._session_close = None
        self._owner.reaped(process)

    async def _serve(self, process: Process) -> ExitCause | None:
        """Serves the worker's sessions with a process that is ready.

        Returns the cause of the process's end; None: the worker ends.
        """
        policy = self._owner.policy
        watch = (policy.ping_interval, policy.ping_timeout)
        self._owner.process_ready(process)
        process.on_stall = self._owner.notify
        opentelemetry.device_started(self._owner.ordinal, process.generation, process.started_at)
        log.info(
            "device_ready",
            device=self._owner.ordinal,
            generation=process.generation,
            pid=process.pid,
            name=process.properties.name,
            seconds=round(time.monotonic() - process.started_at, 3),
        )
        if self.key is None:
            self._set_state(SERVING, "")
            self._start_idle_timeout()
            futures = {self._adopted, self._ending}
            adopted_or_ending = asyncio.ensure_future(asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED))
            cause = await process.watch(*watch, adopted_or_ending)
            adopted_or_ending.cancel()
            if cause is not None or self.ending:
                return cause
        process.link.on_last_channel_closed = self._start_idle_timeout
        preparing = asyncio.ensure_future(self._owner.prepare(process, self))
        cause = await process.until(preparing)
        if cause is not None:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)
            return cause
        preparing.result()
        self._set_state(SERVING, "")
        self._start_idle_timeout()
        return await process.watch(*watch, self._ending)

    def _lose(self, process: Process | None, cause: ExitCause, ready: bool) -> None:
        now = time.monotonic()
        policy = self._owner.policy
        self._set_state(LOST, cause.text)
        opentelemetry.device_lost(self._owner.ordinal, self.generation, cause.label, cause.text)
        culprit = self._owner.worker_lost(self, process, cause, ready)
        if cause.label not in INTENDED:
            self.losses.append(ProcessLoss(now, culprit))
        while self.losses and now - self.losses[0].time > policy.restart_window:
            self.losses.popleft()
        # A vacant worker is not fenced: no session would be refused, and it is to serve when it is needed.
        if self.key is not None and self.state != FENCED and weight(self.losses) > policy.max_restarts:
            self.fence(
                f"its process ended {len(self.losses)} times within {policy.restart_window:g} s, last because "
                f"{cause.text}"
            )
        if self.ending:
            return
        # The only session of a dedicated process that was abandoned is closed.
        has_finished = cause.label == ABANDONED and self.key is not None and self.key.dedicated
        if has_finished or (self.state != FENCED and self._owner.replace(self)):
            self._ending.set_result(None)

    def on_memory_wait(self) -> None:
        """Notes that no process can be started yet, because there is no device memory for it."""
        self.detail = "there is no device memory left for one more process; other processes must free some"

    def fence(self, reason: str) -> None:
        """Starts no further process."""
        self._set_state(FENCED, reason)
        log.error("device_fenced", device=self._owner.ordinal, generation=self.generation, why=reason)

    def _set_state(self, state: node_pb2.DeviceState, detail: str) -> None:
        self.state, self.detail = state, detail
        self._owner.notify()

    # ---- end ----

    def _start_idle_timeout(self) -> None:
        """Starts the idle timeout, if there is one. Called when no session has a channel in the process."""
        timeout = self._owner.policy.idle_timeout
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        exempt = self.key == ALL_SESSIONS or (self.key is None and self._owner.policy.spare)
        if timeout and not exempt:
            self._idle_timer = asyncio.get_running_loop().call_later(timeout, self._end_if_idle, self.key)

    def _end_if_idle(self, key: WorkerKey | None) -> None:
        self._idle_timer = None
        if self.is_idle and self.key == key and not self.ending:
            log.info("device_idle", device=self._owner.ordinal, generation=self.generation, pid=self.pid)
            self.retire()

    def _abandon(self, process: Process, cause: ExitCause) -> None:
        """Kills a process in which only closed sessions are left whose work does not end."""
        if self.process is not process or self.ending or (self._killed and self._killed[0] is process):
            return
        self._killed = (process, cause)
        process.kill()
        self._set_state(LOST, cause.text)  # new sessions wait for the next process from now on

    def restart(self) -> None:
        """Replaces the process, and starts the worker again if it is fenced."""
        self.losses.clear()
        if self.process is not None:
            self._killed = (self.process, ExitCause(RESTART, "an operator restarts it"))
            self.process.kill()
        if self.state == FENCED:
            self._set_state(LOST, "an operator restarts it")
        if self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"device-{self._owner.ordinal}")

    def retire(self, at_once: bool = False, final_refusal: Refusal | None = None) -> asyncio.Task[None]:
        """Ends the worker for good: asks its process to end, and kills the process if it does not.

        The returned task is done when the process has ended.
        """
        self._stopped = self._stopped or final_refusal
        process = self.process
        if process is not None and (at_once or self.state != SERVING):
            process.kill()
        if not self.ending:
            self._ending.set_result(None)
            self._set_state(self.state, "it is ending")
        return asyncio.create_task(self._retire(), name=f"device-{self._owner.ordinal}-end")

    async def _retire(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if not self._task.done():
            time_limit = 2 * self._owner.policy.shutdown_timeout  # the worker may be waiting for a launch
            _, pending = await asyncio.wait({self._task}, timeout=time_limit)
            if pending:
                self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._owner.worker_ended(self)


def _process_ending(ordinal: int) -> Refusal:
    return Refusal(
        Reason.DEVICE_UNAVAILABLE,
        f"The process of device {ordinal} that served this session is ending.",
        fix="Try again.",
        details={"device": ordinal},
        retry_after_s=0.5,
    )
