"""A device of the node: its workers, the sessions that each of them serves, and the device's totals."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import structlog

from hearth_proto.reasons import Reason, Refusal
from hearthd.front import errors
from hearthd.front.counters import DeviceTotals
from hearthd.front.links.link import CollectiveSink, DeviceLink
from hearthd.front.rates import RateHistory, Rates
from hearthd.front.resources.memory_grants import MemoryGrants
from hearthd.front.resources.tenant_memory import TenantMemory
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.session import Session
from hearthd.front.supervisor.device_status import DeviceStatus
from hearthd.front.supervisor.durations import ProcessDurations
from hearthd.front.supervisor.exit_cause import INTENDED, ExitCause
from hearthd.front.supervisor.fault_log import RecentFaults
from hearthd.front.supervisor.fault_policy import FaultQuarantine, culprit, named_sessions
from hearthd.front.supervisor.isolation import (
    ALL_SESSIONS,
    FENCED,
    LOST,
    SERVING,
    STARTING,
    STATE_NAMES,
    IsolationPolicy,
    WorkerKey,
)
from hearthd.front.supervisor.launcher import Launcher
from hearthd.front.supervisor.process import Process
from hearthd.front.supervisor.session_reports import SessionReports
from hearthd.front.supervisor.worker import Worker
from hearthd.front.tenancy.shares import Shares
from hearthd.front.tenancy.tenants import Quotas, Tenant
from hearthd.shared.device_spec import CHANGEABLE, DeviceSpec
from hearthd.shared.log import LogThrottle

__all__ = ["FENCED", "LOST", "SERVING", "STARTING", "STATE_NAMES", "Device", "DeviceOwner", "IsolationPolicy"]

log = structlog.get_logger("hearthd.supervisor")

THROUGHPUT = ("commands", "kernel_launches", "host_to_device_bytes", "device_to_host_bytes", "device_busy_ns")
"""Names of the counters whose rates are kept."""


class DeviceOwner(Protocol):
    """The supervisor, as its devices use it."""

    on_collective: CollectiveSink | None
    sessions: Iterable[Session]
    quarantine: FaultQuarantine

    def find(self, ordinal: int, tenant: Tenant) -> object:
        """Raises a refusal if the tenant may not use the device."""

    def record_fault(self, session: str) -> None:
        """Counts the loss of a shared process that is attributed to a session."""

    def notify(self) -> None:
        """Notes a change of a device's state: wakes `changed`, and calls the listeners."""
        ...

    async def changed(self) -> None:
        """Returns after the next change of the state of any device."""
        ...

    def device_lost(self, link: DeviceLink, reason: str) -> None:
        """Notes that a process has ended. The channels of its link are still known."""

    def device_ended(self, link: DeviceLink) -> None:
        """Notes that a process has ended, lost or not. Its link has no more channels."""

    async def before_serving(self, link: DeviceLink) -> None:
        """Restores the state that sessions expect in a process.

        Called when the process is ready, before any session uses it.
        """


class Device(DeviceStatus):
    """A device of the node. Starts the workers of the device, and assigns sessions to workers."""

    def __init__(self, spec: DeviceSpec, launcher: Launcher, policy: IsolationPolicy, owner: DeviceOwner) -> None:
        super().__init__(spec, MemoryGrants(policy.context_memory, spec.memory_limit))
        self.policy = policy
        self.restarts: Counter[str] = Counter()
        """Number of lost processes, by the label of the cause."""
        self.share_refusals: Counter[str] = Counter()
        """Number of refused starts of a process because the tenant had used up its share of processes, by tenant."""
        self._log_throttle = LogThrottle()
        self.durations = ProcessDurations()
        self.totals = DeviceTotals()
        self.rates = Rates()
        self.history = RateHistory()
        self.faults = RecentFaults(spec.ordinal)
        self.tenant_memory = TenantMemory()
        self.reports = SessionReports()
        self._launcher = launcher
        self._owner = owner
        self._generations = itertools.count(spec.generation)
        self._failures: deque[float] = deque()  # times at which processes failed to start while no other process served
        self._stopping: Refusal | None = None
        self._ends: set[asyncio.Task[None]] = set()

    # ---- assignment of sessions to workers ----

    def key(self, session: Session) -> WorkerKey:
        """Returns the key of the worker that serves a session."""
        if session.dedicated:
            return WorkerKey(session.tenant.name, session.id)
        return WorkerKey(session.tenant.name) if self.policy.by_tenant else ALL_SESSIONS

    async def channel(self, session: Session, attaching: bool = False) -> Channel:
        """Returns the session's channel to the process that serves it now.

        Opens the channel and starts a process if necessary. Waits at most `serving_wait` seconds for a process that is
        being replaced, then raises `DEVICE_UNAVAILABLE`.

        Raises `DEVICE_LOST`, once, if the session's last process was lost and the session has not been notified. An
        Execute stream (`attaching`) sees the loss from the generation that it attaches to.
        """
        ended_channel = session.ended.get(self.ordinal)
        if ended_channel is not None and ended_channel.loss is not None and not ended_channel.loss_reported:
            ended_channel.loss_reported = True
            if not attaching:
                raise ended_channel.loss
        while True:
            self.check_session(session)
            worker = self.workers.serving.get(self.key(session)) or await self._find_worker(session)
            channel = await worker.channel(session) if worker is not None else None
            if channel is not None:
                return channel

    def check_session(self, session: Session) -> None:
        """Raises the reason why the session may not use the device now. Must be called again after every wait."""
        if session.closing:  # a new worker for a closed session would never be ended
            raise errors.session_expired()
        self._owner.find(self.ordinal, session.tenant)  # a reload may have taken the device from the tenant
        refusal = self.quarantine_refusal(session)
        if refusal is not None:
            raise refusal
        if self.sick and self.ordinal not in session.channels:  # existing sessions may still read their data
            raise self._unavailable(self.sick)

    def quarantine_refusal(self, session: Session) -> Refusal | None:
        """Returns the reason why the session may not share a process with other sessions; None: it may."""
        return None if session.dedicated else self._owner.quarantine.refusal(session.id)

    async def _find_worker(self, session: Session) -> Worker | None:
        """Assigns the vacant worker to the session's key, or creates a worker for it.

        Returns None after a wait for room, in which everything may have changed.
        """
        if self._stopping is not None:
            raise self._stopping
        if self.fenced:
            raise self._unavailable(self.fenced)
        key = self.key(session)
        # The shared worker limits the memory of each tenant itself.
        quota = session.tenant.quotas.on_device(self.memory_total) if key.tenant else 0
        worker = self.workers.occupy(key, quota)
        if worker is None:
            if await self._make_room(key):
                return None
            worker = self.workers.serving[key] = Worker(self, key, quota)
        self._refill()
        return worker

    def _refill(self) -> None:
        """Starts a spare process if the policy requires one and there is room for it."""
        if (
            self.policy.spare
            and self.workers.vacant is None
            and self._stopping is None
            and not self.fenced
            and len(self.workers) < self.policy.max_processes
        ):
            self.workers.vacant = Worker(self, None)

    @property
    def memory_total(self) -> int:
        """Bytes of device memory that sessions may use. 0: not known before the first process is ready."""
        return self.spec.memory_limit or (self.properties.total_memory if self.has_been_ready else 0)

    def _check_share(self, key: WorkerKey) -> None:
        """Raises `DEVICE_UNAVAILABLE` if the tenant has used up its share of the device's processes.

        Processes that serve no session are not counted, because they are ended when another process needs their place.
        """
        if not key.tenant or not self.policy.weights:
            return
        used = Counter(other.tenant for other, worker in self.workers.serving.items() if not worker.is_idle)
        shares = Shares(self.policy.max_processes, self.policy.weights)
        if not shares.admits(key.tenant, used):
            self.share_refusals[key.tenant] += 1
            if self._log_throttle.due(key.tenant, time.monotonic()):
                log.warning("process_share_taken", device=self.ordinal, tenant=key.tenant, processes=used[key.tenant])
            raise Refusal(
                Reason.DEVICE_UNAVAILABLE,
                f"Tenant {key.tenant!r} has {used[key.tenant]} processes on device {self.ordinal}, which is its share "
                f"of {self.policy.max_processes} at present.",
                fix="Try again when another session has ended, use fewer sessions with isolation='dedicated', or have "
                "devices.max_processes raised.",
                details={"device": self.ordinal, "allowed": used[key.tenant]},
                retry_after_s=1.0,
            )

    async def _make_room(self, key: WorkerKey) -> bool:
        """Makes room for one more process, if necessary by ending an idle process.

        Returns True if it had to wait. Raises `DEVICE_UNAVAILABLE` if there is no room.
        """
        self._check_share(key)
        if len(self.workers) < self.policy.max_processes:
            return False
        if not self.workers.ending:
            idle = self.workers.idle
            if idle is None:
                raise Refusal(
                    Reason.DEVICE_UNAVAILABLE,
                    f"Device {self.ordinal} has {len(self.workers)} processes, each in use; the maximum is "
                    f"{self.policy.max_processes}.",
                    fix="Try again when another session has ended, or raise devices.max_processes.",
                    details={"device": self.ordinal, "allowed": self.policy.max_processes},
                    retry_after_s=1.0,
                )
            self._end(idle)
        await self._owner.changed()
        return True

    def release(self, session: Session) -> None:
        """Ends the dedicated process of a session that has ended, if it has one."""
        worker = self.workers.serving.get(self.key(session)) if session.dedicated else None
        if worker is not None:
            self._end(worker)

    def change(self, spec: DeviceSpec) -> None:
        """Applies the changeable fields of `spec` to all processes, and to later ones."""
        self.spec = dataclasses.replace(self.spec, **{name: getattr(spec, name) for name in CHANGEABLE})
        for worker in self.workers:
            if worker.process is not None:
                worker.process.change(self.spec)

    def change_quotas(self, quotas: Mapping[str, Quotas]) -> None:
        """Sets the quotas of tenants, by name.

        If a tenant is not named, each of its processes that serves no session is ended.
        """
        for key, worker in list(self.workers.serving.items()):
            if key.tenant in quotas:
                worker.quota = quotas[key.tenant].on_device(self.memory_total)
                self._grants.assign(worker.generation, key.tenant, worker.quota)
            elif key.tenant and worker.is_idle:
                self._end(worker)

    def _end(self, worker: Worker) -> None:
        task = worker.retire(final_refusal=self._stopping)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    # ---- the interface for workers (`WorkerOwner`) ----

    async def enter(self, worker: Worker) -> DeviceSpec:
        """Gives the process the next generation, and waits until there is device memory for it."""
        generation = next(self._generations)
        key = worker.key
        granted = await self._grants.enter(
            generation,
            key.tenant if key else "",
            worker.quota,
            serves_tenant=key is not None,
            on_wait=worker.on_memory_wait,
        )
        return dataclasses.replace(self.spec, generation=generation, memory_granted=granted, scrub=self.policy.scrub)

    async def start_process(self, spec: DeviceSpec) -> Process:
        """Starts a process and connects it to the memory grants, which get its room back if the start fails."""
        try:
            process = await Process.start(spec, self._launcher, self._owner.on_collective, self._observe)
        except BaseException:
            self._grants.remove_process(spec.generation)
            raise
        self._grants.attach(process.link)
        return process

    def _observe(self, generation: int, stats: dict[str, Any]) -> None:
        self.totals.observe(generation, stats)
        now = time.monotonic()
        self.rates.sample(now, self.totals.sums(THROUGHPUT))
        self.history.add(now, self.rates)
        self.tenant_memory.on_report(generation, stats)
        self.reports.on_report(generation, stats)
        self._grants.on_report(generation, stats)

    def process_ready(self, process: Process) -> None:
        """Notes the properties of a process that is ready, and sends it the changes since its start.

        Earlier failures to start no longer count.
        """
        self.properties = process.properties
        self.has_been_ready = True
        self._failures.clear()
        self.durations.started(time.monotonic() - process.started_at)
        self._grants.set_total(process.properties.total_memory)
        process.link.device_memory = self.memory_total
        process.change(self.spec)

    async def prepare(self, process: Process, worker: Worker) -> None:
        """Attributes the process to the worker's tenant, then awaits `DeviceOwner.before_serving`.

        Its counts, and the memory that it holds, then belong to the tenant.
        """
        key = worker.key
        assert key is not None
        self.totals.set_tenant(process.generation, key.tenant)
        self.tenant_memory.set_tenant(process.generation, key.tenant)
        self._grants.assign(process.generation, key.tenant, worker.quota)
        process.link.serves = lambda session: (
            self.key(session) == key
            and session.tenant.sees(self.ordinal)
            and not session.closing
            and not self.quarantine_refusal(session)
        )
        await self._owner.before_serving(process.link)

    def worker_lost(self, worker: Worker, process: Process | None, cause: ExitCause, ready: bool) -> str | None:
        """Logs and counts the loss, and takes the process's channels from their sessions.

        Fences the device after too many processes that failed to start. Returns the session that is blamed, if it is
        known and the process was shared.
        """
        generation = process.generation if process is not None else worker.generation
        kernels = list(cause.kernels)
        log_loss = log.warning if cause.label in INTENDED else log.error
        fields = {"reason": cause.label, "why": cause.text, "kernels": kernels}
        log_loss("device_lost", device=self.ordinal, generation=generation, **fields)
        if worker.key is not None:
            self.durations.lost(worker.key, time.monotonic())
        self.restarts[cause.label] += 1
        self.faults.add(cause, generation, worker.key, self._involved_sessions(cause))
        blamed: str | None = None
        if process is not None:
            blamed = culprit(cause.label, cause.details, process.working())
            self._owner.device_lost(process.link, cause.text)
            for session in self._owner.sessions:
                channel = session.channels.get(self.ordinal)
                if channel is not None and channel.link is process.link:
                    session.ended[self.ordinal] = session.channels.pop(self.ordinal)
            process.link.fail(cause.refusal(self.ordinal, generation), kernels)
        if not ready:
            self._failed_to_start(worker, cause)
        if blamed is None or worker.key is None or worker.key.dedicated:
            return None
        log.warning("device_lost_to", device=self.ordinal, generation=generation, session=blamed)
        self._owner.record_fault(blamed)
        return blamed

    def _involved_sessions(self, cause: ExitCause) -> dict[str, str]:
        """Returns the sessions whose kernels were in flight when a process was lost, with their tenants.

        The tenant of an unknown session is "".
        """
        tenants = {session.id: session.tenant.name for session in self._owner.sessions}
        return {session: tenants.get(session, "") for session in sorted(named_sessions(cause.details))}

    def replace(self, worker: Worker) -> bool:
        """Puts the vacant worker, if there is one, in the place of this one. Returns False if there is none."""
        replaced = self.workers.replace(worker)
        if replaced:
            self._refill()
        return replaced

    def _failed_to_start(self, worker: Worker, cause: ExitCause) -> None:
        """Counts a process that failed to start while no other process serves.

        After too many such failures the device is fenced.
        """
        now = time.monotonic()
        if self.running:
            return
        self._failures.append(now)
        while self._failures and now - self._failures[0] > self.policy.restart_window:
            self._failures.popleft()
        if len(self._failures) > self.policy.max_restarts:
            self.fenced = (
                f"{len(self._failures)} processes failed to start within {self.policy.restart_window:g} s, the last "
                f"because {cause.text}"
            )
            if worker.state != FENCED:
                worker.fence(self.fenced)

    def reaped(self, process: Process) -> None:
        """Adds the last counts of a process that has ended to the totals, and frees its memory for other processes."""
        generation = process.generation
        self.totals.add_final(generation)
        self.tenant_memory.remove_process(generation)
        self.reports.remove_process(generation)
        self._grants.remove_process(generation)
        self._owner.device_ended(process.link)

    def worker_ended(self, worker: Worker) -> None:
        """Removes a worker that has ended for good."""
        self.workers.remove(worker)
        self.notify()

    def notify(self) -> None:
        """Notes a change of a worker's state, and passes the notification on to the supervisor."""
        self.workers.move_ending()
        if self.durations.is_measuring:
            serving = {key for key, worker in self.workers.serving.items() if worker.state == SERVING}
            self.durations.served(serving, self.workers.serving.keys(), time.monotonic())
        self._owner.notify()

    async def changed(self) -> None:
        """Returns after the next change of the state of any device of the node."""
        await self._owner.changed()

    # ---- start, fence, restart and stop ----

    def start(self) -> None:
        """Starts the first process of the device.

        It is the shared process or, with a process for each tenant, a vacant process for the first tenant.
        """
        if self.policy.by_tenant:
            self.workers.vacant = Worker(self, None)
        else:
            self.workers.serving[ALL_SESSIONS] = Worker(self, ALL_SESSIONS)
            self._refill()

    def fence(self, why: str) -> None:
        """Fences the device because its hardware has a fault.

        Sessions on it may read their data, but no new session is accepted until an operator restarts the device.
        """
        if not self.sick:
            log.error("device_fenced", device=self.ordinal, generation=self.generation, why=why)
            self.sick = why
            self.notify()

    def restart(self) -> None:
        """Ends every process, lifts fences and quarantines, and starts processes again. For operators."""
        log.warning("device_restart", device=self.ordinal, processes=len(self.workers))
        self.fenced = self.sick = ""
        self._failures.clear()
        self._owner.quarantine.lift_quarantine()
        for worker in self.workers:
            if not worker.ending:
                worker.restart()
        self.notify()

    async def stop(self, at_once: bool = False) -> None:
        """Asks all processes of the device to end, and kills those that do not end in time."""
        self._stopping = Refusal(
            Reason.DRAINING, "The daemon is stopping.", fix="Try again when the daemon is running.", retry_after_s=1.0
        )
        await asyncio.gather(*(worker.retire(at_once, self._stopping) for worker in self.workers), *self._ends)
        self._grants.stop()

    def _unavailable(self, reason: str) -> Refusal:
        return Refusal(
            Reason.DEVICE_UNAVAILABLE,
            f"Device {self.ordinal} is fenced: {reason}.",
            fix="Use another device; the daemon's log has the reason.",
            details={"device": self.ordinal, "state": STATE_NAMES[FENCED]},
        )
