"""Batching, backpressure, threads, losses, deadlines, close and fork, with a fake daemon."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.session import send_queue
from hearth.session.connection import Connection
from hearth_proto import reasons
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.client.internals import connection_of
from tests.support.timing import LATE, steady

ONE = ((1,), (1,))


def kernel(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawKernel("source", "f")


def wait_for(condition: Any, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def test_single_command_is_sent_immediately(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    f = kernel(gpu)
    f(*ONE, ())
    assert wait_for(lambda: daemon.records)


def test_launches_gather_in_batches_under_load(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    f = kernel(gpu)
    gpu.synchronize()
    daemon.gate.clear()
    before = len(daemon.batches)
    for i in range(2000):
        f(*ONE, (np.int32(i),))
    daemon.gate.set()
    gpu.synchronize()
    assert [int.from_bytes(record.params, "little") for record in daemon.records] == list(range(2000))
    assert len(daemon.batches) - before < 200


def test_continuous_submission_does_not_starve_the_sender(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    """The switch interval prevents the interpreter from preempting the submitting thread during the test. The test
    checks only that the sender takes commands: their delivery also depends on the threads of gRPC and of the daemon,
    which run in this process."""
    x = gpu.zeros(4, np.int32)
    gpu.synchronize()
    session, interval = connection_of(gpu).attachment().session, sys.getswitchinterval()
    turns = submitted = queued = 0
    sys.setswitchinterval(60.0)
    try:
        # the first turn may belong to earlier work; fewer commands than fill the queue
        while submitted < 15_000 and turns < 3:
            x.fill(1)
            submitted += 1
            turns += session.queue.queued <= queued
            queued = session.queue.queued
    finally:
        sys.setswitchinterval(interval)
    gpu.synchronize()
    assert submitted < send_queue.QUEUE_COMMANDS
    assert turns == 3


def test_submission_beyond_the_window_waits(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    f = kernel(gpu)
    gpu.synchronize()
    session = connection_of(gpu).attachment().session
    session.queue.max_commands = 50
    daemon.gate.clear()
    launched, submitted_before = 0, session.queue.submitted

    def launch() -> None:
        nonlocal launched
        for i in range(5000):
            f(*ONE, (np.int32(i),))
            launched += 1

    thread = threading.Thread(target=launch, daemon=True)
    thread.start()

    def is_stuck() -> bool:
        window_is_full = session.inspect().unacked == daemon.limits["max_batches_in_flight"]
        return window_is_full and session.queue.full and launched == session.queue.submitted - submitted_before

    assert wait_for(is_stuck)
    stuck_at = launched
    assert len(daemon.batches) - 2 <= daemon.limits["max_batches_in_flight"] + 1
    time.sleep(0.1)
    assert launched == stuck_at < 5000
    daemon.gate.set()
    thread.join(60)
    gpu.synchronize()
    assert len(daemon.records) == 5000


def test_many_threads_share_a_connection(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    f = kernel(gpu)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(300):
                f(*ONE, (np.int32(number), np.int32(i)))
                if i % 50 == 0:
                    x = gpu.asarray(np.full(10, number))
                    assert (x.get() == number).all()
                    gpu.synchronize()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    gpu.synchronize()
    pairs = [tuple(np.frombuffer(record.params, np.int32)) for record in daemon.records]
    for number in range(8):
        assert [i for owner, i in pairs if owner == number] == list(range(300))
    gc.collect()
    gpu.synchronize()
    assert not daemon.buffers


def test_collecting_garbage_anywhere_is_safe(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me, self.array = self, gpu.zeros(3)

    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # triggers a collection at nearly every allocation, also while locks are held
    try:
        for _ in range(200):
            Cycle()
    finally:
        gc.set_threshold(*threshold)
    for _ in range(10):
        gc.collect()  # does nothing while another thread collects
        gpu.synchronize()
        if not daemon.buffers:
            break
    assert not daemon.buffers


# ---- losses ----


def test_a_lost_device(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    module = gpu.RawModule(code="source")
    f = module.get_function("f")
    x = gpu.zeros(3)
    stream = gpu.stream()
    gpu.synchronize()
    daemon.lose_on = "launches"
    f(*ONE, (x,))
    with pytest.raises(hearth.DeviceLostError, match="died") as caught:
        gpu.synchronize()
    assert caught.value.details["in_flight"] == "saxpy"
    assert daemon.attaches == 1
    for use in (hearth.DeviceArray.get, lambda x: f(*ONE, (x,)), lambda x: x.fill(1), lambda x: x[1:].copy()):
        with pytest.raises(hearth.BufferLostError, match="generation 1"):
            use(x)
    y = gpu.zeros(3)  # attaches to the new generation
    daemon.records.clear()
    with stream:
        f(*ONE, (y,))
    gpu.synchronize()
    assert y.get().sum() == 0
    assert (daemon.count("load_module"), daemon.count("get_function"), daemon.count("create_stream")) == (2, 2, 2)
    assert len(daemon.records) == 1 and daemon.records[0].stream != 0
    assert daemon.attaches == 2
    del x
    gc.collect()
    gpu.synchronize()  # the old array's handle is not freed in the new generation
    assert daemon.count("free") == 0


def test_unawaited_loss_is_reported_once(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    f = kernel(gpu)
    gpu.synchronize()
    daemon.lose_on = "launches"
    f(*ONE, ())
    assert wait_for(lambda: not connection_of(gpu).attached)
    f(*ONE, ())  # the next use attaches again, and does not hide the loss
    with pytest.raises(hearth.DeviceLostError):
        gpu.synchronize()
    gpu.synchronize()
    assert len(daemon.records) == 1


def test_every_waiting_thread_gets_a_loss(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros(3)
    gpu.synchronize()
    daemon.gate.clear()
    daemon.lose_on = "launches"
    f = kernel(gpu)
    f(*ONE, ())
    outcomes: list[type[BaseException] | None] = []

    def wait(call: Any) -> None:
        try:
            call()
            outcomes.append(None)
        except BaseException as error:
            outcomes.append(type(error))

    calls = [gpu.synchronize, x.get, gpu.memory_usage, gpu.flush]
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    attachment = connection_of(gpu).attachment()
    assert wait_for(lambda: attachment.session.outstanding == 4)
    daemon.gate.set()
    for thread in threads:
        thread.join(10)
    assert outcomes == [hearth.DeviceLostError] * 4


def test_running_transfer_ends_with_the_device(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros(1 << 20)
    gpu.synchronize()
    daemon.lose_on = "read"
    with pytest.raises(hearth.DeviceLostError):
        x.get()
    daemon.lose_on = "write"
    with pytest.raises(hearth.DeviceLostError):
        gpu.asarray(np.zeros(1 << 20))


def test_attach_waits_for_a_starting_device(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    daemon.refuse_attach = [reasons.Refusal(reasons.Reason.DEVICE_LOST, "starting", retry_after_s=0.05)] * 3
    gpu.synchronize()
    assert daemon.attaches == 4


def test_device_that_is_not_restarted_in_time(daemon: FakeDaemon) -> None:
    with hearth.connect(daemon.target, timeout=30) as node:
        daemon.refuse_attach = [reasons.Refusal(reasons.Reason.DEVICE_LOST, "starting", retry_after_s=60)] * 30
        with pytest.raises(hearth.DeviceLostError, match="starting"):
            node.device(0).synchronize()
        assert daemon.attaches == 1, "another attempt would begin after the timeout"


def test_an_expired_session(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    daemon.refuse_attach = [reasons.Refusal(reasons.Reason.SESSION_EXPIRED, "unknown session")]
    with pytest.raises(hearth.SessionExpiredError):
        gpu.synchronize()
    assert daemon.attaches == 1


def test_a_broken_connection(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    f = kernel(gpu)
    x = gpu.zeros(3)
    gpu.synchronize()
    daemon.break_on = "launches"
    f(*ONE, ())
    with pytest.raises(hearth.ConnectError):
        gpu.synchronize()
    f(*ONE, (x,))  # the same generation still has the array
    gpu.synchronize()
    assert x.get().sum() == 0


# ---- deadlines ----


def test_a_timeout_harms_nothing(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros(3)
    gpu.synchronize()
    for wait in (gpu.synchronize, x.get, gpu.default_stream.synchronize, gpu.flush):
        daemon.gate.clear()
        with pytest.raises(TimeoutError) as caught:
            wait(timeout=0.05)
        assert isinstance(caught.value, hearth.TimeoutError)
        daemon.gate.set()
        gpu.synchronize()
    assert x.get().sum() == 0


def test_an_error_that_came_after_the_timeout_is_not_lost(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    gpu.synchronize()
    daemon.gate.clear()
    daemon.fail_next["fill"] = reasons.Refusal(reasons.Reason.OUT_OF_BOUNDS, "late news")
    x = gpu.zeros(3)
    with pytest.raises(hearth.TimeoutError):
        gpu.synchronize(timeout=0.05)
    daemon.gate.set()
    assert wait_for(lambda: connection_of(gpu).late_errors)
    with pytest.raises(hearth.HearthError, match="late news"):
        gpu.synchronize()
    gpu.synchronize()
    del x


def test_a_large_read_that_times_out(gpu: hearth.Device, daemon: FakeDaemon) -> None:
    x = gpu.zeros(1 << 20)
    gpu.synchronize()
    daemon.gate.clear()
    with pytest.raises(hearth.TimeoutError):
        x.get(timeout=0.1)
    daemon.gate.set()
    assert x.get(timeout=5).sum() == 0


# ---- the session ----


def test_close_sends_queued_commands(daemon: FakeDaemon) -> None:
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        f, x = kernel(gpu), gpu.zeros(3)
        for _ in range(100):
            f(*ONE, ())
    assert len(daemon.records) == 100
    assert daemon.closed_tokens == ["t"]
    for use in (
        gpu.synchronize,
        x.get,
        lambda: f(*ONE, ()),
        lambda: gpu.zeros(3),
        lambda: node.device(0),
        node.sessions,
    ):
        with pytest.raises(hearth.ClosedError, match="closed"):
            use()
    node.close()
    assert node.closed and daemon.closed_tokens == ["t"]


def test_unreferenced_node_is_closed(daemon: FakeDaemon) -> None:
    node = hearth.connect(daemon.target)
    gpu = node.device(0)
    x = gpu.zeros(3)
    del node
    gc.collect()
    assert x.get().sum() == 0  # the array keeps the session open
    del x, gpu
    gc.collect()
    assert wait_for(lambda: daemon.closed_tokens == ["t"])


def test_a_process_that_ends_closes_its_session(daemon: FakeDaemon) -> None:
    code = f"import hearth; n = hearth.connect({daemon.target!r}); x = n.device(0).zeros(3); x.fill(1)"
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], env=env, timeout=30, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert daemon.closed_tokens == ["t"]
    assert daemon.count("fill") == 2
    assert time.monotonic() - started < LATE


def test_a_forked_child_is_refused_and_the_parent_unharmed(daemon: FakeDaemon) -> None:
    code = f"""
import os, sys, hearth
node = hearth.connect({daemon.target!r})
gpu = node.device(0)
x = gpu.zeros(3)
x.get()
child = os.fork()
if child == 0:
    refused = 0
    for use in (x.get, gpu.synchronize, node.sessions, lambda: gpu.zeros(3)):
        try:
            use()
        except hearth.ClosedError as error:
            refused += "forked" in str(error)
    del x
    node.close()
    try:  # gRPC would hang
        hearth.connect("127.0.0.1:1")
    except hearth.UnsupportedError as error:
        refused += "spawn" in str(error)
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert x.get().sum() == 0
gpu.synchronize()
"""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert daemon.closed_tokens == ["t"]


def test_work_of_the_parent_that_is_pending_at_a_fork_is_refused_in_the_child(daemon: FakeDaemon) -> None:
    """The answers, and the outputs that a thread stores, arrive in the parent only."""
    daemon.never_answer |= {"dispatch", "sync"}
    code = f"""
import os, signal, hearth
import numpy as np
node = hearth.connect({daemon.target!r})
gpu = node.device(0)
f = gpu.RawKernel("source", "f")
pending = [gpu.dispatch_async(f, (1,), (1,), outs=[((size,), np.uint8)]) for size in (64, 4 << 20)]
reply = gpu._connection.attachment().request(hearth.session.attachment.commands_pb2.Command(sync={{}}))
child = os.fork()
if child == 0:
    signal.alarm(30)
    refused = 0
    for wait in (pending[0].result, pending[1].result, reply.wait, reply.wait):
        try:
            wait()
        except hearth.ClosedError as error:
            refused += "forked" in str(error)
    os._exit(refused)
status = os.waitpid(child, 0)[1]
assert status == 4 << 8, status
assert not any(dispatch.done() for dispatch in pending) and not reply.answered
"""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, timeout=60, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_lease_is_renewed_while_no_stream_is_open() -> None:
    daemon = FakeDaemon(lease_s=0.15)

    def renewals() -> int:
        """Returns the number of renewals during 0.2 s."""
        seen = daemon.renewals
        time.sleep(0.2)
        return daemon.renewals - seen

    try:
        with hearth.connect(daemon.target) as node:
            assert wait_for(lambda: daemon.renewals >= 2)
            node.device(0).synchronize()
            # a renewal that was sent before may arrive during the first interval
            assert steady(renewals, lambda count: count == 0) == 0
    finally:
        daemon.stop()


def test_no_daemon() -> None:
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1 .*hearthd serve") as caught:
        hearth.connect("127.0.0.1:1", timeout=2)
    assert isinstance(caught.value, hearth.ConnectError)


def test_the_node(node: hearth.Node) -> None:
    assert node.name == "fake" and [device.ordinal for device in node.devices] == [0]
    assert node.device(0) is node.device(0)
    with pytest.raises(hearth.ArgumentError, match=r"no device 3; it has \[0\]"):
        node.device(3)
    assert node.describe().devices[0].state == node.device(0).state == "serving"
    assert node.device(0).generation == 1
    assert node.device(0).properties.max_grid_dim == (2**31 - 1, 65535, 65535)
    assert [entry.session_id for entry in node.sessions()] == ["s"]
    assert "fake" in repr(node) and "cpu" in repr(node.device(0))


class Part:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.heard: list[str] = []

    def close(self) -> None:
        self.heard.append("close")

    def forked(self) -> None:
        self.heard.append("forked")


class Another(Part):
    pass


def test_a_part_is_made_once_and_ends_with_its_connection(daemon: FakeDaemon) -> None:
    with hearth.connect(daemon.target) as node:
        connection = connection_of(node.device(0))
        part = connection.part(Part)
        assert connection.part(Part) is part and part.connection is connection and not part.heard
    assert part.heard == ["close"]
    assert connection.part(Part) is part, "the existing part is returned, closed"
    with pytest.raises(hearth.ClosedError):
        connection.part(Another)
    assert list(connection.parts) == [Part]


def test_a_part_is_forked_with_its_connection(daemon: FakeDaemon) -> None:
    with hearth.connect(daemon.target) as node:
        connection = connection_of(node.device(0))
        part = connection.part(Part)
        connection.forked()
        assert part.heard == ["forked"]
