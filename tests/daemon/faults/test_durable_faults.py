"""Losses at random moments, one after another, while durable arrays are copied or restored."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

import hearth
from tests.support.daemon.durables import FAULTS, MIB, QUICK, durable_files, kill, lose, noise, wait_serving
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import gated, saxpy_works
from tests.support.daemon.tenants import tenant, tenants

ROUNDS = 12


def test_two_arrays_stay_consistent_across_many_losses(lossy: DaemonProcess) -> None:
    """Whenever the process is killed, both arrays are restored as of the same checkpoint, which is not older than the
    last one known to be complete."""
    with lossy.connect() as node:
        gpu = node.device(0)
        set_all = gpu.RawModule(code=FAULTS).get_function("set_all")
        sizes = (MIB + 17, 3)
        x, y = gpu.durable(*(gpu.zeros(size, np.int32) for size in sizes))
        # compiled first, because a compiler may outlive the process that requested the compile
        set_all((1,), (1,), (y, np.int32(0), np.int32(0)))
        gpu.synchronize()
        value = known = 0
        chance = random.Random(7)
        for _ in range(ROUNDS):
            pid = lossy.device_pid()
            timer = threading.Timer(chance.uniform(0.0, 0.06), os.kill, (pid, signal.SIGKILL))
            timer.start()
            try:
                while True:
                    value += 1
                    for array, size in zip((x, y), sizes, strict=True):
                        set_all((2,), (64,), (array, np.int32(size), np.int32(value)))
                    gpu.checkpoint(x, y)
                    if chance.random() < 0.4:
                        gpu.synchronize()
                        known = value
            except (hearth.DeviceLostError, hearth.BufferLostError):
                pass
            timer.join()
            wait_serving(gpu)
            found = {int(each) for array in (x, y) for each in np.unique(array.get())}
            assert len(found) == 1, f"the arrays are of different checkpoints: {sorted(found)}"
            assert known <= found.pop() <= value


def test_losses_during_restore(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        hosts = [noise(24 * MIB, seed) for seed in (1, 2)]
        arrays = [gpu.durable(gpu.asarray(host)) for host in hosts]
        gpu.synchronize()
        chance = random.Random(3)
        for _ in range(6):
            kill(lossy)
            time.sleep(chance.uniform(0.0, 0.05))  # somewhere between the fork and the last byte
        wait_serving(gpu)
        for array, host in zip(arrays, hosts, strict=True):
            assert isinstance(array, hearth.DeviceArray)
            np.testing.assert_array_equal(array.get(), host)


def test_session_that_ends_during_restore(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        keep = gpu.durable(gpu.ones(4, np.int32))
        gpu.synchronize()
        for _ in range(3):
            other = lossy.connect()
            away = other.device(0)
            large = away.durable(away.zeros(24 * MIB, np.uint8))
            away.synchronize()
            assert large.durable and durable_files(lossy.process.pid).files == 2
            kill(lossy)
            other.close()
            del large
            wait_serving(gpu)
            assert keep.get().tolist() == [1] * 4
        front = lossy.process.pid
        wait_until(
            lambda: durable_files(front).files == durable_files(lossy.device_pid()).files == 1,
            "the end of the others' files",
        )
        assert gpu.memory_usage().bytes_durable == durable_files(front).bytes * 2  # one area of two has been written


def test_a_waiting_large_copy_starves_no_other(lossy: DaemonProcess) -> None:
    with lossy.connect() as node, lossy.connect() as second:
        gpu, other = node.device(0), second.device(0)
        x = gpu.durable(gpu.zeros(96 * MIB, np.uint8))
        small = other.durable(other.zeros(16, np.int32))
        host = noise(16 * MIB)
        gpu.synchronize()
        with gated(gpu) as gate:
            gate.hold()
            x.checkpoint()
            gpu.flush()
            for value in (1, 2):
                small.fill(value)
                small.checkpoint()
                other.synchronize()
                np.testing.assert_array_equal(other.asarray(host).get(), host)
        gpu.synchronize()
        lose(lossy, gpu)
        wait_serving(other)
        assert small.get().tolist() == [2] * 16 and x.get().sum() == 0


def test_a_dedicated_session_and_its_neighbour(start_daemon: StartDaemon) -> None:
    if BACKEND != "cpu":
        pytest.skip("the figures below are those of one virtual device")
    daemon = start_daemon(devices=QUICK)
    with daemon.connect() as shared, daemon.connect(isolation="dedicated") as alone:
        x = shared.device(0).durable(shared.device(0).full(8, 1, np.int32))
        y = alone.device(0).durable(alone.device(0).full(8, 2, np.int32))
        shared.device(0).synchronize()
        alone.device(0).synchronize()
        processes = {entry["pid"] for entry in daemon.status()["devices"][0]["processes"]}
        (dedicated,) = processes - {daemon.device_pid()}
        os.kill(dedicated, signal.SIGKILL)
        alone_back(alone.device(0))
        assert y.get().tolist() == [2] * 8
        assert x.get().tolist() == [1] * 8 and shared.device(0).generation == 1
        saxpy_works(shared.device(0))


def alone_back(gpu: hearth.Device) -> None:
    """Waits for the loss of a dedicated session's process, which the device's state does not show."""
    while True:
        try:
            gpu.synchronize()
            return
        except hearth.DeviceLostError:
            continue


def test_a_tenant_s_limit(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(tenant("small", quotas={"durable_bytes": "64KiB"}), "other", devices=QUICK)
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["small"]) as first, daemon.connect(token=tokens["small"]) as second:
        gpu, elsewhere = first.device(0), second.device(0)
        x, y = gpu.zeros(24 << 10, np.uint8), elsewhere.zeros(24 << 10, np.uint8)
        gpu.durable(x)
        gpu.synchronize()
        elsewhere.durable(y)
        with pytest.raises(hearth.QuotaExceededError, match="tenant small") as caught:
            elsewhere.synchronize()
        assert caught.value.details["allowed"] == str(64 << 10)
        with daemon.connect(token=tokens["other"]) as third:
            z = third.device(0).durable(third.device(0).zeros(24 << 10, np.uint8))
            third.device(0).synchronize()
            assert z.durable
        first.close()
        elsewhere.durable(y)
        elsewhere.synchronize()
