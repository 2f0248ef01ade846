"""Attributes of launches, from every command to the backend."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.backend.graph_nodes import AccessWindow, LaunchAttributes
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

SOURCE = b'extern "C" __global__ void add_one(int* x) { *x += 1; }'
ONE = c.Dim3(x=1)
TENANT_PRIORITY = 3


class Recording(CpuServer):
    """A CPU device that keeps the attributes of its launches, and the address of each."""

    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.launches: list[tuple[int, LaunchAttributes | None]] = []

    def launch(
        self, function: Any, grid: Any, block: Any, shared: int, stream: Any, params: Any, attributes: Any = None
    ) -> None:
        self.launches.append((struct.unpack_from("<Q", params)[0], attributes))
        super().launch(function, grid, block, shared, stream, params, attributes)


@pytest.fixture
def rig() -> Iterator[Rig[Recording]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), Recording, info={"priority": TENANT_PRIORITY})
    rig.batch(
        c.Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE)),
        c.Command(get_function=c.GetFunction(function=1, module=1, name="add_one")),
        c.Command(allocate=c.Allocate(buffer=1, size=64)),
        c.Command(fill=c.Fill(buffer=1, size=64, pattern=b"\0")),
    )
    assert not rig.call(sync=c.Sync()).HasField("error")
    yield rig
    rig.close()


def attributes(**more: Any) -> c.LaunchAttributes:
    window = c.AccessPolicyWindow(
        buffer=1, offset=16, size=32, hit_ratio=0.5, hit=c.ACCESS_PROPERTY_PERSISTING, miss=c.ACCESS_PROPERTY_STREAMING
    )
    return c.LaunchAttributes(
        programmatic_stream_serialization=True, priority=-5, mem_sync_domain=c.MEM_SYNC_DOMAIN_REMOTE,
        **{"access_policy_window": window, **more},
    )  # fmt: skip


def launch(**more: Any) -> c.Launch:
    pointer = c.Argument(pointer=c.Argument.Pointer(buffer=1))
    return c.Launch(function=1, grid=ONE, block=ONE, arguments=[pointer], **more)


def expected(address: int) -> LaunchAttributes:
    """Returns the attributes that the backend gets: an address for the buffer, and the tenant's priority added."""
    window = AccessWindow(address + 16, 32, 0.5, 2, 1)
    return LaunchAttributes(False, None, True, TENANT_PRIORITY - 5, 1, window)


def test_of_a_launch(rig: Rig[Recording]) -> None:
    for _ in range(2):  # the second time from the cached plan
        assert not rig.call(launch=launch(attributes=attributes(), iterations=2)).HasField("error")
    assert [found == expected(address) for address, found in rig.server.launches] == [True] * 4
    assert not rig.call(launch=launch()).HasField("error")
    assert rig.server.launches[-1][1] is None


def test_of_a_graph_and_its_updates(rig: Rig[Recording]) -> None:
    rig.batch(c.Command(begin_capture=c.BeginCapture(graph=7)), c.Command(launch=launch(attributes=attributes())))
    assert not rig.call(end_capture=c.EndCapture(graph=7)).HasField("error")
    assert not rig.call(launch_graph=c.LaunchGraph(graph=7, count=3)).HasField("error")
    address, found = rig.server.launches[-1]
    assert found == expected(address)


def test_of_a_dispatch(rig: Rig[Recording]) -> None:
    value = c.Argument(pointer=c.Argument.Pointer(buffer=1))
    bindings = [c.Binding(role=c.Binding.ROLE_VALUE, value=value)]
    dispatch = c.Dispatch(function=1, grid=ONE, block=ONE, bindings=bindings, attributes=attributes())
    for _ in range(2):
        assert not rig.call(dispatch=dispatch).HasField("error")
    assert [found == expected(address) for address, found in rig.server.launches] == [True] * 2
    dispatch.attributes.access_policy_window.buffer = 9
    assert from_status(rig.call(dispatch=dispatch).error).reason is Reason.INVALID_HANDLE


def test_values_at_and_beyond_the_limits(rig: Rig[Recording]) -> None:
    for priority, given in ((2**31 - 1, 2**31 - 1), (-(2**31), TENANT_PRIORITY - 2**31)):
        assert not rig.call(launch=launch(attributes=c.LaunchAttributes(priority=priority))).HasField("error")
        (_, found) = rig.server.launches[-1]
        assert found is not None and found.priority == given
    grid = c.Argument.Pointer(buffer=1)
    assert not rig.call(
        launch=c.Launch(
            function=1, block=ONE, arguments=[c.Argument(pointer=grid)], dynamic_grid=grid,
            attributes=c.LaunchAttributes(priority=2**31 - 1),
        )
    ).HasField("error")  # fmt: skip
    for wrong in ({"mem_sync_domain": 7}, {"mem_sync_domain": -1}, {"mem_sync_domain": 2**20}):
        refusal = from_status(rig.call(launch=launch(attributes=c.LaunchAttributes(**wrong))).error)  # type: ignore[arg-type]
        assert refusal.reason in (Reason.LAUNCH_INVALID, Reason.INVALID_ARGUMENT) and refusal.fix


@pytest.mark.parametrize(
    ("window", "reason", "words"),
    [
        (
            c.AccessPolicyWindow(buffer=1, offset=40, size=32, hit_ratio=1),
            "OUT_OF_BOUNDS",
            "bytes [40..72) of buffer 1",
        ),
        (c.AccessPolicyWindow(buffer=8, size=32, hit_ratio=1), "INVALID_HANDLE", "8"),
        (c.AccessPolicyWindow(buffer=1, size=2**40, hit_ratio=1), "LAUNCH_INVALID", "access-policy window has"),
    ],
)
def test_windows_that_are_refused(rig: Rig[Recording], window: c.AccessPolicyWindow, reason: str, words: str) -> None:
    refusal = from_status(rig.call(launch=launch(attributes=attributes(access_policy_window=window))).error)
    assert refusal.reason == reason and words in refusal.message and refusal.fix
    assert not rig.server.launches
