"""Loads of modules, and local memory of functions, with a fake driver."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend import access_table
from hearthd.device.backend.compiler import Image
from tests.support.device.fake_cuda import FakeCuda, FakeError, fake_cuda

MODULE, TABLE, NOT_FOUND = 5, 0x7000, 500
NAMED = Image(b".version 8.0 // " + access_table.SYMBOL.encode())


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Yields a fake driver, whose modules have no functions."""
    with fake_cuda(monkeypatch) as fakes:
        launch = importlib.import_module("hearthd.device.cuda.launch")
        monkeypatch.setattr(launch, "checked", lambda result: result)
        monkeypatch.setattr(launch.image_headers, "check", lambda code, capability: None)
        fakes.cupy_driver.moduleLoadData.return_value = MODULE
        fakes.driver.cuModuleGetFunctionCount.return_value = (0,)
        yield fakes


def load(image: Image) -> Any:
    return importlib.import_module("hearthd.device.cuda.launch").CudaLauncher((9, 0)).load(image)


@pytest.mark.parametrize(("size", "address"), [(access_table.BYTES, TABLE), (access_table.BYTES - 1, 0)])
def test_an_access_table_has_at_least_its_size(cuda: FakeCuda, size: int, address: int) -> None:
    cuda.driver.cuModuleGetGlobal.return_value = TABLE, size
    assert load(NAMED).access_table == address


def test_a_module_that_only_mentions_the_access_table_is_not_instrumented(cuda: FakeCuda) -> None:
    cuda.driver.cuModuleGetGlobal.side_effect = FakeError(NOT_FOUND)
    assert load(NAMED).access_table == 0
    cuda.cupy_driver.moduleUnload.assert_not_called()


def test_a_module_is_unloaded_after_any_error_of_its_load(cuda: FakeCuda) -> None:
    cuda.driver.cuModuleGetGlobal.side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        load(NAMED)
    cuda.cupy_driver.moduleUnload.assert_called_once_with(MODULE)


def function(local_bytes: int) -> Any:
    return SimpleNamespace(attributes=SimpleNamespace(local_bytes=local_bytes))


def test_local_memory_is_provided_once_for_all_functions_that_need_no_more(cuda: FakeCuda) -> None:
    launcher = importlib.import_module("hearthd.device.cuda.launch").CudaLauncher((9, 0))

    def has(local_bytes: int) -> bool:
        return bool(launcher.has_launch_memory(function(local_bytes), False))

    assert has(1024) and not has(16384)
    cuda.driver.cuCtxSetLimit.side_effect = FakeError(2)
    with pytest.raises(Refusal, match="16384 bytes of local memory") as caught:
        launcher.provide_launch_memory(function(16384), False)
    assert caught.value.reason is Reason.OUT_OF_MEMORY and not has(16384)
    cuda.driver.cuCtxSetLimit.side_effect = None
    launcher.provide_launch_memory(function(16384), False)
    cuda.driver.cuCtxSetLimit.assert_called_with(cuda.driver.CUlimit.CU_LIMIT_STACK_SIZE, 16384)
    assert has(8192) and not has(16385)


@pytest.mark.parametrize("fails", [False, True])
def test_output_buffer_is_created_once_before_kernels_that_print(cuda: FakeCuda, fails: bool) -> None:
    launcher = importlib.import_module("hearthd.device.cuda.launch").CudaLauncher((9, 0))
    cuda.cupy_driver.moduleLoadData.side_effect = FakeError(218) if fails else None
    assert launcher.has_launch_memory(function(8), False) and not launcher.has_launch_memory(function(8), True)
    launcher.provide_launch_memory(function(8), True)
    assert launcher.has_launch_memory(function(8), True)
    assert cuda.cupy_driver.launchKernel.call_count == (not fails) and not cuda.driver.cuCtxSetLimit.called
