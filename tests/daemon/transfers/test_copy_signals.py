"""A client to which the device itself signals the completion of copies."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

import hearth
from hearth.session import attachment
from hearth.transport import memory_segments, spin_wait
from hearth_proto.v1 import commands_pb2
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import gated
from tests.support.daemon.pinned_arrays import noise, pinned, same

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")
SIZE = 3 << 20
Told = Callable[[], int]


def poll_without_limit(gpu: hearth.Device) -> None:
    lookout = connection_of(gpu).attachment().spin_wait
    lookout.max_spin_s = lookout.spin_s = 20.0


@pytest.fixture
def told(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Counts the threads that continued after a signal. Request this fixture before the device is used: it makes
    waiting threads poll without limit, as on a machine with many cores."""
    monkeypatch.setattr(attachment, "cores", lambda: 64)
    poll_without_limit(gpu)
    calls: list[int] = []
    real = spin_wait.SpinWait.signalled

    def counted(lookout: spin_wait.SpinWait, now: float) -> None:
        calls.append(0)
        real(lookout, now)

    monkeypatch.setattr(spin_wait.SpinWait, "signalled", counted)
    return lambda: len(calls)


def test_data_is_complete_when_signal_arrives(told: Told, gpu: hearth.Device) -> None:
    host, out, x = pinned(noise(SIZE)), hearth.zeros_pinned(SIZE, np.uint8), gpu.empty(SIZE, np.uint8)
    for turn in range(50):
        host[turn::4096] ^= 255
        x.set(host)
        gpu.synchronize()
        host[turn::4096] ^= 255  # it has been read
        host[turn::4096] ^= 255
        assert x.get(out=out) is out
        same(out, host)
        x.set(host, blocking=True)
        gpu.current_stream.synchronize()
    assert told() > 50
    assert not connection_of(gpu).late_errors


def test_no_signal_before_copy_has_run(told: Told, gpu: hearth.Device) -> None:
    host, out, x = pinned(noise(SIZE)), hearth.zeros_pinned(SIZE, np.uint8), gpu.empty(SIZE, np.uint8)
    for _ in range(3):
        x.set(host)
        x.get(out=out)
    with gated(gpu) as gate:
        gate.hold()
        x.set(host)
        waiting = threading.Thread(target=gpu.synchronize)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        gate.open()
        waiting.join(30)
        assert not waiting.is_alive()


def test_the_next_wait_raises_an_earlier_failure(told: Told, gpu: hearth.Device) -> None:
    host, x = pinned(noise(SIZE)), gpu.empty(SIZE, np.uint8)
    for _ in range(3):
        x.set(host)
        gpu.synchronize()
    before = told()
    nowhere = commands_pb2.Fill(buffer=1 << 40, size=8, pattern=b"0")
    connection_of(gpu).attachment().submit(commands_pb2.Command(fill=nowhere))
    x.set(host)
    with pytest.raises(hearth.HearthError):
        gpu.synchronize()
    assert told() == before
    x.set(host)
    gpu.synchronize()


def test_threads_that_wait_for_copies_of_their_own(told: Told, gpu: hearth.Device) -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with gpu.stream():
                host, out = pinned(noise(SIZE, seed)), hearth.zeros_pinned(SIZE, np.uint8)
                x = gpu.empty(SIZE, np.uint8)
                for turn in range(20):
                    host[turn] ^= 255
                    x.set(host)
                    x.get(out=out)
                    same(out, host)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_signals_leave_no_resources(told: Told, daemon: DaemonProcess) -> None:
    with hearth.connect(daemon.unix) as node:
        gpu = node.device(0)
        poll_without_limit(gpu)
        host, x = pinned(noise(SIZE)), gpu.empty(SIZE, np.uint8)
        for _ in range(5):
            x.set(host, blocking=True)
        assert told()
    wait_until(lambda: not daemon.gauge("segments"), "nothing shared")
