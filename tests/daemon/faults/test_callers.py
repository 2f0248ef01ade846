"""HEARTH_DEBUG=1: late errors name the line of the program that submitted the failed command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hearth
import hearth.aio
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import common

CRASH = 'extern "C" __global__ void crash(int* x, long long at) { x[at] = 1; }'


@pytest.fixture
def gpu(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[hearth.Device]:
    monkeypatch.setenv("HEARTH_DEBUG", "1")
    with daemon.connect() as node:
        yield node.device(0)


def right(f: Any, x: Any) -> None:
    f(1, 4, (x, 4))


def wrong(f: Any, x: Any) -> None:
    f(1, 4, (x,))


def wrong_again(f: Any, x: Any) -> None:
    f(1, 4, (x, 4, 5))


def copying(y: Any, x: Any) -> None:
    y.copy_from(x)


def crashing(f: Any, x: Any) -> None:
    f(1, 1, (x, 1 << 40))


def line_of(function: Callable[..., None]) -> str:
    """Returns the caller that an error names for the only statement of the function."""
    return f"{__file__}:{function.__code__.co_firstlineno + 1} in {function.__qualname__}"


def test_an_error_names_the_line_of_its_launch_among_others(gpu: hearth.Device) -> None:
    f, x, y = common(gpu, "add_one"), gpu.zeros(4, np.int32), gpu.zeros(4, np.int32)
    for _ in range(200):
        right(f, x)
    wrong(f, x)
    right(f, y)
    wrong_again(f, y)
    right(f, y)
    with pytest.raises(hearth.LaunchError) as raised:
        gpu.synchronize()
    assert raised.value.details["caller"] == line_of(wrong)
    assert str(raised.value).endswith(f"\n  Caller: {line_of(wrong)}")
    assert [failure.caller for failure in raised.value.failures] == [line_of(wrong), line_of(wrong_again)]
    wrong_again(f, x)
    with pytest.raises(hearth.LaunchError) as raised:
        x.get()
    assert raised.value.details["caller"] == line_of(wrong_again)


def test_an_error_names_the_line_of_its_copy(gpu: hearth.Device) -> None:
    f, x, y = common(gpu, "add_one"), gpu.zeros(4, np.int32), gpu.zeros(4, np.int32)
    with gpu.stream():
        wrong(f, x)
    with gpu.stream() as copies:
        copying(y, x)
        with pytest.raises(hearth.HearthError) as raised:
            copies.synchronize()
    assert raised.value.details["caller"] == line_of(copying)
    with pytest.raises(hearth.LaunchError):
        gpu.synchronize()


def test_each_launch_of_a_prepared_list_has_its_own_line(gpu: hearth.Device) -> None:
    f, x = common(gpu, "add_one"), gpu.zeros(4, np.int32)
    with gpu.prepared() as prepared:
        right(f, x)
    prepared.launch()
    prepared.launch(2)
    wrong(f, x)
    prepared.launch()
    with pytest.raises(hearth.LaunchError) as raised:
        gpu.synchronize()
    assert raised.value.details["caller"] == line_of(wrong)
    assert x.get().tolist() == [3] * 4


def test_callers_are_right_after_large_batches(gpu: hearth.Device) -> None:
    f, x, y = common(gpu, "add_one"), gpu.zeros(4, np.int32), gpu.zeros(1 << 20, np.uint8)
    for n in range(3):
        for _ in range(3000):
            right(f, x)
        y.set(np.full(1 << 20, n, np.uint8))
        y.fill(n)
    wrong(f, x)
    with pytest.raises(hearth.LaunchError) as raised:
        gpu.synchronize()
    assert raised.value.details["caller"] == line_of(wrong)


def test_the_loss_of_a_device_names_the_line_that_launched_the_kernel(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEARTH_DEBUG", "1")
    with daemon.connect(isolation="dedicated") as node:
        gpu = node.device(0)
        f, crash, x = common(gpu, "add_one"), gpu.RawKernel(CRASH, "crash"), gpu.zeros(4, np.int32)
        right(f, x)
        crash(1, 1, (x, 1))
        gpu.synchronize()
        right(f, x)
        crashing(crash, x)
        with pytest.raises(hearth.DeviceLostError) as raised:
            gpu.synchronize()
        assert raised.value.details["caller"] == line_of(crashing)


def test_an_error_of_the_asyncio_client_names_the_line(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEARTH_DEBUG", "1")

    async def program() -> None:
        async with await hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            f, x = common(gpu, "add_one"), gpu.zeros(4, np.int32)
            right(f, x)
            wrong(f, x)
            with pytest.raises(hearth.LaunchError) as raised:
                await gpu.synchronize()
            assert raised.value.details["caller"] == line_of(wrong)

    asyncio.run(program())


@pytest.mark.parametrize("value", ["", "0"])
def test_without_the_variable_errors_name_no_caller(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HEARTH_DEBUG", value)
    with daemon.connect() as node:
        gpu = node.device(0)
        wrong(common(gpu, "add_one"), gpu.zeros(4, np.int32))
        with pytest.raises(hearth.LaunchError) as raised:
            gpu.synchronize()
    assert "caller" not in raised.value.details and "Caller" not in str(raised.value)
    assert raised.value.failures[0].caller == ""
