"""Division of one device's memory among its processes, which together never hold more than it has.

Pure: requests and confirmations of processes go in, limits for them come out, times are passed in. Bytes.

A process may hold what it was granted. What was granted is booked until the process has confirmed that it keeps to
less; so at every moment the sum of what processes may hold, and of what their contexts take, is no more than the device
has.

- A process that is the only one to use memory is granted all of it, and never has to ask.
- Otherwise processes start with nothing and ask when an allocation does not fit. They are granted whole slabs while
  there are some, what they need while there is that much, and what others hold and do not use otherwise: those are
  asked to give back, and keep what is in use. Requests are served in their order, and every one is answered.
- A tenant with a quota is granted no more than that, all of its processes together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

SLAB = 256 << 20
SLABS = 64
"""A grant is a slab, or a 64th of the device where that is less: a grant costs a round trip, a slab too many a
reclaim."""

PATIENCE = 5.0
"""Seconds that a process has to answer before others do without what it holds."""
REST = 0.1
"""Seconds before a process that gave less than it was asked for is asked again: to be asked costs it its pool."""
RETRY = 1.0
"""Seconds between two attempts to make room for a process that waits to start."""


class ProcessLimit(NamedTuple):
    """A message to a process: its limit. It answers with the limit that it takes: a higher one if more is in use."""

    process: int
    bytes: int
    denied: bool = False
    """True if the process had asked for more, and gets none."""
    granted: bool = False
    """True if the process had asked for more, and gets it."""
    quota: int = 0
    """The tenant's, where that is why."""


@dataclass
class MemoryHolder:
    """A process that holds memory. `process` is its generation."""

    process: int
    overhead: int
    tenant: str
    quota: int
    """The quota of all processes of the tenant together; 0: none."""
    uses: bool
    """True if the process serves a session: one that does not is granted nothing."""
    admitted: bool = False
    booked: int = 0
    everything: bool = False
    """True if the process has all memory, and was never given a limit."""
    told: int | None = None
    """The limit that it was sent and has not confirmed."""
    due: float = 0.0
    """The time from which its answer is overdue."""
    rests_until: float = 0.0
    held: int = 0
    """Bytes of it that it held by its last report."""


@dataclass
class LedgerRequest:
    """A request of one process for `bytes` more; `asked`: the processes that were asked to give memory back for it."""

    process: int
    bytes: int
    asked: set[int] = field(default_factory=set)
    again: float = 0.0
    """The time at which the others are asked once more, for a process that waits to start."""


class MemoryLedger:
    """The memory of one device."""

    def __init__(self, total: int = 0) -> None:
        self.total = total
        """0: not known yet; the first process tells."""
        self._holders: dict[int, MemoryHolder] = {}
        self._entering: list[LedgerRequest] = []
        """Processes that have not been admitted, oldest first."""
        self._demands: list[LedgerRequest] = []

    # ---- what is known ----

    @property
    def slab(self) -> int:
        return max(1, min(SLAB, self.total // SLABS))

    @property
    def free(self) -> int:
        """Bytes that are booked to no process."""
        taken = sum(each.overhead + each.booked for each in self._holders.values() if each.admitted)
        return max(0, self.total - taken)

    def granted(self, process: int) -> int:
        """Returns the bytes that a process may hold."""
        holder = self._holders.get(process)
        return holder.booked if holder is not None else 0

    def held(self, process: int) -> int:
        """Returns the bytes that a process held by its last report."""
        holder = self._holders.get(process)
        return holder.held if holder is not None else 0

    # ---- what happens ----

    def learn(self, total: int) -> None:
        """Learns the device's memory from the first process."""
        if self.total:
            return
        self.total = total
        for holder in self._holders.values():
            if holder.everything:
                holder.booked = 0
                holder.booked = min(self.free, self._quota_left(holder))

    def enter(self, process: int, overhead: int, tenant: str = "", quota: int = 0, *, uses: bool = True) -> None:
        """A process is to be started; see `admitted`. `overhead`: what it takes before it allocates anything."""
        self._holders[process] = MemoryHolder(process, overhead, tenant, quota, uses)
        self._entering.append(LedgerRequest(process, overhead))

    def admitted(self, process: int) -> bool:
        """Returns True if there is room for the process to start."""
        return self._holders[process].admitted

    def initial(self, process: int) -> int | None:
        """Returns the limit from the process's start; None: all that the device has."""
        holder = self._holders[process]
        return None if holder.everything and not holder.quota else holder.booked

    def use(self, process: int, tenant: str, quota: int) -> None:
        """Assigns a process that served no tenant to one."""
        holder = self._holders.get(process)
        if holder is not None:
            holder.tenant, holder.quota, holder.uses = tenant, quota, True

    def hear(self, process: int, held: int) -> None:
        """A process says what it holds."""
        holder = self._holders.get(process)
        if holder is not None:
            holder.held = held

    def want(self, process: int, more: int) -> None:
        """A process asks for more than it was granted. The latest request counts."""
        holder = self._holders.get(process)
        if holder is None or more <= 0:
            return
        known = next((demand for demand in self._demands if demand.process == process), None)
        if known is not None:
            known.bytes = more
        else:
            self._demands.append(LedgerRequest(process, more))

    def confirm(self, process: int, limit: int, held: int, now: float) -> None:
        """A process keeps to `limit` from now on."""
        holder = self._holders.get(process)
        if holder is None:
            return
        holder.held = held
        if holder.told is None:
            return
        # What it keeps above the limit it was given is in use; more than it had before it cannot have.
        if limit > holder.told:
            holder.rests_until = now + REST
        before, holder.booked = holder.booked, min(holder.booked, max(holder.told, limit))
        holder.told = None
        for demand in self._demands:
            if demand.process == process:  # asked before it learned that it has less
                demand.bytes += before - holder.booked

    def leave(self, process: int) -> None:
        """A process is gone, and what it held is free."""
        self._holders.pop(process, None)
        self._entering = [demand for demand in self._entering if demand.process != process]
        self._demands = [demand for demand in self._demands if demand.process != process]

    # ---- what follows ----

    def step(self, now: float) -> list[ProcessLimit]:
        """Whom to tell what; call it after everything that happens, and when `wake` says."""
        sends: list[ProcessLimit] = []
        while self._entering and self._admit(self._entering[0], now, sends):
            self._entering.pop(0)
        for demand in list(self._demands):
            if not self._serve(demand, now, sends):
                break  # in their order
        self._give_all(now, sends)
        return sends

    def wake(self, now: float) -> float | None:
        """Returns the time at which `step` is due again, though nothing happens."""
        if not (self._demands or self._entering):
            return None
        times = [each.due for each in self._holders.values() if each.told is not None]
        times += [each.rests_until for each in self._holders.values()]
        times += [demand.again for demand in self._entering]
        return min((time for time in times if time > now), default=None)

    def _admit(self, demand: LedgerRequest, now: float, sends: list[ProcessLimit]) -> bool:
        """Lets a process start, where there is room for it."""
        holder = self._holders[demand.process]
        others = [each for each in self._holders.values() if each.admitted]
        if not self.total and others:
            return False  # the first one has to tell how much there is
        if self.total and holder.overhead > self.free:
            if now >= demand.again and not self._reclaim(holder, holder.overhead - self.free, demand.asked, now, sends):
                demand.asked.clear()
                demand.again = now + RETRY
            return False
        holder.admitted = True
        if holder.uses and not any(each.uses for each in others):
            holder.everything = True
            holder.booked = min(self.free, self._quota_left(holder)) if self.total else holder.quota
        return True

    def _serve(self, demand: LedgerRequest, now: float, sends: list[ProcessLimit]) -> bool:
        """Grants or denies; False: an answer has to be waited for first."""
        holder = self._holders[demand.process]
        if holder.told is not None:
            return True  # later: the limit on its way may be enough
        allowed = self._quota_left(holder)
        room = min(self.free, allowed)
        if demand.bytes <= room:
            whole = -(-demand.bytes // self.slab) * self.slab
            more = whole if whole <= room else demand.bytes
            self._tell(holder, holder.booked + more, now, sends, granted=True)
        elif self._reclaim(
            holder, demand.bytes - room, demand.asked, now, sends, of_tenant=allowed < demand.bytes, generous=True
        ):
            return False
        else:
            holder.told, holder.due = holder.booked, now + PATIENCE
            quota = holder.quota if allowed < demand.bytes else 0
            sends.append(ProcessLimit(holder.process, holder.booked, denied=True, quota=quota))
        self._demands.remove(demand)
        return True

    def _reclaim(
        self,
        whom: MemoryHolder,
        missing: int,
        asked: set[int],
        now: float,
        sends: list[ProcessLimit],
        *,
        of_tenant: bool = False,
        generous: bool = False,
    ) -> bool:
        """Asks others to give back what they do not use; whether there is an answer to wait for. `generous`: half of
        what they seem not to use, where that is more than what is missing: there will be further requests."""
        waits = False
        for other in self._holders.values():
            if other is whom or not other.admitted or (of_tenant and other.tenant != whom.tenant):
                continue
            if other.told is not None:
                waits = waits or now < other.due
            elif other.process in asked or not other.booked:
                continue
            elif now < other.rests_until:
                waits = True
            else:
                asked.add(other.process)
                waits = True
                back = max(missing, (other.booked - other.held) // 2) if generous else missing
                self._tell(other, max(0, other.booked - back), now, sends)
        return waits

    def _give_all(self, now: float, sends: list[ProcessLimit]) -> None:
        """Gives all memory to a process that is the only one to use any."""
        users = [each for each in self._holders.values() if each.uses]
        if len(users) != 1 or not self.total or self._entering:
            return
        (holder,) = users
        if not holder.admitted or holder.everything or holder.told is not None:
            return
        room = min(self.free, self._quota_left(holder))
        if room > 0:
            self._tell(holder, holder.booked + room, now, sends)
        holder.everything = True

    def _tell(
        self, holder: MemoryHolder, limit: int, now: float, sends: list[ProcessLimit], granted: bool = False
    ) -> None:
        """More is booked at once, less when it is confirmed."""
        holder.everything = False
        holder.booked = max(holder.booked, limit)
        holder.told, holder.due = limit, now + PATIENCE
        sends.append(ProcessLimit(holder.process, limit, granted=granted))

    def _quota_left(self, holder: MemoryHolder) -> int:
        if not holder.quota:
            return self.total
        taken = sum(each.booked for each in self._holders.values() if each.tenant == holder.tenant)
        return max(0, holder.quota - taken)
