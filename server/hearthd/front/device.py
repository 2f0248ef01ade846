"""One device of the node: which of its workers serves whom, and what they add up to."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import structlog

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import node_pb2
from hearthd.front import refusals
from hearthd.front.channel import Channel
from hearthd.front.grants import Grants
from hearthd.front.launcher import Launcher
from hearthd.front.ledger import Ledger
from hearthd.front.link import CollectiveSink, DeviceLink
from hearthd.front.loss import Cause
from hearthd.front.process import Process
from hearthd.front.sessions import Session
from hearthd.front.tenants import Right, Tenant
from hearthd.front.totals import Totals
from hearthd.front.worker import EVERYBODY, FENCED, LOST, SERVING, STARTING, STATE_NAMES, Key, Policy, Worker
from hearthd.spec import DeviceSpec

__all__ = ["FENCED", "LOST", "SERVING", "STARTING", "STATE_NAMES", "Device", "Owner", "Policy"]

log = structlog.get_logger("hearthd.supervisor")


class Owner(Protocol):
    """Who is told of a device's changes: the supervisor."""

    on_collective: CollectiveSink | None
    sessions: Iterable[Session]

    def notify(self) -> None: ...

    async def changed(self) -> None: ...

    def device_lost(self, link: DeviceLink, why: str) -> None:
        """A process has ended; the channels of its link are still known."""

    async def before_serving(self, link: DeviceLink) -> None:
        """A process is ready: what has to be there before anybody uses it is brought back now."""


class Device:
    """One device of the node and its workers."""

    def __init__(self, spec: DeviceSpec, launcher: Launcher, policy: Policy, owner: Owner) -> None:
        self.spec = spec
        self.ordinal = spec.ordinal
        self.policy = policy
        self.properties = node_pb2.DeviceProperties(backend=spec.backend)
        self.restarts: dict[str, int] = {}
        self.totals = Totals()
        self._grants = Grants(policy.context_memory, spec.memory_limit)
        self._launcher = launcher
        self._owner = owner
        self._workers: dict[Key, Worker] = {}
        self._vacant: Worker | None = None
        self._ending: set[Worker] = set()
        self._numbers = itertools.count(spec.generation)
        self._known = False  # whether a process has been ready
        self._failures: deque[float] = deque()  # of processes that were never ready while none served
        self._fenced = ""
        self._stopping: Refusal | None = None
        self._ends: set[asyncio.Task[None]] = set()

    # ---- what it is ----

    @property
    def _primary(self) -> Worker | None:
        """The worker that stands for the device: everybody's, else the vacant one while there is no other."""
        return self._workers.get(EVERYBODY) or (None if self._known else self._vacant)

    @property
    def workers(self) -> Iterator[Worker]:
        """All of them, those that are vacant and those that end included."""
        yield from self._workers.values()
        if self._vacant is not None:
            yield self._vacant
        yield from self._ending

    @property
    def running(self) -> list[Worker]:
        """Those whose process can be asked."""
        return [worker for worker in self.workers if worker.link is not None and not worker.ending]

    @property
    def state(self) -> node_pb2.DeviceState:
        """Of everybody's worker; where each tenant has its own, whether a tenant that comes is served."""
        if self._primary is not None:
            return self._primary.state
        if self._fenced:
            return FENCED
        if not self._known:
            return STARTING
        states = [worker.state for key, worker in self._workers.items() if not key.dedicated]
        return LOST if states and all(state == LOST for state in states) else SERVING

    @property
    def detail(self) -> str:
        if self._primary is not None:
            return self._primary.detail
        if self._fenced:
            return self._fenced
        return next((worker.detail for worker in self._workers.values() if worker.state == self.state), "")

    @property
    def generation(self) -> int:
        """The number of the process that stands for the device."""
        if self._primary is not None and self._primary.generation:
            return self._primary.generation
        return max((worker.generation for worker in self.workers), default=0) or self.spec.generation

    @property
    def pid(self) -> int:
        """Of that process; 0 without one."""
        worker = self._primary or next(iter(self.running), None)
        return worker.pid if worker is not None else 0

    @property
    def link(self) -> DeviceLink | None:
        """To that process, while it serves."""
        worker = self._primary or next(iter(self.running), None)
        return worker.link if worker is not None else None

    @property
    def last_pong(self) -> float:
        """When the process that has been silent for longest was heard last."""
        pongs = [worker.process.last_pong for worker in self.running if worker.process is not None]
        return min(pongs, default=time.monotonic())

    @property
    def memory(self) -> Ledger:
        """How its memory is divided between its processes."""
        return self._grants.ledger

    def describe(self, viewer: Tenant | None = None) -> node_pb2.Device:
        """What `viewer` may know of it; None: everything."""
        worker = self._primary
        if worker is None and viewer is not None:
            worker = self._workers.get(Key(viewer.name))
        everything = viewer is None or viewer.may(Right.ADMIN)
        return node_pb2.Device(
            ordinal=self.ordinal,
            state=self.state,
            generation=worker.generation if worker is not None and worker.generation else self.generation,
            properties=self.properties,
            pid=worker.pid if worker is not None else self.pid if everything else 0,
            detail=self.detail,
            processes=[
                node_pb2.DeviceProcess(
                    pid=each.pid,
                    generation=each.generation,
                    state=each.state,
                    tenant=each.key.tenant if each.key is not None else "",
                    session_id=each.key.session if each.key is not None else "",
                    memory_granted=self.memory.granted(each.generation),
                    memory_held=self.memory.held(each.generation),
                )
                for each in self.workers
                if each.pid
                and (everything or (each.key is not None and each.key.tenant in ("", viewer.name if viewer else "")))
            ],
        )

    # ---- who is served by whom ----

    def key(self, session: Session) -> Key:
        """Whose worker serves a session."""
        if session.dedicated:
            return Key(session.tenant.name, session.id)
        return Key(session.tenant.name) if self.policy.by_tenant else EVERYBODY

    async def channel(self, session: Session, attaching: bool = False) -> Channel:
        """The session's channel to the process that serves it now, opened where there is none; a process is started
        where there is none. Waits a little for one that is being replaced; raises `DEVICE_UNAVAILABLE` after that.

        Raises `DEVICE_LOST`, once, where the session's last process was lost and nobody has told it; an Execute
        stream (`attaching`) is told by the generation that it attaches to."""
        last = session.ended.get(self.ordinal)
        if last is not None and last.loss is not None and not last.told:
            last.told = True
            if not attaching:
                raise last.loss
        while True:
            if session.closing:  # it gets no further worker, which nobody would end
                raise refusals.session_expired()
            worker = self._workers.get(self.key(session)) or await self._worker(session)
            channel = await worker.channel(session)
            if channel is not None:
                return channel

    async def _worker(self, session: Session) -> Worker:
        """The session's worker, made or adopted."""
        key = self.key(session)
        quota = session.tenant.quotas.device_bytes if key.tenant else 0  # everybody's worker counts each tenant itself
        while True:
            worker = self._workers.get(key)
            if worker is not None:
                return worker
            if self._stopping is not None:
                raise self._stopping
            if self._fenced:
                raise self._unavailable(self._fenced)
            if self._vacant is not None:
                worker, self._vacant = self._vacant, None
                worker.adopt(key, quota)
            elif await self._room():
                continue  # something may have happened meanwhile
            else:
                worker = Worker(self, key, quota)
            self._workers[key] = worker
            self._refill()
            return worker

    def _refill(self) -> None:
        """Has a spare process where that is wanted."""
        if (
            self.policy.spare
            and self._vacant is None
            and self._stopping is None
            and not self._fenced
            and len(list(self.workers)) < self.policy.max_processes
        ):
            self._vacant = Worker(self, None)

    async def _room(self) -> bool:
        """Makes sure that one more process may be started; whether that took time. Raises `DEVICE_UNAVAILABLE`."""
        if len(list(self.workers)) < self.policy.max_processes:
            return False
        if not self._ending:
            idle = [worker for key, worker in self._workers.items() if worker.holds_nothing and key != EVERYBODY]
            if not idle:
                raise Refusal(
                    Reason.DEVICE_UNAVAILABLE,
                    f"Device {self.ordinal} has {len(list(self.workers))} processes, each in use; the most is "
                    f"{self.policy.max_processes}.",
                    fix="Try again when another session has ended, or raise devices.max_processes.",
                    details={"device": self.ordinal, "allowed": self.policy.max_processes},
                    retry_after_s=1.0,
                )
            self._end(idle[0])
        await self._owner.changed()
        return True

    def release(self, session: Session) -> None:
        """A session has ended: so do the processes that were its own."""
        worker = self._workers.get(self.key(session)) if session.dedicated else None
        if worker is not None:
            self._end(worker)

    def _end(self, worker: Worker) -> None:
        task = worker.retire(last_words=self._stopping)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    # ---- what workers need of it ----

    async def enter(self, worker: Worker) -> DeviceSpec:
        number = next(self._numbers)
        tenant = worker.key.tenant if worker.key is not None else ""
        granted = await self._grants.enter(number, tenant, worker.quota, uses=worker.key is not None)
        return dataclasses.replace(self.spec, generation=number, memory_granted=granted, scrub=self.policy.scrub)

    async def start_process(self, spec: DeviceSpec) -> Process:
        try:
            process = await Process.start(spec, self._launcher, self._owner.on_collective, self._observe)
        except BaseException:
            self._grants.leave(spec.generation)
            raise
        self._grants.attach(process.link)
        return process

    def _observe(self, generation: int, stats: dict[str, Any]) -> None:
        self.totals.observe(generation, stats)
        self._grants.hear(generation, stats)

    def learn(self, process: Process) -> None:
        self.properties = process.properties
        self._known = True
        self._failures.clear()
        self._grants.learn(process.properties.total_memory)

    async def prepare(self, process: Process, worker: Worker) -> None:
        key = worker.key
        assert key is not None
        self.totals.belongs(process.generation, key.tenant)
        self._grants.use(process.generation, key.tenant, worker.quota)
        process.link.serves = lambda session: self.key(session) == key
        await self._owner.before_serving(process.link)

    def lost(self, worker: Worker, process: Process | None, cause: Cause, ready: bool) -> bool:
        generation = process.generation if process is not None else worker.generation
        log.error("device_lost", device=self.ordinal, generation=generation, why=cause.text, kernels=list(cause.kernels))
        self.restarts[cause.label] = self.restarts.get(cause.label, 0) + 1
        if process is not None:
            self._owner.device_lost(process.link, cause.text)
            for session in self._owner.sessions:
                channel = session.channels.get(self.ordinal)
                if channel is not None and channel.link is process.link:
                    session.ended[self.ordinal] = session.channels.pop(self.ordinal)
            process.link.fail(cause.refusal(self.ordinal, generation), list(cause.kernels))
        if not ready:
            self._failed_to_start(worker, cause)
        if worker.state == FENCED or worker.key is None or self._vacant is None:
            return False
        spare, self._vacant = self._vacant, None
        spare.adopt(worker.key, worker.quota, worker.losses)
        self._workers[worker.key] = spare
        self._ending.add(worker)
        self._refill()
        return True

    def _failed_to_start(self, worker: Worker, cause: Cause) -> None:
        """A process that cannot be started while none serves speaks against the device."""
        now = time.monotonic()
        if self.running:
            return
        self._failures.append(now)
        while self._failures and now - self._failures[0] > self.policy.restart_window:
            self._failures.popleft()
        if len(self._failures) > self.policy.max_restarts:
            self._fenced = (
                f"{len(self._failures)} processes failed to start within {self.policy.restart_window:g} s, the last "
                f"because {cause.text}"
            )
            if worker.state != FENCED:
                worker.fence(self._fenced)

    def buried(self, generation: int) -> None:
        self.totals.settle(generation)
        self._grants.leave(generation)

    def gone(self, worker: Worker) -> None:
        self._ending.discard(worker)
        if worker is self._vacant:
            self._vacant = None
        if worker.key is not None and self._workers.get(worker.key) is worker:
            del self._workers[worker.key]
        self.notify()

    def notify(self) -> None:
        for worker in [each for each in self._workers.values() if each.ending]:
            assert worker.key is not None
            self._ending.add(self._workers.pop(worker.key))
        if self._vacant is not None and self._vacant.ending:
            self._ending.add(self._vacant)
            self._vacant = None
        self._owner.notify()

    async def changed(self) -> None:
        await self._owner.changed()

    # ---- its life ----

    def start(self) -> None:
        """Starts its first process: everybody's, or one that the first tenant to come takes over."""
        if self.policy.by_tenant:
            self._vacant = Worker(self, None)
        else:
            self._workers[EVERYBODY] = Worker(self, EVERYBODY)
            self._refill()

    def restart(self) -> None:
        """Ends every process, lifts fences, and starts again. For operators."""
        log.warning("device_restart", device=self.ordinal, processes=len(list(self.workers)))
        self._fenced = ""
        self._failures.clear()
        for worker in list(self.workers):
            if not worker.ending:
                worker.restart()
        self.notify()

    async def stop(self, at_once: bool = False) -> None:
        """Asks all its processes to end; kills those that do not."""
        self._stopping = Refusal(
            Reason.DRAINING, "The daemon is stopping.", fix="Try again when it runs.", retry_after_s=1.0
        )
        await asyncio.gather(*(worker.retire(at_once, self._stopping) for worker in list(self.workers)), *self._ends)
        self._grants.stop()

    def _unavailable(self, why: str) -> Refusal:
        return Refusal(
            Reason.DEVICE_UNAVAILABLE,
            f"Device {self.ordinal} is fenced: {why}.",
            fix="Use another device; the daemon's log says why this one failed.",
            details={"device": self.ordinal, "state": STATE_NAMES[FENCED]},
        )
