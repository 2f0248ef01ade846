"""Errors of the daemon's own code while a command runs: each fails its command, not the device or the thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, from_status, stream_failures
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Command, Rig


class OddError(Exception):
    """An exception with two arguments, which therefore cannot be unpickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} {b}")


class Failing(CpuServer):
    """A server whose fills raise the exception in `errors` for the byte that they fill with."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.errors: dict[int, Exception] = {}

    def fill(self, address: int, pattern: bytes, size: int, stream: Any) -> None:
        if pattern[0] in self.errors:
            raise self.errors[pattern[0]]
        super().fill(address, pattern, size, stream)


@pytest.fixture
def rig() -> Iterator[Rig[Failing]]:
    failing_rig = Rig(DeviceSpec(0, "cpu", 0, memory_limit=16 << 20), Failing)
    assert not failing_rig.call(allocate=c.Allocate(buffer=1, size=64)).HasField("error")
    yield failing_rig
    failing_rig.close()


def fill(byte: int) -> c.Fill:
    return c.Fill(buffer=1, size=64, pattern=bytes([byte]))


def contents(rig: Rig[Failing]) -> bytes:
    return rig.call(read=c.Read(buffer=1, size=64)).read.data


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (OddError(1, 2), "OddError: odd 1 2"),
        (KeyError(7), "KeyError: 7"),
        (AssertionError(), "AssertionError: "),
    ],
)
def test_call_is_answered_with_its_error_and_the_next_one_runs(rig: Rig[Failing], error: Exception, text: str) -> None:
    rig.server.errors[1] = error
    refusal = from_status(rig.call(fill=fill(1)).error)
    assert refusal.reason is Reason.INTERNAL and text in refusal.message
    assert not rig.call(fill=fill(2)).HasField("error")
    assert contents(rig) == b"\2" * 64


def test_errors_of_one_way_commands_are_each_kept_for_the_next_sync(rig: Rig[Failing]) -> None:
    rig.server.errors = {byte: RuntimeError(f"number {byte}") for byte in range(20)}
    rig.batch(*[Command(fill=fill(byte)) for byte in range(20)], Command(request=9, sync=c.Sync()))
    while True:
        response = device_pb2.ExecuteResponse.FromString(rig.until(Kind.RESPONSE).payload)
        if response.HasField("result") and response.result.request == 9:
            break
    failures = stream_failures(response.result.error)
    assert [failure.index for failure in failures] == list(range(20))
    for byte, failure in enumerate(failures):
        assert f"RuntimeError: number {byte}" in failure.status.message
    rig.server.errors.clear()
    assert not rig.call(fill=fill(3)).HasField("error")
    assert contents(rig) == b"\3" * 64
