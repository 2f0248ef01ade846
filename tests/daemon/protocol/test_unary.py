"""Every RPC once, through plain gRPC stubs, as any gRPC tool or language calls it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hearth_proto import PROTOCOL_MAX, PROTOCOL_MIN
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.raw import TIMEOUT, Raw, refused

ONE = c.Dim3(x=1)


def load(raw: Raw, code: str = COMMON, **fields: Any) -> int:
    module = raw.mint()
    raw.call("LoadModule", c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=code.encode(), **fields))
    return module


def pointer(buffer: int, offset: int = 0) -> c.Argument:
    return c.Argument(pointer=c.Argument.Pointer(buffer=buffer, offset=offset))


# ---- invalid fields ----


def test_invalid_fields_of_a_command_are_named(raw: Raw) -> None:
    buffer = raw.buffer(bytes(64))
    module = load(raw)
    function = raw.mint()
    raw.call("GetFunction", c.GetFunction(function=function, module=module, name="saxpy"))

    def fields(rpc: str, command: Any) -> tuple[str, ...]:
        return refused(raw.call, rpc, command).fields

    assert fields("SetAllocationMode", c.SetAllocationMode(mode=7)) == ("command.mode",)
    assert fields("Allocate", c.Allocate(buffer=raw.mint(), parts=[c.Allocate.Part(buffer=1)])) == (
        "command.buffer", "command.size", "command.parts",
    )  # fmt: skip
    assert fields("Fill", c.Fill(buffer=buffer, size=64, pattern=bytes(3))) == (
        "command.pattern", "command.offset", "command.size",
    )  # fmt: skip
    launch = c.Launch(function=function, grid=ONE, block=c.Dim3(x=4096), arguments=[pointer(buffer)])
    assert fields("Launch", launch) == ("command.arguments", "command.block.x", "command.block")
    launch = c.Launch(function=function, grid=ONE, block=ONE, arguments=[c.Argument()])
    assert fields("Launch", launch) == ("command.arguments[0]",)
    module = c.LoadModule(module=raw.mint(), kind=c.CODE_KIND_CUDA_CPP, code=b"", options=["-o=/tmp/x"])
    assert fields("LoadModule", module) == ("command.options",)
    assert fields("Free", c.Free(buffers=[raw.mint()])) == (), "an unknown handle is no invalid field"


def test_invalid_fields_of_a_request_are_named(raw: Raw) -> None:
    bulk = device_pb2.OpenBulkRequest(session_token=raw.token, stripes=3000)
    assert refused(raw.device.OpenBulk, bulk, timeout=TIMEOUT).fields == ("stripes",)
    publish = device_pb2.PublishRequest(target=raw.target(), buffer=raw.buffer(bytes(4)), name="a\n")
    assert refused(raw.device.Publish, publish, timeout=TIMEOUT).fields == ("name",)
    publish.name, publish.tenants[:] = "a", [""]
    assert refused(raw.device.Publish, publish, timeout=TIMEOUT).fields == ("tenants",)
    group = node_pb2.CreateGroupRequest(session_token=raw.token)
    assert refused(raw.node.CreateGroup, group, timeout=TIMEOUT).fields == ("members",)


# ---- the node ----


def test_describe(raw: Raw) -> None:
    answer = raw.node.Describe(node_pb2.DescribeRequest(), timeout=TIMEOUT)
    assert answer.node and answer.server_version and not answer.draining
    assert (answer.protocol.min, answer.protocol.max) == (PROTOCOL_MIN, PROTOCOL_MAX)
    assert [device.ordinal for device in answer.devices] == list(range(len(answer.devices)))
    for device in answer.devices:
        assert device.state == node_pb2.DEVICE_STATE_SERVING and device.generation >= 1 and device.pid
        properties = device.properties
        assert properties.name and properties.total_memory and len(properties.max_grid_dim) == 3
        assert properties.warp_size == 32 and properties.memory_alignment >= 16


def test_sessions_open_renew_list_and_close(raw: Raw) -> None:
    opened = raw.opened
    assert opened.session_id and opened.session_token != opened.session_id and opened.lease_ns > 0
    assert opened.protocol == PROTOCOL_MAX and opened.devices and opened.node and opened.features
    renewed = raw.node.RenewSession(node_pb2.RenewSessionRequest(session_token=raw.token), timeout=TIMEOUT)
    assert renewed.lease_ns == opened.lease_ns

    def listed() -> dict[str, Any]:
        answer = raw.node.ListSessions(node_pb2.ListSessionsRequest(), timeout=TIMEOUT)
        return {session.session_id: session for session in answer.sessions}

    info = listed()[opened.session_id]
    assert info.client_name == "raw test" and not info.connected and 0 < info.lease_left_ns <= opened.lease_ns
    assert raw.token not in str(listed())
    raw.node.CloseSession(node_pb2.CloseSessionRequest(session_token=raw.token), timeout=TIMEOUT)
    assert opened.session_id not in listed()
    assert refused(raw.call, "Sync", c.Sync()).reason == Reason.SESSION_EXPIRED


# ---- memory ----


def test_allocate_write_read_free(raw: Raw) -> None:
    buffer = raw.mint()
    raw.call("Allocate", c.Allocate(buffer=buffer, size=10))
    raw.call("Write", c.Write(buffer=buffer, data=b"0123456789"))
    raw.call("Write", c.Write(buffer=buffer, offset=3, data=b"xyz"))
    assert raw.read(buffer, 10) == b"012xyz6789" and raw.read(buffer, 4, offset=2) == b"2xyz"
    raw.call("Free", c.Free(buffers=[buffer]))
    assert refused(raw.call, "Read", c.Read(buffer=buffer, size=1)).reason == Reason.INVALID_HANDLE


@pytest.mark.parametrize("cuts", [[5 << 20], [1, 2, 3], [1 << 20] * 3, [0, 7, 0, (3 << 20) + 1], [100] * 50])
def test_write_in_pieces_and_read_in_chunks(raw: Raw, cuts: list[int]) -> None:
    data = np.random.default_rng(5).bytes(sum(cuts))
    buffer = raw.mint()
    raw.call("Allocate", c.Allocate(buffer=buffer, size=len(data) + 8))

    def messages() -> Iterator[device_pb2.WriteRequest]:
        command = c.Write(buffer=buffer, offset=8, size=len(data))
        at = 0
        for index, size in enumerate(cuts):
            piece = data[at : at + size]
            at += size
            if index == 0:
                yield device_pb2.WriteRequest(target=raw.target(), command=command, data=piece)
            else:
                yield device_pb2.WriteRequest(data=piece)

    raw.device.Write(messages(), timeout=TIMEOUT)
    chunks = raw.call("Read", c.Read(buffer=buffer, offset=8, size=len(data)))
    assert b"".join(chunk.data for chunk in chunks) == data
    offsets = [chunk.offset for chunk in chunks]
    assert offsets == sorted(offsets) and offsets[0] == 0


@pytest.mark.parametrize("sent", [0, 99, 101, 2 << 20])
def test_a_write_of_another_length_is_refused(raw: Raw, sent: int) -> None:
    buffer = raw.buffer(bytes(200))
    request = device_pb2.WriteRequest(target=raw.target(), command=c.Write(buffer=buffer, size=100), data=bytes(sent))
    refusal = refused(raw.device.Write, iter([request]), timeout=TIMEOUT)
    assert refusal.reason == Reason.INVALID_ARGUMENT and "100" in refusal.message
    assert raw.read(buffer, 3) == bytes(3)


def test_copy_and_fill(raw: Raw) -> None:
    first, second = raw.buffer(b"abcdefgh"), raw.buffer(bytes(8))
    raw.call("Copy", c.Copy(destination=second, destination_offset=1, source=first, source_offset=4, size=3))
    assert raw.read(second, 8) == b"\0efg\0\0\0\0"
    raw.call("Fill", c.Fill(buffer=second, offset=4, size=4, pattern=b"xy"))
    assert raw.read(second, 8) == b"\0efgxyxy"


def test_memory_usage_and_cleanup(raw: Raw) -> None:
    raw.buffer(bytes(1000))
    usage = raw.call("MemoryUsage", c.MemoryUsage())
    assert (usage.allocations, usage.bytes_in_use) == (1, 1000)
    assert usage.device_total >= usage.device_free > 0
    raw.call("MemoryCleanup", c.MemoryCleanup())


# ---- streams and events ----


def test_streams_and_events(raw: Raw) -> None:
    raw.call("CreateStream", c.CreateStream(stream=4, priority=-1))
    raw.call("RecordEvent", c.RecordEvent(event=1), stream=4)
    raw.call("WaitEvent", c.WaitEvent(event=1))
    raw.buffer(bytes(100))
    raw.call("RecordEvent", c.RecordEvent(event=2))
    assert raw.call("QueryEvent", c.QueryEvent(event=2, wait=True)).done
    elapsed = raw.call("ElapsedTime", c.ElapsedTime(start=1, end=2))
    assert elapsed.done and 0 <= elapsed.elapsed_ns < 60e9
    raw.call("DestroyEvent", c.DestroyEvent(event=1))
    assert refused(raw.call, "QueryEvent", c.QueryEvent(event=1)).reason == Reason.INVALID_HANDLE
    raw.call("Sync", c.Sync(), stream=4)
    raw.call("Flush", c.Flush(), stream=4)
    raw.call("DestroyStream", c.DestroyStream(stream=4))
    assert refused(raw.call, "Sync", c.Sync(), stream=4).reason == Reason.INVALID_HANDLE


# ---- modules and launches ----


def test_modules(raw: Raw) -> None:
    module = raw.mint()
    source = COMMON + "__device__ int v = 17;\n"
    command = c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=source.encode())
    described = raw.call("LoadModule", command)
    assert "saxpy" in described.functions
    function = raw.call("GetFunction", c.GetFunction(function=2, module=module, name="saxpy"))
    assert function.name == "saxpy" and [parameter.size for parameter in function.parameters] == [4, 8, 8, 4]
    assert function.max_threads_per_block >= 32
    assert raw.call("GetGlobal", c.GetGlobal(buffer=3, module=module, name="v")).size == 4
    assert raw.read(3, 4) == (17).to_bytes(4, "little")
    missing = refused(raw.call, "GetFunction", c.GetFunction(function=9, module=module, name="no"))
    assert missing.reason == Reason.FUNCTION_NOT_FOUND
    raw.call("UnloadModule", c.UnloadModule(module=module))
    assert refused(raw.call, "GetGlobal", c.GetGlobal(buffer=4, module=module, name="v")).reason == "INVALID_HANDLE"


def test_a_compile_error_fits_the_trailers(raw: Raw) -> None:
    code = "\n".join(f"__device__ int f{i}() {{ return undeclared_{i}; }}" for i in range(300))
    command = c.LoadModule(module=1, kind=c.CODE_KIND_CUDA_CPP, code=code.encode())
    refusal = refused(raw.call, "LoadModule", command)
    assert refusal.reason == Reason.COMPILE_FAILED and "undeclared_0" in refusal.details["log"]


def test_launch_with_typed_arguments(raw: Raw) -> None:
    code = """
    extern "C" __global__ void all(double* out, float a, double b, int i, long long l, unsigned u,
                                   unsigned long long v, bool t, short s) {
        out[0] = a; out[1] = b; out[2] = i; out[3] = l; out[4] = u; out[5] = v; out[6] = t; out[7] = s;
    }
    """
    module, out = load(raw, code), raw.buffer(bytes(72))
    raw.call("GetFunction", c.GetFunction(function=9, module=module, name="all"))
    arguments = [
        pointer(out, 8), c.Argument(float32=1.5), c.Argument(float64=-2.5), c.Argument(int32=-3),
        c.Argument(int64=-4), c.Argument(uint32=5), c.Argument(uint64=6), c.Argument(boolean=True),
        c.Argument(raw=(-7 & 0xFFFF).to_bytes(2, "little")),
    ]  # fmt: skip
    raw.call("Launch", c.Launch(function=9, grid=ONE, block=ONE, arguments=arguments))
    assert list(np.frombuffer(raw.read(out, 72))) == [0, 1.5, -2.5, -3, -4, 5, 6, 1, -7]


def test_a_refused_call_leaves_nothing_on_the_stream(raw: Raw) -> None:
    function = raw.function(COMMON, "add_one")
    wrong = c.Launch(function=function, grid=ONE, block=c.Dim3(x=5000), arguments=[])
    assert refused(raw.call, "Launch", wrong).reason == Reason.LAUNCH_INVALID
    assert refused(raw.call, "Free", c.Free(buffers=[99])).reason == Reason.INVALID_HANDLE
    raw.call("Sync", c.Sync(all_streams=True))


def test_an_argument_without_a_value(raw: Raw) -> None:
    function = raw.function(COMMON, "add_one")
    launch = c.Launch(function=function, grid=ONE, block=ONE, arguments=[c.Argument(), c.Argument(int32=1)])
    assert refused(raw.call, "Launch", launch).reason == Reason.LAUNCH_INVALID


# ---- profiles, collectives, Execute and concurrent transfers ----


def test_profile(raw: Raw) -> None:
    raw.call("StartProfile", c.StartProfile(profile=3))
    raw.buffer(bytes(1 << 16))
    result = raw.call("EndProfile", c.EndProfile(profile=3))
    assert 0 < result.device_ns <= result.wall_ns * 1.01


def test_all_reduce(raw: Raw) -> None:
    devices = list(range(min(2, len(raw.opened.devices))))
    buffers = [raw.buffer(np.full(4, ordinal + 1, np.float32).tobytes(), device=ordinal) for ordinal in devices]
    calls = []
    for ordinal, buffer in zip(devices, buffers, strict=True):
        command = c.AllReduce(
            devices=devices, sequence=1, source=buffer, destination=buffer, count=4, dtype="float32",
            op=c.REDUCE_OP_SUM,
        )  # fmt: skip
        request = device_pb2.AllReduceRequest(target=raw.target(device=ordinal), command=command)
        calls.append(raw.device.AllReduce.future(request, timeout=TIMEOUT))
    for ordinal, (call, buffer) in enumerate(zip(calls, buffers, strict=True)):
        call.result()
        raw.call("SyncCollective", c.SyncCollective(), device=ordinal)
        assert (
            list(np.frombuffer(raw.read(buffer, 16, device=ordinal), np.float32)) == [3.0 if devices[1:] else 1.0] * 4
        )


def test_collective(raw: Raw) -> None:
    """Every kind of collective, by concurrent calls of all ranks; a call is answered when the operation has
    completed."""
    devices = list(range(min(2, len(raw.opened.devices))))
    n = len(devices)
    inputs = [np.arange(4, dtype=np.int32) + 10 * ordinal for ordinal in devices]
    sources = [raw.buffer(data.tobytes(), device=ordinal) for ordinal, data in zip(devices, inputs, strict=True)]
    targets = [raw.buffer(bytes(64), device=ordinal) for ordinal in devices]
    total = sum(inputs)
    expected = {
        c.COLLECTIVE_KIND_ALL_REDUCE: (4, [total] * n),
        c.COLLECTIVE_KIND_REDUCE: (4, [total, None]),
        c.COLLECTIVE_KIND_BROADCAST: (4, [inputs[0]] * n),
        c.COLLECTIVE_KIND_ALL_GATHER: (4, [np.concatenate(inputs)] * n),
        c.COLLECTIVE_KIND_REDUCE_SCATTER: (4 // n, np.split(total, n)),
        c.COLLECTIVE_KIND_ALL_TO_ALL: (4 // n, [np.concatenate([np.split(x, n)[r] for x in inputs]) for r in devices]),
        c.COLLECTIVE_KIND_GATHER: (4, [np.concatenate(inputs), None]),
        c.COLLECTIVE_KIND_SCATTER: (4 // n, np.split(inputs[0], n)),
        c.COLLECTIVE_KIND_BARRIER: (0, [None] * n),
    }
    for sequence, (kind, (count, results)) in enumerate(expected.items(), 1):
        calls = []
        for ordinal in devices:
            part = c.CollectiveOperation(kind=kind, count=count, dtype="int32", op=c.REDUCE_OP_SUM)
            if kind != c.COLLECTIVE_KIND_BARRIER:
                part.source, part.destination = sources[ordinal], targets[ordinal]
            command = c.Collective(devices=devices, sequence=sequence, operations=[part])
            request = device_pb2.CollectiveRequest(target=raw.target(device=ordinal), command=command)
            calls.append(raw.device.Collective.future(request, timeout=TIMEOUT))
        for ordinal, (call, result) in enumerate(zip(calls, results[:n], strict=True)):
            call.result()
            if result is not None:
                found = np.frombuffer(raw.read(targets[ordinal], result.nbytes, device=ordinal), np.int32)
                np.testing.assert_array_equal(found, result, c.CollectiveKind.Name(kind))


def test_calls_and_execute_share_a_session(raw: Raw) -> None:
    with raw.execute() as stream:
        stream.batch(c.Command(allocate=c.Allocate(buffer=50, size=4)))
        stream.ask(c.Command(fill=c.Fill(buffer=50, size=4, pattern=b"\5")))
        assert raw.read(50, 4) == b"\5\5\5\5"
        raw.call("Write", c.Write(buffer=50, data=b"abcd"))
        assert stream.ask(c.Command(read=c.Read(buffer=50, size=4))).read.data == b"abcd"


def test_a_session_is_attached_again_and_continues(raw: Raw, daemon: DaemonProcess) -> None:
    """Sequence numbers continue: a batch that has run is recognised when it is repeated, and a new batch is not
    mistaken for it."""
    for turn in range(1, 4):
        with raw.execute() as stream:
            assert stream.attached.last_seq == 2 * (turn - 1)
            stream.batch(c.Command(allocate=c.Allocate(buffer=turn, size=1)))
            assert stream.ask(c.Command(memory_usage=c.MemoryUsage())).memory_usage.allocations == turn
            if turn == 2:
                stream.close()


def test_a_deadline_ends_the_call_and_not_the_session(raw: Raw) -> None:
    raw.buffer(bytes(16))
    command = c.AllReduce(
        devices=[0, 1], sequence=1, source=1, destination=1, count=1, dtype="int8", op=c.REDUCE_OP_SUM,
        timeout_ns=10**9,
    )  # fmt: skip
    request = device_pb2.AllReduceRequest(target=raw.target(), command=command)
    call = raw.device.AllReduce.future(request, timeout=0.1)  # its other rank never presents its part
    ended = threading.Event()
    call.add_done_callback(lambda _: ended.set())
    assert ended.wait(20)
    wait_until(lambda: raw.call("MemoryUsage", c.MemoryUsage()).allocations == 1)
    assert raw.read(1, 16) == bytes(16)
