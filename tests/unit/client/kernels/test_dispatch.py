"""Dispatch against a fake daemon: the route of every byte, and the state after a failed dispatch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import In, InOut, Out
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.client.internals import handle_of, number_of

B = commands_pb2.Binding
INLINE = 100


class DispatchDaemon(FakeDaemon):
    """A fake daemon whose kernel adds one to every byte of its inputs, and to the zeros of an output."""

    def __init__(self) -> None:
        super().__init__(max_inline_bytes=INLINE, max_chunk_bytes=64)
        self.arrived: list[bytes] = []
        self.cut = 0
        """Number of bytes missing at the end of downloads."""

    def do_dispatch(self, command: Any, part: Any, result: Any) -> None:
        self.arrived = []
        for binding in part.bindings:
            if binding.role == B.ROLE_VALUE:
                continue
            data = binding.data if binding.role != B.ROLE_OUTPUT else bytes(binding.size)
            if binding.upload:
                done, came = self.upload_of(binding.upload)
                assert done.wait(10)
                data = bytes(came)
            assert len(data) == binding.size
            self.arrived.append(data)
            if binding.role == B.ROLE_INPUT:
                continue
            end = binding.range_offset + binding.range_size if binding.HasField("range_size") else binding.size
            output = bytes((byte + 1) % 256 for byte in data)[binding.range_offset : end]
            result.dispatch.sizes.append(len(output))
            if binding.download:
                ready, chunks = self.download_of(binding.download)
                chunks.append(output[: len(output) - self.cut])
                ready.set()
            result.dispatch.outputs.append(b"" if binding.download else output)
        result.dispatch.wall_ns, result.dispatch.enqueue_ns, result.dispatch.wait_ns = 30, 10, 20
        if part.timed:
            result.dispatch.upload_ns, result.dispatch.kernel_ns, result.dispatch.download_ns = 1, 2, 3

    @property
    def dispatched(self) -> Any:
        """Returns the last dispatch that was received."""
        return [each for each in self.commands if each.WhichOneof("kind") == "dispatch"][-1]


@pytest.fixture
def daemon() -> Iterator[DispatchDaemon]:
    daemon = DispatchDaemon()
    yield daemon
    daemon.stop()


@pytest.fixture
def f(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code="source").get_function("f")


def data(size: int) -> np.ndarray:
    return (np.arange(size) % 251).astype(np.uint8)


def test_the_message(gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function) -> None:
    x, stream = gpu.zeros(10, np.float32), gpu.stream()
    args = [
        In([1, 2]), data(3), Out((5, 2), "f4", range=slice(1, 3)), InOut(data(4)), x[2:], hearth.read_only(x),
        np.float32(2), 7, True, b"struct", np.array(3, "i2"),
    ]  # fmt: skip
    out = gpu.dispatch(f, (2, 3), 64, args, shared_mem=128, iterations=5, timeout=1.5, stream=stream)
    command = daemon.dispatched
    dispatch = command.dispatch
    assert command.stream == number_of(stream) and command.request
    (function,) = {each.get_function.function for each in daemon.commands if each.HasField("get_function")}
    assert (dispatch.function, dispatch.shared_mem, dispatch.iterations) == (function, 128, 5)
    assert (dispatch.grid.x, dispatch.grid.y, dispatch.grid.z, dispatch.block.x) == (2, 3, 1, 64)
    assert dispatch.timeout_ns == 1_500_000_000 and not dispatch.timed
    listed, array, output, both, view, only_read, *values = dispatch.bindings
    assert listed == B(role=B.ROLE_INPUT, size=16, data=np.array([1, 2]).tobytes())
    assert array == B(role=B.ROLE_INPUT, size=3, data=bytes([0, 1, 2]))
    assert output == B(role=B.ROLE_OUTPUT, size=40, range_offset=8, range_size=16)
    assert both == B(role=B.ROLE_INPUT_OUTPUT, size=4, data=bytes([0, 1, 2, 3]))
    pointer = view.value.pointer
    assert (pointer.buffer, pointer.offset, pointer.read_only) == (handle_of(x), 8, False)
    assert only_read.value.pointer.read_only and only_read.role == B.ROLE_VALUE
    raw = [np.float32(2).tobytes(), b"", b"\1", b"struct", b"\3\0"]
    assert [value.value.raw for value in values] == raw and values[1].value.int64 == 7
    assert [(each.shape, each.dtype) for each in out] == [((2, 2), np.float32), ((4,), np.uint8)]
    np.testing.assert_array_equal(out[1], [1, 2, 3, 4])
    assert (out[0].view(np.uint8) == 1).all()


def test_launch_options_in_the_message(daemon: DispatchDaemon) -> None:
    daemon.features.append("dispatch_options")
    with hearth.connect(daemon.target) as node:
        gpu = node.device(0)
        f = gpu.RawModule(code="source").get_function("f")
        together = gpu.RawModule(code="source", enable_cooperative_groups=True).get_function("f")

        def sent(function: hearth.Function, **options: Any) -> tuple[int, bool, bool, tuple[int, int, int] | None]:
            gpu.dispatch(function, 1, 1, [1], **options)
            dispatch = daemon.dispatched.dispatch
            cluster = dispatch.cluster
            return (
                dispatch.mode, dispatch.cooperative, dispatch.fit,
                (cluster.x, cluster.y, cluster.z) if dispatch.HasField("cluster") else None,
            )  # fmt: skip

        assert sent(f) == (commands_pb2.LAUNCH_MODE_CHECKED, False, False, None)
        assert sent(f, mode="validate", cooperative=True) == (commands_pb2.LAUNCH_MODE_VALIDATE, True, False, None)
        assert sent(f, mode="unchecked", cluster=(2, 3)) == (
            commands_pb2.LAUNCH_MODE_UNCHECKED,
            False,
            False,
            (2, 3, 1),
        )
        assert sent(together) == (commands_pb2.LAUNCH_MODE_CHECKED, True, False, None)


def test_a_grid_in_device_memory_is_refused(gpu: hearth.Device, f: hearth.Function) -> None:
    with pytest.raises(hearth.LaunchTypeError, match="a dispatch takes no grid in device memory") as caught:
        gpu.dispatch(f, gpu.zeros(3, np.uint32), 1, [1])
    assert "launch the kernel" in caught.value.fix


def test_an_older_daemon_gets_no_launch_options(gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function) -> None:
    """A module whose launches are all cooperative is dispatched as before."""
    options: list[dict[str, Any]] = [
        {"mode": "validate"},
        {"cooperative": True},
        {"cooperative": "fit"},
        {"cluster": 1},
    ]
    for each in options:
        with pytest.raises(hearth.UnsupportedError, match="older version, whose dispatches") as caught:
            gpu.dispatch(f, 1, 1, [1], **each)
        assert "update the daemon" in caught.value.fix
    together = gpu.RawModule(code="source", enable_cooperative_groups=True).get_function("f")
    gpu.dispatch(together, 1, 1, [1], mode="checked", cooperative=False, cluster=None)
    assert not daemon.dispatched.dispatch.cooperative


def test_the_short_form_is_ins_outs_scalars(gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function) -> None:
    x = gpu.zeros(4)
    gpu.dispatch(f, 1, 1, ins=[data(1), [1.5], x], outs=[((2,), "u1"), InOut(data(3)), x], scalars=[np.int32(1), 2.0])
    roles = [B.Role.Name(binding.role)[5:] for binding in daemon.dispatched.dispatch.bindings]
    assert roles == ["INPUT", "INPUT", "VALUE", "OUTPUT", "INPUT_OUTPUT", "VALUE", "VALUE", "VALUE"]


@pytest.mark.parametrize(
    ("sizes", "inline"),
    [
        ([INLINE], [True]),
        ([INLINE + 1], [False]),
        ([60, 60], [True, False]),
        ([90, 5, 5], [True, True, True]),
        ([500, 1, 99, 1], [False, True, False, True]),
        ([0, 0, 300], [True, True, False]),
    ],
)
def test_small_arrays_are_inlined_as_far_as_they_fit(
    gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function, sizes: list[int], inline: list[bool]
) -> None:
    arrays = [data(size) for size in sizes]
    out = gpu.dispatch(f, 1, 1, [InOut(array) for array in arrays])
    bindings = daemon.dispatched.dispatch.bindings
    assert [not binding.upload for binding in bindings] == inline == [not binding.download for binding in bindings]
    assert daemon.arrived == [array.tobytes() for array in arrays]
    for given, back in zip(arrays, out, strict=True):
        np.testing.assert_array_equal(back, given + 1)
    numbers = [number for binding in bindings for number in (binding.upload, binding.download) if number]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("size", [50, 5000])
def test_inputs_are_copied_by_default(
    gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function, size: int
) -> None:
    x = data(size)
    daemon.gate.clear()
    pending = gpu.dispatch_async(f, 1, 1, [x])
    x[:] = 0
    daemon.gate.set()
    assert pending.result(10) == []
    assert daemon.arrived == [data(size).tobytes()]
    borrowed = data(size)
    assert gpu.dispatch_async(f, 1, 1, [borrowed], copy=False).result(10) == []
    assert daemon.arrived == [borrowed.tobytes()]


def test_pending_done_and_its_times(gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function) -> None:
    for size in (4, 400):
        daemon.gate.clear()
        pending = gpu.dispatch_async(f, 1, 1, [Out(size, "u1")], timed=True)
        assert pending.state == "pending" and not pending.done()
        with pytest.raises(hearth.TimeoutError):
            pending.result(0.01)
        with pytest.raises(hearth.ArgumentError):
            _ = pending.timing
        daemon.gate.set()
        (out,) = pending.result(10)
        assert (out == 1).all() and pending.state == "done" and pending.result()[0] is out
        assert pending.timing == hearth.DispatchTiming(1, 2, 3, 30, 10, 20)
    assert gpu.dispatch_async(f, 1, 1, [Out(4, "u1")]).result()
    untimed = gpu.dispatch_async(f, 1, 1, [])
    untimed.result()
    assert untimed.timing == hearth.DispatchTiming(None, None, None, 30, 10, 20)


@pytest.mark.parametrize("size", [4, 400])
def test_a_refusal_is_its_state_and_ends_its_transfers(
    gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function, size: int
) -> None:
    for _ in range(3):
        mine = np.full(size, 9, np.uint8)
        daemon.fail_next["dispatch"] = Refusal(Reason.OUT_OF_MEMORY, "none is left", details={"requested": 7})
        pending = gpu.dispatch_async(f, 1, 1, [InOut(data(size))], out=[mine])
        with pytest.raises(hearth.OutOfMemoryError, match="none is left"):
            pending.result(10)
        assert pending.state == "failed" and (mine == 9).all()
        daemon.fail_next["dispatch"] = Refusal(Reason.LAUNCH_INVALID, "wrong")
        with pytest.raises(hearth.LaunchError):
            gpu.dispatch(f, 1, 1, [InOut(data(size))], out=[mine])
        assert (mine == 9).all()
    (out,) = gpu.dispatch(f, 1, 1, [InOut(data(size))])
    np.testing.assert_array_equal(out, data(size) + 1)


def test_outputs_that_are_cut_short(gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function) -> None:
    daemon.cut = 1
    with pytest.raises(hearth.TransferError, match="399 of 400"):
        gpu.dispatch(f, 1, 1, [Out(400, "u1")])
    pending = gpu.dispatch_async(f, 1, 1, [Out(400, "u1")])
    with pytest.raises(hearth.TransferError):
        pending.result(10)
    assert pending.state == "failed"
    daemon.cut = 0
    assert gpu.dispatch(f, 1, 1, [Out(400, "u1")])


@pytest.mark.parametrize("size", [4, 400])
def test_lost_device_fails_pending_dispatches(
    gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function, size: int
) -> None:
    daemon.lose_on = "dispatch"
    pending = gpu.dispatch_async(f, 1, 1, [Out(size, "u1")])
    for _ in range(2):
        with pytest.raises(hearth.DeviceLostError):
            pending.result(10)
    assert pending.state == "failed"
    (out,) = gpu.dispatch(f, 1, 1, [Out(size, "u1")])  # the kernel is looked up again
    assert (out == 1).all()


def test_dropped_dispatch_reports_no_error(gpu: hearth.Device, daemon: DispatchDaemon, f: hearth.Function) -> None:
    for size in (4, 400):
        daemon.fail_next["dispatch"] = Refusal(Reason.OUT_OF_MEMORY, "none is left")
        gpu.dispatch_async(f, 1, 1, [InOut(data(size))])
        gpu.dispatch_async(f, 1, 1, [InOut(data(size))])
    gpu.synchronize()
    for thread in threading.enumerate():
        if thread.name == "hearth-dispatch":
            thread.join(10)
            assert not thread.is_alive()
