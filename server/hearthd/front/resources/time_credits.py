"""Time slices of the processes that share a device.

A GPU gives its processes time slices regardless of weights. The front therefore decides which process may submit work,
by deficit round robin (`hearthd.shared.deficit_round_robin`) over the time in which processes had work on the device:
tenants by weight, and the processes of one tenant equally. The front tells a process whether it may submit work
(`TURN`); the process reports whether it has any (`BUSY`).

- An idle process that gets work may start at once if it has credit, and may continue for `BESIDE_S` while another
  process holds the time slice. Alternating launches and waits are thus not delayed. Afterwards the process needs the
  time slice.
- A time slice begins when the work of the previous holder has left the device, or has kept other processes waiting for
  `PATIENCE_S`. A long kernel thus overruns its time slice, and is charged for it. Because it is charged as much as it
  is credited while it runs, its process is admitted briefly every `PATIENCE_S`: the work for which the kernel waits may
  be queued behind it.
- Collectives run when all their ranks are ready, whichever process holds the time slice
  (`hearthd.device.scheduler.fair_share`), so that two devices never wait for each other's time slices.

A process that is alone on its device gets no time slices and reports nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from hearth_proto.frames import Frame, Kind
from hearthd.front.links.link import DeviceLink
from hearthd.front.sessions.session import Session
from hearthd.shared.deficit_round_robin import HierarchicalRoundRobin

QUANTUM_S = 0.010
"""Device time, in seconds, that a process of average weight gets in each round."""

BESIDE_S = 0.005
"""Time, in seconds, for which a process with credit may continue without the time slice."""

PATIENCE_S = 0.1
"""Maximum time, in seconds, that the next time slice waits for the work of the previous holder."""

SHORTEST_S = 0.001
"""Minimum interval, in seconds, between checks of a time slice."""

MAY, ALONE, AWAITED = 1, 2, 4
"""Flags of TURN. MAY: the process may submit work. ALONE: it is alone and need not report any more. AWAITED: other
processes wait for it, so it has to report at once when it has no work."""

WANTS, WORKS = 1, 2
"""Flags of BUSY. WANTS: the process has work. WORKS: some of it is on the device."""

K = TypeVar("K", bound=Hashable)


class ProcessShare(NamedTuple):
    """The tenant, weight and priority under which a process is scheduled."""

    tenant: str = ""
    weight: float = 1.0
    priority: int = 0


class _Process:
    __slots__ = ("admitted_until", "overdue_at", "overlap_until", "place", "sent_flags", "state")

    def __init__(self) -> None:
        self.place = ProcessShare()
        self.state = 0
        self.sent_flags = -1
        """The flags of the last TURN sent to the process; -1: none was sent."""
        self.overlap_until = 0.0
        """The time until which the process may continue without the time slice."""
        self.overdue_at = 0.0
        """The time after which other processes no longer wait for work that it has on the device without the time
        slice."""
        self.admitted_until = 0.0
        """The time until which the process is admitted because its work overran."""


class DeviceTurns(Generic[K]):
    """The time slices on one device. Pure: times are passed in, and messages are returned as (process, flags)."""

    def __init__(self, quantum: float = QUANTUM_S) -> None:
        self._quantum = quantum
        self._fair: HierarchicalRoundRobin[K] = HierarchicalRoundRobin(quantum)
        self._processes: dict[K, _Process] = {}
        self._now = 0.0
        self._holder: K | None = None
        self.due: float | None = None
        """The time at which `advance` has to be called if nothing happens before."""

    def __len__(self) -> int:
        return len(self._processes)

    def join(self, key: K, now: float) -> list[tuple[K, int]]:
        """Adds a process. Returns the messages to send."""
        self._processes[key] = _Process()
        return self.advance(now)

    def remove_process(self, key: K, now: float) -> list[tuple[K, int]]:
        """Removes a process that has ended. Returns the messages to send."""
        self._charge(now)
        if self._processes.pop(key, None) is not None:
            self._fair.forget(key)
        return self.advance(now)

    def report(self, key: K, state: int, place: ProcessShare, now: float) -> list[tuple[K, int]]:
        """Handles a process's report of its work; 0: it has none. Returns the messages to send."""
        process = self._processes.get(key)
        if process is None:
            return []
        self._charge(now)
        if state and not process.state:
            process.overlap_until = now + BESIDE_S if process.sent_flags & MAY else now
            # Registers the process, so that it is charged.
            self._fair.enter(key, place.tenant, place.weight, place.priority)
            self._fair.leave(key)  # it queues only later, when it needs the time slice
        elif not state:
            self._fair.leave(key)
        process.state, process.place = state, place
        return self.advance(now)

    def advance(self, now: float) -> list[tuple[K, int]]:
        """Moves the time slice on if it is due. Returns the processes whose flags have changed, with their flags."""
        self._charge(now)
        self.due = None
        if len(self._processes) < 2:
            told = [(key, MAY | ALONE) for key, process in self._processes.items() if process.sent_flags >= 0]
            for process in self._processes.values():
                process.sent_flags = -1
                process.state = 0
            self._fair = HierarchicalRoundRobin(self._quantum)
            return told
        for key, process in self._processes.items():
            if process.state and now >= process.overlap_until and key not in self._fair:
                self._fair.enter(key, process.place.tenant, process.place.weight, process.place.priority)
        holder = self._turn(now)
        waiting = sum(1 for process in self._processes.values() if process.state)
        news: list[tuple[K, int]] = []
        for key, process in self._processes.items():
            may = self._is_admitted(key, process, holder, now)
            flags = MAY * may | AWAITED * (waiting > (1 if process.state else 0))
            if process.sent_flags >= 0 and process.sent_flags & MAY and not may:
                process.overdue_at = now + PATIENCE_S
                process.overlap_until = now
            if flags != process.sent_flags:
                process.sent_flags = flags
                news.append((key, flags))
        return news

    def _turn(self, now: float) -> K | None:
        """Returns the process that holds the time slice; None while the work of the previous holder is awaited."""
        wanted = self._fair.turn()
        if wanted is None:
            return None
        last = self._processes.get(self._holder) if self._holder is not None else None
        if wanted != self._holder and last is not None and last.state & WORKS:
            if last.sent_flags & MAY:  # it is notified now that it may not submit, and its work is awaited
                last.overdue_at = now + PATIENCE_S
            if now < last.overdue_at:
                self._due(last.overdue_at)
                return None
        self._holder = wanted
        working = sum(1 for process in self._processes.values() if process.state & WORKS)
        if len(self._fair) > 1:
            # The credit is infinite if only less urgent processes wait.
            credit = min(self._fair.credit(wanted), self._quantum)
            self._due(now + max(SHORTEST_S, credit * max(working, 1)))
        return wanted

    def _is_admitted(self, key: K, process: _Process, holder: K | None, now: float) -> bool:
        if process.state and key == holder:
            return True
        if process.state == WANTS | WORKS and self._overran(process, now):
            return True
        if self._fair.credit(key) <= 0:
            return False
        if not process.state:
            return True
        if key == self._holder or now >= process.overlap_until:
            return False
        self._due(process.overlap_until)
        return True

    def _overran(self, process: _Process, now: float) -> bool:
        """Returns True if the process is admitted briefly, whatever its credit, because its work takes so long."""
        if now >= process.admitted_until:
            if process.sent_flags & MAY:
                return False
            if now < process.overdue_at:
                self._due(process.overdue_at)
                return False
            process.admitted_until = now + SHORTEST_S
        self._due(process.admitted_until)
        return True

    def _due(self, when: float) -> None:
        self.due = when if self.due is None else min(self.due, when)

    def _charge(self, now: float) -> None:
        working = [
            key
            for key, process in self._processes.items()
            # The holder is charged from the moment it gets the time slice, because no other process may submit before
            # it starts.
            if process.state & WORKS or (key == self._holder and process.state and process.sent_flags & MAY)
        ]
        for key in working:
            self._fair.charge(key, (now - self._now) / len(working))
        self._now = now


class TimeCredits:
    """The time slices of the node's devices, and their messages to processes. Belongs to the event loop."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._sessions = sessions
        self._devices: dict[int, DeviceTurns[DeviceLink]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    async def enter(self, link: DeviceLink) -> None:
        """Adds a process that is about to serve."""
        link.listen(Kind.BUSY, partial(self._on_busy, link))
        link.closed.add_done_callback(
            lambda _: self._tell(link.ordinal, lambda turns, now: turns.remove_process(link, now))
        )
        self._tell(link.ordinal, lambda turns, now: turns.join(link, now))

    def stop(self) -> None:
        """Stops the timers. Called at the end of the daemon."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._devices.clear()

    def _on_busy(self, link: DeviceLink, frame: Frame) -> None:
        place = self._place(link)
        self._tell(link.ordinal, lambda turns, now: turns.report(link, frame.flags, place, now))

    def _place(self, link: DeviceLink) -> ProcessShare:
        """Returns the tenant whose sessions the process serves. Tenants that share a process are scheduled together."""
        here = {channel.session_id for channel in link.channels.values()}
        tenants = {session.tenant.name: session.tenant for session in self._sessions if session.id in here}
        if not tenants:
            return ProcessShare()
        return ProcessShare(
            next(iter(tenants)) if len(tenants) == 1 else "",
            sum(tenant.weight for tenant in tenants.values()),
            min(tenant.priority for tenant in tenants.values()),
        )

    def _tell(
        self, ordinal: int, what: Callable[[DeviceTurns[DeviceLink], float], list[tuple[DeviceLink, int]]]
    ) -> None:
        loop = asyncio.get_running_loop()
        turns = self._devices.setdefault(ordinal, DeviceTurns())
        for link, flags in what(turns, loop.time()):
            link.send(Kind.TURN, flags=flags)
        timer = self._timers.pop(ordinal, None)
        if timer is not None:
            timer.cancel()
        if turns.due is not None:
            self._timers[ordinal] = loop.call_at(turns.due, self._tell, ordinal, DeviceTurns.advance)
