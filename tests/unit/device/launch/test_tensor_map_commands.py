"""Tensor maps from command to kernel parameter, on a CPU device that imitates their encoding.

The encoding by the driver is replaced by 128 bytes that contain its arguments; everything else is the product's code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status, stream_failures
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.backend.tensor_map import TensorMapSpec, Tile
from hearthd.entry import device_main
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.link import Command, DeviceLink

SIZE = 64 * 32 * 4

CODE = b"""
struct alignas(64) TensorMap { unsigned long long words[16]; };
__device__ float table[1024];
extern "C" __global__ void look(char before, const __grid_constant__ TensorMap map, char* x, unsigned long long* out) {
    out[0] = map.words[0] - (unsigned long long)x;
    for (int i = 1; i < 16; ++i) out[i] = map.words[i];
}
extern "C" __global__ void count(const __grid_constant__ TensorMap map, unsigned long long* out) { out[0] += 1; }
extern "C" __global__ void address(const __grid_constant__ TensorMap map, unsigned long long* out) {
    out[0] = map.words[0] == (unsigned long long)table;
}
extern "C" __global__ void peek(const __grid_constant__ TensorMap map, unsigned long long* out) {
    out[0] = ((const float*)map.words[0])[7];
}
"""


def encode(_self: Any, spec: TensorMapSpec, address: int) -> bytes:
    """Encodes the address and the other arguments; this imitated driver refuses a box with a 7."""
    access = spec.access
    assert access is not None
    box = access.box if isinstance(access, Tile) else (access.channels_per_pixel, access.pixels_per_column)
    if 7 in box:
        raise Refusal(Reason.TENSOR_MAP_INVALID, "the driver refuses it")
    words = [address, spec.rank, *spec.shape, *spec.strides, *spec.element_strides, *box]
    return struct.pack(f"<{len(words)}Q", *words).ljust(128, b"\0")


def main(*arguments: Any) -> None:
    """Runs a device process whose CPU backend has tensor maps, also im2col-wide ones, but no swizzle atoms."""
    from hearthd.device.cpu import server

    class Server(server.CpuServer):
        encode_tensor_map = encode

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.properties.features.extend(["tensor_maps", "tensor_map_im2col_wide"])

    server.CpuServer = Server  # type: ignore[misc]
    device_main(*arguments)


@pytest.fixture(scope="module")
def process() -> Iterator[DeviceLink]:
    # Nothing is cached, so loading modules takes a while.
    link = DeviceLink(DeviceSpec(0, "cpu", 0, memory_limit=1 << 20), main)
    yield link
    link.close()


class OneSession:
    """A session with buffer 1 for a matrix of 64 x 32 floats, buffer 2 of 16 words, and the kernels 11 to 14."""

    def __init__(self, link: DeviceLink, channel: int) -> None:
        self.link = link
        self.channel = channel
        self._seq = 0
        link.open(channel)
        self.batch(
            Command(allocate=c.Allocate(buffer=1, size=SIZE)),
            Command(allocate=c.Allocate(buffer=2, size=128)),
            Command(fill=c.Fill(buffer=2, size=128, pattern=b"\0")),
            Command(load_module=c.LoadModule(module=10, kind=c.CODE_KIND_CUDA_CPP, code=CODE)),
            *(
                Command(get_function=c.GetFunction(function=11 + index, module=10, name=name))
                for index, name in enumerate(("look", "count", "address", "peek"))
            ),
        )

    def batch(self, *commands: c.Command) -> None:
        self._seq += 1
        self.link.batch(*commands, channel=self.channel, seq=self._seq)

    def failures(self) -> list[tuple[str, Reason]]:
        """Returns the command and the reason of each failure since the last call."""
        status = self.link.call(channel=self.channel, sync=c.Sync()).error
        return [(each.command, from_status(each.status).reason) for each in stream_failures(status)]

    def words(self) -> list[int]:
        data = self.link.call(channel=self.channel, read=c.Read(buffer=2, size=128)).read.data
        return list(struct.unpack("<16Q", data))

    def in_use(self) -> int:
        usage: int = self.link.call(channel=self.channel, memory_usage=c.MemoryUsage()).memory_usage.bytes_in_use
        return usage

    def close(self) -> None:
        self.link.send(Kind.CLOSE, channel=self.channel)
        self.link.expect(Kind.CLOSED)


_channels = iter(range(2, 1000))


@pytest.fixture
def session(process: DeviceLink) -> Iterator[OneSession]:
    made = OneSession(process, next(_channels))
    yield made
    made.close()


def tiled(tensor_map: int = 5, buffer: int = 1, box: tuple[int, int] = (32, 8), **more: Any) -> Command:
    fields = {"dtype": "float32", "shape": [32, 64], "strides": [128], **more}
    tile = c.CreateTensorMap.Tile(box=box)
    return Command(create_tensor_map=c.CreateTensorMap(tensor_map=tensor_map, buffer=buffer, tile=tile, **fields))


def destroyed(tensor_map: int = 5) -> Command:
    return Command(destroy_tensor_map=c.DestroyTensorMap(tensor_map=tensor_map))


def launch(function: int, *arguments: c.Argument, stream: int = 0) -> Command:
    dim = c.Dim3(x=1, y=1, z=1)
    return Command(stream=stream, launch=c.Launch(function=function, grid=dim, block=dim, arguments=arguments))


def pointer(buffer: int) -> c.Argument:
    return c.Argument(pointer=c.Argument.Pointer(buffer=buffer))


MAP, OUT = c.Argument(tensor_map=5), pointer(2)
LOOK = launch(11, c.Argument(raw=b"x"), MAP, pointer(1), OUT)


def test_created_map_is_passed_as_kernel_parameter(session: OneSession) -> None:
    session.batch(tiled(offset=16, shape=[32, 60], element_strides=[1, 2]), LOOK)
    assert session.failures() == []
    assert session.words() == [16, 2, 32, 60, 128, 1, 2, 32, 8, *[0] * 7]


def test_im2col_and_defaults(session: OneSession) -> None:
    columns = c.CreateTensorMap.Im2col(
        lower_corner=[-1, -1], upper_corner=[-1, -1], channels_per_pixel=8, pixels_per_column=16
    )
    made = c.CreateTensorMap(
        tensor_map=5, buffer=1, dtype="float16", shape=[8, 4, 4, 2], strides=[16, 64, 256], im2col=columns
    )
    session.batch(Command(create_tensor_map=made), LOOK)
    assert session.failures() == []
    assert session.words() == [0, 4, 8, 4, 4, 2, 16, 64, 256, 1, 1, 1, 1, 8, 16, 0]


def wide(**fields: Any) -> c.CreateTensorMap:
    """Builds the command for columns along W of 2 images of 4 x 4 pixels of 8 float16."""
    columns = c.CreateTensorMap.Im2colWide(lower_corner_width=-1, upper_corner_width=1, channels_per_pixel=8, **fields)
    return c.CreateTensorMap(
        tensor_map=5, buffer=1, dtype="float16", shape=[8, 4, 4, 2], strides=[16, 64, 256], swizzle="64b",
        im2col_wide=columns,
    )  # fmt: skip


def test_im2col_wide_and_its_modes(session: OneSession) -> None:
    for fields, pixels in (({"pixels_per_column": 16}, 16), ({"mode": "w128"}, 0)):
        session.batch(Command(create_tensor_map=wide(**fields)), LOOK, destroyed())
        assert session.failures() == []
        assert session.words() == [0, 4, 8, 4, 4, 2, 16, 64, 256, 1, 1, 1, 1, 8, pixels, 0]
    refusal = from_status(session.link.call(channel=session.channel, create_tensor_map=wide(mode="x")).error)
    assert refusal.reason == Reason.TENSOR_MAP_INVALID and "mode is 'x'; it must be one of w, w128" in refusal.message
    assert refusal.details["lower_corner_width"] == "-1" and refusal.details["upper_corner_width"] == "1"


def test_swizzle_atoms_are_refused_by_name_where_the_device_has_none(session: OneSession) -> None:
    command = tiled(swizzle="128b_atom_32b").create_tensor_map
    refusal = from_status(session.link.call(channel=session.channel, create_tensor_map=command).error)
    assert refusal.reason == Reason.UNSUPPORTED and refusal.details["feature"] == "tensor_map_swizzle_atoms"
    assert refusal.message.startswith("device 0 (cpu) has no swizzles with atoms of 32 or 64 bytes")


def test_launches_with_one_that_was_refused_do_not_run(session: OneSession) -> None:
    session.batch(tiled(box=(33, 0)), launch(12, MAP, OUT), launch(12, MAP, OUT))
    # The second launch is skipped because of the buffer that the first one should have written; the skip is not
    # reported separately.
    assert session.failures() == [
        ("create_tensor_map", Reason.TENSOR_MAP_INVALID), ("launch count", Reason.DEPENDENCY_FAILED)
    ]  # fmt: skip
    assert session.words()[0] == 0
    session.batch(destroyed(), tiled(), launch(12, MAP, OUT))  # the handle can be used again
    assert session.failures() == []
    assert session.words()[0] == 1


def test_maps_refused_by_the_driver_are_reported(session: OneSession) -> None:
    session.batch(tiled(box=(32, 7)), launch(12, MAP, OUT))
    assert session.failures() == [
        ("create_tensor_map", Reason.TENSOR_MAP_INVALID), ("launch count", Reason.DEPENDENCY_FAILED)
    ]  # fmt: skip


def test_refusals_name_everything(session: OneSession) -> None:
    wrong = tiled(box=(33, 0), offset=SIZE + 8, swizzle="1b").create_tensor_map
    refusal = from_status(session.link.call(channel=session.channel, create_tensor_map=wrong).error)
    assert refusal.reason == Reason.TENSOR_MAP_INVALID and refusal.details["failures"] == "5"
    assert refusal.message.startswith("tensor map of buffer 1, float32 of shape (32, 64) (innermost first): swizzle is")
    assert refusal.details["buffer_size"] == str(SIZE) and refusal.details["offset"] == str(SIZE + 8)


def test_a_tensor_map_keeps_the_memory_of_a_freed_buffer(session: OneSession) -> None:
    before = session.in_use()
    session.batch(tiled(), Command(free=c.Free(buffers=[1])), launch(12, MAP, OUT), tiled(tensor_map=6, buffer=2))
    failed = session.failures()
    assert [reason for _, reason in failed] == [Reason.TENSOR_MAP_INVALID], "buffer 2 is too small, nothing else is"
    assert session.words()[0] == 1
    assert session.in_use() == before
    session.batch(destroyed(6), launch(12, MAP, OUT), destroyed(), launch(12, MAP, OUT))
    assert session.failures() == [("launch count", Reason.INVALID_HANDLE)]
    assert session.words()[0] == 2
    assert session.in_use() == before - SIZE


def test_buffer_is_kept_until_its_last_map_is_destroyed(session: OneSession) -> None:
    before = session.in_use()
    session.batch(tiled(5), tiled(6), Command(free=c.Free(buffers=[1])), destroyed(5))
    assert session.failures() == [] and session.in_use() == before
    session.batch(destroyed(6))
    assert session.failures() == [] and session.in_use() == before - SIZE


def test_memory_of_maps_is_freed_with_their_session(process: DeviceLink) -> None:
    for _ in range(3):  # more than the device's memory, if it were not returned
        session = OneSession(process, next(_channels))
        session.batch(
            Command(allocate=c.Allocate(buffer=3, size=1 << 19)), tiled(buffer=3), Command(free=c.Free(buffers=[3]))
        )
        assert session.failures() == []
        session.close()


def test_map_of_a_global_before_its_module_is_compiled(session: OneSession) -> None:
    """The command waits for the address; a launch that uses it waits for the command."""
    session.batch(
        Command(load_module=c.LoadModule(module=20, kind=c.CODE_KIND_CUDA_CPP, code=CODE)),
        Command(get_global=c.GetGlobal(buffer=21, module=20, name="table")),
        Command(get_function=c.GetFunction(function=22, module=20, name="address")),
        tiled(buffer=21, shape=[32, 32]),
        launch(22, MAP, OUT),
    )
    assert session.failures() == []
    assert session.words()[0] == 1


def test_map_of_a_global_keeps_the_module(session: OneSession) -> None:
    code = b"__device__ float table[1024] = {0, 0, 0, 0, 0, 0, 0, 77};"
    session.batch(
        Command(load_module=c.LoadModule(module=20, kind=c.CODE_KIND_CUDA_CPP, code=code)),
        Command(get_global=c.GetGlobal(buffer=21, module=20, name="table")),
        tiled(buffer=21, shape=[32, 32]),
        Command(unload_module=c.UnloadModule(module=20)),
        launch(14, MAP, OUT),
    )
    assert session.failures() == []
    assert session.words()[0] == 77
    session.batch(destroyed())
    assert session.failures() == []


def test_map_of_a_global_whose_module_does_not_compile(session: OneSession) -> None:
    session.batch(
        Command(load_module=c.LoadModule(module=20, kind=c.CODE_KIND_CUDA_CPP, code=b"nonsense")),
        Command(get_global=c.GetGlobal(buffer=21, module=20, name="table")),
        tiled(buffer=21, shape=[32, 32]),
        launch(12, MAP, OUT),
    )
    failed = session.failures()
    assert failed[0][1] == Reason.COMPILE_FAILED
    assert session.words()[0] == 0
    assert {command for command, _ in failed} == {"get_global", "create_tensor_map", "launch count"}


def test_mismatched_tensor_map_parameters_are_refused(session: OneSession) -> None:
    session.batch(tiled())
    for first, second in ((pointer(1), OUT), (MAP, MAP), (OUT, MAP)):
        session.batch(launch(12, first, second))
        assert [reason for _, reason in session.failures()] == [Reason.LAUNCH_INVALID]


def test_session_that_ends_frees_the_memory_of_a_map_whose_destruction_waits(
    process: DeviceLink, session: OneSession
) -> None:
    before = process.call(channel=session.channel, memory_usage=c.MemoryUsage()).memory_usage.bytes_reserved
    other = OneSession(process, next(_channels))
    other.batch(tiled(), Command(write=c.Write(buffer=1, size=SIZE, transfer=9)), destroyed())  # no bytes arrive
    other.close()
    usage = process.call(channel=session.channel, memory_usage=c.MemoryUsage()).memory_usage
    assert usage.bytes_reserved == before
