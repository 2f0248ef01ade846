"""Processes that share the memory of one device: never more than exists, and no memory is unused while another process
waits for it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.daemon.harness import BACKEND, DaemonProcess, StartDaemon, on_cpu, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.lent import LentDaemon
from tests.support.daemon.tenants import tenant, tenants

MIB = 1 << 20 if BACKEND == "cpu" else 32 << 20
"""Unit of allocations in bytes: on a GPU, the step by which a memory pool of the driver grows."""
LIMIT = 256 * MIB
DEVICES = {"memory_limit": LIMIT, "idle_timeout": "500ms", "context_memory": 0}


@pytest.fixture(scope="module")
def lent(cache: Path) -> Iterator[LentDaemon]:
    lender = LentDaemon(cache, {"devices": DEVICES}, 1)
    yield lender
    lender.close()


@pytest.fixture
def shared(lent: LentDaemon) -> DaemonProcess:
    return lent.lend()


@pytest.fixture
def pair_of(shared: DaemonProcess) -> Iterator[Callable[[], tuple[hearth.Device, hearth.Device]]]:
    """Returns a function that opens one device in two sessions, each with a separate process."""
    nodes: list[hearth.Node] = []

    def make() -> tuple[hearth.Device, hearth.Device]:
        nodes.extend((shared.connect(), shared.connect(isolation="dedicated")))
        for node in nodes:
            saxpy_works(node.device(0))
        return nodes[0].device(0), nodes[1].device(0)

    yield make
    for node in nodes:
        node.close()


def granted(daemon: DaemonProcess) -> list[int]:
    return [each["memory_granted_bytes"] for each in daemon.status()["devices"][0]["processes"]]


def hold(gpu: hearth.Device, mib: int) -> hearth.DeviceArray:
    """Allocates memory, and waits until the allocation has completed."""
    array = gpu.empty(mib * MIB, np.uint8)
    gpu.synchronize()
    return array


def test_single_process_may_use_all_memory(shared: DaemonProcess) -> None:
    with shared.connect() as node:
        array = hold(node.device(0), LIMIT // MIB - 1)
        assert granted(shared) == [LIMIT]
        del array


def test_unused_memory_is_reclaimed_for_other_process(
    shared: DaemonProcess, pair_of: Callable[[], tuple[hearth.Device, hearth.Device]]
) -> None:
    one, other = pair_of()
    mine = hold(one, 150)
    theirs = hold(other, 90)
    assert sum(granted(shared)) <= LIMIT
    with pytest.raises(hearth.OutOfMemoryError) as caught:
        hold(other, 60)
    details = caught.value.details
    assert details["requested"] == str(60 * MIB) and int(details["granted"]) <= LIMIT - 150 * MIB
    assert details["limit"] == str(LIMIT) and details["fits"] == "not now" and caught.value.fix
    del mine
    one.synchronize()
    again = hold(other, 60)
    assert sum(granted(shared)) <= LIMIT
    del theirs, again
    other.synchronize()
    hold(one, 200)
    assert sum(granted(shared)) <= LIMIT


def test_allocation_waits_only_for_the_front(
    shared: DaemonProcess, pair_of: Callable[[], tuple[hearth.Device, hearth.Device]]
) -> None:
    """Launches of the same session continue while one of its allocations waits, and all results are correct
    afterwards."""
    one, other = pair_of()
    mine = hold(one, 120)
    arrays = [other.full(MIB, number, np.uint8) for number in range(100)]  # some of these need a new slab
    for number, array in enumerate(arrays):
        assert (array.get()[::4096] == number).all()
    del mine
    assert sum(granted(shared)) <= LIMIT


def test_memory_of_an_ended_process_is_available_to_others(shared: DaemonProcess) -> None:
    with shared.connect() as node:
        gpu = node.device(0)
        saxpy_works(gpu)
        with shared.connect(isolation="dedicated") as own:
            array = hold(own.device(0), 200)
            with pytest.raises(hearth.OutOfMemoryError):
                hold(gpu, 100)
            del array
        wait_until(lambda: granted(shared) == [LIMIT], "it is alone again")
        hold(gpu, 250)


def test_persistent_memory_is_not_reclaimed(
    shared: DaemonProcess, pair_of: Callable[[], tuple[hearth.Device, hearth.Device]]
) -> None:
    """Persistent memory is never reclaimed for other processes."""
    one, other = pair_of()
    with one.persistent_memory():
        array = hold(one, 100)
    del array
    one.synchronize()
    assert one.memory_usage().bytes_persistent >= 100 * MIB
    with pytest.raises(hearth.OutOfMemoryError):
        hold(other, 200)
    assert one.memory_usage().bytes_persistent >= 100 * MIB
    one.memory_cleanup()
    hold(other, 200)


def test_concurrent_allocations_never_exceed_the_device_and_both_progress(shared: DaemonProcess) -> None:
    end = threading.Event()
    done: dict[str, int] = {}
    errors: list[BaseException] = []

    def work(name: str, **options: Any) -> None:
        chance = random.Random(name)
        held: list[hearth.DeviceArray] = []
        try:
            with shared.connect(**options) as node:
                gpu = node.device(0)
                while not end.is_set():
                    mib = chance.randint(1, 60)
                    try:
                        array = gpu.full(mib * MIB, mib, np.uint8)
                        assert array[-1:].get()[0] == mib
                        held.append(array)
                        done[name] = done.get(name, 0) + 1
                    except hearth.OutOfMemoryError as error:
                        assert error.details["fits"] == "not now"
                        del held[: max(1, len(held) // 2)]
                    if chance.random() < 0.3:
                        held.clear()
        except BaseException as error:
            errors.append(error)

    names = {"shared": {}, "own": {"isolation": "dedicated"}}
    threads = [threading.Thread(target=work, args=(name,), kwargs=options) for name, options in names.items()]
    for thread in threads:
        thread.start()
    samples = []
    least, latest = time.monotonic() + 3, time.monotonic() + 60  # a process on a GPU may take seconds to start
    while not errors and (
        time.monotonic() < least or (min(done.get(name, 0) for name in names) <= 10 and time.monotonic() < latest)
    ):
        now = granted(shared)
        samples.append(len(now))
        assert sum(now) <= LIMIT, now
        time.sleep(0.005)  # leaves processor time to the processes under test
    end.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert max(samples) == 2 and min(done.values()) > 10, done
    with shared.connect() as node:
        wait_until(lambda: granted(shared) == [LIMIT], "the release of their memory")
        hold(node.device(0), 250)


def test_a_quota_counts_all_processes_of_a_tenant(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(tenant("x", quotas={"device_bytes": 100 * MIB}), "y", devices=DEVICES)
    daemon = start_daemon(**config)
    with (
        daemon.connect(token=tokens["x"]) as node,
        daemon.connect(token=tokens["x"]) as same,
        daemon.connect(token=tokens["x"], isolation="dedicated") as own,
        daemon.connect(token=tokens["y"]) as stranger,
    ):
        one = hold(node.device(0), 60)
        for again in (same, own):
            with pytest.raises(hearth.QuotaExceededError) as caught:
                hold(again.device(0), 60)
            assert caught.value.details["allowed"] == str(100 * MIB) and caught.value.fix
            assert caught.value.details["requested"] == str(60 * MIB)
        with pytest.raises(hearth.QuotaExceededError) as caught:
            hold(node.device(0), 101)
        assert caught.value.details["fits"] == "never"
        hold(own.device(0), 30)
        hold(stranger.device(0), 130)
        del one
        node.device(0).synchronize()
        kept = hold(own.device(0), 60)
        with pytest.raises(hearth.QuotaExceededError):
            hold(node.device(0), 60)
        del kept
        assert node.device(0).memory_usage().device_total == 100 * MIB


def test_a_quota_in_a_process_that_tenants_share(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(
        tenant("x", quotas={"device_bytes": 50 * MIB}), "y", devices={**DEVICES, "isolation": "shared"}
    )
    daemon = start_daemon(**config)
    with (
        daemon.connect(token=tokens["x"]) as node,
        daemon.connect(token=tokens["x"]) as same,
        daemon.connect(token=tokens["y"]) as stranger,
    ):
        one = hold(node.device(0), 40)
        with pytest.raises(hearth.QuotaExceededError):
            hold(same.device(0), 20)
        hold(stranger.device(0), 150)
        del one
        node.device(0).synchronize()
        hold(same.device(0), 45)
        gpu = same.device(0)
        for _ in range(20):  # the session frees before it allocates again, so memory is sufficient
            array = gpu.empty(45 * MIB, np.uint8)
            del array
        gpu.synchronize()


def test_memory_of_another_tenant_is_never_visible(start_daemon: StartDaemon) -> None:
    """Tenants share a process: all memory that the pool reuses has been cleared."""
    config, tokens = tenants("x", "y", devices={**DEVICES, "isolation": "shared"})
    daemon = start_daemon(**config)
    sizes = (1, 100, 4096, 5000, 1 << 16, 1 << 20, (3 << 20) + 17)
    with daemon.connect(token=tokens["x"]) as x, daemon.connect(token=tokens["y"]) as y:
        for _ in range(5):
            mine = [x.device(0).full(size, 0xA5, np.uint8) for size in sizes]
            x.device(0).synchronize()
            mine.clear()
            x.device(0).synchronize()
            theirs = [y.device(0).empty(size, np.uint8) for size in sizes]
            with y.device(0).stream() as stream:
                seen = [array.get() for array in theirs]
            assert not any(each.any() for each in seen)
            del theirs, stream


@on_cpu
def test_memory_is_not_cleared_without_tenants(start_daemon: StartDaemon) -> None:
    """Shows that the previous test can fail: without tenants, memory is reused with its old contents, and clearing
    costs nothing."""
    daemon = start_daemon(devices=DEVICES)
    with daemon.connect() as node:
        gpu = node.device(0)
        seen = False
        for _ in range(20):
            array = gpu.full(100_000, 0xA5, np.uint8)
            gpu.synchronize()
            del array
            gpu.synchronize()
            seen = seen or bool((gpu.empty(100_000, np.uint8).get() == 0xA5).any())
        assert seen
