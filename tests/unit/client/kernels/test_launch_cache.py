"""Repeated launches: values cached from one launch never hide that the next launch is different."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hearth
from hearth.kernels import arguments
from hearth_proto import launches
from hearth_proto.launches import LaunchFlag
from tests.support.client.fake_daemon import FakeDaemon


@pytest.fixture
def f(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code="source").get_function("f")


def launched(gpu: hearth.Device, daemon: FakeDaemon) -> list[launches.Record]:
    gpu.synchronize()
    return daemon.records


def again(f: Any, *call: Any, **keywords: Any) -> None:
    """Repeats a call until its packing is cached and used."""
    packed: list[int] = []
    typed = arguments.typed

    def counted(*about: Any) -> Any:
        pack = typed(*about)
        return pack and (lambda *given: (packed.append(1), pack(*given))[1])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arguments, "typed", counted)
        for _ in range(4):
            f(*call, **keywords)
    assert packed


def test_each_difference_counts(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    grid, block, x = (2,), (32,), gpu.empty(4, np.float32)
    other = gpu.stream()
    again(f, grid, block, (x, 1))
    f((3,), block, (x, 1))
    f(grid, (64,), (x, 1))
    f(grid, block, (x, 2))
    f(grid, block, (x, 1.0))
    f(grid, block, (x[1:], 1))
    f(grid, block, (x, 1), 8)
    f(grid, block, (x, 1), mode="unchecked")
    f(grid, block, (x, 1), stream=other)
    f(grid, block, (x, 1), timeout=2)
    f(grid, block, (x, 1), iterations=3)
    f(grid, block, (x, 1), cooperative=True)
    f(grid, block, (x, 1), cluster=(2,))
    with other:
        f(grid, block, (x, 1))
    f(grid, block, [x, 1])
    f(grid, block, (x, 1))
    records = launched(gpu, daemon)
    usual, different = records[0], records[4:-2]
    assert records[:4] == [usual] * 4 and records[-2:] == [usual] * 2
    assert usual.grid == (2, 1, 1) and usual.params == bytes(8) + (1).to_bytes(8, "little")
    assert all(record != usual for record in different)
    (wide, deep, two, real, offset, shared, unchecked, there, late, often, whole, near, scoped) = different
    assert wide.grid == (3, 1, 1) and deep.block == (64, 1, 1) and shared.shared_mem == 8
    assert two.params[8:] == (2).to_bytes(8, "little") and real.params[8:] == np.float64(1).tobytes()
    assert offset.params[:8] == (4).to_bytes(8, "little") and late.timeout_ns == 2 * 10**9
    assert unchecked.flags == LaunchFlag.UNCHECKED and whole.flags == LaunchFlag.COOPERATIVE
    assert there.stream == scoped.stream > 0 and often.extension is not None and often.extension.iterations == 3
    assert near.extension is not None and near.extension.cluster == (2, 1, 1)


def test_each_mistake_is_still_found(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    grid, block, x, y = (2,), (32,), gpu.empty(4, np.float32), gpu.empty(4, np.float32)
    again(f, grid, block, (x, 1))
    y.free()
    for args, kind in (
        ((y, 1), hearth.InvalidHandleError),
        ((x, 2**64), hearth.LaunchError),
        ((x, "1"), hearth.LaunchTypeError),
        ((x, np.zeros(2)), hearth.LaunchTypeError),
        ({x: 1}, hearth.LaunchTypeError),
        (x, hearth.LaunchTypeError),
    ):
        with pytest.raises(kind):
            f(grid, block, args)  # type: ignore[arg-type]
    for wrong in ({"iterations": 0}, {"mode": "fast"}, {"timeout": -1}, {"cluster": 0}):
        with pytest.raises(hearth.HearthError):
            f(grid, block, (x, 1), **wrong)  # type: ignore[arg-type]
    f(grid, block, (x,))
    f(grid, block, (x, 1, 2))
    f(grid, block)
    assert [len(launches.unpack_layout(record.layout)) for record in launched(gpu, daemon)] == [2] * 4 + [1, 3, 0]


def test_a_grid_that_is_changed(gpu: hearth.Device, daemon: FakeDaemon, f: hearth.Function) -> None:
    grid = [1]
    for size in (1, 1, 1, 2, 3):
        grid[0] = size
        f(grid, (1,))
    assert [record.grid[0] for record in launched(gpu, daemon)] == [1, 1, 1, 2, 3]
