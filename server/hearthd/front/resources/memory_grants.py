"""Applies the memory ledger of one device: exchanges frames with its processes, and lets processes wait for room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import structlog

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Refusal
from hearthd.front.links.link import DeviceLink
from hearthd.front.resources.memory_ledger import MemoryLedger, ProcessLimit

log = structlog.get_logger("hearthd.memory")


class MemoryGrants:
    """The memory grants of one device.

    Belongs to the event loop. `overhead`: bytes of device memory that a process uses before it allocates anything.
    """

    def __init__(self, overhead: int, limit: int = 0) -> None:
        self.ledger = MemoryLedger()
        self._overhead = overhead
        self._limit = limit
        self._links: dict[int, DeviceLink] = {}
        self._unsent_limits: dict[int, ProcessLimit] = {}
        """Limits for processes that have no link yet."""
        self._admission_waiters: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def enter(
        self, process: int, tenant: str, quota: int, *, serves_tenant: bool, on_wait: Callable[[], None]
    ) -> int | None:
        """Waits for room for one more process, and returns its initial limit in bytes; None: all memory of the device.

        Calls `on_wait` if there is no room yet. `serves_tenant` is False for a vacant process, which gets no grant.
        """
        ledger = self.ledger
        ledger.enter(process, self._overhead, tenant, quota, serves_tenant=serves_tenant)
        self._update()
        if not ledger.is_admitted(process):
            self._admission_waiters[process] = asyncio.get_running_loop().create_future()
            on_wait()
            log.info("process_waits_for_memory", process=process, free=ledger.free, needs=self._overhead)
            try:
                await self._admission_waiters[process]
            except asyncio.CancelledError:
                self.remove_process(process)
                raise
        return ledger.initial_limit(process)

    def attach(self, link: DeviceLink) -> None:
        """Connects a process to the ledger over its link."""
        process = link.generation
        self._links[process] = link
        link.listen(Kind.HELD, lambda frame: self._on_held(process, frame))
        limit = self._unsent_limits.pop(process, None)
        if limit is not None:
            self._send(limit)

    def set_total(self, total: int) -> None:
        """Notes the memory size of the device, as reported by its first process."""
        self.ledger.set_total(min(total, self._limit) if self._limit else total)
        self._update()

    def assign(self, process: int, tenant: str, quota: int) -> None:
        """Notes that the process serves a tenant from now on."""
        self.ledger.assign(process, tenant, quota)
        self._update()

    def on_report(self, process: int, stats: dict[str, Any]) -> None:
        """Handles a periodic report of a process."""
        gauges = stats.get("gauges")
        reserved = gauges.get("memory_reserved_bytes") if isinstance(gauges, dict) else None
        if isinstance(reserved, int):
            self.ledger.on_report(process, reserved)

    def remove_process(self, process: int) -> None:
        """Removes a process that has ended, which frees everything that it held."""
        self._links.pop(process, None)
        self._unsent_limits.pop(process, None)
        self._admission_waiters.pop(process, None)
        self.ledger.remove_process(process)
        self._update()

    def stop(self) -> None:
        """Stops the timer and the messages that are under way. Called after the device's processes have ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()

    def _on_held(self, process: int, frame: Frame) -> None:
        body = json.loads(frame.payload)
        self.ledger.on_report(process, int(body.get("reserved", 0)))
        self.ledger.request(process, int(body.get("wants", 0)))
        self._update()

    def _update(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for limit in self.ledger.decide(now):
            self._send(limit)
        for process, waiter in list(self._admission_waiters.items()):
            if self.ledger.is_admitted(process):
                del self._admission_waiters[process]
                if not waiter.done():
                    waiter.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        decision_at = self.ledger.next_decision_at(now)
        if decision_at is not None:
            self._timer = loop.call_at(decision_at + 1e-3, self._update)  # a timer may fire a clock tick early

    def _send(self, limit: ProcessLimit) -> None:
        """Sends a limit over the link of its process, or keeps it until `attach`. Does not block."""
        link = self._links.get(limit.process)
        if link is None:
            self._unsent_limits[limit.process] = limit
            return
        task = asyncio.create_task(self._send_and_confirm(link, limit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_and_confirm(self, link: DeviceLink, limit: ProcessLimit) -> None:
        body = {"bytes": limit.bytes, "denied": limit.denied, "granted": limit.granted, "quota": limit.quota}
        try:
            answer = await link.ask(Kind.LIMIT, body)
        except Refusal:
            return  # the process has ended; what it held is freed by `remove_process`
        now = asyncio.get_running_loop().time()
        self.ledger.confirm(limit.process, int(answer["limit"]), int(answer["reserved"]), now)
        self._update()
