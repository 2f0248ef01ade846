"""Virtual memory with a fake driver: resources after a failed mapping."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.support.device.fake_cuda import FakeError, fake_cuda

HANDLE, ADDRESS, SIZE = "handle", 1 << 40, 2 << 20
UNDO = {
    "cuMemAddressReserve": [("cuMemRelease", HANDLE)],
    "cuMemMap": [("cuMemAddressFree", ADDRESS), ("cuMemRelease", HANDLE)],
    "cuMemSetAccess": [("cuMemUnmap", ADDRESS), ("cuMemAddressFree", ADDRESS), ("cuMemRelease", HANDLE)],
}
"""The calls that undo the steps before each call that fails."""


@pytest.mark.parametrize("failing", ["", *UNDO])
def test_a_new_mapping_is_undone_if_a_step_fails(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    undone: list[tuple[str, Any]] = []
    with fake_cuda(monkeypatch) as cuda:
        memory = importlib.import_module("hearthd.device.cuda.sharing.virtual_memory")
        for name in UNDO:
            getattr(cuda.driver, name).return_value = (0, ADDRESS) if name == "cuMemAddressReserve" else (0,)
        for name in ("cuMemUnmap", "cuMemAddressFree", "cuMemRelease"):

            def call(argument: Any, *_size: int, name: str = name) -> tuple[int]:
                undone.append((name, argument))
                return (0,)

            getattr(cuda.driver, name).side_effect = call
        if failing:
            getattr(cuda.driver, failing).side_effect = FakeError(2)
            with pytest.raises(FakeError):
                memory.map_new(HANDLE, SIZE, 0)
        else:
            assert memory.map_new(HANDLE, SIZE, 0) == ADDRESS
    assert undone == UNDO.get(failing, [])
