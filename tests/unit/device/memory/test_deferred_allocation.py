"""An allocation that does not fit now waits for memory that is being freed, and for nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.memory.deferred_allocation import DeferredAllocation, may_wait

NOT_NOW = Refusal(Reason.OUT_OF_MEMORY, "no room", details={"fits": "not now"})
NEVER = Refusal(Reason.OUT_OF_MEMORY, "no room", details={"fits": "never"})


class Memory:
    """A unit of memory: in use, being freed after work of a busy stream, or free."""

    def __init__(self) -> None:
        self.free = False
        self.is_pending = False
        self.tried = 0
        self.kicked = 0
        self._callbacks: list[Any] = []
        self.session: Any = SimpleNamespace(frees={}, last_free=0)
        self.device: Any = SimpleNamespace(kick=self._kick)

    def submit_free(self) -> int:
        self.session.last_free += 1
        self.session.frees[self.session.last_free] = None
        return int(self.session.last_free)

    def run_free(self, number: int) -> None:
        del self.session.frees[number]
        self.is_pending = True

    def arrive(self) -> None:
        """Completes the free, as when the stream has reached it."""
        self.free = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def when_settled(self, callback: Any) -> bool:
        if self.is_pending:
            self._callbacks.append(callback)
        return self.is_pending

    def reserve(self) -> None:
        self.tried += 1
        if not self.free:
            raise NOT_NOW

    def _kick(self, _session: Any) -> None:
        self.kicked += 1

    def deferred(self) -> DeferredAllocation:
        reservations: Any = SimpleNamespace(when_settled=self.when_settled)
        return DeferredAllocation(self.device, reservations, self.session, self.reserve)


def test_allocation_that_can_never_fit_does_not_wait() -> None:
    assert may_wait(NOT_NOW) and not may_wait(NEVER)


def test_allocation_without_pending_frees_fails_immediately() -> None:
    memory = Memory()
    with pytest.raises(Refusal, match="no room"):
        memory.deferred().run()


def test_allocation_waits_for_earlier_frees_and_for_the_device() -> None:
    memory = Memory()
    number = memory.submit_free()
    allocation = memory.deferred()
    assert not allocation.run(), "its free is queued after launches"
    memory.run_free(number)
    assert not allocation.run(), "the free is pending on its stream"
    assert not allocation.run()
    memory.arrive()
    assert memory.kicked == 1
    assert allocation.run()


def test_allocation_does_not_wait_for_later_frees() -> None:
    memory = Memory()
    allocation = memory.deferred()
    memory.submit_free()
    with pytest.raises(Refusal):
        allocation.run()


def test_allocation_fails_when_all_is_freed_and_not_enough() -> None:
    memory = Memory()
    memory.is_pending = True
    allocation = memory.deferred()
    assert not allocation.run()
    memory.arrive()
    memory.free = False  # another allocation has used it
    with pytest.raises(Refusal):
        allocation.run()


def test_allocation_does_not_wait_after_another_error() -> None:
    memory = Memory()
    memory.submit_free()
    broken = Refusal(Reason.INTERNAL, "the driver says no")

    def reserve() -> None:
        raise broken

    reservations: Any = SimpleNamespace(when_settled=memory.when_settled)
    with pytest.raises(Refusal, match="driver"):
        DeferredAllocation(memory.device, reservations, memory.session, reserve).run()
