"""Validated launches of instrumented modules: the access table is sent, fetched and reported.

The CPU backend simulates a GPU here: its kernel checks its accesses as instrumented PTX does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.backend import access_table
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

SOURCE = f"""
extern "C" __device__ __align__(64) unsigned char __hearth_access_table[{access_table.BYTES}];
__device__ void check(unsigned long long address, unsigned kind) {{
    unsigned long long* table = (unsigned long long*)__hearth_access_table;
    for (unsigned long long i = 0; i < table[0]; ++i) {{
        unsigned long long* span = table + {access_table.SPANS} / 8 + 4 * i;
        if (address < span[0] || address >= span[3]) continue;
        if (address >= span[1] && address + 4 <= span[2]) return;
        unsigned n = atomicAdd((unsigned*)__hearth_access_table + 2, 1u);
        if (n >= {access_table.MAX_RECORDS}) return;
        unsigned char* record = __hearth_access_table + {access_table.RECORDS} + {access_table.RECORD_BYTES} * n;
        *(unsigned long long*)record = address;
        ((unsigned*)record)[2] = kind | 4 << 8;
        for (int axis = 0; axis < 3; ++axis) ((unsigned*)record)[3 + axis] = blockIdx.x;
        return;
    }}
}}
extern "C" __global__ void move(int* to, const int* from, long long to_at, long long from_at) {{
    check((unsigned long long)(from + from_at), {access_table.READ});
    check((unsigned long long)(to + to_at), {access_table.WRITE});
    to[to_at] = from[from_at];
}}
"""


class Instrumenting(CpuServer):
    """A CPU device without guards, whose modules may have an access table."""

    def guard(self, size: int, offset: int, array_bytes: int) -> None:
        return None

    def access_table(self, module: Any) -> int:
        return int(module.global_(access_table.SYMBOL)[0])


@pytest.fixture
def rig() -> Iterator[Rig[Instrumenting]]:
    rig = Rig(DeviceSpec(0, "cpu", 0), Instrumenting)
    rig.batch(
        c.Command(load_module=c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=SOURCE.encode())),
        c.Command(get_function=c.GetFunction(function=1, module=1, name="move")),
        c.Command(create_stream=c.CreateStream(stream=5)),
        *(c.Command(allocate=c.Allocate(buffer=buffer, size=64)) for buffer in (1, 2, 3)),
        *(c.Command(fill=c.Fill(buffer=buffer, size=64, pattern=bytes([buffer]))) for buffer in (1, 2, 3)),
    )
    assert not rig.call(describe_module=c.DescribeModule(module=1)).HasField("error")
    yield rig
    rig.close()


def move(to: int, source: int, to_at: int, from_at: int, mode: Any = c.LAUNCH_MODE_VALIDATE) -> c.Launch:
    dim = c.Dim3(x=1)
    pointers = [c.Argument(pointer=c.Argument.Pointer(buffer=buffer)) for buffer in (to, source)]
    arguments = [*pointers, c.Argument(int64=to_at), c.Argument(int64=from_at)]
    return c.Launch(function=1, grid=dim, block=dim, arguments=arguments, mode=mode)


@pytest.mark.parametrize(
    ("from_at", "first_byte", "words"), [(16, 64, "0 bytes after"), (-2, -8, "8 bytes before"), (20, 80, "16 bytes")]
)
def test_read_outside_an_array_is_reported(rig: Rig[Instrumenting], from_at: int, first_byte: int, words: str) -> None:
    result = rig.call(launch=move(1, 2, 3, from_at))
    refusal = from_status(result.error)
    assert refusal.reason is Reason.OUT_OF_BOUNDS_READ
    assert f"{words}" in refusal.message and "read outside its buffers" in refusal.message
    assert refusal.details["argument"] == "1" and refusal.details["first_byte"] == str(first_byte)
    assert refusal.details["buffer"] == "2" and refusal.details["block"] == "0, 0, 0"


def test_accesses_inside_are_not_reported(rig: Rig[Instrumenting]) -> None:
    for at in (0, 15):
        assert not rig.call(launch=move(1, 2, at, at)).HasField("error")
    data = rig.call(read=c.Read(buffer=1, size=64)).read.data
    assert data[:4] == data[60:] == b"\2\2\2\2" and data[4:60] == b"\1" * 56


def test_write_and_read_are_both_reported(rig: Rig[Instrumenting]) -> None:
    refusal = from_status(rig.call(launch=move(1, 2, 16, 16)).error)
    assert refusal.reason is Reason.OUT_OF_BOUNDS_WRITE
    # The kernel has written the contents of one zone, the pattern, to the same place in another one.
    assert "0 bytes after argument 0" in refusal.message and "0 bytes after argument 1" in refusal.message


def test_other_launches_are_not_checked_afterwards(rig: Rig[Instrumenting]) -> None:
    assert rig.call(launch=move(1, 2, 0, 16)).HasField("error")
    assert not rig.call(launch=move(1, 2, 0, 0, c.LAUNCH_MODE_CHECKED)).HasField("error")
    assert not rig.call(launch=move(1, 3, 0, 0)).HasField("error")
    table = rig.call(get_global=c.GetGlobal(buffer=9, module=1, name=access_table.SYMBOL))
    assert not table.HasField("error")
    assert rig.call(read=c.Read(buffer=9, size=16)).read.data == bytes(16)


def test_launches_of_one_module_take_turns(rig: Rig[Instrumenting]) -> None:
    calls = [
        rig.start(stream=5 * (turn % 2), launch=move(1 + turn % 2, 3, 0, 16 * (turn % 3 == 0))) for turn in range(24)
    ]
    for turn, call in enumerate(calls):
        assert rig.answer(call).HasField("error") == (turn % 3 == 0), turn
