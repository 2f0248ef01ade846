"""Turns of the processes that share a device, each as long as its credit lasts.

A GPU gives its processes slices of time without asking for weights. So the front lets them through, by deficit round
robin (`hearthd.shared.deficit_round_robin`) over the time in which they had work on the device: tenants by their
weights, the processes of one tenant alike. The front tells a process when it may give the device work (`TURN`); the
process reports what it has (`BUSY`).

- An idle process that gets work may begin at once, as long as it has credit, and may continue for `BESIDE_S` beside
  the process that has the turn: launching and waiting by turns costs no delay. After that it has to have the turn.
- A turn begins when the work of the one before is off the device, or has kept others waiting for `PATIENCE_S`: a long
  kernel overruns, and is charged. As it is charged as much as it is given while that runs, it is let through for a
  moment every `PATIENCE_S`: what its kernel waits for may be behind it.
- Collectives go whenever all their ranks are there, whichever process has the turn
  (`hearthd.device.scheduler.fair_share`), so that no two devices wait for each other's turns.

A process that is alone on its device gets no turns and reports nothing.
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
"""Seconds that a process of average weight gets each round."""

BESIDE_S = 0.005
"""Seconds that a process with credit may continue without a turn."""

PATIENCE_S = 0.1
"""Seconds that the next turn waits for the work of the last one."""

SHORTEST_S = 0.001
"""No turn is looked at more often."""

MAY, ALONE, AWAITED = 1, 2, 4
"""Flags of TURN: the process may give the device work; it is alone and need not report any more; others wait for it, so
that it says at once when it has nothing."""

WANTS, WORKS = 1, 2
"""Flags of BUSY: it has work; some of it is on the device."""

K = TypeVar("K", bound=Hashable)


class ProcessShare(NamedTuple):
    """The tenant, weight and priority of a process."""

    tenant: str = ""
    weight: float = 1.0
    priority: int = 0


class _Process:
    __slots__ = ("beside", "chance", "overdue", "place", "state", "told")

    def __init__(self) -> None:
        self.place = ProcessShare()
        self.state = 0
        self.told = -1
        """The flags of its last TURN; -1: none."""
        self.beside = 0.0
        """The time until which it may continue without a turn."""
        self.overdue = 0.0
        """The time from which others do not wait any more for its work without a turn."""
        self.chance = 0.0
        """The time until which it is let through because its work takes that long."""


class DeviceTurns(Generic[K]):
    """The turns on one device. Pure: the time is handed in, and messages come out, as (process, flags)."""

    def __init__(self, quantum: float = QUANTUM_S) -> None:
        self._quantum = quantum
        self._fair: HierarchicalRoundRobin[K] = HierarchicalRoundRobin(quantum)
        self._processes: dict[K, _Process] = {}
        self._now = 0.0
        self._holder: K | None = None
        self.due: float | None = None
        """The time at which `look` is to be called, if nothing happens before."""

    def __len__(self) -> int:
        return len(self._processes)

    def join(self, key: K, now: float) -> list[tuple[K, int]]:
        """A process is there."""
        self._processes[key] = _Process()
        return self.look(now)

    def leave(self, key: K, now: float) -> list[tuple[K, int]]:
        """Removes a process that has gone."""
        self._charge(now)
        if self._processes.pop(key, None) is not None:
            self._fair.forget(key)
        return self.look(now)

    def report(self, key: K, state: int, place: ProcessShare, now: float) -> list[tuple[K, int]]:
        """Takes a process's report of its work; 0: it has none."""
        process = self._processes.get(key)
        if process is None:
            return []
        self._charge(now)
        if state and not process.state:
            process.beside = now + BESIDE_S if process.told & MAY else now
            self._fair.enter(key, place.tenant, place.weight, place.priority)  # so that it is charged,
            self._fair.leave(key)  # but it lines up when it has to
        elif not state:
            self._fair.leave(key)
        process.state, process.place = state, place
        return self.look(now)

    def look(self, now: float) -> list[tuple[K, int]]:
        """Moves the turn on as far as it is due, and returns the flags that change."""
        self._charge(now)
        self.due = None
        if len(self._processes) < 2:
            told = [(key, MAY | ALONE) for key, process in self._processes.items() if process.told >= 0]
            for process in self._processes.values():
                process.told = -1
                process.state = 0
            self._fair = HierarchicalRoundRobin(self._quantum)
            return told
        for key, process in self._processes.items():
            if process.state and now >= process.beside and key not in self._fair:
                self._fair.enter(key, process.place.tenant, process.place.weight, process.place.priority)
        holder = self._turn(now)
        waiting = sum(1 for process in self._processes.values() if process.state)
        news: list[tuple[K, int]] = []
        for key, process in self._processes.items():
            may = self._may(key, process, holder, now)
            flags = MAY * may | AWAITED * (waiting > (1 if process.state else 0))
            if process.told >= 0 and process.told & MAY and not may:
                process.overdue = now + PATIENCE_S
                process.beside = now
            if flags != process.told:
                process.told = flags
                news.append((key, flags))
        return news

    def _turn(self, now: float) -> K | None:
        """Returns the process that has the turn; None while the work of the last one is awaited."""
        wanted = self._fair.turn()
        if wanted is None:
            return None
        last = self._processes.get(self._holder) if self._holder is not None else None
        if wanted != self._holder and last is not None and last.state & WORKS:
            if last.told & MAY:  # it is notified now, and its work awaited
                last.overdue = now + PATIENCE_S
            if now < last.overdue:
                self._due(last.overdue)
                return None
        self._holder = wanted
        working = sum(1 for process in self._processes.values() if process.state & WORKS)
        if len(self._fair) > 1:
            credit = min(self._fair.credit(wanted), self._quantum)  # infinite where only less urgent ones wait
            self._due(now + max(SHORTEST_S, credit * max(working, 1)))
        return wanted

    def _may(self, key: K, process: _Process, holder: K | None, now: float) -> bool:
        if process.state and key == holder:
            return True
        if process.state == WANTS | WORKS and self._overran(process, now):
            return True
        if self._fair.credit(key) <= 0:
            return False
        if not process.state:
            return True
        if key == self._holder or now >= process.beside:
            return False
        self._due(process.beside)
        return True

    def _overran(self, process: _Process, now: float) -> bool:
        """Returns True if its work takes so long that it is let through, whatever it owes."""
        if now >= process.chance:
            if process.told & MAY:
                return False
            if now < process.overdue:
                self._due(process.overdue)
                return False
            process.chance = now + SHORTEST_S
        self._due(process.chance)
        return True

    def _due(self, when: float) -> None:
        self.due = when if self.due is None else min(self.due, when)

    def _charge(self, now: float) -> None:
        working = [
            key
            for key, process in self._processes.items()
            # The holder of the turn pays from when it was given it: until it begins, no other may either.
            if process.state & WORKS or (key == self._holder and process.state and process.told & MAY)
        ]
        for key in working:
            self._fair.charge(key, (now - self._now) / len(working))
        self._now = now


class TimeCredits:
    """The turns of the node's devices, announced to their processes. Belongs to the event loop."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._sessions = sessions
        self._devices: dict[int, DeviceTurns[DeviceLink]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    async def enter(self, link: DeviceLink) -> None:
        """A process is about to serve."""
        link.listen(Kind.BUSY, partial(self._on_busy, link))
        link.closed.add_done_callback(lambda _: self._tell(link.ordinal, lambda turns, now: turns.leave(link, now)))
        self._tell(link.ordinal, lambda turns, now: turns.join(link, now))

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._devices.clear()

    def _on_busy(self, link: DeviceLink, frame: Frame) -> None:
        place = self._place(link)
        self._tell(link.ordinal, lambda turns, now: turns.report(link, frame.flags, place, now))

    def _place(self, link: DeviceLink) -> ProcessShare:
        """The tenant whose sessions it serves. Several that share a process stand there together."""
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
            self._timers[ordinal] = loop.call_at(turns.due, self._tell, ordinal, DeviceTurns.look)
