"""A device process with lanes, in which batches run on arrival, or wait for the next iteration of the loop."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hearthd.device.cpu.server import CpuServer
from hearthd.device.session.session import DeviceSession
from tests.support.device.lane_rig import Client, Laned


class Polled(CpuServer):
    """A CPU device that does not announce completions, as CUDA does not: they must be polled."""

    def on_progress(self, wake: Any) -> bool:
        super().on_progress(None)
        return False


class Passing(Laned):
    """A device process with lanes. With `on_arrival` False no batch runs in the iteration in which it arrives.

    `answered`: number of arrivals that were answered in their iteration. `steps`: number of steps.
    """

    def __init__(self, server: type[CpuServer], on_arrival: bool = True) -> None:
        self._ran = self.steps = self.answered = 0
        self.on_arrival = on_arrival
        self.channels = itertools.count(2)
        super().__init__(server)

    @property
    def ran(self) -> int:
        """Returns the number of batches that ran on arrival. Waits first, because a batch is answered before it is
        counted."""
        self.barrier()
        return self._ran

    def started(self) -> None:
        executor = self.process.executor
        executor.on_arrival = self._counting(executor.on_arrival)
        executor.steps.execute = self._counting_steps(executor.steps.execute)

    def _counting(self, real: Callable[[DeviceSession], None]) -> Callable[[DeviceSession], None]:
        sharing = self.process.executor.sharing

        def run(session: DeviceSession) -> None:
            if self.on_arrival:
                last, before = session.last_seq, sharing.answered
                sharing.answered = False
                real(session)
                self._ran += session.last_seq - last
                self.answered += sharing.answered
                sharing.answered = sharing.answered or before

        return run

    def _counting_steps(self, real: Callable[..., bool]) -> Callable[..., bool]:
        sharing = self.process.executor.sharing

        def execute(*arguments: Any) -> bool:
            before, sharing.answered = sharing.answered, False
            ran = self.on_arrival and real(*arguments)
            self._ran += ran
            self.steps += ran
            self.answered += sharing.answered
            sharing.answered = sharing.answered or before
            return ran

        return execute

    def submitted(self, client: Client, channel: int = 1) -> None:
        """Returns when the process has run, or deferred, the batches that the client has sent over its lane."""
        session = self.process.executor.session(channel)
        assert session is not None
        for _ in range(6000):
            if session.last_seq == client.seq:
                self.barrier()  # the batch has been begun: this waits for its end
                return
            threading.Event().wait(0.005)
        raise AssertionError(f"batch {client.seq} did not arrive; the last is {session.last_seq}")


P = TypeVar("P", bound=Passing)


def prepared(rig: P) -> Iterator[P]:
    """Yields a prepared device process, and stops it; the body of a fixture."""
    rig.prepare()
    yield rig
    rig.stop()


def both_ways(kind: type[P], server: type[CpuServer]) -> Iterator[tuple[P, P]]:
    """Yields a device process whose batches run on arrival and one whose batches run later; the body of a fixture."""
    both = kind(server), kind(server, on_arrival=False)
    yield both
    for rig in both:
        rig.stop()
