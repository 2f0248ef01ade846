"""Cancelling: commands that have not begun are dropped, each exactly, and the session continues."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hearth
from hearth.session.reply import Reply
from hearth_proto.v1 import commands_pb2
from tests.support.client.internals import connection_of, handle_of
from tests.support.client.interrupts import interrupted_wait
from tests.support.daemon.cutter import Cutter
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import common, gated

BEHIND = 2000
"""Launches after a kernel that does not end: more than the daemon submits to one stream of the device."""


@pytest.fixture(params=["lane", "stream"])
def gpu(daemon: DaemonProcess, request: pytest.FixtureRequest) -> Iterator[hearth.Device]:
    with daemon.connect(lanes=request.param == "lane") as node:
        yield node.device(0)


def add(gpu: hearth.Device) -> hearth.Function:
    """Returns a kernel that adds one to an integer, loaded, so that its launches need not wait for an idle device."""
    kernel = common(gpu, "add_one")
    kernel((1,), (1,), (gpu.zeros(1, np.int32), np.int32(1)))
    gpu.synchronize()
    return kernel


def dropped_by(gpu: hearth.Device) -> int:
    """Waits for the device; returns the number of commands that were reported as cancelled."""
    try:
        gpu.synchronize(timeout=60)
    except hearth.CancelledError as error:
        assert error.reason == "CANCELLED"
        assert {failure.reason for failure in error.failures} == {"CANCELLED"}
        return len(error.failures) + sum(failure.merged for failure in error.failures)
    return 0


def test_launches_that_have_not_begun_are_dropped(gpu: hearth.Device) -> None:
    kernel, x = add(gpu), gpu.zeros(1, np.int32)
    with gated(gpu) as gate:
        gate.hold(x)
        for number in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
            if not number:
                gpu.flush()  # launches that the device has accepted are not cancelled
        dropped = gpu.cancel()  # the device is busy, and cancelling does not wait for it
        assert 0 < dropped < BEHIND
        gate.open()
        assert dropped_by(gpu) == dropped
        assert x.get()[0] == 1 + BEHIND - dropped
    kernel((1,), (1,), (x, np.int32(1)))
    assert x.get()[0] == 2 + BEHIND - dropped
    assert gpu.cancel() == 0


def test_cancelling_without_work_has_no_effect(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        gpu = node.device(0)
        stream = gpu.stream()
        assert gpu.cancel() == stream.cancel() == gpu.default_stream.cancel() == 0
        x = gpu.zeros(1, np.int32)
        gpu.synchronize()
        assert gpu.cancel() == 0
        assert x.get()[0] == 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.tuples(st.integers(0, 1500), st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_each_launch_runs_or_is_cancelled(gpu: hearth.Device, rounds: list[tuple[int, bool, bool]]) -> None:
    kernel, x, expected = add(gpu), gpu.zeros(1, np.int32), 0
    with gated(gpu) as gate:
        for launches, waits, one_stream in rounds:
            if waits:
                gate.hold(x)
            for _ in range(launches):
                kernel((1,), (1,), (x, np.int32(1)))
            dropped = gpu.default_stream.cancel() if one_stream else gpu.cancel()
            gate.open()
            assert dropped_by(gpu) == dropped <= launches + waits
            expected += launches + waits - dropped
            assert x.get()[0] == expected
            gate.close()


def test_cancel_of_a_stream_leaves_other_streams(gpu: hearth.Device) -> None:
    kernel, one, two = add(gpu), gpu.stream(), gpu.stream()
    x, y = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    gpu.synchronize()
    with gated(gpu) as gate:
        gate.hold(x, stream=one)
        gate.hold(y, stream=two)
        for number in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)), stream=one)
            if not number:
                gpu.flush(one)  # launches that the device has accepted are not cancelled
            kernel((1,), (1,), (y, np.int32(1)), stream=two)
        dropped = one.cancel()
        assert 0 < dropped < BEHIND
        gate.open()
        two.synchronize()
        with pytest.raises(hearth.CancelledError):
            one.synchronize()
    assert (x.get()[0], y.get()[0]) == (1 + BEHIND - dropped, 1 + BEHIND)


def test_commands_on_handles_run_although_work_is_cancelled(gpu: hearth.Device) -> None:
    kernel, x = add(gpu), gpu.zeros(1, np.int32)
    with gated(gpu) as gate:
        gate.hold(x)
        for _ in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
        stream, event, y = gpu.stream(), gpu.event(), gpu.empty(4, np.int32)
        other = gpu.RawModule(code='extern "C" __global__ void two(int* x) { *x = 2; }').get_function("two")
        stream.record(event)
        y.fill(3)
        assert gpu.cancel()
        gate.open()
        assert dropped_by(gpu)
        event.synchronize()
    other((1,), (1,), (y,), stream=stream)
    stream.synchronize()
    assert y.get()[0] == 2


def test_results_of_cancelled_commands_are_cancelled(gpu: hearth.Device) -> None:
    kernel, x = add(gpu), gpu.zeros(1, np.int32)
    outcome: list[object] = []

    def read() -> None:
        try:
            outcome.append(x.get())
        except hearth.HearthError as error:
            outcome.append(error)

    with gated(gpu) as gate:
        gate.hold(x)
        for _ in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
        pending = gpu.dispatch_async(kernel, (1,), (1,), (hearth.InOut(np.zeros(1, np.int32)), np.int32(1)))
        reader = threading.Thread(target=read)
        reader.start()
        assert pending.cancel()
        assert not pending.cancel()
        with pytest.raises(hearth.CancelledError, match="dispatch add_one was cancelled before it began"):
            pending.result()
        assert pending.state == "failed"
        while not outcome:
            gpu.cancel()
        assert isinstance(outcome[0], hearth.CancelledError)
        gate.open()
        dropped_by(gpu)
        reader.join()


def test_a_dispatch_that_has_begun_completes(gpu: hearth.Device) -> None:
    kernel = add(gpu)
    pending = gpu.dispatch_async(kernel, (1,), (1,), (hearth.InOut(np.zeros(1, np.int32)), np.int32(1)))
    pending.result()
    assert not pending.cancel()
    assert pending.result()[0][0] == 1


def test_a_large_dispatch_is_cancelled_with_its_transfers(gpu: hearth.Device) -> None:
    kernel, x = add(gpu), gpu.zeros(1, np.int32)
    with gated(gpu) as gate:
        gate.hold(x)
        for _ in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
        n = 1 << 21
        pending = gpu.dispatch_async(kernel, (n // 256,), (256,), (hearth.InOut(np.zeros(n, np.int32)), np.int32(n)))
        assert pending.cancel()
        with pytest.raises(hearth.CancelledError):
            pending.result()
        gate.open()
        gpu.synchronize()
    assert x.get()[0] == 1 + BEHIND


def test_other_sessions_are_not_cancelled(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    kernel, x = add(gpu), gpu.zeros(1, np.int32)
    with daemon.connect() as node, gated(gpu) as gate:
        other = node.device(0)
        y, theirs = other.zeros(1, np.int32), add(other)
        theirs((1,), (1,), (y, np.int32(1)))
        other.synchronize()
        gate.hold(x)
        for _ in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
            theirs((1,), (1,), (y, np.int32(1)))
        dropped = gpu.cancel()
        assert dropped
        assert y.get()[0] == 1 + BEHIND
        gate.open()
        assert dropped_by(gpu) == dropped
        assert x.get()[0] == 1 + BEHIND - dropped


def test_a_keyboard_interrupt_leaves_the_session_and_offers_to_cancel(gpu: hearth.Device) -> None:
    kernel, x, y = add(gpu), gpu.zeros(1, np.int32), gpu.full(4, 7, np.int32)
    with gated(gpu) as gate:
        gate.hold(x)
        for number in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
            if not number:
                gpu.flush()  # launches that the device has accepted are not cancelled
        with pytest.raises(KeyboardInterrupt) as caught, interrupted_wait(connection_of(gpu).attachment()):
            gpu.synchronize()
        assert any("gpu.cancel()" in note for note in caught.value.__notes__)
        dropped = gpu.cancel()
        assert dropped
        with pytest.raises(hearth.CancelledError):  # the error of the interrupted wait
            gate.open()
            gpu.synchronize()
    assert x.get()[0] == 1 + BEHIND - dropped
    assert (y.get() == 7).all()
    kernel((1,), (4,), (y, np.int32(4)))
    assert (y.get() == 8).all()


def test_graphs_and_copies_are_cancelled_as_a_whole(gpu: hearth.Device) -> None:
    kernel, x, y, z = add(gpu), *(gpu.zeros(1, np.int32) for _ in range(3))
    with gpu.graph() as graph:
        kernel((1,), (1,), (y, np.int32(1)))
        kernel((1,), (1,), (z, np.int32(1)))
    graph.launch()
    gpu.synchronize()
    with gated(gpu) as gate:
        gate.hold(x)
        for _ in range(BEHIND):
            graph.launch()
            x.copy_from(z)
        dropped = gpu.cancel()
        assert 0 < dropped <= 2 * BEHIND
        gate.open()
        dropped_by(gpu)
    assert y.get()[0] == z.get()[0]


def test_work_that_a_graph_records_is_not_cancelled(gpu: hearth.Device) -> None:
    kernel, x = add(gpu), gpu.zeros(1, np.int32)
    gpu.synchronize()
    with gpu.graph() as graph:
        kernel((1,), (1,), (x, np.int32(1)))
        assert gpu.cancel() == 0
        kernel((1,), (1,), (x, np.int32(1)))
    graph.launch()
    assert x.get()[0] == 2


@pytest.mark.parametrize("seed", range(3))
def test_each_launch_runs_or_is_cancelled_although_connections_are_cut(daemon: DaemonProcess, seed: int) -> None:
    drawn = random.Random(seed)
    with Cutter(daemon.unix) as cutter, hearth.connect(cutter.address) as node:
        gpu = node.device(0)
        kernel, x, expected = add(gpu), gpu.zeros(1, np.int32), 0
        gpu.synchronize()
        for _ in range(12):
            launches = drawn.randrange(3000)
            for _ in range(launches):
                kernel((1,), (1,), (x, np.int32(1)))
            timer = threading.Timer(drawn.random() / 100, cutter.cut)
            timer.start()
            try:
                gpu.cancel()
            except hearth.HearthError as error:  # the separate call lost its connection
                assert error.broken or isinstance(error, hearth.TimeoutError), error
            timer.join()
            expected += launches - dropped_by(gpu)
            assert x.get()[0] == expected


def test_a_command_that_has_begun_is_not_cancelled(gpu: hearth.Device) -> None:
    kernel, x, y = add(gpu), gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    with gpu.graph() as graph:
        kernel((1,), (1,), (y, np.int32(1)))
    graph.launch()
    gpu.synchronize()
    with gated(gpu) as gate:
        gate.hold(x)
        graph.launch(BEHIND)  # one command, of which the device accepts a part
        other = gpu.stream()
        assert gpu.zeros(1, np.int32, other).get(stream=other)[0] == 0  # the daemon has executed what precedes it
        assert gpu.cancel() == 0
        gate.open()
        gpu.synchronize()
    assert y.get()[0] == 1 + BEHIND


@pytest.mark.parametrize("begun", [False, True], ids=["waiting", "begun"])
def test_waiting_pieces_of_a_large_write_are_cancelled_together(gpu: hearth.Device, begun: bool) -> None:
    """All are dropped and count as one command; none is dropped once the device has accepted one."""
    kernel, x, y = add(gpu), gpu.zeros(1, np.int32), gpu.zeros(4, np.uint8)
    attachment, outcomes = connection_of(gpu).attachment(), list[str]()

    def piece(index: int) -> Reply:
        split = commands_pb2.SplitCopy(number=1 << 40, size=4)
        write = commands_pb2.Write(buffer=handle_of(y), offset=index, data=b"\5", split=split)
        return attachment.request(commands_pb2.Command(write=write))

    with gated(gpu) as gate:
        gate.hold(x)
        pieces = [piece(0)] if begun else []
        gpu.flush()
        for _ in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
        pieces += [piece(1), piece(2)]
        dropped = gpu.cancel()
        pieces += [piece(3)]
        gate.open()
        assert dropped_by(gpu) == dropped - (not begun)
    for reply in pieces:
        try:
            reply.wait(60)
            outcomes.append("done")
        except hearth.CancelledError:
            outcomes.append("cancelled")
    assert outcomes == (["done"] * 4 if begun else ["cancelled"] * 3)
    assert y.get().tolist() == ([5] * 4 if begun else [0] * 4)


@pytest.mark.parametrize("level", ["node", "device", "stream"])
def test_synchronize_reports_cancelled_launches_and_copies_together(gpu: hearth.Device, level: str) -> None:
    """One error lists all of them, and the device is idle when it is raised."""
    kernel, stream, x, opening = add(gpu), gpu.stream(), gpu.zeros(1, np.int32), threading.Event()
    host = hearth.zeros_pinned(1 << 15, np.int32)
    y = gpu.full(len(host), 1, np.int32)
    gpu.synchronize()
    with stream, gated(gpu) as gate:
        gate.hold(x)
        gpu.flush()  # launches that the device has accepted are not cancelled
        for _ in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
        for _ in range(20):
            y.set(host)
        dropped = stream.cancel()
        assert 20 < dropped <= BEHIND + 20
        threading.Timer(0.1, lambda: (opening.set(), gate.open())).start()
        with pytest.raises(hearth.CancelledError, match="more failed commands") as caught:
            {"node": gpu.node, "device": gpu, "stream": stream}[level].synchronize(timeout=60)
        assert opening.is_set()
        failures = caught.value.failures
        assert sum(1 + failure.merged for failure in failures) == dropped
        assert sum(1 + failure.merged for failure in failures if failure.command.startswith("write")) >= 20
        assert {failure.reason for failure in failures} == {"CANCELLED"}
        assert {failure.stream for failure in failures} == {failures[0].stream}
        gpu.synchronize()  # nothing is left to report
        assert x.get()[0] == 1 + BEHIND + 20 - dropped
        assert (y.get() == 1).all()


@pytest.mark.parametrize("pinned", [False, True], ids=["ordinary", "pinned"])
def test_large_writes_are_cancelled_with_their_transfers(gpu: hearth.Device, pinned: bool) -> None:
    kernel, x = add(gpu), gpu.zeros(1, np.int32)
    host = hearth.empty_pinned(3 << 20, np.int32) if pinned else np.empty(3 << 20, np.int32)
    host[:] = 5
    y = gpu.full(len(host), 1, np.int32)
    gpu.synchronize()

    raised: list[hearth.CancelledError] = []

    def write() -> None:
        try:
            y.set(host)
        except hearth.CancelledError as error:
            raised.append(error)

    with gated(gpu) as gate:
        gate.hold(x)
        for _ in range(BEHIND):
            kernel((1,), (1,), (x, np.int32(1)))
        writer = threading.Thread(target=write)
        writer.start()
        dropped = 0
        while not dropped or writer.is_alive():  # the write may be sent after a cancel
            dropped += gpu.cancel()
            writer.join(0.01)
        gate.open()
        assert dropped_by(gpu) + len(raised) == dropped
    assert len(np.unique(y.get())) == 1
    host[:] = 6
    y.set(host)
    assert (y.get() == 6).all()
    kernel((1,), (1,), (x, np.int32(1)))
    gpu.synchronize()
