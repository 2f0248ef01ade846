"""Streams and events: order within a stream, and between streams that share buffers."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hearth
from tests.support.daemon.harness import wait_until
from tests.support.daemon.kernels import common, gated

N = 64
BUFFERS = 4
STREAMS = 4


def test_streams_run_concurrently(gpu: hearth.Device) -> None:
    busy, free = gpu.stream(), gpu.stream()
    x = gpu.zeros(4, np.int32, free)
    with gated(gpu) as gate:
        gate.hold(stream=busy)
        x.fill(3, stream=free)
        assert (x.get(stream=free) == 3).all()
        # the completion is noticed a moment later
        wait_until(lambda: free.done, "the end of a stream that has nothing more to do")
        assert not busy.done
    busy.synchronize()
    wait_until(lambda: busy.done, "the end of a stream that was synchronized")


def test_a_node_waits_for_all_its_devices(node: hearth.Node, pair: list[hearth.Device]) -> None:
    first, second = pair
    arrays = [gpu.zeros(1, np.int32) for gpu in pair]
    node.synchronize()
    with gated(first) as one, gated(second) as other:
        one.hold(arrays[0])
        other.hold(arrays[1])
        with pytest.raises(hearth.TimeoutError):
            node.synchronize(timeout=0.05)
        one.open()
        with pytest.raises(hearth.TimeoutError):
            node.synchronize(timeout=0.05)
        other.open()
    node.synchronize(timeout=20)
    assert [int(array.get()[0]) for array in arrays] == [1, 1]
    for wait in (node.synchronize, first.synchronize, first.default_stream.synchronize, first.flush, arrays[0].get):
        for invalid in ("x", math.nan):
            with pytest.raises(hearth.ArgumentError, match="must be a number of seconds"):
                wait(timeout=invalid)  # type: ignore[operator]
        wait(timeout=np.float32(20))  # type: ignore[operator]


def test_failures_of_several_devices_are_raised_one_by_one(node: hearth.Node, pair: list[hearth.Device]) -> None:
    names = [f"kernel_that_is_not_there_{gpu.ordinal}" for gpu in pair]
    for gpu, name in zip(pair, names, strict=True):
        module = gpu.RawModule(code='extern "C" __global__ void there() {}')
        module.get_function(name)((1,), (1,), ())
    with pytest.raises(hearth.HearthError, match=names[0]):
        node.synchronize()
    with pytest.raises(hearth.HearthError, match=names[1]):
        node.synchronize()
    node.synchronize()


def test_a_shared_buffer_orders_streams(gpu: hearth.Device) -> None:
    first, second = gpu.stream(), gpu.stream()
    x, y = gpu.zeros(1, np.int32), gpu.zeros(1, np.int32)
    gpu.synchronize()
    with gated(gpu) as gate:
        gate.hold(x, stream=first)
        y.copy_from(x, stream=second)  # after the write
        x.fill(100, stream=second)
        assert not second.done
        gate.open()
        assert (y.get(stream=second)[0], x.get(stream=first)[0]) == (1, 100)


def test_with_makes_a_stream_current(gpu: hearth.Device) -> None:
    outer, inner = gpu.stream(), gpu.stream()
    assert gpu.current_stream is gpu.default_stream
    with outer:
        assert gpu.current_stream is outer
        with inner:
            assert gpu.current_stream is inner
            elsewhere: list[object] = []
            thread = threading.Thread(target=lambda: elsewhere.append(gpu.current_stream))
            thread.start()
            thread.join()
            assert elsewhere == [gpu.default_stream]
        assert gpu.current_stream is outer
        with gated(gpu) as gate:
            gate.hold()
            assert not outer.done
            wait_until(lambda: inner.done)
            assert not outer.done
    assert gpu.current_stream is gpu.default_stream


def test_events(gpu: hearth.Device) -> None:
    producer, consumer, event = gpu.stream(), gpu.stream(), gpu.event()
    with gated(gpu) as gate:
        before = producer.record()
        before.synchronize(timeout=30)
        gate.hold(stream=producer)
        assert producer.record(event) is event
        consumer.wait_event(event)
        after = consumer.record()
        assert before.done and not event.done and not after.done
        with pytest.raises(hearth.TimeoutError):
            event.synchronize(timeout=0.02)
        gate.open()
        after.synchronize(timeout=30)
        assert event.done
        producer.record(event)  # recorded again: the last recording counts
        event.synchronize(timeout=30)


def test_an_event_that_was_never_recorded_is_done(gpu: hearth.Device) -> None:
    events, stream, x = [gpu.event(), gpu.event()], gpu.stream(), gpu.zeros(4, np.float32)
    for turn in range(4):  # double buffering: each turn waits for the record before the last one
        event = events[turn % 2]
        event.synchronize(timeout=30)
        assert event.done
        stream.wait_event(event)
        x.fill(turn, stream)
        event.record(stream)
    assert (x.get(stream=stream) == 3).all()
    side = gpu.stream()
    stream.begin_capture()
    stream.wait_event(gpu.event())  # orders nothing
    x.fill(5, stream)
    graph = stream.end_capture()
    assert not side.is_capturing() and len(graph.nodes) == 1
    with pytest.raises(hearth.ArgumentError, match="not been recorded"):
        gpu.event().publish("never recorded")


def test_elapsed_time(gpu: hearth.Device) -> None:
    spin, stream = common(gpu, "spin"), gpu.stream()
    spin((1,), (1,), (np.int64(1),), stream=stream)
    stream.synchronize()
    start = stream.record()
    with gated(gpu) as gate:
        gate.hold(stream=stream)
        began = time.perf_counter()
        wait_until(lambda: time.perf_counter() - began > 0.05)
    end = stream.record()
    milliseconds = hearth.get_elapsed_time(start, end)
    assert 50 <= milliseconds < 60_000
    assert hearth.get_elapsed_time(end, start) == pytest.approx(-milliseconds)
    with pytest.raises(hearth.ArgumentError, match="not been recorded"):
        hearth.get_elapsed_time(start, gpu.event())


def test_events_and_streams_of_another_device_are_refused(pair: list[hearth.Device]) -> None:
    for event in (pair[0].default_stream.record(), pair[0].event()):
        with pytest.raises(hearth.ArgumentError, match="device"):
            pair[1].default_stream.wait_event(event)
    with pytest.raises(hearth.ArgumentError, match="another device"):
        pair[1].zeros(3, stream=pair[0].stream())


def test_more_streams_than_the_device_has(gpu: hearth.Device) -> None:
    """The streams are folded, but remain separate: each has its own order and its own errors."""
    add_one = common(gpu, "add_one")
    streams = [gpu.stream(priority=-(index % 2)) for index in range(200)]
    arrays = [gpu.zeros(8, np.int32, stream) for stream in streams]
    for index, (stream, array) in enumerate(zip(streams, arrays, strict=True)):
        for _ in range(3):
            add_one((1,), (8,), (array, np.int32(8)), stream=stream)
        if index % 50 == 7:
            add_one((1,), (8,), (np.uint64(0),), stream=stream)
    for index, (stream, array) in enumerate(zip(streams, arrays, strict=True)):
        if index % 50 == 7:
            with pytest.raises(hearth.LaunchError) as caught:
                stream.synchronize()
            assert len(caught.value.failures) == 1
        assert (array.get(stream=stream) == 3).all()


def test_streams_are_created_and_destroyed_repeatedly(gpu: hearth.Device) -> None:
    x = gpu.zeros(8, np.int32)
    add_one = common(gpu, "add_one")
    for _ in range(300):
        with gpu.stream():
            add_one((1,), (8,), (x, np.int32(8)))
    assert (x.get() == 300).all()


def test_memory_is_not_reused_before_its_last_use(gpu: hearth.Device) -> None:
    busy, other = gpu.stream(), gpu.stream()
    with gated(gpu) as gate:
        x = gpu.full(1 << 20, 1, np.uint8, busy)
        out = gpu.zeros(1 << 20, np.uint8, busy)
        busy.synchronize()
        gate.hold(stream=busy)
        out.copy_from(x, stream=busy)
        x.free()
        fresh = [gpu.full(1 << 20, 9, np.uint8, other) for _ in range(8)]
        gate.open()
        assert (out.get(stream=busy) == 1).all()
        assert all((array.get(stream=other) == 9).all() for array in fresh)


# ---- random programs compared with sequential execution ----


@dataclass(frozen=True)
class Step:
    """A command: its kind, stream, buffers, range and value."""

    kind: str
    stream: int
    a: int
    b: int
    start: int
    stop: int
    value: int


@st.composite
def steps(draw: st.DrawFn) -> Step:
    start = draw(st.integers(0, N - 1))
    return Step(
        draw(st.sampled_from(["write", "fill", "copy", "mix", "mix", "read", "spin", "event"])),
        draw(st.integers(0, STREAMS - 1)),
        draw(st.integers(0, BUFFERS - 1)),
        draw(st.integers(0, BUFFERS - 1)),
        start,
        draw(st.integers(start + 1, N)),
        draw(st.integers(0, 2**32 - 1)),
    )


class Program:
    """Runs steps on a device and on NumPy arrays; values that are read must be equal."""

    def __init__(self, gpu: hearth.Device) -> None:
        self.gpu = gpu
        self.mix, self.spin = common(gpu, "mix"), common(gpu, "spin")
        self.streams = [gpu.default_stream, *(gpu.stream() for _ in range(STREAMS - 1))]
        self.reset()

    def reset(self) -> None:
        self.device = [self.gpu.full(N, index, np.uint32) for index in range(BUFFERS)]
        self.host = [np.full(N, index, np.uint32) for index in range(BUFFERS)]

    def run(self, step: Step) -> None:
        stream, part, size = self.streams[step.stream], slice(step.start, step.stop), step.stop - step.start
        x, y = self.device[step.a], self.device[step.b]
        hx, hy = self.host[step.a], self.host[step.b]
        if step.kind == "write":
            data = (np.arange(size, dtype=np.uint64) * 7 + step.value).astype(np.uint32)
            x[part].set(data, stream=stream)
            hx[part] = data
        elif step.kind == "fill":
            x[part].fill(np.uint32(step.value), stream=stream)
            hx[part] = step.value
        elif step.kind == "copy" and step.a != step.b:
            x[part].copy_from(y[part], stream=stream)
            hx[part] = hy[part]
        elif step.kind == "mix" and step.a != step.b:
            self.mix((2,), (N // 2,), (y[part], x[part], np.int32(size)), stream=stream)
            hx[part] = 3 * hx[part] + hy[part]
        elif step.kind == "read":
            np.testing.assert_array_equal(x[part].get(stream=stream), hx[part])
        elif step.kind == "spin":  # makes the streams drift apart
            self.spin((1,), (1,), (np.int64(step.value % 200_000),), stream=stream)
        elif step.kind == "event":
            self.streams[step.b].wait_event(stream.record())

    def check(self) -> None:
        for x, hx in zip(self.device, self.host, strict=True):
            np.testing.assert_array_equal(x.get(), hx)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(program=st.lists(steps(), min_size=5, max_size=60))
def test_random_programs_equal_their_sequential_reference(gpu: hearth.Device, program: list[Step]) -> None:
    machine = Program(gpu)
    for step in program:
        machine.run(step)
    machine.check()


def test_a_long_random_program(gpu: hearth.Device) -> None:
    machine = Program(gpu)
    rng = np.random.default_rng(20)
    kinds = np.array(["write", "fill", "copy", "mix", "mix", "mix", "spin", "event", "read"])
    for index in range(3000):
        start = int(rng.integers(N))
        kind = str(rng.choice(kinds)) if index % 40 == 0 else str(rng.choice(kinds[:-1]))
        a, b, stream = (int(value) for value in rng.integers(0, 4, 3))
        machine.run(Step(kind, stream, a, b, start, int(rng.integers(start + 1, N + 1)), int(rng.integers(2**32))))
    machine.check()


def test_an_event_records_itself(gpu: hearth.Device) -> None:
    event, x = gpu.event(), gpu.zeros(4, np.int32)
    other = gpu.stream()
    event.record()
    event.synchronize()
    with gpu.stream() as s:
        x.fill(1)
        event.record()
    other.wait_event(event)
    event.record(s)
    event.record(stream=gpu.default_stream)
    event.synchronize()
    assert event.done and x.get().tolist() == [1] * 4


@pytest.mark.parametrize("kind", ["int", "str", "device", "array", "event", "host"])
def test_other_objects_than_streams_and_events_are_refused(gpu: hearth.Device, kind: str) -> None:
    x, y, stream = gpu.zeros(4, np.int32), gpu.zeros((2, 2), np.int32), gpu.stream()
    event = stream.record()
    host = np.zeros(3)
    bad: Any = {"int": 5, "str": "F", "device": gpu, "array": x, "event": event, "host": host}[kind]
    add_one = common(gpu, "add_one")
    uses: list[Callable[[], Any]] = [
        lambda: add_one(1, 1, (x, np.int32(1)), stream=bad),
        lambda: x.copy(bad),
        lambda: y.T.copy(bad),
        lambda: gpu.zeros(3, np.float32, bad),
        lambda: x.set(np.zeros(4, np.int32), bad),
        lambda: x.get(stream=bad),
        lambda: gpu.flush(bad),
        lambda: gpu.event().record(bad),
    ]
    if bad is not event:
        uses += [
            lambda: stream.record(bad),
            lambda: stream.wait_event(bad),
            lambda: event.elapsed(bad),
            lambda: hearth.get_elapsed_time(bad, bad),
        ]
    for use in uses:
        with pytest.raises(hearth.ArgumentError, match=r"is not (a stream|an event) of Hearth") as caught:
            use()
        assert caught.value.fix
