"""Updates of recorded graphs: arguments, geometry, and launches that are already running."""

from __future__ import annotations

import numpy as np
import pytest

import hearth
from hearth_proto.v1 import commands_pb2
from tests.support.client.internals import connection_of, number_of
from tests.support.daemon.graph_arrays import SIZE, N
from tests.support.daemon.kernels import COMMON, common, gated


def test_update_of_scalars_buffers_and_geometry(gpu: hearth.Device) -> None:
    saxpy = common(gpu, "saxpy")
    x, y = gpu.ones(N, np.float32), gpu.zeros(N, np.float32)
    with gpu.graph() as graph:
        saxpy((1,), (N,), (np.float32(2), x, y, SIZE))
        x.fill(1)
        saxpy((1,), (N,), (np.float32(3), x, y, SIZE))
    graph.launch()
    assert (y.get() == 5).all()
    graph.nodes[0].set_args((np.float32(-2), x, y, SIZE))
    graph.launch()
    assert (y.get() == 6).all()
    other = gpu.full(N, 100, np.float32)
    graph.update(2, (np.float32(1), x, other, SIZE), grid=2, block=(16,))  # the first 32 elements
    graph.launch()
    assert (y.get() == 4).all()
    np.testing.assert_array_equal(other.get(), [101] * 32 + [100] * 32)


def test_running_launches_keep_their_arguments(gpu: hearth.Device) -> None:
    saxpy = common(gpu, "saxpy")
    x, y, flag = gpu.ones(N, np.float32), gpu.zeros(N, np.float32), gpu.zeros(1, np.int32)
    with gpu.graph() as graph:
        saxpy((1,), (N,), (np.float32(1), x, y, SIZE))
    gpu.synchronize()
    with gated(gpu) as gate:
        gate.hold(flag)
        for factor in (10, 100, 1000):
            graph.launch()
            graph.update(0, (np.float32(factor), x, y, SIZE))
        graph.launch()
        gate.open()
        assert (y.get() == 1111).all()


def test_memory_replaced_by_an_update_is_freed_after_its_last_use(gpu: hearth.Device) -> None:
    """The memory of the old argument is freed after the last launch that uses it; the memory of the new one stays."""
    add_one = common(gpu, "add_one")
    size = 1 << 20
    old, new, flag = gpu.zeros(size // 4, np.int32), gpu.zeros(size // 4, np.int32), gpu.zeros(1, np.int32)
    with gpu.graph() as graph:
        add_one((1,), (1,), (old, np.int32(1)))
    gpu.synchronize()
    with gated(gpu) as gate:
        gate.hold(flag)
        before = gpu.memory_usage().bytes_in_use
        old.free()
        graph.launch()
        gpu.flush()
        assert gpu.memory_usage().bytes_in_use == before
        graph.update(0, (new, np.int32(1)))
        gpu.flush()
        assert gpu.memory_usage().bytes_in_use == before - size
        fresh = gpu.full(size // 4, 5, np.int32, gpu.stream())  # may be placed at the old address
        graph.launch()
        kept = new.copy()
        new.free()
        gpu.flush()
        gate.open()
    assert (fresh.get() == 5).all() and kept.get()[0] == 1
    graph.launch()  # uses memory that only the graph holds
    gpu.synchronize()


@pytest.mark.parametrize(
    ("index", "grid", "arguments", "what"),
    [
        (1, None, 4, "by a launch: that node is a fill; its nodes of that kind are 0"),
        (2, None, 4, "it has no such node"),
        (0, None, 3, "3 arguments are given; the kernel has 4 parameters"),
        (0, (1, 70_000), 4, "grid.y is 70000"),
    ],
)
def test_invalid_update_changes_nothing(
    gpu: hearth.Device, index: int, grid: object, arguments: int, what: str
) -> None:
    saxpy = common(gpu, "saxpy")
    x, y = gpu.ones(N, np.float32), gpu.zeros(N, np.float32)
    with gpu.graph() as graph:
        saxpy((1,), (N,), (np.float32(2), x, y, SIZE))
        x.fill(1)
    target = graph.nodes[0]
    target.index = index
    target.set_args((np.float32(2), x, y, SIZE)[:arguments], grid=grid)
    with pytest.raises(hearth.HearthError, match=what):
        gpu.synchronize()
    graph.launch(2)
    assert (y.get() == 4).all()


@pytest.mark.parametrize("refused", [{"block": 5000}, {"grid": (1, 70_000)}, {"shared_mem": 1 << 30}], ids=str)
def test_refused_geometry_is_withdrawn(gpu: hearth.Device, refused: dict[str, object]) -> None:
    """The node keeps the geometry that the daemon accepted last, also if further updates follow before the answer."""
    add_one = common(gpu, "add_one")
    x = gpu.zeros(N, np.int32)
    with gpu.graph() as graph:
        add_one((1,), (N,), (x, SIZE))
    node, drawn = graph.nodes[0], graph.debug_dot_str()

    def expect_refusal() -> None:
        with pytest.raises(hearth.HearthError) as caught:
            gpu.synchronize()
        assert {failure.command for failure in caught.value.failures} == {"update_graph"}
        assert caught.value.reason == "LAUNCH_INVALID" and caught.value.fix

    node.set_args((x, 1), **refused)  # type: ignore[arg-type]
    expect_refusal()
    assert graph.debug_dot_str() == drawn
    node.set_args((x, 3))
    graph.launch()
    assert x.get().tolist() == [1] * 3 + [0] * (N - 3)
    node.set_args((x, SIZE), **refused)  # type: ignore[arg-type]
    node.set_args((x, SIZE), grid=1, block=2, shared_mem=0)
    expect_refusal()
    assert "block 2" in graph.debug_dot_str()
    node.set_args((x, SIZE), **refused)  # type: ignore[arg-type]
    node.set_args((x, SIZE))  # inherits the refused geometry, which no answer has withdrawn yet
    with pytest.raises(hearth.HearthError):
        gpu.synchronize()
    assert "block 2" in graph.debug_dot_str()
    node.set_args((x, SIZE))
    gpu.synchronize()


def test_an_update_keeps_the_function(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    module = gpu.RawModule(code=COMMON)
    saxpy, mix = module.get_function("saxpy"), module.get_function("mix")
    x, y = gpu.zeros(N, np.uint32), gpu.zeros(N, np.uint32)
    with gpu.graph() as graph:
        mix((1,), (N,), (x, y, SIZE))
        y.fill(1)
    for args, keywords in (((), {}), ((y,), {}), ((1, y), {}), ((y, 1), {"grid": 2})):
        with pytest.raises(hearth.LaunchError, match=r"\(array, value\)|is no launch"):
            graph.nodes[1].set_args(args, **keywords)
    with gpu.graph() as other:
        saxpy((1,), (N,), (np.float32(1), x, y, SIZE))
    attachment = connection_of(gpu).attachment()
    submit = attachment.submit

    def to_the_first(command: commands_pb2.Command) -> None:
        command.update_graph.graph = number_of(graph)
        submit(command)

    with monkeypatch.context() as patched:
        patched.setattr(attachment, "submit", to_the_first)
        other.nodes[0].set_args((np.float32(1), x, y, SIZE))
    with pytest.raises(hearth.ArgumentError, match="launches mix, not saxpy"):
        gpu.synchronize()


# ---- copies and fills ----


def test_copies_and_fills_are_replaced(gpu: hearth.Device) -> None:
    """Earlier launches keep their operands; the graph keeps the memory of the new ones alive, and the order stays."""
    add_one = common(gpu, "add_one")
    x, y, z = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32), gpu.zeros((4, N), np.int32)
    side = gpu.stream()
    with gpu.graph() as graph:
        main = gpu.current_stream
        x.fill(1)
        side.wait_event(main.record())
        y.copy_from(x, side)
        add_one((1,), (N,), (x, SIZE))
        main.wait_event(side.record())
        add_one((1,), (N,), (y, SIZE))
    flag = gpu.zeros(1, np.int32)
    with gated(gpu) as gate:
        gate.hold(flag, stream=main)
        y.fill(0, main)
        graph.launch(stream=main)
        kept = gpu.empty(N, np.int32, main)
        kept.copy_from(y, main)
        graph.nodes[0].set_args((x[: N // 2], 7))
        graph.nodes[1].set_args((z[1:3, 8:16], x.reshape(4, 16)[:2, 4:12]))
        graph.update(2, (x, np.int32(4)))
        graph.launch(stream=main)
        gate.open()
    assert (kept.get() == 2).all()
    half = [8] * 4 + [7] * 28 + [2] * 32
    np.testing.assert_array_equal(x.get(), half)
    expected = np.zeros((4, N), np.int32)
    expected[1:3, 8:16] = 7
    np.testing.assert_array_equal(z.get(), expected)
    assert (y.get() == 3).all()
    z.free()
    graph.launch()  # the graph holds the memory
    graph.nodes[1].set_args((y, x))
    graph.launch()
    np.testing.assert_array_equal(y.get(), [value + 1 for value in [7] * 32 + [2] * 32])
    gpu.synchronize()


def test_operands_that_do_not_fit_are_refused(gpu: hearth.Device) -> None:
    x, y, other = gpu.zeros(N, np.int32), gpu.zeros(N, np.int32), gpu.zeros(N, np.float32)
    with gpu.graph() as graph:
        x.fill(1)
        y.copy_from(x)
    fill, copy = graph.nodes
    for node, args, what in (
        (copy, (y, other), "cannot be copied"),
        (copy, (x[1:], x[:-1]), "overlap"),
        (copy, (y.reshape(8, 8), x.reshape(8, 8).T), "not one node"),
        (copy, (y[:0], x[:0]), "has no bytes"),
        (fill, (x.reshape(8, 8)[:, :4], 1), "not one node"),
        (fill, (x, [1, 2]), "value"),
    ):
        with pytest.raises(hearth.HearthError, match=what):
            node.set_args(args)
    for node, operands in (
        (copy, (y, hearth.read_only(x))),
        (copy, (hearth.pointer(y), x)),
        (fill, (hearth.pointer(x), 1)),
        (fill, None),
        (copy, x[:2]),
        (copy, {1: x, 2: y}),
    ):
        with pytest.raises(hearth.LaunchError, match="with device arrays") as caught:
            node.set_args(operands)  # type: ignore[arg-type]
        assert caught.value.fix
    fill.index, copy.index = 1, 2
    fill.set_args((x, 1))
    with pytest.raises(hearth.ArgumentError, match=r"node 1 of graph \d+ cannot be updated by a fill: that node is"):
        gpu.synchronize()
    copy.set_args((y, x))
    with pytest.raises(hearth.ArgumentError, match="it has no such node; its nodes of that kind are 1"):
        gpu.synchronize()
    graph.launch()
    assert (y.get() == 1).all()
