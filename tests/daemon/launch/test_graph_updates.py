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


def test_launches_under_way_keep_their_arguments(gpu: hearth.Device) -> None:
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
        (1, None, 4, "copy or a fill"),
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


def test_an_update_keeps_the_function(gpu: hearth.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    module = gpu.RawModule(code=COMMON)
    saxpy, mix = module.get_function("saxpy"), module.get_function("mix")
    x, y = gpu.zeros(N, np.uint32), gpu.zeros(N, np.uint32)
    with gpu.graph() as graph:
        mix((1,), (N,), (x, y, SIZE))
        y.fill(1)
    with pytest.raises(hearth.LaunchError, match="no arguments that can be changed"):
        graph.nodes[1].set_args(())
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
