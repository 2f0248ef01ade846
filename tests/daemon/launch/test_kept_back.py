"""Streams that are destroyed while one of their kernels runs endlessly: their pooled CUDA streams are not reused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import COMMON

ENDLESS = """
__device__ volatile int gate;
__device__ volatile int begun;
extern "C" __global__ void endless() { atomicAdd((int*)&begun, 1); while (!gate) __nanosleep(1000000); }
"""
WAIT_S = 20.0
"""Seconds: far more than any step here takes, but limited."""


class Guest:
    """A connection that copies and launches nothing, because CUDA loads no module while a kernel runs."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.node = daemon.connect()
        self.gpu = self.node.device(0)

    def works(self, stream: hearth.Stream | None = None) -> None:
        """Checks that copies on the stream complete."""
        x = self.gpu.zeros(8, np.int32, stream)
        x.set(np.arange(8, dtype=np.int32), stream=stream)
        assert x.get(stream=stream, timeout=WAIT_S).tolist() == [*range(8)]


class Session(Guest):
    """A connection with kernels that end only when the gate is opened."""

    def __init__(self, daemon: DaemonProcess) -> None:
        super().__init__(daemon)
        module = self.gpu.RawModule(code=COMMON + ENDLESS)
        self.endless, self.add_one = module.get_function("endless"), module.get_function("add_one")
        self.gate, self.begun = module.get_global("gate", np.int32), module.get_global("begun", np.int32)
        self.count = 0
        self.works()

    def works(self, stream: hearth.Stream | None = None) -> None:
        """Checks that a kernel and a copy on the stream complete."""
        x = self.gpu.zeros(8, np.int32, stream)
        self.add_one((1,), (8,), (x, np.int32(8)), stream=stream)
        assert (x.get(stream=stream, timeout=WAIT_S) == 1).all()

    def leaves_one(self) -> None:
        """Creates and destroys a stream whose kernel keeps running."""
        stream = self.gpu.stream()
        self.endless((1,), (1,), stream=stream)
        self.gpu.flush()
        del stream  # destroys the stream
        self.count += 1
        wait_until(lambda: self.begun.get(timeout=WAIT_S)[0] == self.count, "the kernel's begin")

    def opens(self) -> None:
        """Opens the gate, and waits until all kernels have ended."""
        self.gate.set(np.ones(1, np.int32))
        self.gpu.synchronize(timeout=WAIT_S)


@contextmanager
def guest(daemon: DaemonProcess) -> Iterator[Guest]:
    made = Guest(daemon)
    with made.node:
        yield made


@contextmanager
def sessions(daemon: DaemonProcess, count: int) -> Iterator[list[Session]]:
    with ExitStack() as stack:
        made = [Session(daemon) for _ in range(count)]
        for each in made:
            stack.callback(each.node.close)
        yield made
        for each in made:
            each.opens()


def test_stuck_stream_is_not_reused(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with sessions(daemon, 2) as (one, other):
        one.leaves_one()
        streams = [session.gpu.stream() for session in (one, other) for _ in range(3)]
        for session, stream in zip((one,) * 3 + (other,) * 3, streams, strict=True):
            session.works(stream)
        with guest(daemon) as late:
            late.works()
        wait_until(lambda: daemon.gauge("streams_kept_back") == 1, "a second")
        page = daemon.metrics_with("hearth_streams_kept_back")
        assert 'hearth_streams_kept_back{device="0",tenant="default"} 1.0' in page
        with pytest.raises(hearth.TimeoutError):
            one.gpu.synchronize(timeout=0.05)  # waits for all work of the session, including the endless kernel
        one.opens()
        wait_until(lambda: daemon.gauge("streams_kept_back") == 0, "its return")
        before = daemon.gauge("streams")
        again = one.gpu.stream()
        one.works(again)
        assert daemon.gauge("streams") == before, "the CUDA stream is reused"


def test_maximum_number_of_withheld_streams(start_daemon: StartDaemon) -> None:
    """The kernels of one session's streams occupy all streams except the session's default stream, which is then
    shared."""
    daemon = start_daemon(devices={"max_streams": 3})
    with sessions(daemon, 1) as (one,):
        one.leaves_one()
        one.leaves_one()
        one.works(one.gpu.stream())
        with guest(daemon) as late:
            late.works()
            late.works(late.gpu.stream())
        wait_until(lambda: daemon.gauge("streams_kept_back") == 2, "a second")
        one.works(one.gpu.stream())
        assert daemon.gauge("streams") <= 6


def test_report_when_all_streams_are_withheld(start_daemon: StartDaemon) -> None:
    """The default stream shares the only track with the destroyed stream, so it must wait as well."""
    daemon = start_daemon(devices={"max_streams": 1})
    with daemon.connect() as victim:
        gpu = victim.device(0)
        module = gpu.RawModule(code=ENDLESS)
        module.compile()
        endless = module.get_function("endless")
        for _ in range(2):  # the second stream is the only one beyond the limit
            stream = gpu.stream()
            endless((1,), (1,), stream=stream)
            del stream
        gpu.flush()
        wait_until(lambda: daemon.gauge("streams_kept_back") == 2, "a second")
        refused = gpu.stream()
        with pytest.raises(
            hearth.HearthError, match=r"all 2 streams of the device process are withheld.*endless"
        ) as caught:
            gpu.flush()
        error = caught.value
        assert error.reason == "QUEUE_FULL" and error.details["max_streams"] == "1" and error.fix and error.retry_after
        says_so_whenever_it_is_used(refused)
        with pytest.raises(hearth.QuotaExceededError, match=r"record_event: stream \d+ was not made"):
            gpu.flush()
        del refused  # destroying a stream that was never created is not an error
        gpu.flush()
        with guest(daemon) as late:
            late.works()  # a session always gets its first stream


def says_so_whenever_it_is_used(refused: hearth.Stream) -> None:
    for use in (refused.synchronize, refused.synchronize, lambda: refused.record().synchronize()):
        with pytest.raises(hearth.HearthError, match=r"stream \d+ was not made: .*all 2 .* are withheld") as caught:
            use()
        assert caught.value.reason == "QUEUE_FULL" and caught.value.fix
        assert caught.value.retry_after is None, "a retry cannot succeed"
