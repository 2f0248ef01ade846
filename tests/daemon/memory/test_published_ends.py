"""Lifetimes and limits of published buffers."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, on_cpu, processor_seconds, wait_until
from tests.support.daemon.published import WEIGHTS, in_use, published, reason_of, same

# ---- lifetimes ----


EVENTS = ("publisher frees", "unpublish", "attacher frees", "publisher closes", "attacher closes")


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=lambda order: "".join(map(str, order)))
def test_memory_is_freed_with_its_last_user(daemon: DaemonProcess, isolation: Any, order: Sequence[int]) -> None:
    host = np.arange(1 << 16, dtype=np.uint8)
    base = in_use(daemon)
    with daemon.connect() as node, daemon.connect(isolation=isolation) as second:
        gpu, other = node.device(0), second.device(0)
        x = published(gpu, host=host)
        w = other.attach("weights")
        wait_until(lambda: in_use(daemon) == base + host.nbytes, "one copy")
        done = set()
        for number in order:
            event = EVENTS[number]
            done.add(event)
            if event == "publisher frees":
                x.free()
                gpu.synchronize()
            elif event == "unpublish":
                gpu.unpublish("weights")
            else:
                w.free()
                other.synchronize()
            if "attacher frees" not in done:
                same(w, host)
            if "publisher frees" not in done:
                same(x, host)
            if len(done) < 3:
                assert in_use(daemon) == base + host.nbytes, done
        wait_until(lambda: in_use(daemon) == base, "the memory's return")
        assert gpu.memory_usage().bytes_in_use == other.memory_usage().bytes_in_use == 0


@pytest.mark.parametrize("isolation", ["shared", "dedicated"])
def test_publishers_session_closes(daemon: DaemonProcess, isolation: Any) -> None:
    base = in_use(daemon)
    with daemon.connect(isolation=isolation) as second:
        other = second.device(0)
        with daemon.connect() as node:
            published(node.device(0))
            w = other.attach("weights")
        same(w)
        wait_until(lambda: other.published() == [], "the end of the name")
        assert reason_of(other.attach, "weights") == "NOT_PUBLISHED"
        # The memory is charged to the session that has it now.
        wait_until(lambda: other.memory_usage().bytes_in_use == WEIGHTS.nbytes, "the memory's new owner")
        wait_until(lambda: in_use(daemon) == base + WEIGHTS.nbytes, "one copy")
        same(w)
        w.free()
        wait_until(lambda: other.memory_usage().bytes_in_use == 0, "the memory's return")
    wait_until(lambda: in_use(daemon) == base, "the memory's return")


def test_attachers_session_closes(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    x = published(gpu)
    for isolation in ("shared", "dedicated"):
        with daemon.connect(isolation=isolation) as node:
            same(w := node.device(0).attach("weights"))
            assert gpu.published()[0].attached == 1
            del w
        wait_until(lambda: gpu.published()[0].attached == 0, "the end of the attachment")
    gpu.unpublish("weights")
    x.fill(1)
    gpu.synchronize()
    assert gpu.memory_usage().allocations == 1


def test_memory_outlives_one_process_after_another(start_daemon: StartDaemon) -> None:
    """The memory outlives one process after another, and is charged to one that has it."""
    daemon = start_daemon()
    base = in_use(daemon)
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(daemon.connect(isolation="dedicated")) for _ in range(3)]
        devices = [node.device(0) for node in nodes]
        published(devices[0])
        arrays = [device.attach("weights") for device in devices[1:]]
        nodes[0].close()
        for array in arrays:
            same(array)
        wait_until(lambda: in_use(daemon) == base + WEIGHTS.nbytes, "one copy")
        nodes[1].close()
        same(arrays[1])
        wait_until(lambda: devices[2].memory_usage().bytes_in_use == WEIGHTS.nbytes, "the last one bearing it")
        assert in_use(daemon) == base + WEIGHTS.nbytes


def test_publishers_process_is_killed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with daemon.connect() as node, daemon.connect(isolation="dedicated") as second:
        gpu, other = node.device(0), second.device(0)
        x = published(gpu)
        near, far = gpu.attach("weights"), other.attach("weights")
        os.kill(daemon.device_pid(), signal.SIGKILL)
        for _ in range(50):
            same(far)
        with contextlib.suppress(hearth.DeviceLostError):  # raised if work was pending
            gpu.synchronize()
        assert reason_of(x.get) == reason_of(near.get) == "BUFFER_LOST"
        assert other.published() == []
        assert reason_of(gpu.attach, "weights") == "NOT_PUBLISHED"
        wait_until(lambda: other.memory_usage().bytes_in_use == WEIGHTS.nbytes, "the memory's new owner")
        same(far)
        again = published(gpu)
        same(other.attach("weights"))
        del again


CLIENT = """
import sys, time, numpy as np, hearth
node = hearth.connect(sys.argv[1])
gpu = node.device(0)
if sys.argv[2] == "publish":
    x = gpu.asarray(np.arange(1000, dtype=np.int64))
    x.publish("weights")
else:
    x = gpu.attach("weights")
print("ready", flush=True)
time.sleep(60)
"""


def test_publishers_process_is_lost_during_an_attach(start_daemon: StartDaemon) -> None:
    """Attaching continues to wait for the name, and the session that attaches has lost nothing."""
    daemon = start_daemon()
    with (
        daemon.connect() as second,
        daemon.connect(isolation="dedicated") as node,
        futures.ThreadPoolExecutor() as pool,
    ):
        gpu = second.device(0)
        own = gpu.full(4, 7, np.int32)
        published(node.device(0))
        (home,) = {each["pid"] for each in daemon.status()["devices"][0]["processes"]} - {daemon.device_pid()}
        os.kill(home, signal.SIGSTOP)
        attaching = pool.submit(gpu.attach, "weights", wait=60)
        wait_until(lambda: [each.attached for each in gpu.published()] == [1], "the attachment")
        os.kill(home, signal.SIGKILL)
        wait_until(lambda: not gpu.published(), "the end of the name")
        own.publish("weights")
        same(attaching.result(), np.full(4, 7, np.int32))
        assert gpu.generation == 1


def test_names_are_listed_and_ended_after_a_loss_that_was_raised(lossy: DaemonProcess) -> None:
    """A loss is raised once: the calls about names attach to the new process first."""
    with lossy.connect() as node:
        gpu = node.device(0)
        x = gpu.durable(gpu.zeros(4, np.int32))  # a loss reverts it, and is therefore reported
        for call in (gpu.published, lambda: reason_of(gpu.unpublish, "weights")):
            gpu.synchronize()
            os.kill(lossy.device_pid(), signal.SIGKILL)
            wait_until(lambda: not connection_of(gpu).attached, "the loss")
            with pytest.raises(hearth.DeviceLostError):
                gpu.synchronize()
            assert call() in ([], "NOT_PUBLISHED")
        assert x.durable


@pytest.mark.parametrize("what", ["publish", "attach"])
def test_client_is_killed(brief: DaemonProcess, what: str, tmp_path: Path) -> None:
    program = tmp_path / "client.py"
    program.write_text(CLIENT)
    with brief.connect() as node:
        gpu = node.device(0)
        mine = published(gpu, host=np.arange(1000)) if what == "attach" else None
        arguments = [sys.executable, str(program), brief.unix, what]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment()) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"
            w = gpu.attach("weights")
            client.kill()
        expected = [] if mine is None else [1]
        wait_until(lambda: [one.attached for one in gpu.published()] == expected, "its lease's end")
        same(w, np.arange(1000))
        w.free()
        wait_until(lambda: gpu.memory_usage().bytes_in_use == (0 if mine is None else 8000), "the memory's return")


# ---- limits ----


def test_memory_counts_once(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    host = np.zeros(1 << 20, np.uint8)
    base = in_use(daemon)
    x = published(gpu, host=host)
    with daemon.connect() as near, daemon.connect(isolation="dedicated") as far:
        devices = [near.device(0), near.device(0), far.device(0), far.device(0)]
        arrays = [device.attach("weights") for device in devices]
        wait_until(lambda: gpu.memory_usage().bytes_reserved >= host.nbytes, "the publisher's count")
        for device in devices:
            usage = device.memory_usage()
            assert (usage.allocations, usage.bytes_in_use) == (0, 0)
        usage = gpu.memory_usage()
        assert (usage.allocations, usage.bytes_in_use) == (1, host.nbytes)
        wait_until(lambda: in_use(daemon) == base + host.nbytes, "one copy")
        assert len(gpu.published()) == 1
        assert gpu.published()[0].attached == 2
        del arrays, x


@on_cpu
def test_no_room_for_a_copy_that_others_can_map(start_daemon: StartDaemon) -> None:
    """The attaching session gets the error; the publishing session is unaffected."""
    daemon = start_daemon(devices={"memory_limit": "96MiB"})
    host = np.arange(60 << 20, dtype=np.uint8)
    with daemon.connect() as node, daemon.connect(isolation="dedicated") as second:
        gpu, other = node.device(0), second.device(0)
        x = published(gpu, "big", host)
        assert reason_of(other.attach, "big") == "OUT_OF_MEMORY"
        assert gpu.published()[0].attached == 0
        same(gpu.attach("big"), host)  # in its own process it needs no memory
        small = published(gpu, "small")
        same(other.attach("small"))
        same(x, host)
        x.free()
        gpu.unpublish("big")
        y = published(gpu, "big", host[: 40 << 20])
        same(other.attach("big"), host[: 40 << 20])
        assert gpu.memory_usage().bytes_in_use == y.nbytes + small.nbytes


def test_big_buffer_attaches_in_milliseconds(daemon: DaemonProcess, gpu: hearth.Device, other: hearth.Device) -> None:
    """The limit is on the processor time of front and device process, for sixteen times that number of bytes in
    total."""
    host = np.arange(64 << 20, dtype=np.uint8)
    x = published(gpu, host=host)
    other.attach("weights").free()  # for another process, so that the memory is moved once now
    other.synchronize()
    pids = (daemon.process.pid, daemon.device_pid())
    used = sum(map(processor_seconds, pids))
    for _ in range(16):
        other.attach("weights").free()
    other.synchronize()
    assert sum(map(processor_seconds, pids)) - used < 16 * 0.03
    same(other.attach("weights"), host)
    del x


def test_a_hundred_attachments(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    arrays = [other.attach("weights") for _ in range(100)]
    for array in arrays[::10]:
        same(array)
    assert gpu.published()[0].attached == 1  # it counts sessions
    del array, arrays
    other.synchronize()
    wait_until(lambda: gpu.published()[0].attached == 0, "the end of all")
    same(x)


def test_concurrent_unpublish_and_attach(daemon: DaemonProcess, other: hearth.Device) -> None:
    """An attach either returns the whole array or fails with a clear error."""
    stop = threading.Event()
    wrong: list[BaseException] = []
    got = 0

    def attach() -> None:
        nonlocal got
        while not stop.is_set():
            try:
                array = other.attach("weights")
                version = array.get()
                assert (version == version[0]).all()
                array.free()
                got += 1
            except hearth.InvalidHandleError as refusal:
                if refusal.reason != "NOT_PUBLISHED":
                    wrong.append(refusal)
            except BaseException as error:
                wrong.append(error)
                return

    with daemon.connect() as node:
        gpu = node.device(0)
        thread = threading.Thread(target=attach)
        thread.start()
        try:
            for version in range(40):
                array = gpu.full(1000, version, np.int32)
                array.publish("weights")
                gpu.unpublish("weights")
                array.free()
        finally:
            array = gpu.full(1000, 99, np.int32)
            array.publish("weights")
            wait_until(lambda: got or wrong, "one that was attached")
            stop.set()
            thread.join()
        assert not wrong
        gpu.unpublish("weights")
        array.free()
        other.synchronize()
        wait_until(lambda: gpu.memory_usage().bytes_in_use == 0, "the memory's return")
