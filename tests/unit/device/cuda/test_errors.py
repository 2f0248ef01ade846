"""Translation of CUDA's errors with a fake driver."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.server import DeviceFault
from tests.support.device.fake_cuda import FakeError, fake_cuda

INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_ADDRESS = 1, 2, 700


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported over a fake driver."""
    with fake_cuda(monkeypatch):
        yield importlib.import_module("hearthd.device.cuda.errors")


@pytest.mark.parametrize(
    ("status", "reason", "fix"),
    [
        (INVALID_VALUE, Reason.LAUNCH_INVALID, "ask for less"),
        (OUT_OF_MEMORY, Reason.OUT_OF_MEMORY, "ask for less"),
    ],
)
def test_translated_refuses_with_its_arguments(errors: Any, status: int, reason: Reason, fix: str) -> None:
    error = FakeError(status)
    with (
        pytest.raises(Refusal, match="Setting it failed") as caught,
        errors.translated("setting it", Reason.LAUNCH_INVALID, fix=fix, details={"size": 5}),
    ):
        raise error
    assert caught.value.reason is reason and caught.value.fix == fix and caught.value.__cause__ is error
    assert caught.value.details["cuda_status"] == str(status) and caught.value.details["size"] == "5"


def test_translated_raises_a_fault_for_a_sticky_error(errors: Any) -> None:
    with (
        pytest.raises(DeviceFault, match="setting it: a kernel used an illegal address"),
        errors.translated("setting it"),
    ):
        raise FakeError(ILLEGAL_ADDRESS)


def test_translated_passes_other_exceptions(errors: Any) -> None:
    with pytest.raises(OSError, match="no file"), errors.translated("setting it"):
        raise OSError("no file")


def test_errors_without_a_code_are_not_fatal(errors: Any) -> None:
    assert errors.status_of(ValueError()) == 0 and not errors.is_fatal(ValueError())
    assert errors.status_of(FakeError(ILLEGAL_ADDRESS)) == ILLEGAL_ADDRESS and errors.is_fatal(
        FakeError(ILLEGAL_ADDRESS)
    )
