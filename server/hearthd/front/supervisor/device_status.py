"""The status of a device for observers, derived from its workers."""

from __future__ import annotations

import time

from hearth_proto.v1 import node_pb2
from hearthd.front.resources.memory_grants import MemoryGrants
from hearthd.front.resources.memory_ledger import MemoryLedger
from hearthd.front.supervisor.isolation import ALL_SESSIONS, FENCED, LOST, SERVING, STALLED, STARTING, WorkerKey
from hearthd.front.supervisor.worker import Worker
from hearthd.front.supervisor.worker_set import WorkerSet
from hearthd.front.tenancy.tenants import Tenant
from hearthd.shared.device_spec import DeviceSpec


class DeviceStatus:
    """The status of one device."""

    def __init__(self, spec: DeviceSpec, grants: MemoryGrants) -> None:
        self.spec = spec
        self.ordinal = spec.ordinal
        self.properties = node_pb2.DeviceProperties(backend=spec.backend)
        self.workers = WorkerSet()
        self.has_been_ready = False
        """True once a process has been ready."""
        self.fenced = ""
        """The reason why no further process is started. Empty: processes are started."""
        self.sick = ""
        """The hardware fault because of which no new session is accepted. Empty: no fault is known."""
        self._grants = grants

    @property
    def memory(self) -> MemoryLedger:
        """The division of the device's memory among its processes."""
        return self._grants.ledger

    @property
    def running(self) -> list[Worker]:
        """The workers whose process can answer requests."""
        return self.workers.running

    @property
    def _primary(self) -> Worker | None:
        """The worker that represents the device: the shared one or, until a process has been ready, the vacant one."""
        return self.workers.serving.get(ALL_SESSIONS) or (None if self.has_been_ready else self.workers.vacant)

    @property
    def state(self) -> node_pb2.DeviceState:
        """The state of the shared worker; with a worker for each tenant, the state that a new tenant meets."""
        if self.sick:
            return FENCED
        if self._primary is not None:
            return self._primary.condition
        if self.fenced:
            return FENCED
        if not self.has_been_ready:
            return STARTING
        states = {worker.condition for key, worker in self.workers.serving.items() if not key.dedicated}
        return states.pop() if states in ({LOST}, {STALLED}) else SERVING

    @property
    def detail(self) -> str:
        """The reason for a state other than serving. Empty: the device serves."""
        if self.sick:
            return self.sick
        if self._primary is not None:
            return self._primary.reason
        return self.fenced or next((worker.reason for worker in self.workers if worker.condition == self.state), "")

    @property
    def generation(self) -> int:
        """The generation of the process that represents the device."""
        if self._primary is not None and self._primary.generation:
            return self._primary.generation
        return max((worker.generation for worker in self.workers), default=0) or self.spec.generation

    @property
    def pid(self) -> int:
        """The pid of the process that represents the device. 0: there is none."""
        worker = self._primary or next(iter(self.running), None)
        return worker.pid if worker is not None else 0

    @property
    def last_pong(self) -> float:
        """Monotonic time of the oldest of the last pongs of all processes."""
        pongs = [worker.process.last_pong for worker in self.running if worker.process is not None]
        return min(pongs, default=time.monotonic())

    def describe(self, viewer: Tenant) -> node_pb2.Device:
        """Describes the device, restricted to what `viewer` may know."""
        worker = self._primary or self.workers.serving.get(WorkerKey(viewer.name))
        return node_pb2.Device(
            ordinal=self.ordinal,
            state=self.state,
            generation=worker.generation if worker is not None and worker.generation else self.generation,
            properties=self.properties,
            pid=worker.pid if worker is not None else self.pid if viewer.observes else 0,
            detail=self.detail,
            processes=[
                self._describe_process(other, other.key or ALL_SESSIONS)
                for other in self.workers
                if other.pid and _may_see(viewer, other.key)
            ],
        )

    def _describe_process(self, worker: Worker, key: WorkerKey) -> node_pb2.DeviceProcess:
        return node_pb2.DeviceProcess(
            pid=worker.pid,
            generation=worker.generation,
            state=worker.condition,
            tenant=key.tenant,
            session_id=key.session,
            memory_granted=self.memory.granted(worker.generation),
            memory_held=self.memory.held(worker.generation),
        )


def _may_see(viewer: Tenant, key: WorkerKey | None) -> bool:
    """Returns whether `viewer` may see the worker's processes.

    Shared processes and those of the viewer's tenant are visible; an observer sees all processes.
    """
    return viewer.observes or (key is not None and key.tenant in ("", viewer.name))
