"""Memory ledger: divides one device's memory among its processes, so that together they never hold more than it has.

Pure: requests and confirmations of processes are passed in, limits for them are returned, and times are passed in. All
sizes are in bytes.

A process may hold the memory that it was granted. A grant stays booked until the process has confirmed a lower limit.
At every moment the sum of all grants, plus the memory of the processes' contexts, is thus at most the device's memory.

- A process that is the only one to use memory is granted all of it, and sends no requests.
- Otherwise processes start without a grant, and ask when an allocation does not fit. They are granted whole slabs while
  enough memory is free, otherwise exactly the bytes that they need. If too little is free, other processes are asked to
  give back memory that they hold but do not use. Requests are served in order, and each is answered.
- All processes of a tenant with a quota together are granted at most the quota.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

SLAB = 256 << 20
SLABS = 64
"""Size of a grant: a slab, or a 64th of the device's memory if that is less. A grant costs a round trip, and an
unneeded slab costs a reclaim."""

ANSWER_TIMEOUT = 5.0
"""Time, in seconds, for a process to answer. Afterwards the ledger no longer waits for memory from it."""
RECLAIM_BACKOFF = 0.1
"""Minimum interval, in seconds, before a process that gave back less than requested is asked again, because the request
empties its memory pool."""
RETRY_INTERVAL = 1.0
"""Interval, in seconds, between attempts to make room for a process that waits to start."""


class ProcessLimit(NamedTuple):
    """A limit that is sent to a process.

    The process answers with the limit that it accepts, which is higher if more memory is in use.
    """

    process: int
    bytes: int
    denied: bool = False
    """True if the process had asked for more, and the request is denied."""
    granted: bool = False
    """True if the process had asked for more, and the request is granted."""
    quota: int = 0
    """The tenant's quota, if the quota is the reason for the denial; else 0."""


@dataclass
class MemoryHolder:
    """A process that holds memory. `process` is its generation."""

    process: int
    overhead: int
    tenant: str
    quota: int
    """The quota of all processes of the tenant together. 0: no quota."""
    serves_tenant: bool
    """True if the process serves a tenant. A process that does not is granted nothing."""
    admitted: bool = False
    reserved: int = 0
    unlimited: bool = False
    """True if the process has all memory, and was never sent a limit."""
    unconfirmed: int | None = None
    """The limit that was sent to the process and is not confirmed. None: every limit is confirmed."""
    answer_deadline: float = 0.0
    """The time until which the process should confirm the limit. Afterwards the ledger no longer waits for it."""
    backoff_until: float = 0.0
    """The time before which the process is not asked to give back memory again."""
    held: int = 0
    """Bytes that the process held according to its last report."""


@dataclass
class LedgerRequest:
    """A request of one process for `bytes` more."""

    process: int
    bytes: int
    reclaimed_from: set[int] = field(default_factory=set)
    """The processes that were asked to give back memory for the request."""
    retry_at: float = 0.0
    """The time at which the other processes are asked again, for a process that waits to start."""


class MemoryLedger:
    """The memory of one device, and its division among processes."""

    def __init__(self, total: int = 0) -> None:
        self.total = total
        """Bytes of device memory. 0: not known before the first process reports it."""
        self._holders: dict[int, MemoryHolder] = {}
        self._entering: list[LedgerRequest] = []
        """Processes that wait to be admitted, oldest first."""
        self._demands: list[LedgerRequest] = []

    # ---- state ----

    @property
    def slab(self) -> int:
        """Size of a slab in bytes, at least 1; see `SLAB` and `SLABS`."""
        return max(1, min(SLAB, self.total // SLABS))

    @property
    def free(self) -> int:
        """Bytes that are not booked for any process."""
        booked = sum(holder.overhead + holder.reserved for holder in self._holders.values() if holder.admitted)
        return max(0, self.total - booked)

    def granted(self, process: int) -> int:
        """Returns the bytes that a process may hold."""
        holder = self._holders.get(process)
        return holder.reserved if holder is not None else 0

    def held(self, process: int) -> int:
        """Returns the bytes that a process held according to its last report."""
        holder = self._holders.get(process)
        return holder.held if holder is not None else 0

    # ---- events ----

    def set_total(self, total: int) -> None:
        """Notes the device's memory, as reported by the first process. Later calls do nothing."""
        if self.total:
            return
        self.total = total
        for holder in self._holders.values():
            if holder.unlimited:
                holder.reserved = 0
                holder.reserved = min(self.free, self._quota_left(holder))

    def enter(
        self, process: int, overhead: int, tenant: str = "", quota: int = 0, *, serves_tenant: bool = True
    ) -> None:
        """Adds a process that is to be started; see `is_admitted`.

        `overhead`: bytes that it uses before it allocates anything. `serves_tenant` is False for a vacant process.
        """
        self._holders[process] = MemoryHolder(process, overhead, tenant, quota, serves_tenant)
        self._entering.append(LedgerRequest(process, overhead))

    def is_admitted(self, process: int) -> bool:
        """Returns True if there is room for the process to start."""
        return self._holders[process].admitted

    def initial_limit(self, process: int) -> int | None:
        """Returns the initial limit of a process; None: all memory of the device."""
        holder = self._holders[process]
        return None if holder.unlimited and not holder.quota else holder.reserved

    def assign(self, process: int, tenant: str, quota: int) -> None:
        """Assigns a process that served no tenant to a tenant."""
        holder = self._holders.get(process)
        if holder is not None:
            holder.tenant, holder.quota, holder.serves_tenant = tenant, quota, True

    def on_report(self, process: int, held: int) -> None:
        """Notes the bytes that a process reports to hold."""
        holder = self._holders.get(process)
        if holder is not None:
            holder.held = held

    def request(self, process: int, size: int) -> None:
        """Adds a process's request for more memory. A later request replaces an earlier one."""
        holder = self._holders.get(process)
        if holder is None or size <= 0:
            return
        pending = next((demand for demand in self._demands if demand.process == process), None)
        if pending is not None:
            pending.bytes = size
        else:
            self._demands.append(LedgerRequest(process, size))

    def confirm(self, process: int, limit: int, held: int, now: float) -> None:
        """Notes that a process has accepted `limit`, while it held `held` bytes."""
        holder = self._holders.get(process)
        if holder is None:
            return
        holder.held = held
        if holder.unconfirmed is None:
            return
        # Memory that the process keeps above its new limit is in use. It cannot keep more than it had before.
        if limit > holder.unconfirmed:
            holder.backoff_until = now + RECLAIM_BACKOFF
        before, holder.reserved = holder.reserved, min(holder.reserved, max(holder.unconfirmed, limit))
        holder.unconfirmed = None
        for demand in self._demands:
            if demand.process == process:  # the request was made before the process knew of the lower limit
                demand.bytes += before - holder.reserved

    def remove_process(self, process: int) -> None:
        """Removes a process that has ended, which frees what it held."""
        self._holders.pop(process, None)
        self._entering = [demand for demand in self._entering if demand.process != process]
        self._demands = [demand for demand in self._demands if demand.process != process]

    # ---- decisions ----

    def decide(self, now: float) -> list[ProcessLimit]:
        """Returns the limits to send. Must be called after every event, and at the time `next_decision_at`."""
        limits: list[ProcessLimit] = []
        while self._entering and self._admit(self._entering[0], now, limits):
            self._entering.pop(0)
        for demand in list(self._demands):
            if not self._serve(demand, now, limits):
                break  # requests are served in order
        self._grant_all(now, limits)
        return limits

    def next_decision_at(self, now: float) -> float | None:
        """Returns the time at which `decide` must be called if no event happens before; None: not at all."""
        if not (self._demands or self._entering):
            return None
        times = [holder.answer_deadline for holder in self._holders.values() if holder.unconfirmed is not None]
        times += [holder.backoff_until for holder in self._holders.values()]
        times += [demand.retry_at for demand in self._entering]
        return min((time for time in times if time > now), default=None)

    def _admit(self, demand: LedgerRequest, now: float, limits: list[ProcessLimit]) -> bool:
        """Admits a process if there is room for it. Returns False if there is none yet."""
        holder = self._holders[demand.process]
        admitted = [other for other in self._holders.values() if other.admitted]
        if not self.total and admitted:
            return False  # the first process must report the size of the memory
        if self.total and holder.overhead > self.free:
            if now >= demand.retry_at and not self._reclaim(demand, holder.overhead - self.free, now, limits):
                demand.reclaimed_from.clear()
                demand.retry_at = now + RETRY_INTERVAL
            return False
        holder.admitted = True
        if holder.serves_tenant and not any(other.serves_tenant for other in admitted):
            holder.unlimited = True
            holder.reserved = min(self.free, self._quota_left(holder)) if self.total else holder.quota
        return True

    def _serve(self, demand: LedgerRequest, now: float, limits: list[ProcessLimit]) -> bool:
        """Grants or denies a request. Returns False if it must wait for an answer of another process."""
        holder = self._holders[demand.process]
        if holder.unconfirmed is not None:
            return True  # decided later, because the limit that is on its way may be sufficient
        quota_left = self._quota_left(holder)
        room = min(self.free, quota_left)
        if demand.bytes <= room:
            slabs = -(-demand.bytes // self.slab) * self.slab
            increase = slabs if slabs <= room else demand.bytes
            self._send_limit(holder, holder.reserved + increase, now, limits, granted=True)
        elif self._reclaim(demand, demand.bytes - room, now, limits, of_tenant=quota_left < demand.bytes, extra=True):
            return False
        else:
            holder.unconfirmed, holder.answer_deadline = holder.reserved, now + ANSWER_TIMEOUT
            quota = holder.quota if quota_left < demand.bytes else 0
            limits.append(ProcessLimit(holder.process, holder.reserved, denied=True, quota=quota))
        self._demands.remove(demand)
        return True

    def _reclaim(
        self,
        demand: LedgerRequest,
        missing: int,
        now: float,
        limits: list[ProcessLimit],
        *,
        of_tenant: bool = False,
        extra: bool = False,
    ) -> bool:
        """Asks other processes to give back `missing` bytes of memory that they do not use.

        Returns True if there is an answer to wait for. With `extra`, asks for half of what they seem not to use if
        that is more than `missing`, because further requests are likely.
        """
        holder, reclaimed_from = self._holders[demand.process], demand.reclaimed_from
        answer_pending = False
        for other in self._holders.values():
            if other is holder or not other.admitted or (of_tenant and other.tenant != holder.tenant):
                continue
            if other.unconfirmed is not None:
                answer_pending = answer_pending or now < other.answer_deadline
            elif other.process in reclaimed_from or not other.reserved:
                continue
            elif now < other.backoff_until:
                answer_pending = True
            else:
                reclaimed_from.add(other.process)
                answer_pending = True
                decrease = max(missing, (other.reserved - other.held) // 2) if extra else missing
                self._send_limit(other, max(0, other.reserved - decrease), now, limits)
        return answer_pending

    def _grant_all(self, now: float, limits: list[ProcessLimit]) -> None:
        """Grants all memory to a process that is the only one to use any."""
        users = [holder for holder in self._holders.values() if holder.serves_tenant]
        if len(users) != 1 or not self.total or self._entering:
            return
        (holder,) = users
        if not holder.admitted or holder.unlimited or holder.unconfirmed is not None:
            return
        room = min(self.free, self._quota_left(holder))
        if room > 0:
            self._send_limit(holder, holder.reserved + room, now, limits)
        holder.unlimited = True

    def _send_limit(
        self, holder: MemoryHolder, limit: int, now: float, limits: list[ProcessLimit], granted: bool = False
    ) -> None:
        """Sends a limit to a process. An increase is booked immediately, a decrease when the process confirms it."""
        holder.unlimited = False
        holder.reserved = max(holder.reserved, limit)
        holder.unconfirmed, holder.answer_deadline = limit, now + ANSWER_TIMEOUT
        limits.append(ProcessLimit(holder.process, limit, granted=granted))

    def _quota_left(self, holder: MemoryHolder) -> int:
        if not holder.quota:
            return self.total
        booked = sum(other.reserved for other in self._holders.values() if other.tenant == holder.tenant)
        return max(0, holder.quota - booked)
