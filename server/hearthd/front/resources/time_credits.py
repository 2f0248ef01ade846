"""Time slices of the processes that share a device.

A GPU gives its processes time slices regardless of weights. The front therefore decides which process may submit work,
by deficit round robin (`hearthd.shared.deficit_round_robin`) over the time in which processes had work on the device:
tenants by weight, and the processes of one tenant equally. The front notifies a process whether it may submit work
(`TURN`); the process reports whether it has any (`BUSY`).

- An idle process that gets work may start immediately if it has credit, and may continue for `OVERLAP_S` while another
  process holds the time slice. Alternating launches and waits are thus not delayed. Afterwards the process needs the
  time slice.
- A time slice begins when the work of the previous holder has left the device, or has kept other processes waiting for
  `OVERDUE_S`. A long kernel thus overruns its time slice, and is charged for it. Because it is charged as much as it
  is credited while it runs, its process is admitted briefly every `OVERDUE_S`: the work for which the kernel waits may
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

OVERLAP_S = 0.005
"""Time, in seconds, for which a process with credit may continue without the time slice."""

OVERDUE_S = 0.1
"""Maximum time, in seconds, that the next time slice waits for the work of the previous holder."""

MIN_CHECK_S = 0.001
"""Minimum interval, in seconds, between checks of a time slice."""

MAY, ALONE, AWAITED = 1, 2, 4
"""Flags of TURN. MAY: the process may submit work. ALONE: it is alone and need not report any more. AWAITED: other
processes wait for it, so it must report immediately when it has no work."""

WANTS, WORKS = 1, 2
"""Flags of BUSY. WANTS: the process has work. WORKS: some of it is on the device."""

K = TypeVar("K", bound=Hashable)


class ProcessShare(NamedTuple):
    """The tenant, weight and priority under which a process is scheduled."""

    tenant: str = ""
    weight: float = 1.0
    priority: int = 0


class _Process:
    __slots__ = ("admitted_until", "overdue_at", "overlap_until", "sent_flags", "share", "state")

    def __init__(self) -> None:
        self.share = ProcessShare()
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


class DeviceTimeSlices(Generic[K]):
    """The time slices on one device. Pure: times are passed in, and messages are returned as (process, flags)."""

    def __init__(self) -> None:
        self._round_robin: HierarchicalRoundRobin[K] = HierarchicalRoundRobin(QUANTUM_S)
        self._processes: dict[K, _Process] = {}
        self._now = 0.0
        self._holder: K | None = None
        self.advance_at: float | None = None
        """The time at which `advance` must be called if nothing happens before."""

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
            self._round_robin.forget(key)
        return self.advance(now)

    def report(self, key: K, state: int, share: ProcessShare, now: float) -> list[tuple[K, int]]:
        """Handles a process's report of its work; 0: it has none. Returns the messages to send."""
        process = self._processes.get(key)
        if process is None:
            return []
        self._charge(now)
        if state and not process.state:
            process.overlap_until = now + OVERLAP_S if process.sent_flags & MAY else now
            # Registers the process, so that it is charged.
            self._round_robin.enter(key, share.tenant, share.weight, share.priority)
            self._round_robin.leave(key)  # it queues only later, when it needs the time slice
        elif not state:
            self._round_robin.leave(key)
        process.state, process.share = state, share
        return self.advance(now)

    def advance(self, now: float) -> list[tuple[K, int]]:
        """Gives the time slice to the next process if it has ended. Returns the messages to send.

        A message is sent to each process whose flags have changed.
        """
        self._charge(now)
        self.advance_at = None
        if len(self._processes) < 2:
            final_messages = [(key, MAY | ALONE) for key, process in self._processes.items() if process.sent_flags >= 0]
            for process in self._processes.values():
                process.sent_flags = -1
                process.state = 0
            self._round_robin = HierarchicalRoundRobin(QUANTUM_S)
            return final_messages
        for key, process in self._processes.items():
            if process.state and now >= process.overlap_until and key not in self._round_robin:
                self._round_robin.enter(key, process.share.tenant, process.share.weight, process.share.priority)
        holder = self._choose_holder(now)
        waiting = sum(1 for process in self._processes.values() if process.state)
        messages: list[tuple[K, int]] = []
        for key, process in self._processes.items():
            is_admitted = self._is_admitted(key, process, holder, now)
            flags = MAY * is_admitted | AWAITED * (waiting > (1 if process.state else 0))
            if process.sent_flags >= 0 and process.sent_flags & MAY and not is_admitted:
                process.overdue_at = now + OVERDUE_S
                process.overlap_until = now
            if flags != process.sent_flags:
                process.sent_flags = flags
                messages.append((key, flags))
        return messages

    def _choose_holder(self, now: float) -> K | None:
        """Returns the process that holds the time slice; None while the work of the previous holder is awaited."""
        chosen = self._round_robin.turn()
        if chosen is None:
            return None
        previous = self._processes.get(self._holder) if self._holder is not None else None
        if chosen != self._holder and previous is not None and previous.state & WORKS:
            if previous.sent_flags & MAY:  # it is notified now that it may not submit, and its work is awaited
                previous.overdue_at = now + OVERDUE_S
            if now < previous.overdue_at:
                self._schedule_advance(previous.overdue_at)
                return None
        self._holder = chosen
        working = sum(1 for process in self._processes.values() if process.state & WORKS)
        if len(self._round_robin) > 1:
            # The credit is infinite if only less urgent processes wait.
            credit = min(self._round_robin.credit(chosen), QUANTUM_S)
            self._schedule_advance(now + max(MIN_CHECK_S, credit * max(working, 1)))
        return chosen

    def _is_admitted(self, key: K, process: _Process, holder: K | None, now: float) -> bool:
        if process.state and key == holder:
            return True
        if process.state == WANTS | WORKS and self._overran(process, now):
            return True
        if self._round_robin.credit(key) <= 0:
            return False
        if not process.state:
            return True
        if key == self._holder or now >= process.overlap_until:
            return False
        self._schedule_advance(process.overlap_until)
        return True

    def _overran(self, process: _Process, now: float) -> bool:
        """Returns True if the process is admitted briefly, whatever its credit, because its work takes so long."""
        if now >= process.admitted_until:
            if process.sent_flags & MAY:
                return False
            if now < process.overdue_at:
                self._schedule_advance(process.overdue_at)
                return False
            process.admitted_until = now + MIN_CHECK_S
        self._schedule_advance(process.admitted_until)
        return True

    def _schedule_advance(self, time: float) -> None:
        self.advance_at = time if self.advance_at is None else min(self.advance_at, time)

    def _charge(self, now: float) -> None:
        working = [
            key
            for key, process in self._processes.items()
            # The holder is charged from the moment it gets the time slice, because no other process may submit before
            # it starts.
            if process.state & WORKS or (key == self._holder and process.state and process.sent_flags & MAY)
        ]
        for key in working:
            self._round_robin.charge(key, (now - self._now) / len(working))
        self._now = now


class TimeCredits:
    """The time slices of the node's devices, and their messages to processes. Belongs to the event loop."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._sessions = sessions
        self._devices: dict[int, DeviceTimeSlices[DeviceLink]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}

    async def enter(self, link: DeviceLink) -> None:
        """Adds a process that is about to serve."""
        link.listen(Kind.BUSY, partial(self._on_busy, link))
        link.closed.add_done_callback(
            lambda _: self._apply(link.ordinal, lambda time_slices, now: time_slices.remove_process(link, now))
        )
        self._apply(link.ordinal, lambda time_slices, now: time_slices.join(link, now))

    def stop(self) -> None:
        """Stops the timers. Called at the end of the daemon."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._devices.clear()

    def _on_busy(self, link: DeviceLink, frame: Frame) -> None:
        share = self._find_share(link)
        self._apply(link.ordinal, lambda time_slices, now: time_slices.report(link, frame.flags, share, now))

    def _find_share(self, link: DeviceLink) -> ProcessShare:
        """Returns the tenant whose sessions the process serves. Tenants that share a process are scheduled together."""
        session_ids = {channel.session_id for channel in link.channels.values()}
        tenants = {session.tenant.name: session.tenant for session in self._sessions if session.id in session_ids}
        if not tenants:
            return ProcessShare()
        return ProcessShare(
            next(iter(tenants)) if len(tenants) == 1 else "",
            sum(tenant.weight for tenant in tenants.values()),
            min(tenant.priority for tenant in tenants.values()),
        )

    def _apply(
        self, ordinal: int, event: Callable[[DeviceTimeSlices[DeviceLink], float], list[tuple[DeviceLink, int]]]
    ) -> None:
        loop = asyncio.get_running_loop()
        time_slices = self._devices.setdefault(ordinal, DeviceTimeSlices())
        for link, flags in event(time_slices, loop.time()):
            link.send(Kind.TURN, flags=flags)
        timer = self._timers.pop(ordinal, None)
        if timer is not None:
            timer.cancel()
        if time_slices.advance_at is not None:
            self._timers[ordinal] = loop.call_at(time_slices.advance_at, self._apply, ordinal, DeviceTimeSlices.advance)
